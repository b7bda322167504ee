#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Commands that reach an agent when it cannot act at once. A resume arrives while the agent shuts
# down and waits for the checkpoint of another job: the job continues at the next start. A stop
# arrives for a job that the agent holds: the job stays stopped, even if the operator's policy would
# allow it to start. A submit of a job that is still stopping is refused, because the job would
# continue elsewhere alone. And nebula peer remove on a running agent cuts the link.
. "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
tiny "$T/job.yaml"
sed -i 's/steps: 60/steps: 1000000/; s/every_steps: 20/every_steps: 0/' "$T/job.yaml"
sed -e '/name: alpha/d' -e 's/scheme: federated.*/scheme: none}/' -e 's/job: e2e/job: other/' \
    "$T/job.yaml" >"$T/other.yaml"
pace 20
pair
# Without jq, because tests ask often.
state() { state_of "$1" "$job"; }
state_of() { # HOME ID
    local jobs
    jobs=$("$nebula" jobs --home "$T/$1" --json 2>/dev/null) || return 0
    [[ ! $jobs =~ \"id\":\"$2\"[^}]*\"state\":\"([a-z]*)\" ]] || echo "${BASH_REMATCH[1]}"
}
is() { [[ $(state "$1") == "$2" ]]; }
steps() {
    [[ $("$nebula" status --home "$T/$1" --json 2>/dev/null |
        jq --arg n "$2" '[.jobs[]? | select(.job == $n).step] | max // 0') -ge ${3:-3} ]]
}
# The worker of the other job stands still, so that what waits for its checkpoint waits on.
clean_up() { go_on; stop_agents; }
halted=
halt() {
    halted=$(pgrep -o -f "nebula worker .*$T/b/.*$other") && kill -STOP "$halted" ||
        fail "the other job has no worker"
}
go_on() {
    [[ ! $halted ]] || kill -CONT "$halted" 2>/dev/null || true
    halted=
}
gone() { ! kill -0 "${pid[$1]}" 2>/dev/null; }
said() { has "$1" "$T/b.log"; }
down() { # ends beta, which first writes the checkpoint of the other job
    : >"$T/b.log"
    kill -TERM "${pid[b]}"
}
back() {
    within 60 gone b || fail "beta does not end"
    wait "${pid[b]}" || true
    start_beta
    within 20 link_up a beta || fail "alpha has no link to beta"
}
resume() { # while beta shuts down
    halt
    down
    "$nebula" resume "$job" --home "$T/a" >"$T/resume.log" ||
        fail "nebula resume failed: $(cat "$T/resume.log")"
    within 30 said 'is resumed, but this agent is ending' || fail "beta had already ended"
    go_on
    back
    within 30 is b running || fail "beta lost the resume: $(state b)"
    within 60 steps b e2e || fail "beta makes no steps"
}
both_stopped() { is a stopped && is b stopped; }
stop() {
    "$nebula" stop "$job" --home "$T/a" >/dev/null && within 60 both_stopped ||
        fail "the job is not stopped: $(state a) at alpha, $(state b) at beta"
}

start_alpha
start_beta
within 20 link_up a beta || fail "alpha has no link to beta"
"$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 & pid[run]=$!
"$nebula" pretrain "$T/other.yaml" --home "$T/b" --out "$T/other" >"$T/other.log" 2>&1 &
pid[other]=$!
within 60 steps b e2e && within 60 steps b other || fail "the jobs do not run"
job=$("$nebula" jobs --home "$T/a" --json | jq -r '.[0].id')
other=$("$nebula" jobs --home "$T/b" --json | jq -r '.[] | select(.job == "other").id')
stop
resume # the job had just ended
stop
down
back
within 60 steps b other || fail "the other job does not continue"
is b stopped || fail "the job started again at beta: $(state b)"

other_is() { [[ $(state_of b "$other") == "$1" ]]; }
again() { timeout 600 "$nebula" pretrain "$T/other.yaml" --home "$T/b" --out "$T/other" --resume; }
halt
"$nebula" stop "$other" --home "$T/b" >/dev/null || fail "nebula stop of the other job failed"
end_now "${pid[other]}" # the command that follows it
rc=0
again >"$T/again.log" 2>&1 || rc=$?
[[ $rc == 1 ]] && has 'still stopping' "$T/again.log" ||
    fail "a submit while the job stops ended with status $rc"
go_on
within 60 other_is stopped || fail "the other job does not stop"
"$nebula" resume "$other" --home "$T/b" >/dev/null || fail "nebula resume of the other job failed"
within 60 steps b other || fail "the other job does not continue"
resume # the job had ended before this agent started

(umask 077; echo '{"format": 1, "members": ["gamma"]}' >"$T/b/policy.json")
down
back
within 20 is b held || fail "beta does not hold the job: $(state b)"
stop
rm "$T/b/policy.json"
down
back
within 60 steps b other || fail "the other job does not continue"
is b stopped || fail "a job that was stopped while it was held started again: $(state b)"

unlinked() { "$nebula" status --home "$T/a" --json | jq -e '.peers | length == 0' >/dev/null; }
"$nebula" peer remove beta --home "$T/a" >/dev/null || fail "nebula peer remove failed"
within 30 unlinked ||
    fail "the removed peer is still there: $("$nebula" status --home "$T/a")"
away() { ! link_up b alpha; }
within 20 away || fail "beta still has its link"
echo "late commands count: a resume, a stop, a removal"
