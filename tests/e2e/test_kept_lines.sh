#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lines of metrics that beta keeps while its link is down reach metrics.jsonl, each once, if they
# arrive while no command follows the job: after --resume they are all there. `agents`: alpha's
# agent is restarted and does not run the job. `killed`: it is killed with the lines at hand.
# Otherwise only the command has ended.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
sed -i 's/steps: 60/steps: 1000/; s/every_steps: 20/every_steps: 0/; s/interval: 10/interval: 50/' \
    "$T/job.yaml"
light "$T/job.yaml"
pace 10
"$BUILD/wanlink" proxy --wan 50mbit:10ms --ctl "$T/wan.ctl" --die-with-parent \
    --listen "127.0.0.1:$((port + 2))" --connect "127.0.0.1:$port" >"$T/proxy.log" 2>&1 &
proxy=$!
clean_up() { end_now ${run:+"$run"} "$proxy"; stop_agents; }
pair
"$nebula" peer add "$("$nebula" id --home "$T/a" 2>/dev/null)" "127.0.0.1:$((port + 2))" \
    --home "$T/b" >/dev/null || fail "peer add failed"
start_alpha
start_beta
wait_for 20 "the link" link_up a beta

id=none
state() {
    "$nebula" jobs --home "$T/$1" --json |
        jq -r --arg id "$id" '.[] | select(.id == $id).state'
}
is() { [[ $(state "$1") == "$2" ]]; }
step() {
    "$nebula" status --home "$T/$1" --json |
        jq -r --arg id "$id" '[.jobs[] | select(.id == $id).step][0] // 0'
}
beyond() { (($(step "$1") > $2)); }
line() { "$BUILD/wanlink" ctl "$T/wan.ctl" "$1" >/dev/null || fail "cannot change the line"; }
delivered() {
    "$nebula" ledger verify "$T/b" --json 2>/dev/null | jq -e '(.outbox.alpha // null) == null'
}
end_agent() { # a|b SIGNAL
    kill "-$2" "${pid[$1]}"
    wait "${pid[$1]}" || true
}

for case in agents killed follower; do
    out=$T/$case
    "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$out" >"$T/$case.log" 2>&1 &
    run=$!
    wait_step "$out" 60 "$run" || fail "$case: the run did not reach step 60"
    id=$(jq -r .id "$out/job.json")
    line down
    wait_for 30 "beta is away" is_away a beta
    wait_for 30 "alpha is away" is_away b alpha
    kill -INT "$run"
    rc=0; wait "$run" || rc=$?
    run=
    [[ $rc == 3 ]] || fail "$case: the exit status after the stop is $rc, not 3"
    wait_for 30 "alpha's stop" is a stopped
    wait_for 30 "steps of beta alone" beyond b $(($(steps_done "$out") + 100))
    if [[ $case != follower ]]; then # beta's lines are in its ledger
        end_agent b TERM
        end_agent a TERM
        start_alpha
        start_beta
    fi
    line up
    wait_for 60 "the link is back" link_up a beta
    wait_for 60 "beta's stop" is b stopped
    wait_for 60 "all messages arrived" delivered
    if [[ $case == killed ]]; then
        end_agent a KILL
        start_alpha
        wait_for 60 "the link after the kill" link_up a beta
    fi
    timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$out" --resume \
        >"$T/$case.log" 2>&1 || fail "$case: the resumed run failed"
    digests_equal "$out"
    jq -s -r 'map(select(.kind == "step")) | group_by(.cluster)[] |
        "\(.[0].cluster): \(length) lines of \(map(.step) | unique | length) steps"' \
        "$out/metrics.jsonl" >"$T/steps"
    jq -s -e '
        map(select(.kind == "step")) | group_by(.cluster) | (.[0] | map(.step) | sort) as $alpha |
        length == 2 and all(.[]; (map(.step) | sort) == $alpha) and
        ($alpha | length > 95 and . == unique)' "$out/metrics.jsonl" >/dev/null ||
        fail "$case: step lines are missing or doubled: $(tr '\n' ' ' <"$T/steps")"
done
echo "lines that were kept through an outage arrive once, though nobody followed the job"
