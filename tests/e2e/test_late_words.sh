#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What an agent is told where it cannot act on it at once. A resume that comes while it goes down, and waits for another job's checkpoint: the job
# goes on with its next start, whether it had ended a moment ago or before that agent's start. A stop of a job that it holds: the job stays stopped,
# also when its operator's policy would let it begin. A job that is submitted again while it stops is refused: it would go on elsewhere alone. And nebula
# peer remove, of a running agent: the link is cut.
. "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
sed -i 's/steps: 60/steps: 1000000/; s/every_steps: 20/every_steps: 0/' "$T/job.yaml"
sed -e '/name: alpha/d' -e 's/scheme: federated.*/scheme: none}/' -e 's/job: e2e/job: other/' "$T/job.yaml" >"$T/other.yaml"
pace 20
pair
state() { "$nebula" jobs --home "$T/$1" --json 2>/dev/null | jq -r ".[] | select(.id == \"$job\").state"; }
is() { [[ $(state "$1") == "$2" ]]; }
steps() { [[ $("$nebula" status --home "$T/$1" --json 2>/dev/null | jq --arg n "$2" '[.jobs[]? | select(.job == $n).step] | max // 0') -ge ${3:-3} ]]; }
slow_beta() { NEBULA_FAULT=$NEBULA_FAULT,fs.write:+3000 "$nebula" agent --home "$T/b" >>"$T/b.log" 2>&1 & pid[b]=$!; } # its disk
gone() { ! kill -0 "${pid[$1]}" 2>/dev/null; }
said() { has "$1" "$T/b.log"; }
down() { # beta, which writes the other job's checkpoint meanwhile
    : >"$T/b.log"
    kill -TERM "${pid[b]}"
}
back() {
    within 60 gone b || fail "beta does not end: $(tail -n 3 "$T/b.log")"
    wait "${pid[b]}" || true
    "$1"
    within 20 link_up a beta || fail "no link"
}
resume() { # while beta goes down
    down
    "$nebula" resume "$job" --home "$T/a" >"$T/resume.log" || fail "nebula resume: $(cat "$T/resume.log")"
    within 30 said 'is resumed, but this agent is ending' || fail "beta was gone: $(tail -n 5 "$T/b.log")"
    back "$1"
    within 30 is b running || fail "the resume was lost at beta: $(state b)"
    within 60 steps b e2e || fail "no steps at beta: $(tail -n 5 "$T/b.log")"
}
both_stopped() { is a stopped && is b stopped; }
stop() { "$nebula" stop "$job" --home "$T/a" >/dev/null && within 60 both_stopped || fail "not stopped: $(state a) at alpha, $(state b) at beta"; }

start_alpha
slow_beta
within 20 link_up a beta || fail "no link"
"$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 & pid[run]=$!
"$nebula" pretrain "$T/other.yaml" --home "$T/b" --out "$T/other" >"$T/other.log" 2>&1 & pid[other]=$!
within 60 steps b e2e && within 60 steps b other || fail "the jobs do not run: $(tail -n 3 "$T/run.log" "$T/other.log")"
job=$("$nebula" jobs --home "$T/a" --json | jq -r '.[0].id')
stop
resume slow_beta # it had ended a moment ago
stop
down
back slow_beta
within 60 steps b other || fail "the other job does not go on"
is b stopped || fail "it began again: $(state b)"

other=$("$nebula" jobs --home "$T/b" --json | jq -r '.[] | select(.job == "other").id')
other_is() { [[ $("$nebula" jobs --home "$T/b" --json | jq -r ".[] | select(.id == \"$other\").state") == "$1" ]]; }
again() { timeout 60 "$nebula" pretrain "$T/other.yaml" --home "$T/b" --out "$T/other" --resume; }
"$nebula" stop "$other" --home "$T/b" >/dev/null || fail "nebula stop of the other job"
end_now "${pid[other]}" # who follows it
rc=0
again >"$T/again.log" 2>&1 || rc=$?
[[ $rc == 1 ]] && has 'still stopping' "$T/again.log" || fail "submitted while it stops: $rc, $(tail -n 3 "$T/again.log")"
within 60 other_is stopped || fail "the other job does not stop"
"$nebula" resume "$other" --home "$T/b" >/dev/null || fail "nebula resume of the other job"
within 60 steps b other || fail "the other job does not go on"
resume start_beta # and here before that agent's start

(umask 077; echo '{"format": 1, "members": ["gamma"]}' >"$T/b/policy.json")
down
back start_beta
within 20 is b held || fail "not held: $(state b)"
stop
rm "$T/b/policy.json"
down
back start_beta
within 60 steps b other || fail "the other job does not go on"
is b stopped || fail "a job that was stopped while it was held began again: $(state b)"

unlinked() { "$nebula" status --home "$T/a" --json | jq -e '.peers | length == 0' >/dev/null; }
"$nebula" peer remove beta --home "$T/a" >/dev/null || fail "peer remove"
within 30 unlinked || fail "the peer that was removed is still there: $("$nebula" status --home "$T/a")"
away() { ! link_up b alpha; }
within 20 away || fail "beta has its link still"
echo "late words count: a resume, a stop, a removal"
