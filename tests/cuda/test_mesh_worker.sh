#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A cluster of several ranks on emulated devices and one on processors train one model: equal
# parameters after every round and at the end, and evaluations that agree. With `auto` the mesh uses
# devices if every rank has one. Otherwise it uses processors, and rank 0 logs why. With `cuda` it
# then fails for the same reason.
. "$(dirname "$0")/../e2e/lib.sh"
export CUDA_VISIBLE_DEVICES= # the emulator must not see a GPU of this machine
make_corpus
make_job "$T/job.yaml"
sed -i 's/seq_len: 64, batch: 4/seq_len: 32, batch: 2/;
    s/{name: alpha,/{name: alpha, device: cuda, precision: fp32, mesh: {dp: 2, tp: 1},/;
    s/{name: beta,/{name: beta, device: cpu,/' "$T/job.yaml"
mkdir "$T/bin" # the program looks for its objects beside itself: no MPI there
cp "$BUILD/nebula" "$T/bin/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
cp "$EMULATED_NCCL" "$T/bin/libnebula_nccl.so"
nebula=$T/bin/nebula
# queues run when they are waited for; every process has one emulated device, of the same number
export EMU_LATE=1 EMU_NCCL_SHARED_DEVICE=1

run() { # NAME options…
    local name=$1
    shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 6 --set sync.interval=3 --out \
        "$T/$name" "$@" >"$T/$name.log" 2>&1 ||
        fail "$name: $(tail -n 5 "$T/$name.log"; cat \
        "$T/$name"/clusters/*/jobs/*/{worker,rank-*}.log)"
    digests_equal "$T/$name"
    round_digests_equal "$T/$name"
}
# Counts the ranks that load their kernels this way before the first launch.
loading() {
    cat "$T/$1"/clusters/alpha/jobs/*/rank-*.log | grep -c "CUDA_MODULE_LOADING $2\$" || true
}
export EMU_COUNT=1
run mesh
[[ $(loading mesh EAGER) == 2 ]] ||
    fail "kernels are not loaded before collectives: $(cat \
    "$T"/mesh/clusters/alpha/jobs/*/rank-*.log)"
[[ $(summary '.clusters[0].device' "$T/mesh") == "cuda (emulated, fp32)" ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/mesh")"
cat "$T"/mesh/clusters/alpha/jobs/*/rank-0.log | has "2 ranks: dp 2, pp 1, tp 1" ||
    fail "other ranks"
# Both hold the same parameters: the evaluation on devices equals the processor's up to rounding.
jq -e '(.clusters[0].eval_loss - .clusters[1].eval_loss) | fabs < 0.01' "$T/mesh/summary.json" \
    >/dev/null ||
    fail "evaluations differ: $(summary '[.clusters[].eval_loss]' "$T/mesh")"
jq -e 'all(.clusters[]; .loss_last > 0 and .loss_last < .loss_first)' "$T/mesh/summary.json" \
    >/dev/null || fail "the loss rose"

place() {
    echo "$(summary '.clusters[0].device' "$T/$1") $(cat "$T/$1"/clusters/alpha/jobs/*/rank-0.log)"
}
sed -i 's/device: cuda, precision: fp32,/device: auto, precision: fp32,/' "$T/job.yaml"
CUDA_MODULE_LOADING=LAZY run auto # the user's choice counts
[[ $(loading auto LAZY) == 2 ]] ||
    fail "CUDA_MODULE_LOADING of the user is not kept: $(cat \
    "$T"/auto/clusters/alpha/jobs/*/rank-*.log)"
[[ $(place auto) == "cuda (emulated, fp32) "*"training on emulated in fp32"* ]] ||
    fail "auto, with a device a rank: $(place auto)"
[[ $(summary '.clusters[0].params_digest' "$T/auto") == "$(summary '.clusters[0].params_digest' \
    "$T/mesh")" ]] || fail "auto and cuda have other parameters"
# One of two tensor-parallel ranks has a small card, so its logits need two blocks. The other's
# logits need one. Both ranks reduce between blocks.
cp "$T/job.yaml" "$T/even.yaml"
sed -i 's/seq_len: 32, batch: 2/seq_len: 64, batch: 2/;
    s/mesh: {dp: 2, tp: 1}/mesh: {dp: 1, tp: 2}/' "$T/job.yaml"
EMU_CARD=1:100000 run unequal --steps 3
[[ $(summary '.clusters[0].device' "$T/unequal") == "cuda (emulated, fp32)" ]] ||
    fail "unequal cards: $(place unequal)"
mv "$T/even.yaml" "$T/job.yaml"
EMU_WITHOUT=1 run lack
why="training on the CPU, because not every rank has a device: rank 1:"
[[ $(place lack) == "cpu "*"$why no CUDA device"* ]] ||
    fail "auto, without a device: $(place lack)"
[[ $(place lack | grep -c 'training on') == 1 ]] ||
    fail "more than one line says on what it trains: $(place lack)"
place lack | has ' info .*training on the CPU' ||
    fail "the worker warns of a missing device: $(place lack)"
EMU_REFUSES=1 run refused --steps 3 # the device is there
[[ $(place refused) == "cpu "*" warn "*"$why CUDA device 0: unknown error"* ]] ||
    fail "auto, with a device that cannot be opened: $(place refused)"
# After training on devices, the loss of a device counts as a crash: all ranks restart, and none
# continues on processors.
begun() {
    NEBULA_FAULT=worker.step:+800 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps \
        40 --set sync.interval=3 --out "$T/gone" "$@" >"$T/gone.log" 2>&1 & pid=$!
}
until_seen() {
    for _ in $(seq 600); do
        compgen -G "$T/gone/clusters/alpha/jobs/*/device" >/dev/null && has "$1" <"$T/gone.log" &&
            return; sleep 0.1
    done; fail "not seen: $1: $(cat "$T/gone.log")"
}
begun; until_seen 'alpha  *step'
kill -INT "$pid"; wait "$pid" && fail "not stopped: $(tail -n 3 "$T/gone.log")"
EMU_REFUSES=1 begun --resume; until_seen 'alpha: worker ended .*started again'
has 'alpha: this job has trained on a GPU before, and now: rank 1: CUDA device 0: unknown error' \
    <"$T/gone.log" || fail "no reason: $(cat "$T/gone.log")"
kill -INT "$pid"; wait "$pid" || true
sed -i 's/device: auto, precision: fp32,/device: cuda,/' "$T/job.yaml"
fails() { # NAME REASON: the run's error, not only a rank's log
    if timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 6 --out "$T/$1" >"$T/$1.log" \
        2>&1; then
        fail "$1: trained"
    fi
    has "$2" <"$T/$1.log" || fail "$1: no reason: $(cat "$T/$1.log")"
}
EMU_WITHOUT=1 fails must 'rank 1: no CUDA device.*device: cpu'
EMU_REFUSES=1 fails unopened 'rank 1: CUDA device 0: unknown error.*device: cpu'
# the products have their scratch
EMU_MEMORY=1:34000000 fails small 'rank 1: .*of device memory: .*lower data.batch'
echo "a mesh on devices and a cluster on processors train one model"
