#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula stop and nebula resume between two real agents. A job that was stopped at one site
# continues at both. The submitter's site or the other one may ask, also after both agents were
# restarted. The job always remains the submitter's. A stop survives the agent. A late stop of a run
# that has been resumed since has no effect.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
sed -i 's/steps: 60/steps: 1000000/; s/every_steps: 20/every_steps: 0/;
    s/seq_len: 64/seq_len: 16/' "$T/job.yaml"
pace 5
pair
start_alpha
start_beta
wait_for 20 "the link" says a '.peers[0].up'

state() { "$nebula" jobs --home "$T/$1" --json | jq -r '.[0].state'; }
is() { [[ $(state "$1") == "$2" ]]; }
step() { "$nebula" status --home "$T/$1" --json | jq -r '.jobs[0].step // 0'; }
beyond() { (($(step "$1") > $2)); }
"$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 &
run=$!
clean_up() { end_now ${run:+"$run"}; stop_agents; }
wait_step "$T/run" 20 "$run" || fail "alpha did not reach step 20"
id=$("$nebula" jobs --home "$T/a" --json | jq -r '.[0].id')

stop_and_resume() { # STOPPED-AT RESUMED-AT [COMMAND in between]
    local at
    "$nebula" stop "${id:0:8}" --home "$T/$1" >/dev/null || fail "nebula stop at $1 failed"
    wait_for 60 "the stop at a" is a stopped
    wait_for 60 "the stop at b" is b stopped
    at=$(step b)
    ${3:-true}
    "$nebula" resume "${id:0:8}" --home "$T/$2" >/dev/null || fail "nebula resume at $2 failed"
    wait_for 60 "alpha's steps after $at" beyond a "$at"
    wait_for 60 "beta's steps after $at" beyond b "$at"
    is a running && is b running || fail "resumed at $2: $(state a) at alpha, $(state b) at beta"
    [[ $("$nebula" jobs --home "$T/a" --json | jq -r '.[0].home') == "" ]] ||
        fail "resumed at $2, alpha's job has another home"
    [[ $("$nebula" jobs --home "$T/b" --json | jq -r '.[0].home') == alpha ]] ||
        fail "resumed at $2, beta's job has another home"
}
restart() {
    kill -INT "${pid[a]}" "${pid[b]}"
    wait "${pid[a]}" "${pid[b]}" || true
    start_alpha
    start_beta
    wait_for 60 "the link after a restart" says a '.peers[0].up'
}
slow_disk() { # restarts beta with a slow disk: each write takes two seconds
    local at
    kill -TERM "${pid[b]}"
    wait "${pid[b]}" || true
    NEBULA_FAULT=$NEBULA_FAULT,fs.write:+2000 start_beta
    at=$(step a)
    wait_for 60 "steps with beta's slow disk" beyond a $((at + 20))
}
stop_and_resume b a
rc=0
wait "$run" || rc=$?
[[ $rc == 3 ]] ||
    fail "nebula pretrain ended with status $rc when its job was stopped at the other site"
run=
stop_and_resume a b restart
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the last stop failed"
wait_for 60 "the last stop at a" is a stopped
wait_for 60 "the last stop at b" is b stopped

# Beta's agent is killed while the checkpoint is written. A stopped job stays stopped, and the
# command that follows it learns that.
"$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" --resume >"$T/again.log" 2>&1 &
run=$!
wait_for 60 "beta runs" is b running
slow_disk
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the stop with a slow disk failed"
wait_for 20 "the stop at beta's agent" is b stopping
kill -KILL "${pid[b]}"
wait "${pid[b]}" || true
start_beta
wait_for 20 "beta's agent" says b '.version == 1'
is b stopped || fail "beta's agent lost the stop: $(state b)"
wait_for 60 "the stop at a" is a stopped
over() { ! kill -0 "$run" 2>/dev/null; }
within 120 over || fail "nebula pretrain waits for a report that beta cannot send"
rc=0
wait "$run" || rc=$?
run=
[[ $rc == 3 ]] ||
    fail "nebula pretrain ended with status $rc when beta's agent died during the stop"

# The stop arrives while beta's agent shuts down. Without the stop, the agent would continue the job
# at its next start.
"$nebula" resume "$id" --home "$T/a" >/dev/null || fail "resume before beta shuts down failed"
wait_for 60 "beta runs" is b running
slow_disk
kill -TERM "${pid[b]}"
sleep 0.5 # it now writes its checkpoint
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the stop of an agent that shuts down failed"
wait "${pid[b]}" || true
start_beta
wait_for 20 "beta's agent" says b '.version == 1'
wait_for 20 "the link after that" says a '.peers[0].up'
sleep 1
wait_for 30 "the stop during the shutdown of beta's agent" is b stopped

