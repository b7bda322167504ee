#!/usr/bin/env bash
# Five clusters with the gate profile `robust`: all members clip and trim alike and end with the same
# parameters, and `nebula check` says why four clusters are too few.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml" "gate: robust"
sed -i '/name: alpha/d; /name: beta/d; s/steps: 60/steps: 40/; s/threads: 1/threads: 1/' "$T/job.yaml"
for name in a b c d e; do
    echo "  - {name: $name, sources: [{name: gpl, weight: 1}], threads: 1}" >>"$T/job.yaml"
done
timeout 140 "$nebula" pretrain "$T/job.yaml" --local 5 --out "$T/run" >"$T/run.log" 2>&1 || fail "run: $(tail -n 4 "$T/run.log")"
digests_equal "$T/run"
sed -i '/name: e,/d' "$T/job.yaml"
if "$nebula" check "$T/job.yaml" >"$T/check" 2>&1; then fail "four clusters were accepted"; fi
grep -q 'robust needs 5 clusters' "$T/check" || fail "no reason: $(cat "$T/check")"
echo "five clusters agree with norms clipped and extremes left out"
