#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ctrl-C while the link to the other cluster is down: the command saves, says which cluster could not be told, and ends within seconds
# with status 3; --resume then ends with both clusters on the same parameters. So where every process of a run is asked to end at once. Needs
# root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "no TUN device or not root"
make_corpus
make_job "$T/job.yaml"
sed -i 's/steps: 60/steps: 2000/; s/every_steps: 20/every_steps: 0/; s/interval: 10/interval: 50/' "$T/job.yaml"
light "$T/job.yaml"
pace 5
out=$T/run
state() { "$nebula" status --home "$out/clusters/alpha" --json 2>/dev/null | jq ".peers[0].up"; }

timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:40ms --out "$out" >"$T/cut.log" 2>&1 &
pid=$!
clean_up() { end_now $pid; }
wait_step "$out" 60 "$pid" || fail "no step 60: $(tail -n 3 "$T/cut.log")"
"$BUILD/wanlink" ctl "$out/wan.ctl" down >/dev/null || fail "cannot cut the link"
for ((i = 0; i < 200; i++)); do [[ $(state) == false ]] && break; sleep 0.1; done
((i < 200)) || fail "the outage was not noticed"
start=$SECONDS
kill -TERM "$pid"
rc=0; wait "$pid" || rc=$?
took=$((SECONDS - start))
[[ $rc == 3 ]] || fail "exit status $rc after the stop, not 3: $(tail -n 3 "$T/cut.log")"
((took < 30)) || fail "it took $took s to stop" # 5 s of patience and two checkpoints; a minute before
grep -q 'beta cannot be reached' "$T/cut.log" || fail "it does not say who is missing: $(tail -n 5 "$T/cut.log")"
[[ $(summary '.clusters | length' "$out") == 1 ]] || fail "a summary of clusters that have not reported"

timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$out" --resume >"$T/resumed.log" 2>&1 || fail "resumed run: $(tail -n 3 "$T/resumed.log")"
digests_equal "$out"
[[ $(summary '[.clusters[].steps] == [2000, 2000]' "$out") == true ]] || fail "the resumed run did not make all steps"
# What beta's agent could not say before it was stopped lay in its ledger.
jq -s -e '
    map(select(.kind == "step")) | group_by(.cluster) | (.[0] | map(.step) | unique) as $alpha |
    length == 2 and all(.[]; (map(.step) | unique) == $alpha and ($alpha | length) > 190)' "$out/metrics.jsonl" >/dev/null ||
    fail "step lines of the outage are missing"

# A scheduler that cancels, or a service manager that stops: all are told, and the command's children may be gone before it looks.
sed 's/accumulate: 1/accumulate: 2/; s/{name: alpha,/{name: alpha, mesh: {dp: 2},/' "$T/job.yaml" >"$T/all.yaml"
NEBULA_FAULT=worker.step:+25 timeout 100 "$nebula" pretrain "$T/all.yaml" --local 2 --wan 50mbit:40ms --out "$T/all" --steps 300 >"$T/all.log" 2>&1 &
pid=$!
wait_step "$T/all" 60 "$pid" || fail "no step 60: $(tail -n 3 "$T/all.log")"
kill -TERM $(pgrep -f "^[^ ]*(nebula|wanlink) .*$T/all") 2>/dev/null || true
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] && ! grep -q ' error ' "$T/all.log" || fail "exit status $rc where all are asked to end: $(tail -n 3 "$T/all.log")"
for c in alpha beta; do
    ! grep -q 'before its checkpoint was complete' "$T/all/clusters/$c/agent.log" || fail "a worker ended first: $(tail -n 3 "$T/all/clusters/$c/agent.log")"
    newest=$(basename "$(ls "$T/all/clusters/$c"/jobs/*/checkpoint/step-*.ckpt | tail -n 1)")
    ((10#${newest//[!0-9]/} > 10)) || fail "$c: its last checkpoint is $newest" # every_steps is 0: there is none but this one
done
timeout 100 "$nebula" pretrain "$T/all.yaml" --local 2 --out "$T/all" --steps 300 --resume >"$T/all2.log" 2>&1 || fail "resumed: $(tail -n 3 "$T/all2.log")"
digests_equal "$T/all"
[[ $(summary '[.clusters[].steps] == [300, 300]' "$T/all") == true ]] || fail "the resumed run did not make all steps"
echo "stopped after $took s"