# A resume arrives while beta's worker still writes the checkpoint of a stop. Then beta's agent is
# told to end.
"$nebula" resume "$id" --home "$T/a" >/dev/null || fail "resume before a slow stop failed"
wait_for 60 "beta runs" is b running
slow_disk
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the slow stop failed"
wait_for 20 "the slow stop at beta" is b stopping
wait_for 60 "the stop at a" is a stopped
"$nebula" resume "$id" --home "$T/a" >/dev/null || fail "resume while beta stops failed"
sleep 1
# The state is read once, because it may change between two reads.
not_done() { local now; now=$(state b) && [[ $now == running || $now == stopping ]]; }
wait_for 20 "beta running or stopping" not_done
kill -TERM "${pid[b]}"
wait "${pid[b]}" || true
start_beta
wait_for 20 "beta's agent" says b '.version == 1'
wait_for 60 "the resume at beta" is b running
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the stop after the slow stop failed"
wait_for 60 "the stop at a" is a stopped
wait_for 60 "the stop at b" is b stopped

# Beta is away when alpha stops the job. Alpha is away when beta stops the job too and resumes it.
# Alpha's stop arrives after that.
"$nebula" resume "$id" --home "$T/a" >/dev/null || fail "resume before beta is away failed"
wait_for 60 "beta runs" is b running
kill -INT "${pid[b]}" # as Ctrl-C does, which also suspends the job
rc=0
wait "${pid[b]}" || rc=$?
[[ $rc == 3 ]] || fail "beta's agent ended with status $rc when its job was suspended"
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the stop while beta is away failed"
wait_for 60 "alpha alone is stopped" is a stopped
kill -INT "${pid[a]}"
wait "${pid[a]}" || true
start_beta
wait_for 20 "beta goes on by itself" is b running
"$nebula" stop "$id" --home "$T/b" >/dev/null || fail "the stop at beta failed"
wait_for 60 "beta is stopped" is b stopped
"$nebula" resume "$id" --home "$T/b" >/dev/null || fail "resume at beta failed"
at=$(step b)
start_alpha
wait_for 60 "alpha goes on too" is a running
wait_for 60 "steps of both" beyond b $((at + 100))
is a running && is b running ||
    fail "a late stop had an effect: $(state a) at alpha, $(state b) at beta"
if "$nebula" forget "$id" --home "$T/a" 2>"$T/forget.log"; then
    fail "a running job was forgotten"
fi
has 'the job is running: stop it first' "$T/forget.log" ||
    fail "the reason is missing: $(cat "$T/forget.log")"
"$nebula" stop "$id" --home "$T/a" >/dev/null || fail "the last stop of all failed"
wait_for 60 "the end at a" is a stopped
wait_for 60 "the end at b" is b stopped
"$nebula" ledger verify "$T/a" >/dev/null && "$nebula" ledger verify "$T/b" >/dev/null ||
    fail "nebula ledger verify failed"

# nebula forget removes the checkpoints and updates of a job, so the agent's disk does not fill up.
blobs() { find "$T/$1/blobs" -type f 2>/dev/null | wc -l; }
(($(blobs a) > 0)) && [[ -d $T/a/jobs/$id ]] || fail "there is nothing to forget"
"$nebula" forget "${id:0:8}" --home "$T/a" >"$T/forget.log" ||
    fail "nebula forget failed: $(cat "$T/forget.log")"
[[ $("$nebula" jobs --home "$T/a" --json) == '[]' && ! -e $T/a/jobs/$id && $(blobs a) == 0 ]] ||
    fail "something remains: $("$nebula" jobs --home "$T/a" \
        --json), $(ls "$T/a/jobs"), $(blobs a) updates"
[[ -d $T/b/jobs/$id ]] || fail "beta forgot the job too"
"$nebula" ledger verify "$T/a" >/dev/null || fail "nebula ledger verify failed after forget"

# Beta cannot continue what alpha has forgotten, and gets the reason. Beta keeps its files, and the
# job does not return to alpha.
"$nebula" resume "$id" --home "$T/b" >/dev/null || fail "resume at beta alone failed"
wait_for 60 "the reason at beta" has \
    'alpha refuses it: a job with this id has ended at agent "alpha" and was removed' "$T/b.log"
wait_for 60 "beta stops" is b stopped
[[ $("$nebula" jobs --home "$T/a" --json) == '[]' && ! -e $T/a/jobs/$id && -d $T/b/jobs/$id ]] ||
    fail "the job returned at alpha: $("$nebula" jobs --home "$T/a" --json)"
echo "a job continues at both sites, whichever site asks"
