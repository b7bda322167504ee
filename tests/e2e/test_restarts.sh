#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A worker that dies again and again before its first checkpoint, now at one step, now at another, makes no progress: after three restarts, the second
# and third of them later, its job has failed. With a checkpoint in between it goes on. One that cannot be started, as nothing can be for a moment, is
# started later, and a stop meanwhile is one.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
sed -i -e '/name: beta/d' -e 's/scheme: federated.*/scheme: none}/' \
    -e 's/steps: 60/steps: 100000/' "$T/job.yaml"
pace 20
clean_up() { end_now ${pid:+"$pid"}; }
lines() {
    [[ ! -e $run/metrics.jsonl ]] ||
        jq -R 'fromjson? | select(.kind == "'"$1"'").step' "$run/metrics.jsonl"
}
worker() { pgrep -f "nebula worker .*$run/clusters/alpha/" | head -n 1 || true; }
killed= # the worker that was killed last
kill_at() { # STEP of this life: later ones begin again
    local seen i
    seen=$(lines step | wc -l)
    for ((i = 0; i < 400; i++)); do
        [[ $(lines step | tail -n +$((seen + 1)) | sort -n | tail -n 1) -ge $1 ]] && break
        kill -0 "$pid" 2>/dev/null || fail "the run ended"
        sleep 0.05
    done
    ((i < 400)) || fail "no step $1"
    killed=$(worker)
    [[ $killed ]] || fail "no worker"
    kill -KILL "$killed"
}
dies_at() { # STEP: as above, and another one begins, or the run ends
    local i now
    kill_at "$1"
    for ((i = 0; i < 600; i++)); do # the third begins 15 s later
        now=$(worker)
        [[ $now == "$killed" || ! $now ]] && kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.05
    done
    fail "no other worker begins"
}
ended() { ! kill -0 "$pid" 2>/dev/null; }
begin() { # EVERY: steps between checkpoints
    run=$T/run-$1
    "$nebula" pretrain "$T/job.yaml" --local 1 --out "$run" --set log_every=1 \
        --set checkpoint.every_steps="$1" >"$run.log" 2>&1 &
    pid=$!
}

begin 0
dies_at 150
took=()
for at in 20 60 30; do # 60 is farther than 20, and not than 150
    from=$(date +%s)
    dies_at $at
    took+=($(($(date +%s) - from)))
done
has 'it is started again in 3 s' "$run.log" && has 'it is started again in 15 s' "$run.log" &&
    ((took[0] >= 3 && took[1] >= 15)) ||
    fail "the second and third were to be later, came after ${took[*]} s: $(grep started \
        "$run.log")"
rc=0
within 20 ended || fail "it begins again and again"
wait "$pid" || rc=$?
pid=
[[ $rc == 1 ]] && has 'worker ended (killed by signal 9' "$run.log" || fail "status $rc"

begin 5
for at in 30 60 90 120 150; do dies_at $at; done
sleep 1
kill -0 "$pid" 2>/dev/null || fail "the job has failed with checkpoints in between"
end_now "$pid"

# ---- nothing can be started
none_starts() { [[ $(grep -c 'cannot be started now' "$T/$1.log") -ge $2 ]]; } # RUN TIMES
begin_scarce() { # RUN FAULTS
    run=$T/$1
    NEBULA_FAULT="$NEBULA_FAULT,$2" "$nebula" pretrain "$T/job.yaml" --local 1 --out "$run" \
        --set log_every=1 --set checkpoint.every_steps=5 >"$run.log" 2>&1 &
    pid=$!
}
begin_scarce scarce child.start@alpha:2,child.start@alpha:3
dies_at 30
within 20 none_starts scarce 2 || fail "no word of it: $(cat "$run.log")"
dies_at 30 # of the one after that
kill -0 "$pid" 2>/dev/null || fail "the job has failed"
end_now "$pid"

begin_scarce stopped child.start@alpha:2,child.start@alpha:3,child.start@alpha:4
kill_at 30
within 20 none_starts stopped 3 || fail "no word of it: $(cat "$run.log")" # the next is 4 s later
rc=0
kill -INT "$pid"
within 20 ended || fail "it waits for a worker that is not there"
wait "$pid" || rc=$?
pid=
[[ $rc == 3 ]] || fail "stopped while none could be started, status $rc"
before=$(lines step | wc -l)
NEBULA_FAULT=worker.step:+20,child.start@alpha:1 "$nebula" pretrain "$T/job.yaml" --local 1 \
    --out "$run" --resume --set log_every=1 --set checkpoint.every_steps=5 >"$run.log" 2>&1 &
pid=$!
goes_on() { [[ $(lines step | wc -l) -gt $((before + 5)) ]]; }
within 20 goes_on || fail "the run after that"
has 'cannot be started now.*in 1 s' "$run/clusters/alpha/agent.log" &&
    (tail -n 3 "$run/clusters/alpha/agent.log" | has 'cannot be started now') ||
    fail "its first worker was to be started later"
has 'its worker cannot be started now' "$run.log" ||
    fail "the command has not heard of it: $(cat "$run.log")"
(($(lines step | sed -n "$((before + 1))p") > 20)) ||
    fail "it did not go on from its checkpoint: $(lines step | tail -n 6)"
end_now "$pid"

scarce=$(printf ',child.start@alpha:%s' {2..8})
begin_scarce asked "${scarce:1}"
kill_at 30
within 20 none_starts asked 3 || fail "no word of it: $(cat "$run.log")"
"$nebula" stop --home "$run/clusters/alpha" \
    "$("$nebula" status --home "$run/clusters/alpha" --json | jq -r '.jobs[0].id')" \
    >"$T/stop.log" 2>&1 || fail "stop: $(cat "$T/stop.log")"
within 20 ended || fail "told to stop, it waits for a worker"
pid=
grep -q 'stopped while no worker could be started' "$run.log" "$run/clusters/alpha/agent.log" ||
    fail "not said"
echo "three restarts without progress, and no end of them with it"
