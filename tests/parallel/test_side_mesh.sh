#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The sides of rtd and distill on meshes: losses are those of one rank, and so are the labels and
# draws of ranks that only divide the work (dp, pp). A killed rank changes no bit. With
# LAUNCHER=mpirun ranks use MPI; otherwise they use TCP.
source "$(dirname "$0")/../e2e/lib.sh"
. "$(dirname "$0")/../e2e/pairs.sh"
launcher=${LAUNCHER:-local}
mkdir "$T/bin" # the program looks for its objects beside itself
cp "$nebula" "$T/bin/"
nebula=$T/bin/nebula
if [[ $launcher == mpirun ]]; then
    [[ -e $BUILD/libnebula_mpi.so ]] ||
        skip "this build has no MPI (run configs/install-deps, then build again)"
    command -v mpirun >/dev/null || skip "there is no mpirun on this machine (Debian: openmpi-bin)"
    cp "$BUILD/libnebula_mpi.so" "$T/bin/"
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    [[ ! -e $BUILD/libtest_yield.so ]] || export LD_PRELOAD=$BUILD/libtest_yield.so
    export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # MPI leaks at its end
fi
make_pairs

place() { # MESH: keys of a cluster
    echo "threads: 1${1:+, launcher: $launcher, mesh: {$1\}}"
}
losses() { # NAME
    summary '[.clusters[] | .loss_first, .loss_last, .eval_loss | select(. != null and . > 0)] |
        @tsv' \
        "$T/$1"
}
near() { # A B: losses of two runs
    figures_near 1e-4 "$(losses "$1")" "$(losses "$2")" ||
        fail "$2: losses $(losses "$2"), $1 has $(losses "$1")"
}
same() { # A B
    [[ $(digest "$T/$1") == "$(digest "$T/$2")" ]] || fail "$2: another student than that of $1"
}

# ---- distill: a teacher and a student, or a teacher that learns
sides() { # NAME MESH_TEACHER MESH_STUDENT [keys of the distill section] [options]
    local name=$1 clusters="[{name: alpha, role: teacher, $(place "$2")},"
    clusters+=" {name: beta, role: student, $(place "$3")}]"
    job "$T/$name.yaml" "$clusters" "${4:-}"
    sed -i 's/steps: 60/steps: 10/; s/windows: 20/windows: 2/; s/every_steps: 10/every_steps: 4/
        s/batch: 6/batch: 4/' "$T/$name.yaml"
    shift $(($# < 4 ? $# : 4))
    run "$T/$name.yaml" 2 "$T/$name" "$@"
}
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20 --set eval.windows=1
frozen="teacher: {init: $T/teacher/checkpoint/model.ckpt}"
sides one "" "" "$frozen"
sides mesh "dp: 2, pp: 2" "tp: 2" "$frozen"
near one mesh
for want in "alpha dp 2, pp 2, tp 1" "beta dp 1, pp 1, tp 2"; do
    cat "$T/mesh/clusters/${want%% *}"/jobs/*/rank-0.log | has "ranks: ${want#* }" ||
        fail "$want: other ranks"
done
if [[ $launcher == mpirun ]]; then
    echo "sides on meshes over MPI learn what one rank learns"
    exit 0
fi
# Ranks that divide the work make the labels of one rank, bit by bit. Two micro-batches and four
# replicas: each micro-batch is split.
sides parts "dp: 4" "" "$frozen"
same one parts
sides split "tp: 2" "dp: 4" "$frozen" --set recompute=true
near one split
# A teacher that learns from text that the student sends.
learns="teacher: {learn: true, n_layers: 2, d_model: 32, n_heads: 2}, push_text: true"
sides learns "" "" "$learns"
sides learns_mesh "dp: 2, tp: 2" "pp: 2" "$learns"
near learns learns_mesh

# Samples of a student on a mesh, and two students on meshes that are one model.
own="$frozen, push_text: true, source: student, ahead: 2"
sides own "" "" "$own"
sides own_mesh "tp: 2" "dp: 2, pp: 2" "$own"
near own own_mesh
federation() { # NAME MESH_BETA MESH_GAMMA MESH_TEACHER
    job "$T/$1.yaml" "[{name: beta, role: student, $(place "$2")}, {name: gamma, role: student,
        $(place "$3")}, {name: alpha, role: teacher, $(place "$4")}]" "$frozen, federate: true"
    sed -i 's/steps: 60/steps: 10/; s/windows: 20/windows: 2/; s/batch: 6/batch: 4/' "$T/$1.yaml"
    echo "sync: {interval: 4, fragments: 2, overlap: 1, codec: fp32}" >>"$T/$1.yaml"
    run "$T/$1.yaml" 3 "$T/$1"
    [[ $(summary '[.clusters[] | select(.name != "alpha") | .params_digest] | unique | length' \
        "$T/$1") == 1 ]] || fail "$1: the students differ"
    jq -e '.rounds >= 4' "$T/$1/summary.json" >/dev/null || fail "$1: $(summary .rounds "$T/$1")"
}
federation federated "" "" ""
federation federated_mesh "dp: 2" "tp: 2" "tp: 2"
near federated federated_mesh

# ---- a rank that is killed, and one that hangs
NEBULA_FAULT=worker.step:+300 timeout 600 "$nebula" distill "$T/parts.yaml" --local 2 \
    --out "$T/kill" --set hang_after_s=5 --set distill.ahead=1 >"$T/kill.log" 2>&1 &
pid=$!
rank_of() { pgrep -f "nebula worker $T/kill/clusters/alpha/.* --rank" | sort -n | tail -n 1; }
wait_step "$T/kill" 3 "$pid" || fail "the run ended before step 3"
kill -KILL "$(rank_of)"
there() { [[ $(rank_of) ]]; }
wait_step "$T/kill" 6 "$pid" || fail "the run ended before step 6" # the ranks are here again
within 30 there || fail "no rank of alpha is left"
kill -STOP "$(rank_of)"
wait "$pid" || fail "the run with a killed rank failed: $(tail -n 3 "$T/kill.log")"
same one kill
grep -q 'the worker hangs' "$T/kill/metrics.jsonl" ||
    fail "a stopped rank was not noticed: $(cat "$T"/kill/clusters/alpha/agent.log)"

# ---- rtd
make_corpus
rtd() { # NAME MESH_GENERATOR MESH_DISCRIMINATOR [options]
    cat >"$T/$1.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 10
model: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/corpus, seq_len: 64, batch: 4, accumulate: 2}
optim: {lr: 0.003, warmup: 3, schedule: cosine}
rtd: {generator: {n_layers: 2}, share_embeddings: 4, ahead: 2}
eval: {windows: 6}
checkpoint: {every_steps: 4}
log_every: 1
clusters:
  - {name: alpha, role: generator, $(place "$2")}
  - {name: beta, role: discriminator, $(place "$3")}
YAML
    local name=$1
    shift 3
    timeout 600 "$nebula" pretrain "$T/$name.yaml" --local 2 --out "$T/$name" "$@" \
        >"$T/$name.log" 2>&1 || fail "the run $name failed: $(tail -n 3 "$T/$name.log")"
}
rtd rtd_one "" ""
rtd rtd_mesh "dp: 2, tp: 2" "pp: 2, tp: 2" --set recompute=true
near rtd_one rtd_mesh
figures_near 1e-3 "$(summary .quality.discriminator.eval_auc "$T/rtd_one")" \
    "$(summary .quality.discriminator.eval_auc "$T/rtd_mesh")" || fail "rtd_mesh: another AUC"
echo "sides on meshes learn what one rank learns"
