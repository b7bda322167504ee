#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the simulator: every single fault of an undisturbed run, every pair of faults in a round of
# two members (--nightly: in two rounds), and random faults and Byzantine members. The seeds are
# fixed, so that a failure repeats. tests/run --nightly also sets NEBULA_SIM_SEED and
# NEBULA_SIM_SEEDS to try new schedules.
# NEBULA_TESTS=fast (tests/run --fast) skips most of the random runs.
set -euo pipefail
sim=$BUILD/nebula-sim
seed=${NEBULA_SIM_SEED:-1}
many=${NEBULA_SIM_SEEDS:-500} some=${NEBULA_SIM_BYZANTINE_SEEDS:-75}
[[ ${NEBULA_TESTS:-} != fast ]] || many=200 some=20

# Schedules that once found a bug. Their output is shown only if they fail again.
once() { # "OPTIONS" SEED…
    local options seed
    read -ra options <<<"$1"
    shift
    for seed in "$@"; do
        "$sim" "${options[@]}" --seed "$seed" >/dev/null && continue
        "$sim" "${options[@]}" --seed "$seed"
        exit 1
    done
}
once "" 72379 263 1286 7579927165023 14445840339261 3000097539 5000069545 10522627259013 \
    777020848 777068861 14823735576126
once --byzantine 888028913 888000186 18326717193559 555009279 888005756 888036815 555014284 \
    31003398 13662595338111
once --rot 123 729 1436 1824 5632
once "--masked --byzantine --rounds 4" 114146 122540 201342

"$(dirname "$0")/mutants" --match
"$sim" --seed "$seed" --seeds "$many"
"$sim" --byzantine --seed "$seed" --seeds "$some"
"$sim" --idle --seed "$seed" --seeds "$some"
"$sim" --rot --seed "$seed" --seeds "$some"
"$sim" --terms --seed "$seed" --seeds "$((some / 2))"
"$sim" --masked --byzantine --rounds 4 --seed "$seed" --seeds "$some"
"$sim" --masked --seed "$seed" --seeds "$((some / 3))"
"$sim" --exhaustive single --members 2 --rounds 3
[[ ${NEBULA_TESTS:-} != fast ]] || exit 0

"$sim" --exhaustive single --members 3 --rounds 3
pairs=1 fragments=1
[[ ${NEBULA_TESTS:-} != nightly ]] || pairs=2 fragments=2
"$sim" --exhaustive single --members 4 --witnesses 1 --rounds 2 --fragments "$fragments"
"$sim" --exhaustive double --members 2 --rounds "$pairs"
for members in 2 3 4; do # links and workers differ in speed
    "$sim" --pace --members "$members" --rounds 20 --fragments 1 --seeds 80
done
