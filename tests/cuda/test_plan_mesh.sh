#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan for a mesh with the exchange's state on the ranks' emulated devices: the memory of the
# fullest device, and the exchange's part of it, against the emulator's figures. With `auto` and too
# little memory the plan puts the state on the hosts, as the run does.
. "$(dirname "$0")/../e2e/lib.sh"
export XDG_CACHE_HOME=$T/cache
cp -r "$BUILD/rates-device" "$T/cache" # measured once, by the test cuda_rates
make_corpus
make_job "$T/job.yaml"
sed -i 's/n_layers: 2, d_model: 64/n_layers: 2, d_model: 128/; s/d_ff: 128/d_ff: 512/;
    s/seq_len: 64, batch: 4/seq_len: 16, batch: 2/; s/{name: beta,/{name: beta, device: cpu,/
    s/{name: alpha,/{name: alpha, device: cuda, precision: fp32, MESH, OUTER/' "$T/job.yaml"
mkdir "$T/bin"
cp "$BUILD/nebula" "$T/bin/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
cp "$EMULATED_NCCL" "$T/bin/libnebula_nccl.so"
nebula=$T/bin/nebula
# every process has one emulated device, of the same number; plans are told that there are as many
# as ranks
export EMU_NCCL_SHARED_DEVICE=1

near() { # NAME PREDICTED MEASURED PERCENT
    awk -v p="$2" -v m="$3" -v by="$4" 'BEGIN { d = m > p ? m - p : p - m; exit !(p > 0 &&
        100 * d <= by * m) }' ||
        fail "$1: predicted $2, measured $3: more than $4 % apart"
    echo "$1: predicted $2, measured $3"
}
job() { # NAME MESH OUTER
    sed "s/MESH/mesh: {$2}/; s/OUTER/outer_state: $3,/" "$T/job.yaml" >"$T/$1.yaml"
}
plan() {
    EMU_DEVICES=2 timeout 600 "$nebula" plan "$T/$1.yaml" --json "${@:2}" >"$T/$1.json" \
        2>"$T/plan.err" || fail "plan $1: $(cat "$T/plan.err")"
}
planned() { jq ".written.clusters[0].$2" "$T/$1.json"; }
# Prints the largest memory in use of any rank's device.
run() {
    EMU_COUNT=1 timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 --steps 2 --set \
        sync.interval=2 --set sync.codec=int8 --out "$T/$1" >"$T/$1.log" 2>&1 ||
        fail "$1: $(tail -n 5 "$T/$1.log"; cat "$T/$1"/clusters/*/jobs/*/{worker,rank-*}.log)"
    cat "$T/$1".log "$T/$1"/clusters/alpha/jobs/*/*.log |
        sed -n 's/.*emulated device.*of memory \([0-9]*\) bytes.*/\1/p' | sort -n | tail -n 1
}
EMU_DEVICES=2 "$nebula" plan --profile >"$T/here.json" 2>/dev/null || fail "no profile"
most=()
for mesh in "dp: 2" "tp: 2"; do
    name=${mesh//[^a-z0-9]/}
    for outer in host device; do
        job "$name-$outer" "$mesh" $outer
        plan "$name-$outer"
        most[${#most[@]}]=$(run "$name-$outer")
    done
    near "$mesh, the fullest device, exchange on the host" "$(planned "$name-host" device_bytes)" \
        "${most[-2]}" 5
    near "$mesh, the fullest device, exchange there" "$(planned "$name-device" device_bytes)" \
        "${most[-1]}" 5
    near "$mesh, of it the exchange's" "$(planned "$name-device" outer_bytes)" \
        "$((${most[-1]} - ${most[-2]}))" 8
    jq -e '(.written.clusters[0] | .owner_params > 0 and .scatter_s > 0) and (.written.exchange |
        .encode_s > 0 and .merge_s > .encode_s)' "$T/$name-device.json" >/dev/null ||
        fail "$mesh: $(jq '.written.clusters[0], .written.exchange' "$T/$name-device.json")"
done
job stages "pp: 2" device
plan stages
near "pp: 2, the fullest device, exchange there" "$(planned stages device_bytes)" "$(run stages)" 5
# With less device memory than that, `auto` uses the hosts.
job auto "dp: 2" auto
jq --argjson all "$(planned dp2-device device_bytes)" --argjson its \
    "$(planned dp2-device outer_bytes)" '.device.memory = ($all - $its / 2) / 0.94' "$T/here.json" \
    >"$T/less.json"
plan auto --site "alpha=$T/less.json"
jq -e '.written.clusters[0] | .fits and .outer_bytes == 0 and .gather_s > 0' "$T/auto.json" \
    >/dev/null || fail "auto, without room: $(jq .written.clusters[0] "$T/auto.json")"
plan auto
jq -e '.written.clusters[0] | .fits and .outer_bytes > 0 and .gather_s == 0' "$T/auto.json" \
    >/dev/null || fail "auto, with room: $(jq .written.clusters[0] "$T/auto.json")"
echo "plan: exchanges of meshes are reckoned with where their state is"
