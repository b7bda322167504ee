#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first data cluster of a job (paris), with whose list of tensors all others compare theirs, is
# revoked before it has one. The next cluster takes its place. A job that begins with the parameters
# of paris fails and says so.
source "$SOURCE/tests/e2e/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
pids=()
clean_up() { end_now "${pids[@]}"; }
port=$(ten_ports)
agent() { # NAME PORT
    timeout 600 "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$2" 2>>"$T/$1.log" &
    pids+=($!)
}
"$nebula" init --name acme --listen "127.0.0.1:$port" --link "127.0.0.1:$((port + 1))" \
    --member hub --dir "$T/hub" >/dev/null
agent hub $((port + 1))
n=2
for site in paris rome; do
    token=$("$nebula" invite "$site" --ttl 1h --dir "$T/hub")
    within 20 "$nebula" join "$token" --dir "$T/$site" --endpoint "127.0.0.1:$((port + n))" ||
        fail "$site cannot join"
    agent "$site" $((port + n))
    n=$((n + 1))
done
for pair in "hub paris" "hub rome" "rome paris"; do
    # shellcheck disable=SC2086 # two names
    within 20 link_up $pair || fail "no link: $pair"
done

declare -A run
for from in hub paris; do
    cat >"$T/$from.yaml" <<YAML
job: of-$from
steps: 30
model: attached
sync: {interval: 10, codec: int4, commit_all: false, grace_s: 2}
checkpoint: {every_steps: 10}
init: {from: $from}
clusters:
  - {name: paris, launcher: attach, threads: 1}
  - {name: hub, launcher: attach, threads: 1}
  - {name: rome, launcher: attach, threads: 1}
YAML
    timeout 600 "$nebula" pretrain "$T/$from.yaml" --home "$T/hub" --out "$T/out-$from" \
        >"$T/run-$from.log" 2>&1 &
    run[$from]=$!
    pids+=($!)
    within 30 test -e "$T/out-$from/job.json" || fail "the job of $from does not begin"
    for site in hub rome; do
        job=$(jq -r .id "$T/out-$from/job.json")
        timeout 600 "$client" "$T/$site" "$job" 1 --own 0.25 >"$T/$from-$site.log" 2>&1 &
        pids+=($!)
    done
done
listed() { [[ $(find "$T/$1/jobs" -name tensors.json | wc -l) == 2 ]]; }
within 30 listed hub && within 30 listed rome || fail "the loops have not sent their lists"
"$nebula" revoke paris --dir "$T/hub" >/dev/null
wait "${run[hub]}" || fail "the job without paris failed: $(cat "$T/run-hub.log")"
digests_equal "$T/out-hub"
rc=0; wait "${run[paris]}" || rc=$?
((rc)) || fail "a job without its first parameters succeeded"
cat "$T"/paris-hub.log "$T"/paris-rome.log >"$T/loops"
has 'begins with the parameters of cluster paris, which is no longer a member' \
    "$T/loops" || fail "no loop says what is missing"
echo "the next cluster takes the place of a revoked one"
