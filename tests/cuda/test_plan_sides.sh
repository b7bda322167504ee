#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan for the sides of rtd and distill on emulated devices: the device memory of each side,
# including a frozen teacher and students of one model, against the emulator's figures; and the
# ratio of the sides' step times.
. "$(dirname "$0")/../e2e/lib.sh"
. "$(dirname "$0")/../e2e/pairs.sh"
export XDG_CACHE_HOME=$T/cache
cp -r "$BUILD/rates-device" "$T/cache" # measured once, by the test cuda_rates
export EMU_DEVICES=2                  # as there
steps=2 # memory is in use from the first one on
[[ ${NEBULA_TESTS:-} != nightly ]] || steps=8
mkdir "$T/bin" # the program looks for its objects beside itself
cp "$BUILD/nebula" "$T/bin/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
nebula=$T/bin/nebula
make_corpus
mv "$T/corpus" "$T/text-corpus"
make_pairs

near() { # NAME PREDICTED MEASURED PERCENT
    awk -v p="$2" -v m="$3" -v by="$4" 'BEGIN { d = m > p ? m - p : p - m; exit !(p > 0 &&
        100 * d <= by * m) }' ||
        fail "$1: predicted $2, measured $3: more than $4 % apart"
    echo "$1: predicted $2, measured $3"
}
plan() {
    timeout 600 "$nebula" plan "$T/$1.yaml" --json >"$T/$1.json" 2>"$T/plan.err" ||
        fail "plan $1: $(cat "$T/plan.err")"
}
train() { # NAME CLUSTERS
    EMU_COUNT=1 timeout 600 "$nebula" pretrain "$T/$1.yaml" --local "$2" --steps "$steps" --out \
        "$T/$1" >"$T/$1.log" 2>&1 || fail "$1: $(tail -n 5 "$T/$1.log")"
}
# NAME CLUSTERS…: the memory that each cluster's device allocated, less the workspace, which is most
# of it here
check() {
    local name=$1 c most of work
    shift
    for c in "$@"; do
        most=$(cat "$T/$name/clusters/$c/jobs"/*/*.log |
            sed -n 's/.*emulated device.*of memory \([0-9]*\) bytes.*/\1/p' | sort -n | tail -n 1)
        of=".written.clusters[] | select(.name == \"$c\")"
        work=$(jq "$of | .workspace_bytes" "$T/$name.json")
        near "$name, $c's device" "$(jq "$of | .device_bytes - .workspace_bytes" "$T/$name.json")" \
            "$((${most:-0} - work))" 2
    done
}
compare() { # NAME CLUSTERS…
    plan "$1"
    train "$1" $(($# - 1))
    check "$@"
}

cat >"$T/rtd.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: $steps
model: {n_layers: 4, d_model: 64, n_heads: 2, d_ff: 256}
data: {corpus: $T/text-corpus, seq_len: 64, batch: 8, accumulate: 1}
optim: {lr: 0.003, warmup: 4}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}}
eval: {windows: 2}
clusters:
  - {name: alpha, role: generator, device: cuda, precision: fp32, threads: 1}
  - {name: beta, role: discriminator, device: cuda, threads: 1}
YAML
compare rtd alpha beta
ratio() { # NAME: seconds a step, of beta to alpha; only at night, as they depend on the load
    [[ ${NEBULA_TESTS:-} == nightly ]] || return 0
    awk -v p="$(jq '.written.clusters | .[1].step_s / .[0].step_s' "$T/$1.json")" -v \
        m="$(summary '[.clusters[] | .train_s / .steps] | .[1] / .[0]' "$T/$1")" 'BEGIN {
        printf "'"$1"', seconds a step, beta to alpha: predicted %.3g, ", p
        printf "measured %.3g\n", m; exit !(p > 0 && m / p > 0.4 && m / p < 2.5) }' ||
        fail "$1: seconds of the sides"
}
ratio rtd

sized() { # NAME CLUSTERS [keys of the distill section]
    job "$T/$1.yaml" "$2" "${3:-}"
    local old="n_layers: 2, d_model: 48, n_heads: 4, d_ff: 96"
    local new="n_layers: 3, d_model: 64, n_heads: 2, d_ff: 256"
    sed -i "s/seq_len: 96, batch: 6/seq_len: 64, batch: 4/; s/steps: 60/steps: $steps/;
        s/$old/$new/;
        s/windows: 20/windows: 2/" "$T/$1.yaml"
}
sized alone "[{name: beta, role: student, device: cuda, threads: 1}]"
compare alone beta
sides="[{name: alpha, role: teacher, device: cuda, threads: 1}"
sides+=", {name: beta, role: student, device: cuda, precision: fp32, threads: 1}]"
sized frozen "$sides" "teacher: {init: $T/alone/checkpoint/model.ckpt}"
compare frozen alpha beta
ratio frozen
sides="[{name: beta, role: student, device: cuda, outer_state: device, threads: 1}"
sides+=", {name: gamma, role: student, device: cpu, threads: 1}"
sides+=", {name: alpha, role: teacher, device: cuda, threads: 1}]"
sized learns "$sides" "teacher: {learn: true}, federate: true"
echo "sync: {interval: 2, codec: int8, commit_all: true}" >>"$T/learns.yaml"
plan learns
jq -e '.written.clusters | (.[0] | .outer_bytes > 0 and .gather_s == 0) and (.[1].device_bytes == 0)
    and (.[2].outer_bytes == 0)' "$T/learns.json" >/dev/null ||
    fail "who exchanges: $(jq .written.clusters "$T/learns.json")"
train learns 3
check learns beta alpha
echo "plan: sides of rtd and distill are reckoned with as their devices hold them"
