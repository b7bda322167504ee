#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ctrl-C while the link to the other cluster is down: the command saves, names the cluster that it
# cannot reach, and ends within seconds with status 3. After --resume both clusters end with equal
# parameters. The same holds if every process of a run is asked to end at once. Needs root and TUN
# for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
make_job "$T/job.yaml"
sed -i 's/steps: 60/steps: 1000/; s/every_steps: 20/every_steps: 0/; s/interval: 10/interval: 50/' \
    "$T/job.yaml"
light "$T/job.yaml"
pace 10
out=$T/run

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:40ms \
    --out "$out" >"$T/cut.log" 2>&1 &
pid=$!
clean_up() { end_now $pid; }
wait_step "$out" 60 "$pid" || fail "the run did not reach step 60"
"$BUILD/wanlink" ctl "$out/wan.ctl" down >/dev/null || fail "cannot cut the link"
within 30 is_away run/clusters/alpha beta || fail "the outage was not noticed"
start=$SECONDS
kill -TERM "$pid"
rc=0; wait "$pid" || rc=$?
took=$((SECONDS - start))
[[ $rc == 3 ]] || fail "the exit status after the stop is $rc, not 3"
((took < 120)) || fail "it took $took s to stop" # 5 s of patience and two checkpoints
grep -q 'beta cannot be reached' "$T/cut.log" || fail "the unreachable cluster is not named"
[[ $(summary '.clusters | length' "$out") == 1 ]] ||
    fail "the summary contains clusters that have not reported"

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$out" \
    --resume >"$T/resumed.log" 2>&1 || fail "the resumed run failed"
digests_equal "$out"
[[ $(summary '[.clusters[].steps] == [1000, 1000]' "$out") == true ]] ||
    fail "the resumed run did not make all steps"
# Reports that beta's agent could not send before its stop were in its ledger.
jq -s -e '
    map(select(.kind == "step")) | group_by(.cluster) | (.[0] | map(.step) | unique) as $alpha |
    length == 2 and all(.[]; (map(.step) | unique) == $alpha and ($alpha | length) > 95)' \
    "$out/metrics.jsonl" >/dev/null ||
    fail "step lines of the outage are missing"

# A scheduler that cancels, or a service manager that stops, signals all processes. The command's
# children may be gone before it looks.
sed 's/accumulate: 1/accumulate: 2/; s/{name: alpha,/{name: alpha, mesh: {dp: 2},/' \
    "$T/job.yaml" >"$T/all.yaml"
NEBULA_FAULT=worker.step:+50 timeout 600 "$nebula" pretrain "$T/all.yaml" --local 2 \
    --wan 50mbit:40ms --out "$T/all" --steps 200 >"$T/all.log" 2>&1 &
pid=$!
wait_step "$T/all" 60 "$pid" || fail "the run did not reach step 60"
kill -TERM $(pgrep -f "^[^ ]*(nebula|wanlink) .*$T/all") 2>/dev/null || true
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] && ! grep -q ' error ' "$T/all.log" ||
    fail "the exit status is $rc when all processes are asked to end"
for c in alpha beta; do
    ! grep -q 'before its checkpoint was complete' "$T/all/clusters/$c/agent.log" ||
        fail "the agent of $c reports an unfinished checkpoint"
    newest=$(basename "$(ls "$T/all/clusters/$c"/jobs/*/checkpoint/step-*.ckpt | tail -n 1)")
    # every_steps is 0, so this is the only checkpoint.
    ((10#${newest//[!0-9]/} > 10)) || fail "the last checkpoint of $c is $newest"
done
timeout 600 "$nebula" pretrain "$T/all.yaml" --local 2 --out "$T/all" --steps 200 \
    --resume >"$T/all2.log" 2>&1 || fail "the resumed run failed"
digests_equal "$T/all"
[[ $(summary '[.clusters[].steps] == [200, 200]' "$T/all") == true ]] ||
    fail "the resumed run did not make all steps"
echo "stopped after $took s"
