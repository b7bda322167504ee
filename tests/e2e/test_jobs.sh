#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random jobs out of the whole table of options (jobs.py, which says what must hold of each), from a seed that is the tree's: what was committed
# fails again where it failed, and each commit looks elsewhere. NEBULA_JOBS_SEED is another seed, NEBULA_JOBS_RUNS makes more of them.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_pairs
mv "$T/corpus" "$T/pairs"
make_corpus
tree=$(git -C "$SOURCE" rev-parse 'HEAD^{tree}' 2>/dev/null) || tree=1 # an archive has none
seed=${NEBULA_JOBS_SEED:-$((16#${tree:0:11} + 1))}
mkdir "$T/jobs"
python3 "$SOURCE/tests/e2e/jobs.py" "$nebula" "$T/jobs" "$T/corpus" "$T/pairs" "$seed" "${NEBULA_JOBS_RUNS:-6}" || fail "a job above"
