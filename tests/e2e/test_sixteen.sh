#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The maximum of sixteen clusters, with a link between each two. The agent and worker of one are
# killed and restarted. All end with the same parameters. Seventeen clusters are refused with one
# line.
. "$(dirname "$0")/lib.sh"
! grep -q "^NEBULA_SANITIZE:[A-Z]*=thread" "$BUILD/CMakeCache.txt" ||
    skip "sixteen clusters under ThreadSanitizer need more than two cores"
make_corpus
make_job "$T/job.yaml"
clusters "$T/job.yaml" c{01..17}
light "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
sed -i 's/windows: 16/windows: 2/' "$T/job.yaml"
rc=0
"$nebula" pretrain "$T/job.yaml" --local 16 --out "$T/more" >"$T/more.log" 2>&1 || rc=$?
[[ $rc == 2 && $(wc -l <"$T/more.log") == 1 ]] && grep -q '16' "$T/more.log" ||
    fail "seventeen clusters ended with status $rc: $(cat "$T/more.log")"

sed -i '/name: c17/d' "$T/job.yaml"
run=$T/run
pace 150
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 16 --out "$run" \
    --set steps=60 >"$run.log" 2>&1 &
pid=$!
clean_up() { end_now ${pid:+"$pid"}; }
past() { [[ $(largest "$run" round round c09 0) -ge $1 ]] || ! kill -0 "$pid" 2>/dev/null; } # ROUND
within 60 past 2 || fail "there are no rounds"
kill -KILL "$(agent_of c09)" "$(worker_of c09)" || fail "the run ended too early"
rc=0
wait "$pid" || rc=$?
pid=
[[ $rc == 0 ]] || fail "the run ended with status $rc"
digests_equal "$run"
round_digests_equal "$run"
jq -e '(.clusters | length == 16) and .rounds >= 6 and all(.clusters[]; .steps == 60)' \
    "$run/summary.json" >/dev/null || fail "wrong summary: $(cat "$run/summary.json")"
