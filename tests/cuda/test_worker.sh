#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Workers on the emulated device: one cluster trains on it in bf16, the other on processors; they
# exchange, end with equal parameters, and evaluate. Without a device, `device: cuda` gives the
# reason.
. "$(dirname "$0")/../e2e/lib.sh"
export CUDA_VISIBLE_DEVICES= # the emulator must not see a GPU of this machine
make_corpus
make_job "$T/job.yaml"
sed -i 's/seq_len: 64, batch: 4/seq_len: 32, batch: 2/;
    s/{name: alpha,/{name: alpha, device: cuda,/; s/{name: beta,/{name: beta, device: cpu,/' \
    "$T/job.yaml"

mkdir "$T/bin" "$T/bare" # the program looks for the kernels beside itself
cp "$BUILD/nebula" "$T/bin/nebula"
cp "$BUILD/nebula" "$T/bare/nebula"
cp "$EMULATED" "$T/bin/libnebula_device.so"
nebula=$T/bin/nebula

# A program that a shell has found by its name does not look in the working folder.
mkdir "$T/here"
touch "$T/here/nebula"
cp "$EMULATED" "$T/here/libnebula_device.so"
(cd "$T/here" && PATH=$T/bare:$PATH nebula plan --measure-device) | jq -e '.device == null' \
    >/dev/null || fail "kernels of the working folder are loaded"

run() { # NAME options…
    local name=$1; shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 10 --set sync.interval=5 --out \
        "$T/$name" "$@" >"$T/$name.log" 2>&1 ||
        fail "$name: $(tail -n 5 "$T/$name.log")"
    digests_equal "$T/$name"
    round_digests_equal "$T/$name"
}
run mixed
[[ $(summary '.clusters[0].device' "$T/mixed") == "cuda (emulated, bf16)" ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/mixed")"
[[ $(summary '.clusters[1].device' "$T/mixed") == cpu* ]] ||
    fail "device: $(summary '.clusters[1].device' "$T/mixed")"
jq -e 'all(.clusters[]; .loss_last > 0 and .loss_last < .loss_first and .eval_loss > 0)' \
    "$T/mixed/summary.json" >/dev/null || fail "the loss rose"
# Both hold the same parameters: the device's evaluation equals the processor's up to rounding.
jq -e '(.clusters[0].eval_loss - .clusters[1].eval_loss) | fabs < 0.02' "$T/mixed/summary.json" \
    >/dev/null ||
    fail "evaluations differ: $(summary '[.clusters[].eval_loss]' "$T/mixed")"
sed -i 's/device: cuda,/device: auto, precision: fp32, cuda_graphs: off,/' "$T/job.yaml"
run again --set sync.overlap=2
# The exchange's state is on the device (the default) or on the host. Its place changes only the
# transfers over the bus. Graphs change no bit either.
cat "$T"/again/clusters/alpha/jobs/*/worker.log | has "exchange's state is on emulated" ||
    fail "the exchange was not on the device"
# A device lost after some steps costs a restart; a device lost before the first step ends the job
# with its error.
EMU_LOSES=700 run lost --steps 20 --set checkpoint.every_steps=2
cat "$T"/lost/clusters/alpha/agent.log | has 'worker of job e2e ended .*restart 1 of 3' ||
    fail "no device was lost: $(cat "$T"/lost/clusters/alpha/jobs/*/worker.log)"
has 'alpha: .*an illegal memory access' <"$T/lost.log" ||
    fail "the run does not say what failed: $(cat "$T/lost.log")"
if EMU_LOSES=30 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 5 --out "$T/never" \
    >"$T/never.log" 2>&1; then
    fail "trained on a device that is lost at once"
fi
has 'cluster alpha: .*an illegal memory access' <"$T/never.log" ||
    fail "no reason: $(cat "$T/never.log")"
# A device that cannot be opened, or is full, is reported differently from no device.
EMU_REFUSES=0 run refused --steps 5
[[ $(summary '.clusters[0].device' "$T/refused") == cpu* ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/refused")"
cat "$T"/refused/clusters/alpha/jobs/*/worker.log |
    has ' warn .*the GPU of this machine cannot be opened: CUDA device 0: unknown error' ||
    fail "no warning: $(cat "$T"/refused/clusters/alpha/jobs/*/worker.log)"
# After training on a device, a worker does not continue slowly without it: it restarts, and the job
# fails with the reason.
NEBULA_FAULT=worker.step:+1500 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 24 \
    --set sync.interval=5 --out "$T/gone" >"$T/gone.log" 2>&1 & pid=$!
for _ in $(seq 600); do
    compgen -G "$T/gone/clusters/alpha/jobs/*/device" >/dev/null && break; sleep 0.1
done
kill -INT "$pid"
wait "$pid" && fail "not stopped: $(tail -n 3 "$T/gone.log")"
if EMU_REFUSES=0 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 24 --set \
    sync.interval=5 --out "$T/gone" --resume >"$T/gone2.log" 2>&1; then
    fail "went on on processors"
fi
has 'alpha: .*has trained on a GPU before, and now: CUDA device 0: unknown error.*`device: cpu`' \
    <"$T/gone2.log" || fail "no reason: $(cat "$T/gone2.log")"
has 'alpha: .*started again in 3 s' <"$T/gone2.log" || fail "not tried again: $(cat "$T/gone2.log")"
run gone --steps 24 --resume
[[ $(summary '.clusters[0].device' "$T/gone") == cuda* ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/gone")"
if EMU_MEMORY=0:1000000 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 5 --out \
    "$T/full" >"$T/full.log" 2>&1; then
    fail "trained beside a full device"
fi
has 'out of device memory for cuBLASLt.*device: cpu' <"$T/full.log" ||
    fail "no reason: $(cat "$T/full.log")"
sed -i \
    's/precision: fp32, cuda_graphs: off,/precision: fp32, outer_state: host, cuda_graphs: on,/' \
    "$T/job.yaml"
run host --set sync.overlap=2
if cat "$T"/host/clusters/alpha/jobs/*/worker.log | has "exchange's state is on"; then
    fail "outer_state: host, and yet on the device"
fi
cat "$T"/host/clusters/alpha/jobs/*/worker.log | has "ops of a pass are enqueued by 1 call" ||
    fail "cuda_graphs: on, and nothing was recorded"
if cat "$T"/again/clusters/alpha/jobs/*/worker.log | has "cuda_graphs"; then
    fail "cuda_graphs: off, and yet something is said of them"
fi
on=$(summary '[.clusters[].params_digest] | @tsv' "$T/again") \
    off=$(summary '[.clusters[].params_digest] | @tsv' "$T/host")
[[ -n $on && $on == "$off" ]] || fail "on the device $on, on the host $off"
sed -i 's/outer_state: host,/outer_state: device,/' "$T/job.yaml"
# A killed worker continues from its checkpoint, with the state of the device. Its steps last
# longer, so that the run does not end before the kill.
NEBULA_FAULT=worker.step:+400 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps \
    20 --set sync.interval=5 --set sync.overlap=2 --set checkpoint.every_steps=2 \
    --out "$T/killed" >"$T/killed.log" 2>&1 &
pid=$!
for _ in $(seq 600); do
    victim=$(pgrep -f "nebula worker $T/killed/clusters/alpha/" | head -n 1 || true)
    ls "$T"/killed/clusters/alpha/jobs/*/checkpoint/step-*.ckpt >/dev/null 2>&1 &&
        [[ -n $victim ]] && break
    kill -0 "$pid" 2>/dev/null ||
        fail "the run ended before its first checkpoint: $(tail -n 3 "$T/killed.log")"
    sleep 0.1
done
kill -KILL "$victim"
wait "$pid" || fail "the run with a killed worker failed: $(tail -n 5 "$T/killed.log")"
digests_equal "$T/killed"
round_digests_equal "$T/killed"
sed -i 's/ outer_state: device,//' "$T/job.yaml"
[[ $(summary '.clusters[0].device' "$T/again") == "cuda (emulated, fp32)" ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/again")"

sed -i 's/device: auto, precision: fp32,/device: cuda,/' "$T/job.yaml"
if timeout 600 "$T/bare/nebula" pretrain "$T/job.yaml" --local 2 --steps 10 --out "$T/none" \
    >"$T/none.log" 2>&1; then
    fail "trained without kernels"
fi
cat "$T/none.log" "$T"/none/clusters/*/jobs/*/worker.log 2>/dev/null |
    has 'has no CUDA kernels.*device: cpu' || fail "no hint: $(tail -n 5 "$T/none.log")"
# With kernels but no driver, the program reports this without loading the kernels' libraries.
if [[ -e $BUILD/libnebula_cuda.so ]] && ! ldconfig -p | has 'libcuda\.so\.1'; then
    cp "$BUILD/libnebula_cuda.so" "$T/bare/"
    if LD_DEBUG=files LD_DEBUG_OUTPUT="$T/loaded" timeout 600 "$T/bare/nebula" pretrain \
        "$T/job.yaml" --local 2 --steps 10 --out "$T/driverless" >"$T/driverless.log" 2>&1; then
        fail "trained without a driver"
    fi
    cat "$T"/driverless/clusters/*/jobs/*/worker.log |
        has 'no CUDA device: the driver cannot be loaded' ||
        fail "no reason: $(tail -n 5 "$T/driverless.log")"
    cat "$T"/loaded.* | has 'file=libcuda.so.1' || fail "nobody looked for the driver"
    ! cat "$T"/loaded.* | has 'libnebula_cuda.so\|cublas' ||
        fail "loaded without a driver: $(cat "$T"/loaded.* | grep -m 3 'libnebula_cuda.so\|cublas')"
fi
echo "a cluster on a device and one on processors train one model"
