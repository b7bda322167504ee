#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random jobs from the whole table of options. jobs.py says what must hold for each job. The seed is
# fixed, so a failure repeats. tests/run --nightly sets NEBULA_JOBS_SEED and NEBULA_JOBS_RUNS to try
# new jobs.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_pairs
mv "$T/corpus" "$T/pairs"
make_corpus
seed=${NEBULA_JOBS_SEED:-1}
mkdir "$T/jobs"
python3 "$SOURCE/tests/e2e/jobs.py" "$nebula" "$T/jobs" "$T/corpus" "$T/pairs" "$seed" \
    "${NEBULA_JOBS_RUNS:-6}" || fail "a job failed, see above"
