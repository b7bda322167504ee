#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The federation in virtual time: every single fault of an undisturbed run, every pair of faults in two rounds
# of two members, and random schedules of faults and of Byzantine members. The seeds are fixed, so that a
# failure repeats. tests/run --nightly sets NEBULA_SIM_SEED and NEBULA_SIM_SEEDS to try new schedules.
set -euo pipefail
sim=$BUILD/nebula-sim
for members in 2 3; do
    "$sim" --exhaustive single --members "$members" --rounds 3
done
"$sim" --exhaustive single --members 4 --witnesses 1 --rounds 2 --fragments 2
"$sim" --exhaustive double --members 2 --rounds 2
for members in 3 4; do # links and workers unlike each other: nobody waits for what is not slow
    "$sim" --pace --members "$members" --rounds 20 --fragments 1 --seeds 80
done
for seed in 72379 263 1286 7579927165023 14445840339261 3000097539 5000069545 10522627259013 777020848 777068861 14823735576126; do # found something once
    "$sim" --seed "$seed" >/dev/null || { "$sim" --seed "$seed"; exit 1; }
done
for seed in 888028913 888000186 18326717193559 555009279 888005756 888036815 555014284 31003398 13662595338111; do
    "$sim" --byzantine --seed "$seed" >/dev/null || { "$sim" --byzantine --seed "$seed"; exit 1; }
done
seed=${NEBULA_SIM_SEED:-1}
"$sim" --seed "$seed" --seeds "${NEBULA_SIM_SEEDS:-2000}"
"$sim" --byzantine --seed "$seed" --seeds "${NEBULA_SIM_BYZANTINE_SEEDS:-200}"
"$sim" --idle --seed "$seed" --seeds "${NEBULA_SIM_BYZANTINE_SEEDS:-300}"
"$sim" --rot --seed "$seed" --seeds "${NEBULA_SIM_BYZANTINE_SEEDS:-300}"
for seed in 123 729 1436 1824 5632; do # found something once
    "$sim" --rot --seed "$seed" >/dev/null || { "$sim" --rot --seed "$seed"; exit 1; }
done
"$sim" --terms --seed "$seed" --seeds "${NEBULA_SIM_BYZANTINE_SEEDS:-100}"
for once in 114146 122540 201342; do # found something once
    "$sim" --masked --byzantine --rounds 4 --seed "$once" >/dev/null || { "$sim" --masked --byzantine --rounds 4 --seed "$once"; exit 1; }
done
"$sim" --masked --byzantine --rounds 4 --seed "$seed" --seeds "${NEBULA_SIM_BYZANTINE_SEEDS:-200}"
"$sim" --masked --seed "$seed" --seeds 60
"$(dirname "$0")/mutants" '^(masked_majority|masked_not_noted|masked_two_updates|early_forgotten|one_copy|cursor_forgotten|incarnation_unknown)$' # all of them: by hand, some minutes
