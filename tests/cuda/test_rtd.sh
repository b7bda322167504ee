#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generator and discriminator on emulated devices. Training equals training on processors up to
# rounding. So does a pair with one side on processors, and a pair with shared embeddings. A lost
# device costs a restart and no bit.
. "$(dirname "$0")/../e2e/lib.sh"
export CUDA_VISIBLE_DEVICES= # the emulator must not see a GPU of this machine
mkdir "$T/bin" # the program looks for the kernels beside itself
cp "$BUILD/nebula" "$T/bin/nebula"
cp "$EMULATED" "$T/bin/libnebula_device.so"
make_corpus
nebula=$T/bin/nebula
losses() {
    jq -c '[.clusters[] | .loss_first, .loss_last, .eval_loss | select(. != null)]' \
        "$1/summary.json"
}
devices() { summary '[.clusters[].device] | join(", ")' "$1"; }
near() { # BOUND A B: losses of two runs, all within BOUND of each other, relative
    jq -n -e --argjson b "$1" --argjson x "$(losses "$2")" --argjson y "$(losses "$3")" \
        '($x | length) >= 4 and ($x | length) == ($y | length) and all(range($x | length); ($x[.] -
        $y[.] | fabs) <= $b * $x[.])' >/dev/null ||
        fail "$3: $(losses "$3"), on processors $(losses "$2")"
}

job() { # FILE CLUSTER-KEYS CLUSTER-KEYS [RTD-KEYS]: of the generator, of the discriminator
    cat >"$1" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 12
model: {n_layers: 2, d_model: 64, n_heads: 2, d_ff: 96}
data: {corpus: $T/corpus, seq_len: 32, batch: 2, accumulate: 2}
optim: {lr: 0.003, warmup: 4}
rtd: {generator: {n_layers: 1, d_model: 64, n_heads: 2, d_ff: 64}, ahead: 2${4:+, $4}}
eval: {windows: 3}
checkpoint: {every_steps: 4}
log_every: 1
clusters:
  - {name: alpha, role: generator, threads: 1, $2}
  - {name: beta, role: discriminator, threads: 1, $3}
YAML
}
run() { # NAME [options]: of $T/NAME.yaml
    local name=$1
    shift
    timeout 600 "$nebula" pretrain "$T/$name.yaml" --local 2 --out "$T/$name" "$@" >"$T/$name.log" \
        2>&1 || fail "$name: $(tail -n 5 "$T/$name.log")"
}
job "$T/plain.yaml" "device: cpu" "device: cpu"
exact="device: cuda, precision: fp32, cuda_graphs: off"
job "$T/exact.yaml" "$exact" "$exact"
job "$T/mixed.yaml" "device: cpu" "device: cuda, cuda_graphs: on"
job "$T/shared.yaml" "device: auto" "device: cpu" "share_embeddings: 3"
job "$T/shared_cpu.yaml" "device: cpu" "device: cpu" "share_embeddings: 3"
for name in plain exact mixed shared shared_cpu; do run "$name"; done
[[ $(devices "$T/exact") == "cuda (emulated, fp32), cuda (emulated, fp32)" ]] ||
    fail "exact: $(devices "$T/exact")"
[[ $(devices "$T/mixed") == "cpu "*", cuda (emulated, bf16)" ]] ||
    fail "mixed: $(devices "$T/mixed")"
[[ $(devices "$T/shared") == "cuda (emulated, bf16), cpu "* ]] ||
    fail "shared: $(devices "$T/shared")"
near 0.02 "$T/plain" "$T/exact" # another draw makes other text
near 0.05 "$T/plain" "$T/mixed"
near 0.05 "$T/shared_cpu" "$T/shared"
cat "$T"/mixed/clusters/beta/jobs/*/worker.log | has "ops of a pass are enqueued by 1 call" ||
    fail "cuda_graphs: on, and nothing was recorded"
mv "$T/exact.yaml" "$T/again.yaml"
EMU_LOSES=400 run again # of each process
[[ $(summary '[.clusters[].params_digest] | join(" ")' \
    "$T/again") == "$(summary '[.clusters[].params_digest] | join(" ")' "$T/exact")" ]] ||
    fail "after a lost device: other parameters"
cat "$T"/again/clusters/*/agent.log | has 'worker of job rtd ended .*restart' ||
    fail "no device was lost: $(cat "$T"/again/clusters/*/jobs/*/worker.log)"
