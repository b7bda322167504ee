#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Soft labels over a link that becomes slow and then fast again. The teacher sends fewer labels a
# position, with a reason, training continues, and later it sends more again. Killed workers
# continue with the labels that were already sent.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null || skip "there is no emulated WAN"
. "$(dirname "$0")/pairs.sh"
make_pairs
batch=3 windows=8
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20
job "$T/job.yaml" "$both" \
    "teacher: {init: $T/teacher/checkpoint/model.ckpt}, k_min: 4, k_max: 32, ahead: 8"

out=$T/run
pace 20 # a step of the student, which the slow link makes longer still
timeout 600 "$nebula" distill "$T/job.yaml" --local 2 --wan 50mbit:20ms --steps 100000 \
    --set distill.k=32 --out "$out" >"$out.log" 2>&1 &
pid=$!
labels() { { grep -s '"kind":"labels".*}$' "$out/metrics.jsonl" || true; } | jq -s "[.[] | $1]"; }
until_true() { # WHAT COMMAND...
    local what=$1 end=$((SECONDS + 180))
    shift
    while ((SECONDS < end)); do
        "$@" && return
        kill -0 "$pid" 2>/dev/null || fail "the run ended before: $what"
        sleep 0.3
    done
    fail "no success in time: $what; $(labels '.reason')"
}
k_now() {
    {
        grep -s '"kind":"labels".*}$' "$out/metrics.jsonl" || true
    } | sed -nE '$s/.*"k":([0-9]+),.*/\1/p'
}
k_below() { local k; k=$(k_now); ((${k:-32} <= $1)); }
k_above() { local k; k=$(k_now); ((${k:-0} > $1)); }
beyond() { (($(steps_done "$out") > $1)); }
until_true "a first step" wait_step "$out" 10 "$pid"
"$BUILD/wanlink" ctl "$out/wan.ctl" rate 300kbit >/dev/null
until_true "fewer labels on a slow link" k_below 8
slow=$(steps_done "$out")
until_true "training on the slow link" beyond $((slow + 10))
least=$(labels .k | jq min)
"$BUILD/wanlink" ctl "$out/wan.ctl" rate 50mbit >/dev/null
until_true "more labels on a fast link" k_above "$least"

changes=$(labels .k | jq -c .)
kill -INT "$pid"
wait "$pid" || true
jq -s -e '[.[] | select(.kind == "labels")] |
    all(.[]; (.reason | length > 20) and .k >= 4 and .k <= 32 and .student == "beta")' \
    "$out/metrics.jsonl" >/dev/null || fail "wrong labels: $(labels .)"

# Both workers are killed while k follows the link. The student has learned from what its cache
# holds, for any k: a replay without a teacher gives the same bits.
out=$T/kill
timeout 600 "$nebula" distill "$T/job.yaml" --local 2 --wan 2mbit:20ms --steps 80 \
    --set distill.cache="$T/cache" --out "$out" >"$out.log" 2>&1 &
pid=$!
kill_workers "$out" "$pid" 13-alpha 37-beta 55-alpha
wait "$pid" || fail "the run with killed workers failed"
unset NEBULA_FAULT
job "$T/replay.yaml" "$one" "cache: $T/cache"
run "$T/replay.yaml" 1 "$T/replay" --steps 80
[[ $(digest "$T/replay") == "$(digest "$out")" ]] ||
    fail "digest of the replay: $(digest "$T/replay"), with killed workers: $(digest "$out")"

# Jobs that are not allowed.
refused() { # MESSAGE OPTIONS...
    local text=$1
    shift
    rm -rf "$T/no"
    if timeout 600 "$nebula" distill "$T/job.yaml" --local 2 \
        --out "$T/no" "$@" >"$T/no.log" 2>&1; then
        fail "accepted: $*"
    fi
    grep -q "$text" "$T/no.log" || fail "no message '$text' with $*"
}
refused "is not between k_min" --set distill.k=3
refused "is not between k_min" --set distill.k_max=7
echo "k fell to $least on a slow link and rose again: $changes"
