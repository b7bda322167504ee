#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula-clusters on the emulated device: AdamW with top-k updates, Muon with int2, and synchronous
# training end with the losses of the same program on processors, in fp32 and bf16. The program
# itself compares the clusters' digests in every round. A run continues from its state.
. "$(dirname "$0")/../e2e/lib.sh"
export CUDA_VISIBLE_DEVICES= # the emulator must not see a GPU of this machine
make_corpus
make_job "$T/job.yaml"
sed -i 's/seq_len: 64, batch: 4/seq_len: 32, batch: 1/' "$T/job.yaml"
mkdir "$T/bin"
cp "$BUILD/nebula-clusters" "$T/bin/"
cp "$EMULATED" "$T/bin/libnebula_device.so"

train() { # OPTIONS…: prints the line of a run
    timeout 300 "$T/bin/nebula-clusters" "$T/job.yaml" --set optim.lr=4e-3 --set optim.warmup=6 \
        --set eval.windows=2 --steps 8 "$@" || fail "nebula-clusters $*"
}
close() { # WITHIN OPTIONS…: the device and the CPU, whose line is $cpu, end with the same loss
    train "${@:2}" --device cuda >"$T/device"
    jq -e --argjson a "$cpu" --argjson most "$1" '(.eval_loss - $a.eval_loss | fabs < $most) and
        .rounds == $a.rounds and .step_s > 0 and ($a | has("step_s") | not)' "$T/device" \
        >/dev/null || fail "${*:2}: on the CPU $cpu, on the device $(cat "$T/device")"
}
adamw=(--set sync.interval=3 --set sync.codec=topk:128/4096 --set sync.outer.lr=1.414)
muon=(--set optim.name=muon --set sync.interval=3 --set sync.codec=int2)
synchronous=(--set sync.scheme=synchronous)
for scheme in adamw muon synchronous; do
    declare -n options=$scheme
    cpu=$(train "${options[@]}")
    close 1e-4 "${options[@]}" --precision fp32
    close 2e-2 "${options[@]}"
done

whole=$(train "${adamw[@]}" --device cuda)
train "${adamw[@]}" --device cuda --state "$T/state" --stop-at 6 >"$T/part"
rest=$(train "${adamw[@]}" --device cuda --state "$T/state")
same() { jq -c 'del(.train_loss, .step_s)' <<<"$1"; }
[[ $(jq .steps "$T/part") == 6 && $(same "$rest") == "$(same "$whole")" ]] ||
    fail "a continued run differs: $rest, $whole"

if "$BUILD/nebula-clusters" "$T/job.yaml" --device rocm >"$T/log" 2>&1; then
    fail "an unknown device was accepted"
fi
has 'unknown option --device rocm' <"$T/log" || fail "$(cat "$T/log")"
echo "both clusters train on one device as on processors"
