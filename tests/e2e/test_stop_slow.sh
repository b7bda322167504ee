#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SIGTERM to an agent whose worker needs more than a minute to write its checkpoint. The agent waits
# as long as the write makes progress, and reports the progress. Later it continues from exactly
# this step. --stop-within limits the wait. A second SIGTERM ends the agent at once; then the
# previous checkpoint counts.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e '/name: beta/d' -e 's/scheme: federated.*/scheme: none}/' \
    -e 's/every_steps: 20/every_steps: 50000/' "$T/job.yaml"
# 16 MB, a write for each MB
sed -i 's/d_model: 64/d_model: 256/; s/d_ff: 128/d_ff: 512/' "$T/job.yaml"
light "$T/job.yaml"
pair # an agent needs a peer; beta's agent is never started
job=(--home "$T/a" --set steps=100000 --set log_every=1 --set data.corpus="$T/corpus")
if command -v python3 >/dev/null; then # replaces the service manager
    python3 -u -c 'import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
while True: print(s.recv(4096).decode())' "$T/notify" >"$T/notified" 2>/dev/null & manager=$!
    export NOTIFY_SOCKET=$T/notify
fi
clean_up() { [[ ! ${manager:-} ]] || kill "$manager"; stop_agents; }
run() { # MS-A-WRITE OPTION…: starts an agent with a slow disk
    local ms=$1
    shift
    NEBULA_FAULT=worker.step:+20,fs.write:+$ms "$nebula" agent --home "$T/a" \
        --listen "127.0.0.1:$port" "$@" >>"$T/a.log" 2>&1 &
    pid[a]=$!
    wait_for 60 "the agent" says a '.version == 1'
}
stop() { # sends SIGTERM, runs the command, and sets $took, the seconds until the end
    local start=$SECONDS rc=0
    kill -TERM "${pid[a]}"
    "$@"
    wait "${pid[a]}" || rc=$?
    unset 'pid[a]'
    took=$((SECONDS - start))
    [[ $rc == 3 ]] || fail "the exit status after SIGTERM with a job is $rc, not 3"
}
step() { "$nebula" status --home "$T/a" --json | jq '.jobs[0].step'; }
ready() { says a '.jobs[0].step >= 5'; }

run 7000
timeout 600 "$nebula" pretrain "$T/job.yaml" "${job[@]}" --out "$T/run" >"$T/run.log" 2>&1 &
pid[run]=$!
wait_for 60 "steps" ready
stop true
((took > 62)) || fail "the disk was not slow: $took s"
grep -q 'stops: [0-9.]* [kM]*B of its checkpoint are still to be written' "$T/a.log" ||
    fail "the progress is not reported"
saved=$(find "$T/a/jobs" -name 'step-*.ckpt' | sed 's/.*step-0*\([0-9]*\).ckpt/\1/' | sort -n |
    tail -n 1)
[[ $saved ]] || fail "there is no checkpoint"
[[ ! ${manager:-} ]] || grep -q '^EXTEND_TIMEOUT_USEC=[6-8][0-9]\{7\}$' "$T/notified" ||
    fail "the service manager was not asked for time: $(sort "$T/notified" | uniq -c)"
grep -q 'suspended after a checkpoint' "$T/a.log" || fail "the job was not suspended"

# The job continues from that step. Now the operator's limit is shorter than the write needs.
run 7000 --stop-within 4
wait_for 60 "steps beyond" says a ".jobs[0].step > $((saved + 2))"
stop true
((took < 60)) || fail "--stop-within 4 took $took s"
grep -q 'not complete 4 s after the agent was asked to end' "$T/a.log" ||
    fail "the reason is missing"

run 7000
wait_for 60 "steps beyond" says a ".jobs[0].step > $((saved + 2))"
twice() { sleep 7; kill -TERM "${pid[a]}"; }
stop twice
((took < 60)) || fail "after a second SIGTERM the agent took $took s"
grep -q 'second request to end' "$T/a.log" || fail "the reason is missing"
now=$(find "$T/a/jobs" -name 'step-*.ckpt' | sed 's/.*step-0*\([0-9]*\).ckpt/\1/' | sort -n |
    tail -n 1)
[[ $now == "$saved" ]] || fail "the checkpoint is of step $now, not $saved"
echo "at a stop, an agent waits for a checkpoint of more than a minute, within its limit"
