#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two members, one generation of checkpoints, and a bit that falls over in one of them right before both write theirs: nobody can say who
# is right, nobody has a state of before, and the updates up to there are gone. That ends in one clear error, soon.
. "$(dirname "$0")/lib.sh"
digests_may_differ=1 # that is what it is about
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/steps: 60/steps: 100000/; s/every_steps: 20/every_steps: 10, keep: 1/' "$T/job.yaml"
run=$T/run
start=$SECONDS rc=0
NEBULA_FAULT=worker.flip.beta:20 timeout 150 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$run" >"$run.log" 2>&1 || rc=$?
[[ $rc != 124 ]] || fail "still going after $((SECONDS - start)) s: $(tail -n 4 "$run.log")"
[[ $rc == 1 ]] || fail "exit status $rc, not 1: $(tail -n 4 "$run.log")"
has 'error cluster .*no member has an earlier state' "$run.log" || fail "no reason: $(tail -n 5 "$run.log")"
has 'checkpoint.keep' "$run.log" || fail "no remedy: $(tail -n 5 "$run.log")"
echo "both in doubt, nothing to go back to: an error after $((SECONDS - start)) s"
