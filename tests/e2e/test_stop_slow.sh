#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SIGTERM to an agent whose worker takes longer than a minute to write its checkpoint: it waits, as bytes move, says what is left, and goes on from
# that very step. What --stop-within says still bounds it, and a second SIGTERM ends it at once: then the checkpoint before counts.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e '/name: beta/d' -e 's/scheme: federated.*/scheme: none}/' -e 's/every_steps: 20/every_steps: 50000/' "$T/job.yaml"
sed -i 's/d_model: 64/d_model: 256/; s/d_ff: 128/d_ff: 512/' "$T/job.yaml" # 16 MB: as many writes
light "$T/job.yaml"
pair # an agent alone is none; beta's is never started
job=(--home "$T/a" --set steps=100000 --set log_every=1 --set data.corpus="$T/corpus")
if command -v python3 >/dev/null; then # in the service manager's place
    python3 -u -c 'import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
while True: print(s.recv(4096).decode())' "$T/notify" >"$T/notified" 2>/dev/null & manager=$!
    export NOTIFY_SOCKET=$T/notify
fi
clean_up() { [[ ! ${manager:-} ]] || kill "$manager"; stop_agents; }
run() { # MS-A-WRITE OPTION…: an agent, on a disk that slow, whose job makes steps
    local ms=$1
    shift
    NEBULA_FAULT=worker.step:+20,fs.write:+$ms "$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" "$@" >>"$T/a.log" 2>&1 & pid[a]=$!
    wait_for 60 "the agent" says a '.version == 1'
}
stop() { # SIGTERM, and how long it takes: $took
    local start=$SECONDS rc=0
    kill -TERM "${pid[a]}"
    "$@"
    wait "${pid[a]}" || rc=$?
    unset 'pid[a]'
    took=$((SECONDS - start))
    [[ $rc == 3 ]] || fail "exit status $rc after SIGTERM with a job: $(tail -n 5 "$T/a.log")"
}
step() { "$nebula" status --home "$T/a" --json | jq '.jobs[0].step'; }
ready() { says a '.jobs[0].step >= 5'; }

run 7000
timeout 300 "$nebula" pretrain "$T/job.yaml" "${job[@]}" --out "$T/run" >"$T/run.log" 2>&1 & pid[run]=$!
wait_for 60 "steps" ready
stop true
((took > 62)) || fail "the disk was not slow: $took s"
grep -q 'stops: [0-9.]* [kM]*B of its checkpoint are still to be written' "$T/a.log" || fail "nobody says how far it is: $(tail -n 5 "$T/a.log")"
saved=$(find "$T/a/jobs" -name 'step-*.ckpt' | sed 's/.*step-0*\([0-9]*\).ckpt/\1/' | sort -n | tail -n 1)
[[ $saved ]] || fail "no checkpoint: $(tail -n 5 "$T/a.log")"
[[ ! ${manager:-} ]] || grep -q '^EXTEND_TIMEOUT_USEC=[6-8][0-9]\{7\}$' "$T/notified" || fail "the service manager was not asked for time: $(sort "$T/notified" | uniq -c)"
grep -q 'suspended after a checkpoint' "$T/a.log" || fail "not suspended: $(tail -n 5 "$T/a.log")"

# Again from there; the operator's bound is less than the disk needs.
run 7000 --stop-within 4
wait_for 60 "steps beyond" says a ".jobs[0].step > $((saved + 2))"
stop true
((took < 25)) || fail "--stop-within 4: $took s"
grep -q 'not complete 4 s after the agent was asked to end' "$T/a.log" || fail "nobody says why: $(tail -n 5 "$T/a.log")"

run 7000
wait_for 60 "steps beyond" says a ".jobs[0].step > $((saved + 2))"
twice() { sleep 7; kill -TERM "${pid[a]}"; }
stop twice
((took < 30)) || fail "a second SIGTERM: $took s"
grep -q 'second request to end' "$T/a.log" || fail "nobody says why: $(tail -n 5 "$T/a.log")"
now=$(find "$T/a/jobs" -name 'step-*.ckpt' | sed 's/.*step-0*\([0-9]*\).ckpt/\1/' | sort -n | tail -n 1)
[[ $now == "$saved" ]] || fail "went on from step $now, not $saved"
echo "a checkpoint of more than a minute at a stop; bounded; twice: at once"
