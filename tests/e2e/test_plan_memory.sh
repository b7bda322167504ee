#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan: the predicted memory of a rank, including the copy of a checkpoint, against the peak
# of the ranks (VmHWM). Cases: one rank, data-parallel and tensor-parallel ranks, and no copy.
source "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 4, d_model: 320, n_heads: 10, n_kv_heads: 10, d_ff: 1280'
sed -i 's/every_steps: 20/every_steps: 3/; s/interval: 10/interval: 3/;
    s/batch: 4, accumulate: 1/batch: 2, accumulate: 2/; s/windows: 16/windows: 2/' "$T/job.yaml"

# NAME: the peak memory of a rank of alpha in kB, without the files of the program, which all ranks
# of a host share.
peak_of() {
    local p now top=0
    while kill -0 "$run" 2>/dev/null; do
        for p in $(pgrep -f "nebula worker .*$T/$1/clusters/alpha" || true); do
            now=$(awk '/VmHWM/ { peak = $2 } /RssFile/ { files = $2 } END { print peak - files }' \
                "/proc/$p/status" 2>/dev/null || true)
            ((${now:-0} > top)) && top=$now
        done
        sleep 0.5
    done
    echo "$top"
}
plan() {
    timeout 600 "$nebula" plan "$T/$1.yaml" --local 2 --wan 1gbit:1ms \
        --json "${@:2}" >"$T/$1.json" 2>"$T/$1.err" || fail "plan failed: $(cat "$T/$1.err")"
}
field() { jq ".written.clusters[0].$1 / 1024" "$T/$2.json"; }
try() { # NAME MESH
    local peak
    sed "s/{name: alpha,/{name: alpha, mesh: $2,/" "$T/job.yaml" >"$T/$1.yaml"
    plan "$1"
    # A rank stays for some seconds at its end, so that its peak is seen.
    NEBULA_FAULT=worker.end:+3000 timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 \
        --out "$T/$1" --steps 3 >"$T/$1.log" 2>&1 &
    run=$!
    peak=$(peak_of "$1")
    wait "$run" || fail "the run $1 failed"
    awk -v p="$(field rank_bytes "$1")" \
        -v m="$peak" 'BEGIN { exit !(m / p > 0.85 && m / p < 1.15) }' ||
        fail "$1: planned $(field rank_bytes "$1") kB a rank, measured $peak kB"
    echo "$1: planned $(field rank_bytes "$1") kB a rank, the copy of a checkpoint $(field \
        copy_bytes "$1"), measured $peak kB"
}
try one '{dp: 1}'
try dp2 '{dp: 2}'
try tp2 '{tp: 2}'
whole=$(field rank_bytes one) copy=$(field copy_bytes one)
awk -v c="$copy" -v w="$whole" 'BEGIN { exit !(c > 0.25 * w) }' ||
    fail "the copy has only $copy kB of $whole kB"
for how in checkpoint.copy=false checkpoint.every_steps=0; do
    plan one --set $how
    awk -v w="$whole" -v c="$copy" \
        -v n="$(field rank_bytes one)" 'BEGIN { d = w - c - n; exit !(d < 128 && d > -128) }' ||
        fail "$how: planned $(field rank_bytes one) kB, with a copy $whole kB"
done
echo "a rank's memory is what plan says"
