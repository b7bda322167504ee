#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A mesh of ranks on emulated devices and a cluster on processors train one model. The exchange's
# state on the devices gives the same bits as on the hosts: parameters, digests of every round, and
# the checkpointed state. It covers replicas and cut tensors, overlapped fragments, sparse updates,
# killed ranks, and plans that follow the link.
. "$(dirname "$0")/../e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i 's/seq_len: 64, batch: 4/seq_len: 16, batch: 2/; s/d_model: 64/d_model: 32/;
    s/d_ff: 128/d_ff: 64/; s/{name: beta,/{name: beta, device: cpu,/
    s/{name: alpha,/{name: alpha, device: cuda, precision: fp32, MESH, OUTER/' "$T/job.yaml"
mkdir "$T/bin"
cp "$BUILD/nebula" "$T/bin/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
cp "$EMULATED_NCCL" "$T/bin/libnebula_nccl.so"
nebula=$T/bin/nebula
export EMU_LATE=1 EMU_NCCL_SHARED_DEVICE=1

job() { # NAME MESH OUTER
    sed "s/MESH/mesh: {$2}/; s/OUTER/${3:+outer_state: $3,}/" "$T/job.yaml" >"$T/$1.yaml"
}
# NAME options…
start() {
    local name=$1
    shift
    timeout 600 "$nebula" pretrain "$T/$name.yaml" --local 2 --out "$T/$name" --set \
        checkpoint.every_steps=5 "$@" >"$T/$name.log" 2>&1
}
run() {
    start "$@" || fail \
        "$1: $(tail -n 5 "$T/$1.log"; cat "$T/$1"/clusters/*/jobs/*/{worker,rank-*}.log)"
    digests_equal "$T/$1"
    round_digests_equal "$T/$1"
}
logs() { cat "$T/$1"/clusters/alpha/jobs/*/rank-"$2".log; }
on_devices() { # NAME RANKS
    local rank
    for ((rank = 0; rank < $2; rank++)); do
        logs "$1" "$rank" | has "exchange's state is on emulated" ||
            fail "$1: not on rank $rank's device"
    done
}
# Lists a checkpoint's sections and parts by name and digest, without the fields that hold part
# names or times.
cat >"$T/sections.py" <<'PY'
import glob, struct, sys
found = {}
for path in [sys.argv[1]] + glob.glob(sys.argv[1] + ".*.part"):
    data = open(path, "rb").read()
    n, at, length = struct.unpack_from("<IQQ", data, len(data) - 96 + 12)
    for _ in range(n):
        size = struct.unpack_from("<H", data, at)[0]
        name = data[at + 2 : at + 2 + size].decode()
        at += 2 + size + 1 + 24
        found[name] = data[at : at + 32].hex()
        at += 32
for name in sorted(found):
    if name.startswith(("outer.", "optim.")) or not name.startswith(
        ("checkpoint.", "worker.", "job.")
    ):
        print(name, found[name])
PY
newest() { ls "$T/$1"/clusters/alpha/jobs/*/checkpoint/step-*.ckpt | tail -n 1; }
alike() { # NAME NAME
    local a b one
    a=$(summary '[.clusters[] | .params_digest, .loss_last, .eval_loss] | @tsv' "$T/$1")
    b=$(summary '[.clusters[] | .params_digest, .loss_last, .eval_loss] | @tsv' "$T/$2")
    [[ $a && $a == "$b" ]] || fail "$1 ends with $a, $2 with $b"
    for one in "$1" "$2"; do python3 "$T/sections.py" "$(newest "$one")" >"$T/$one.sections"; done
    (($(grep -c '^outer\.' "$T/$1.sections") >= 4)) ||
        fail "no state of the exchange in $(newest "$1"): $(cat "$T/$1.sections")"
    cmp "$T/$1.sections" "$T/$2.sections" ||
        fail "checkpoints differ: $(diff "$T/$1.sections" "$T/$2.sections")"
}

streaming=(--steps 15 --set sync.interval=5 --set sync.overlap=2 --set sync.fragments=2)
sparse=(--steps 12 --set sync.interval=3 --set sync.codec=topk:256/4096)
pair() { # NAME MESH RANKS options…
    local name=$1 mesh=$2 ranks=$3
    shift 3
    job "$name-host" "$mesh" host
    run "$name-host" "$@"
    if logs "$name-host" 0 | has "exchange's state is on"; then
        fail "outer_state: host, and yet on the device"
    fi
    job "$name" "$mesh" "${outer:-device}"
    run "$name" "$@"
    on_devices "$name" "$ranks"
    alike "$name" "$name-host"
    echo "$name ($mesh): the devices' state is the hosts'"
}
outer=auto pair replicas "dp: 2" 2 "${streaming[@]}"
pair tensors "tp: 2" 2 "${sparse[@]}"
pair stages "pp: 2, dp: 2" 4 "${streaming[@]}" --set sync.row_weights=false --set sync.codec=int8

# Kills a follower, then rank 0. The state on the devices is restored.
for want in "replicas dp:\ 2 1" "tensors tp:\ 2 0"; do
    eval "set -- $want"
    name=killed-$1 options=("${streaming[@]}")
    [[ $1 != tensors ]] || options=("${sparse[@]}")
    job "$name" "$2" device
    NEBULA_FAULT=worker.step:+300 start "$name" "${options[@]}" & # it does not end before the kill
    pid=$!
    for ((i = 0; i < 900; i++)); do
        victim=$(pgrep -f "nebula worker $T/$name/clusters/alpha/" | while read -r p; do
            tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | has -x "RANK=$3" && echo "$p"; done |
                head -n 1 || true)
        ls "$T/$name"/clusters/alpha/jobs/*/checkpoint/step-*.ckpt >/dev/null 2>&1 &&
            [[ $victim ]] && break
        kill -0 "$pid" 2>/dev/null ||
            fail "$name ended before its first checkpoint: $(tail -n 3 "$T/$name.log")"
        sleep 0.1
    done
    kill -KILL "$victim"
    wait "$pid" || fail "$name: $(tail -n 5 "$T/$name.log")"
    digests_equal "$T/$name"
    logs "$name" 0 | has 'going on from step' || fail "$name: nothing was begun again"
    alike "$name" "$1"
    echo "$name: rank $3 was killed, and the bits are those of a run in peace"
done

# NCCL reports an error to rank 0. Any rank may be the cause, so all ranks restart, and the job goes
# on.
job error "dp: 2" device
export EMU_NCCL_ERROR=$T/error.now
NEBULA_FAULT=worker.step:+300 start error "${streaming[@]}" & # nor before the error
pid=$!
for ((i = 0; i < 900; i++)); do
    ls "$T"/error/clusters/alpha/jobs/*/checkpoint/step-*.ckpt >/dev/null 2>&1 && break
    kill -0 "$pid" 2>/dev/null ||
        fail "the run ended before its first checkpoint: $(tail -n 3 "$T/error.log")"
    sleep 0.1
done
touch "$EMU_NCCL_ERROR"
wait "$pid" || fail "an error of NCCL ended the job: $(tail -n 5 "$T/error.log")"
[[ ! -e $EMU_NCCL_ERROR ]] || fail "the error came too late to be met"
logs error 0 | has 'going on from step' || fail "error: nothing was begun again"
alike error replicas
echo "error: NCCL told rank 0 of one, and the bits are those of a run in peace"

job tuned "dp: 2" device
run tuned --steps 10 --set sync.interval=5 --set sync.tune=auto
on_devices tuned 2
echo "meshes with the exchange on their devices train what meshes with it on their hosts do"
