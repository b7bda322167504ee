#!/usr/bin/env bash
# A worker that dies again and again before its first checkpoint, now at one step, now at another, makes no progress: after three restarts its job has
# failed. With a checkpoint in between it goes on.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
sed -i -e '/name: beta/d' -e 's/scheme: federated.*/scheme: none}/' -e 's/steps: 60/steps: 100000/' "$T/job.yaml"
pace 20
clean_up() { end_now ${pid:+"$pid"}; }
lines() { [[ ! -e $run/metrics.jsonl ]] || jq -R 'fromjson? | select(.kind == "'"$1"'").step' "$run/metrics.jsonl"; }
worker() { pgrep -f "nebula worker .*$run/clusters/alpha/" | head -n 1 || true; }
dies_at() { # STEP of this life: later ones begin again
    local seen i w now
    seen=$(lines step | wc -l)
    for ((i = 0; i < 400; i++)); do
        [[ $(lines step | tail -n +$((seen + 1)) | sort -n | tail -n 1) -ge $1 ]] && break
        kill -0 "$pid" 2>/dev/null || fail "the run ended: $(tail -n 3 "$run.log")"
        sleep 0.05
    done
    w=$(worker)
    [[ $w ]] || fail "no worker: $(tail -n 3 "$run.log")"
    kill -KILL "$w"
    for ((i = 0; i < 200; i++)); do
        now=$(worker)
        [[ $now == "$w" || ! $now ]] && kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.05
    done
    fail "no other worker begins"
}
ended() { ! kill -0 "$pid" 2>/dev/null; }
begin() { # EVERY: steps between checkpoints
    run=$T/run-$1
    "$nebula" pretrain "$T/job.yaml" --local 1 --out "$run" --set log_every=1 --set checkpoint.every_steps="$1" >"$run.log" 2>&1 &
    pid=$!
}

begin 0
dies_at 150
for at in 20 60 30; do dies_at $at; done # 60 is farther than 20, and not than 150
rc=0
within 20 ended || fail "it begins again and again: $(tail -n 3 "$run.log")"
wait "$pid" || rc=$?
pid=
[[ $rc == 1 ]] && has 'worker ended (killed by signal 9' "$run.log" || fail "status $rc: $(tail -n 3 "$run.log")"

begin 5
for at in 30 60 90 120 150; do dies_at $at; done
sleep 1
kill -0 "$pid" 2>/dev/null || fail "the job has failed with checkpoints in between: $(tail -n 3 "$run.log")"
echo "three restarts without progress, and no end of them with it"
