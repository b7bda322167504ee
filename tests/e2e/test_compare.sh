#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# configs/compare without its hours of training: the cells of a default run, their steps by size,
# and that nebula accepts each job.
. "$(dirname "$0")/lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
compare() { "$root/configs/compare" --out "$T/out" "$@"; }

[[ $(compare --list | wc -l) == 26 ]] ||
    fail "one seed of both sizes must have 26 cells: $(compare --list)"
compare --list --seeds "1 2 3" >"$T/list" || fail "compare --list failed"
[[ $(wc -l <"$T/list") == 78 && $(cut -d: -f1 "$T/list" | sort -u | wc -l) == 78 ]] ||
    fail "a seed and size must have thirteen cells: $(cat "$T/list")"
[[ $(grep -c -- '-tiny-.* --steps 3000 ' "$T/list") == 39 &&
    $(grep -c -- '-small-.* --steps 1500 ' "$T/list") == 39 ]] ||
    fail "wrong steps by size: $(cat "$T/list")"
[[ $(compare --list --steps 7 --seeds 2 | grep -c -- '-2: .* --steps 7 ') == 26 ]] ||
    fail "--steps does not apply to both sizes"
[[ ! -e $T/out ]] || fail "--list left files behind"
if compare --list --sizes huge >"$T/huge.log" 2>&1; then fail "an unknown size was accepted"; fi
grep -q 'there are tiny and small' "$T/huge.log" || fail "$(cat "$T/huge.log")"

exchanges() { # CELL: the number of exchanges that nebula check counts
    local words args=()
    read -ra words <<<"$(sed -n "s/^$1: nebula pretrain \(.*\) --local 2/\1/p" "$T/list")"
    set -- "${words[@]}"
    while (($#)); do
        case $1 in
        --steps | --seed) args+=(--set "${1#--}=$2"); shift 2 ;;
        *) args+=("$1"); shift ;;
        esac
    done
    (cd "$root" && "$nebula" check "${args[@]}" --json) |
        jq 'if .ok then .exchanges else "refused" end'
}
is() { [[ $(exchanges "$1") == "$2" ]] || fail "$1: $(exchanges "$1") exchanges"; }
is same-tiny-federated-1 1000 && is split-tiny-federated-3 1000 && is same-small-federated-1 500 &&
    is split-small-federated-3 500
is same-tiny-thousand-1 500 && is split-small-thousand-3 250
is same-tiny-dense-1 96 && is split-tiny-dense-3 96 && is same-small-dense-1 52 &&
    is split-small-dense-3 52

# A finished cell is left out. A cell with another number of steps does not count as finished.
done_cell() { # NAME STEPS
    mkdir -p "$T/out/$1"
    echo '{}' >"$T/out/$1/summary.json"
    echo "{\"spec\": {\"steps\": $2}}" >"$T/out/$1/job.json"
}
done_cell same-small-federated-2 1500
compare --list --seeds "1 2 3" >"$T/list" || fail "compare --list failed with a finished cell"
[[ $(wc -l <"$T/list") == 78 &&
    $(grep finished "$T/list") == "same-small-federated-2: finished" ]] ||
    fail "wrong finished cells: $(grep finished "$T/list")"
done_cell same-tiny-federated-1 720
if compare --list >"$T/length.log" 2>&1; then fail "cells of different lengths were mixed"; fi
grep -q 'same-tiny-federated-1 made another number of steps than 3000' "$T/length.log" ||
    fail "$(tail -n 2 "$T/length.log")"

# The table has means, paired differences, and a mark where noise alone may put a figure above its
# aim.
result() { # CELL LOSS
    mkdir -p "$T/table/$1"
    jq -n --argjson loss "$2" '{clusters: [{eval_loss: $loss}, {eval_loss: $loss}],
        reduction_vs_sync_fp32: 300}' >"$T/table/$1/summary.json"
}
for seed in 1 2 3; do
    result same-small-synchronous-2e-3-$seed 3.7$seed &&
        result same-small-synchronous-3e-3-$seed 3.9
    result same-small-federated-$seed \
        "$(awk "BEGIN { print 3.7$seed + ($seed == 1 ? 0.2 : -0.01) }")" &&
        result same-small-dense-$seed "3.8$seed"
    result split-small-synchronous-2e-3-$seed 3.7$seed &&
        result split-small-federated-$seed "$(awk "BEGIN { print 3.7$seed + 0.02 }")"
    result same-small-thousand-$seed "$(awk "BEGIN { print 3.7$seed + 0.06 }")" &&
        result split-small-thousand-$seed "$(awk "BEGIN { print 3.7$seed + 0.06 }")"
done
"$root/configs/compare" --out "$T/table" --table >"$T/table.md" || fail "compare --table failed"
row() { # SPLIT CELL REST
    local line="| $1 | small | $2 | synchronous-2e-3 | $3 |"
    grep -qF "$line" "$T/table.md" || fail "the table has no line '$line': $(cat "$T/table.md")"
}
row same federated '+0.0600 | 0.0700 | 3 | +0.00 | above by noise: 0.9 errors'
row same dense '+0.1000 | 0.0000 | 3 | +0.00 | above'
row same thousand '+0.0600 | 0.0000 | 3 | +0.05 | above'
row split thousand '+0.0600 | 0.0000 | 3 | +0.08 | met'
row split federated '+0.0200 | 0.0000 | 3 | +0.03 | met'
echo "compare lists its cells, and each is a job"
