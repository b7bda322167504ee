#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Attached loops whose tensors are on the emulated device: any mesh, any dtype and strides. The
# exchange computes there, and the digests are those of loops on the host. The loop's stream and the
# exchange's wait for each other by events: the queues run late (EMU_LATE), so a missing event gives
# other digests.
. "$(dirname "$0")/../e2e/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
export CUDA_VISIBLE_DEVICES= EMU_LATE=1
make_corpus
mkdir "$T/bin" "$T/bare" # libnebula looks for the kernels beside itself
cp -L "$BUILD/libnebula.so.2" "$T/bin/"
cp -L "$BUILD/libnebula.so.2" "$T/bare/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
export ATTACH_CUDA=$T/bin/libnebula_device.so

job() { # FILE
    make_job "$1"
    sed -i "s/steps: 60/steps: 30/; s/every_steps: 20/every_steps: ${every:-20}/
        s/^model: .*/model: attached/; /^optim:/d; /^eval:/d; /^data:/d
        s/overlap: 0/overlap: 3/; s/fragments: 1/fragments: 2/; s/codec: [a-z0-9]*/codec: int8/
        s/sources: [^]]*\], threads: 1/threads: 1, launcher: attach${state:+, outer_state: $state}/
    " "$1"
    cat >>"$1" <<YAML
groups:
  - {match: "*.experts.*", exchange: never}
  - {match: "ln.*", exchange: {every: 2}, codec: bf16, fragments: 1}
init: equal
YAML
}
loop() { # SITE TARGET OPTIONS...
    # shellcheck disable=SC2086
    LD_LIBRARY_PATH=$T/${lib:-bin} timeout 600 "$client" "$T/$name/clusters/$1" e2e "$2" ${*:3} \
        >"$T/$name-$1.log" 2>&1
}
run() { # NAME, then the client's options of alpha and beta
    name=$1
    job "$T/$name.yaml"
    timeout 600 "$nebula" pretrain "$T/$name.yaml" --local 2 --out "$T/$name" >"$T/$name.log" 2>&1 &
    pid=$!
    loop alpha 1 "$2" & a=$!
    loop beta -1 "$3" & b=$!
}
finish() {
    wait $a || fail "the loop of alpha failed: $(cat "$T/$name-alpha.log")"
    wait $b || fail "the loop of beta failed: $(cat "$T/$name-beta.log")"
    wait $pid || fail "the job $name failed"
    digests_equal "$T/$name"
    round_digests_equal "$T/$name"
    [[ $(summary '.clusters[0].params_digest' "$T/$name") == "${want:=$(
        summary '.clusters[0].params_digest' "$T/$name")}" ]] ||
        fail "the digest of $name differs from that of loops on the host"
}
own="--brief 0.25"
run host "--mesh rows 2 $own" "$own"
finish
# No step waits for the device where units lie on one rank: not for an encode, nor for a merge.
state=device every=100
run device "--device $own" "--device --mesh cols 2 $own"
finish
without_waits() { # NAME TEXT: where its state has to be
    has "exchange's state is $2 emulated" "$T/$1-alpha.log" || fail "the state was not $2 a device"
    has "^waits inside steps: 0$" "$T/$1-alpha.log" ||
        fail "a step waited for the device: $(cat "$T/$1-alpha.log")"
}
# What the library takes is what nebula plan says: four floats a parameter where the state is, some
# units of scratch on the device, and what it gathers there (here of some units).
counted() { # NAME ARRAYS: on the device
    local device parameters host
    read -r device parameters host < <(grep -o "exchange's state is.*" "$T/$1-alpha.log" |
        sed "s/[^0-9]\+/ /g")
    "$nebula" plan "$T/$1.yaml" --tensors "$T/$1"/clusters/alpha/jobs/*/tensors.json --json \
        >"$T/plan.json" 2>"$T/plan.log" || fail "plan failed: $(cat "$T/plan.log")"
    jq -e ".memory.alpha | .device_bytes <= $device and
        $device <= .device_bytes + .device_gather_bytes and
        .device_bytes >= 4 * $2 * $parameters and
        $host + 4 * $2 * $parameters > .rank_bytes" \
        "$T/plan.json" >"$T/all" ||
        fail "$1: $device bytes of the device and $host of the host for $parameters parameters: $(
            cat "$T/plan.json")"
}
without_waits device on
counted device 4
# Pinned, the state is on the host, and the device computes.
state=host
run pinned "--device $own" "--device --mesh cols 2 $own"
finish
without_waits pinned "in pinned host memory, computed on"
counted pinned 0
every=20 state=device
run strided "--device --mesh strided 3 $own" "--device --mesh hsdp 4 $own"
finish
# Without so much pinned memory processors compute, and the kernels read and write the tensors.
state=host
EMU_PINNED=0:$((32 << 20)) run mixed "--device --mesh rows 2 $own" "--mesh rows 1 $own"
finish
has "cannot be pinned on the host of every rank" "$T/mixed-alpha.log" ||
    fail "the state was pinned: $(cat "$T/mixed-alpha.log")"
# A loop that dies comes back with another mesh, from a checkpoint.
run back "--device --mesh rows 2 $own --die-at 27" "--device $own"
rc=0; wait $a || rc=$?
((rc != 0)) || fail "the loop of alpha should have died"
# Without kernels CUDA memory is refused.
rc=0
lib=bare loop alpha 1 "--device $own" || rc=$?
((rc == 17)) && has 'is on a CUDA device, but this libnebula has no CUDA' "$T/back-alpha.log" ||
    fail "status $rc without kernels: $(cat "$T/back-alpha.log")"
loop alpha 1 "--device $own" & a=$!
finish
echo "attached loops on a device have the digests of loops on the host"
