#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Teachers and students on emulated devices: labels and losses equal those of processors up to
# rounding, for a frozen teacher and for one that learns. Students of one model stay equal wherever
# they train. A lost device costs a restart.
. "$(dirname "$0")/../e2e/lib.sh"
. "$(dirname "$0")/../e2e/pairs.sh"
export CUDA_VISIBLE_DEVICES= # the emulator must not see a GPU of this machine
mkdir "$T/bin" # the program looks for the kernels beside itself
cp "$BUILD/nebula" "$T/bin/nebula"
cp "$EMULATED" "$T/bin/libnebula_device.so"
nebula=$T/bin/nebula
make_pairs
losses() {
    jq -c '[.clusters[] | .loss_first, .loss_last, .eval_loss | select(. != null and . > 0)]' \
        "$1/summary.json"
}
near() { # BOUND A B: losses of two runs, all within BOUND of each other, relative
    jq -n -e --argjson b "$1" --argjson x "$(losses "$2")" --argjson y "$(losses "$3")" \
        '($x | length) >= 3 and ($x | length) == ($y | length) and all(range($x | length); ($x[.] -
        $y[.] | fabs) <= $b * $x[.])' >/dev/null ||
        fail "$3: $(losses "$3"), on processors $(losses "$2")"
}
small() { # NAME CLUSTERS [keys of the distill section]
    job "$T/$1.yaml" "$2" "${3:-}"
    sed -i 's/seq_len: 96, batch: 6/seq_len: 64, batch: 2/; s/steps: 60/steps: 8/;
        s/every_steps: 10/every_steps: 3/; s/n_heads: 4/n_heads: 2/; s/windows: 20/windows: 3/' \
        "$T/$1.yaml"
}
start() { # NAME CLUSTERS [options]
    local name=$1 n=$2
    shift 2
    run "$T/$name.yaml" "$n" "$T/$name" "$@"
}
cpu="device: cpu, threads: 1" cuda="device: cuda, precision: fp32, cuda_graphs: off, threads: 1" \
    bf16="device: cuda, threads: 1"
small alone "[{name: beta, role: student, $cuda}]"
start alone 1
[[ $(summary '.clusters[0].device' "$T/alone") == "cuda (emulated, fp32)" ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/alone")"
frozen="teacher: {init: $T/alone/checkpoint/model.ckpt}"
small plain "[{name: alpha, role: teacher, $cpu}, {name: beta, role: student, $cpu}]" "$frozen"
small exact "[{name: alpha, role: teacher, $cuda}, {name: beta, role: student, $cuda}]" "$frozen"
small mixed "[{name: alpha, role: teacher, $bf16}, {name: beta, role: student, $cpu}]" "$frozen"
for name in plain exact mixed; do start "$name" 2; done
near 0.002 "$T/plain" "$T/exact"
near 0.02 "$T/plain" "$T/mixed"
[[ $(summary '.clusters[0].device' "$T/mixed") == "cuda (emulated, bf16)" ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/mixed")"
jq -e '.quality.clusters.beta.taught_share == 1 and .quality.clusters.beta.chrf >= 0' \
    "$T/exact/summary.json" >/dev/null || fail "quality: $(jq -c .quality "$T/exact/summary.json")"

# A teacher that learns while it teaches, and students that share one model.
three="[{name: beta, role: student, $cuda}, {name: gamma, role: student, $cpu}"
three+=", {name: alpha, role: teacher, $cuda}]"
small learns "$three" "teacher: {learn: true, n_layers: 1}, federate: true"
small learns_cpu "${three//$cuda/$cpu}" "teacher: {learn: true, n_layers: 1}, federate: true"
for name in learns learns_cpu; do
    keys="interval: 4, fragments: 2, overlap: 1, codec: int4, commit_all: true"
    echo "sync: {$keys, outer: {lr: 0.9, momentum: 0.6}}" >>"$T/$name.yaml"
    start "$name" 3
    round_digests_equal "$T/$name"
    [[ $(summary '[.clusters[] | select(.name != "alpha") | .params_digest] | unique | length' \
        "$T/$name") == 1 ]] || fail "$name: the students differ"
done
near 0.02 "$T/learns_cpu" "$T/learns"
cat "$T"/learns/clusters/beta/jobs/*/worker.log | has "exchange's state is on emulated" ||
    fail "the exchange was not on the device"
mv "$T/exact.yaml" "$T/lost.yaml"
EMU_LOSES=1000 start lost 2 # of each process
[[ $(digest "$T/lost") == "$(digest "$T/exact")" ]] || fail "after a lost device: other parameters"
cat "$T"/lost/clusters/*/agent.log | has 'worker of job distill ended .*restart' ||
    fail "no device was lost"

# A bad file is not a fault of the device: the job fails at once.
cp "$T/alone/checkpoint/model.ckpt" "$T/teacher.ckpt"
small spoilt "[{name: alpha, role: teacher, $cuda}, {name: beta, role: student, $cpu}]" \
    "teacher: {init: $T/teacher.ckpt}"
NEBULA_FAULT=worker.step:+300 timeout 600 "$nebula" distill "$T/spoilt.yaml" --local 2 --out \
    "$T/spoilt" >"$T/spoilt.log" 2>&1 & pid=$!
within 60 compgen -G "$T/spoilt/clusters/alpha/jobs/*/device" >/dev/null ||
    fail "no device: $(cat "$T/spoilt.log")"
kill -INT "$pid"
wait "$pid" && fail "not stopped: $(tail -n 3 "$T/spoilt.log")"
printf 'not what it was.' |
    dd of="$T/teacher.ckpt" bs=1 seek=$(($(stat -c %s "$T/teacher.ckpt") / 2)) conv=notrunc \
    status=none
if timeout 600 "$nebula" distill "$T/spoilt.yaml" --local 2 --out "$T/spoilt" --resume \
    >"$T/spoilt2.log" 2>&1; then
    fail "a spoilt teacher taught"
fi
has 'alpha: .*teacher.ckpt.*digest' <"$T/spoilt2.log" &&
    ! has 'GPU before\|restart' <"$T/spoilt2.log" ||
    fail "no reason, or another: $(cat "$T/spoilt2.log")"
