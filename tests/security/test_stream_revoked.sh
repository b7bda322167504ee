#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The teacher (mode distill) and the discriminator (mode rtd) of two jobs are revoked. At the
# remaining site each job ends after a checkpoint, the command soon gives the reason, and the job
# can be resumed. Nobody waits for ever for a batch, or for room for one.
source "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/e2e/pairs.sh"
pids=()
declare -A follows
clean_up() {
    # Each would wait a minute for reports of agents that end too.
    end_now "${follows[@]}"
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
port=$(ten_ports)
agent() { # NAME PORT
    timeout 600 "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$2" 2>>"$T/$1.log" &
    pids+=($!)
}
follow() { # OUT JOB
    timeout 600 "$nebula" pretrain "$2" --home "$T/hub" --out "$T/$1" --steps 1000000 --set \
        checkpoint.every_steps=100000 >"$T/$1.log" 2>&1 &
    follows[$1]=$!
}

make_pairs
pace 20
"$nebula" init --name acme --listen "127.0.0.1:$port" --link "127.0.0.1:$((port + 1))" --member \
    hub --dir "$T/hub" >/dev/null
agent hub $((port + 1))
n=2
for site in paris rome; do
    token=$("$nebula" invite "$site" --ttl 1h --dir "$T/hub")
    within 20 "$nebula" join "$token" --dir "$T/$site" --endpoint "127.0.0.1:$((port + n))" ||
        fail "$site cannot join"
    agent "$site" $((port + n))
    n=$((n + 1))
done
for site in paris rome; do within 20 link_up hub "$site" || fail "no link: hub $site"; done

job "$T/distill.yaml" \
    "[{name: rome, role: teacher, threads: 1}, {name: hub, role: student, threads: 1}]" \
    "teacher: {learn: true}"
generator="{n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}"
sides="{name: hub, role: generator, threads: 1}, {name: paris, role: discriminator, threads: 1}"
sed -e "s/^job: .*/job: rtd/; s/^mode: .*/mode: rtd/" \
    -e "s/^distill: .*/rtd: {generator: $generator}/" -e "s/^clusters: .*/clusters: [$sides]/" \
    "$T/distill.yaml" >"$T/rtd.yaml"
follow rtd "$T/rtd.yaml"
follow distill "$T/distill.yaml"
wait_step "$T/rtd" 3 "${follows[rtd]}" paris || fail "rtd does not run: $(tail -n 3 "$T/rtd.log")"
wait_step "$T/distill" 3 "${follows[distill]}" hub ||
    fail "distill does not run: $(tail -n 3 "$T/distill.log")"

ends() { # OUT MEMBER: the job ends after the revocation of MEMBER
    local rc=0 id last few
    over() { ! kill -0 "${follows[$1]}" 2>/dev/null; }
    within 30 over "$1" || fail "$1: the command does not end: $(tail -n 3 "$T/$1.log")"
    wait "${follows[$1]}" || rc=$?
    [[ $rc == 1 ]] || fail "$1: exit status $rc, expected 1: $(tail -n 3 "$T/$1.log")"
    few="too few of its members are left on the list"
    grep -q "the agent ended the job after a checkpoint: $few, without $2; .*--resume" \
        "$T/$1.log" ||
        fail "$1: the command does not give the reason: $(tail -n 3 "$T/$1.log")"
    grep -q "job $1 stops: $few" "$T/hub.log" ||
        fail "$1: the agent's log does not give the reason: $(tail -n 3 "$T/hub.log")"
    id_of() {
        id=$("$nebula" jobs --home "$T/hub" --json |
            jq -r --arg n "$1" '.[] | select(.job == $n and .state == "stopped") | .id') &&
            [[ $id ]]
    }
    within 30 id_of "$1" ||
        fail "$1 is not 'stopped', so it cannot be resumed: $("$nebula" jobs --home "$T/hub")"
    [[ -s $T/$1/job.json && -s $T/$1/summary.json ]] ||
        fail "$1: job.json or summary.json is missing"
    last=$(basename "$(compgen -G "$T/hub/jobs/$id/checkpoint/step-*.ckpt" | tail -n 1)" .ckpt)
    [[ $last && 10#${last#step-} -ge 3 ]] ||
        fail "$1: expected a checkpoint at step 3 or later, made at the end; found '$last'"
}
"$nebula" revoke paris --dir "$T/hub" >/dev/null
ends rtd paris
kill -0 "${follows[distill]}" ||
    fail "the revocation of paris ended a job without paris: $(tail -n 3 "$T/distill.log")"
"$nebula" revoke rome --dir "$T/hub" >/dev/null
ends distill rome
echo "a stream without its other end ends its job after a checkpoint, and says so"
