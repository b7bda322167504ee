#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two members keep one checkpoint each, and a bit flips in one of them just before both write it.
# Nobody can tell which checkpoint is right, no member has an earlier state, and the updates are
# gone. So the run must end soon, with one clear error.
. "$(dirname "$0")/lib.sh"
digests_may_differ=1 # the test makes them differ
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/steps: 60/steps: 100000/; s/every_steps: 20/every_steps: 10, keep: 1/' "$T/job.yaml"
tiny "$T/job.yaml"
run=$T/run
start=$SECONDS rc=0
NEBULA_FAULT=worker.flip.beta:20 timeout 500 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$run" >"$run.log" 2>&1 || rc=$?
[[ $rc != 124 ]] || fail "the run still continues after $((SECONDS - start)) s"
[[ $rc == 1 ]] || fail "exit status $rc, not 1"
has 'error cluster .*no member has an earlier state' "$run.log" || fail "the reason is missing"
has 'checkpoint.keep' "$run.log" || fail "the remedy is missing"
echo "no member has an earlier state: an error after $((SECONDS - start)) s"
