#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Five clusters with the gate profile `robust`: all members clip and trim in the same way and end
# with equal parameters. `nebula check` gives the reason why four clusters are too few.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml" "gate: robust"
sed -i '/name: alpha/d; /name: beta/d; s/steps: 60/steps: 40/; s/threads: 1/threads: 1/' \
    "$T/job.yaml"
light "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
for name in a b c d e; do
    echo "  - {name: $name, sources: [{name: gpl, weight: 1}], threads: 1}" >>"$T/job.yaml"
done
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 5 --out "$T/run" >"$T/run.log" 2>&1 ||
    fail "the run failed"
digests_equal "$T/run"

# One of five does not answer. Rounds wait, and every member reports for which cluster, until it is
# back.
run=$T/away
pace 10
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 5 --out "$run" --steps 100000 \
    --set sync.grace_s=2 >"$T/away.log" 2>&1 &
main=$!
clean_up() {
    [[ ! ${e:-} ]] || kill -CONT "$e" 2>/dev/null || true
    kill -INT "$main" 2>/dev/null || true
    wait
}
wait_step "$run" 20 "$main" a || fail "a did not reach step 20"
e=$(agent_of e)
status() { "$nebula" status --home "$run/clusters/a"; }
waits() { status | grep -q '^  rounds wait for: e$'; }
goes_on() { ! status | grep -q 'rounds wait for'; }
trained_on() { (($(steps_done "$run" a) >= alone + 30)); } # three intervals
said() { grep -q "$1" "$run/metrics.jsonl"; }
kill -STOP "$e"
within 40 waits || fail "status does not name the missing cluster: $(status)"
within 30 said 'rounds wait for e, not reachable: with the gate .* a round needs five updates' ||
    fail "metrics.jsonl does not name the missing cluster"
alone=$(steps_done "$run" a) # training must continue
within 40 trained_on || fail "a stopped training at step $alone"
kill -CONT "$e"
within 40 goes_on || fail "rounds still wait: $(status)"
within 30 said 'rounds continue' || fail "metrics.jsonl does not report that rounds continue"
kill -INT "$main"
wait "$main" || true
sed -i '/name: e,/d' "$T/job.yaml"
if "$nebula" check "$T/job.yaml" >"$T/check" 2>&1; then fail "four clusters were accepted"; fi
grep -q 'robust needs 5 clusters' "$T/check" || fail "the reason is missing: $(cat "$T/check")"
echo "five clusters agree with clipped norms and trimmed extremes, and report a missing cluster"
