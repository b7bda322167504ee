#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A worker that dies repeatedly before its first checkpoint, at varying steps, makes no progress.
# After three restarts its job fails. The second and the third restart are delayed. With a
# checkpoint in between, the job continues. A worker that cannot be started for the moment is
# started later, and a stop in the meantime works. A worker whose messages the agent refuses ends,
# and another one starts.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
sed -i -e '/name: beta/d' -e 's/scheme: federated.*/scheme: none}/' \
    -e 's/steps: 60/steps: 100000/' "$T/job.yaml"
pace 20
clean_up() { end_now ${pid:+"$pid"}; }
steps() { # each step in the order of its line
    [[ ! -e $run/metrics.jsonl ]] ||
        sed -n 's/.*"kind":"step".*"step":\([0-9]*\).*}$/\1/p' "$run/metrics.jsonl"
}
worker() { pgrep -f "nebula worker .*$run/clusters/alpha/" | head -n 1 || true; }
killed= # the worker that was last killed
kill_at() { # STEP of this worker: a restarted worker counts again
    local seen at=$1
    seen=$(steps | wc -l)
    reached() {
        ended || steps | awk -v from="$seen" -v at="$at" 'NR > from && $1 >= at { n++ }
            END { exit !n }'
    }
    within 60 reached || fail "the worker did not reach step $1"
    killed=$(worker)
    [[ $killed ]] || fail "there is no worker"
    kill -KILL "$killed"
}
dies_at() { # STEP: as above; then waits until another worker starts or the run ends
    kill_at "$1"
    another() {
        local now
        now=$(worker)
        ended || [[ $now && $now != "$killed" ]]
    }
    within 30 another || fail "no other worker starts" # the third one starts 15 s later
}
ended() { ! kill -0 "$pid" 2>/dev/null; }
begin() { # EVERY: steps between checkpoints
    run=$T/run-$1
    "$nebula" pretrain "$T/job.yaml" --local 1 --out "$run" --set log_every=1 \
        --set checkpoint.every_steps="$1" >"$run.log" 2>&1 &
    pid=$!
}

begin 0
dies_at 300
took=()
for at in 20 60 30; do # 60 is beyond 20, but not beyond 300
    from=$(date +%s)
    dies_at $at
    took+=($(($(date +%s) - from)))
done
has 'it is started again in 3 s' "$run.log" && has 'it is started again in 15 s' "$run.log" &&
    ((took[0] >= 3 && took[1] >= 15)) ||
    fail "the second and third restart are not delayed; they came after ${took[*]} s: $(grep \
        started \
        "$run.log")"
rc=0
within 20 ended || fail "the worker is restarted without end"
wait "$pid" || rc=$?
pid=
[[ $rc == 1 ]] && has 'worker ended (killed by signal 9' "$run.log" ||
    fail "the command ended with status $rc"

begin 5
for at in 30 60 90 120 150; do dies_at $at; done
sleep 1
kill -0 "$pid" 2>/dev/null || fail "the job failed despite checkpoints"
end_now "$pid"

# ---- no process can be started
none_starts() { [[ $(grep -c 'cannot be started now' "$T/$1.log") -ge $2 ]]; } # RUN TIMES
begin_scarce() { # RUN FAULTS
    run=$T/$1
    NEBULA_FAULT="$NEBULA_FAULT,$2" "$nebula" pretrain "$T/job.yaml" --local 1 --out "$run" \
        --set log_every=1 --set checkpoint.every_steps=5 >"$run.log" 2>&1 &
    pid=$!
}
begin_scarce scarce child.start@alpha:2,child.start@alpha:3
dies_at 30
within 20 none_starts scarce 2 || fail "the failed start is not reported: $(cat "$run.log")"
dies_at 30 # the worker after the failed starts
kill -0 "$pid" 2>/dev/null || fail "the job failed"
end_now "$pid"

begin_scarce stopped child.start@alpha:2,child.start@alpha:3,child.start@alpha:4
kill_at 30
# the next is 4 s later
within 20 none_starts stopped 3 || fail "the failed start is not reported: $(cat "$run.log")"
rc=0
kill -INT "$pid"
within 20 ended || fail "the command waits for a worker that does not exist"
wait "$pid" || rc=$?
pid=
[[ $rc == 3 ]] || fail "the command ended with status $rc after a stop"
before=$(steps | wc -l)
NEBULA_FAULT=worker.step:+20,child.start@alpha:1 "$nebula" pretrain "$T/job.yaml" --local 1 \
    --out "$run" --resume --set log_every=1 --set checkpoint.every_steps=5 >"$run.log" 2>&1 &
pid=$!
goes_on() { [[ $(steps | wc -l) -gt $((before + 5)) ]]; }
within 20 goes_on || fail "the resumed run does not continue"
has 'cannot be started now.*in 1 s' "$run/clusters/alpha/agent.log" &&
    (tail -n 3 "$run/clusters/alpha/agent.log" | has 'cannot be started now') ||
    fail "the first worker was not started later"
has 'its worker cannot be started now' "$run.log" ||
    fail "the command does not report the failed start: $(cat "$run.log")"
(($(steps | sed -n "$((before + 1))p") > 20)) ||
    fail "the run did not continue from its checkpoint: $(steps | tail -n 6)"
end_now "$pid"

scarce=$(printf ',child.start@alpha:%s' {2..8})
begin_scarce asked "${scarce:1}"
kill_at 30
within 20 none_starts asked 3 || fail "the failed start is not reported: $(cat "$run.log")"
"$nebula" stop --home "$run/clusters/alpha" \
    "$("$nebula" status --home "$run/clusters/alpha" --json | jq -r '.jobs[0].id')" \
    >"$T/stop.log" 2>&1 || fail "nebula stop failed: $(cat "$T/stop.log")"
within 20 ended || fail "after a stop the command waits for a worker"
pid=
grep -q 'stopped while no worker could be started' "$run.log" "$run/clusters/alpha/agent.log" ||
    fail "the reason is missing"

# ---- the agent does not know its worker any more
begin_scarce unknown worker.unknown@alpha:2
refused() {
    grep -qs 'does not take this process for its worker' "$run"/clusters/*/jobs/*/worker.log
}
within 60 refused || fail "a worker whose messages are refused continues"
before=$(steps | wc -l)
within 20 goes_on || fail "no other worker starts"
has '(heartbeat)\|(metrics)' "$run/clusters/alpha/agent.log" ||
    fail "the agent does not name the request that it refuses"
end_now "$pid"
echo "three restarts without progress, any number with progress"
