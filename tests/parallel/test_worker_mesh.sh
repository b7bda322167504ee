#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clusters with different meshes in one job: each worker has several ranks, and all exchange the
# same bytes. Parameter digests are equal after every round and at the end. A mesh learns what one
# rank learns, and a stopped run can be resumed. With LAUNCHER=mpirun ranks use MPI; otherwise
# (local) they use TCP, without the MPI object.
source "$(dirname "$0")/../e2e/lib.sh"
launcher=${LAUNCHER:-local}
mkdir "$T/bin" "$T/empty" # the program looks for its objects beside itself
cp "$nebula" "$T/bin/"
if [[ $launcher == mpirun ]]; then
    [[ -e $BUILD/libnebula_mpi.so ]] ||
        skip "this build has no MPI (run configs/install-deps, then build again)"
    command -v mpirun >/dev/null || skip "there is no mpirun on this machine (Debian: openmpi-bin)"
    cp "$BUILD/libnebula_mpi.so" "$T/bin/"
    # Containers forbid the other kind of transfer.
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    [[ ! -e $BUILD/libtest_yield.so ]] || # parallel/yield.c
        export LD_PRELOAD=$BUILD/libtest_yield.so
    export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # MPI leaks at its end
fi
nebula=$T/bin/nebula
make_corpus

# job FILE MESH_ALPHA MESH_BETA: as make_job, with four micro-batches a step.
job() {
    make_job "$1"
    sed -i -e "s/batch: 4, accumulate: 1/batch: 1, accumulate: 4/" \
        -e "s/{name: alpha,/{name: alpha, launcher: $launcher, mesh: $2,/" \
        -e "s/{name: beta,/{name: beta, launcher: $launcher, mesh: $3,/" "$1"
}
run() { # NAME options…
    local name=$1
    shift
    timeout 600 "$nebula" pretrain "$T/$name.yaml" --local 2 --steps 10 --set sync.interval=5 \
        --out "$T/$name" "$@" >"$T/$name.log" 2>&1 ||
        fail "the run $name failed: $(tail -n 5 "$T/$name.log"; cat \
            "$T/$name"/clusters/*/jobs/*/{worker,rank-*}.log)"
    digests_equal "$T/$name"
    round_digests_equal "$T/$name"
}

job "$T/one.yaml" "{dp: 1}" "{dp: 1}"
job "$T/mesh.yaml" "{dp: 2, tp: 2}" "{pp: 2}"
run one
run mesh
cat "$T"/mesh/clusters/*/jobs/*/rank-0.log >"$T/ranks"
# Every rank and the launcher write their own logs, and `nebula logs` finds them.
folder=$(echo "$T"/mesh/clusters/alpha/jobs/*)
for rank in 1 2 3; do
    [[ $(grep -c "rank $rank: pid [0-9]* follows rank 0" "$folder/rank-$rank.log") == 1 ]] ||
        fail "rank $rank has no log of its own: $(ls "$folder")"
    ! grep -q "rank $((rank % 3 + 1)):" "$folder/rank-$rank.log" ||
        fail "the log of rank $rank contains lines of another rank"
done
! grep -q 'ranks: dp\|follows' "$folder/worker.log" ||
    fail "the launcher's log contains lines of ranks: $(cat "$folder/worker.log")"
"$nebula" logs --home "$T/mesh/clusters/alpha" "${folder##*/}" | has '4 ranks: dp 2' ||
    fail "nebula logs does not show rank 0"
"$nebula" logs --home "$T/mesh/clusters/alpha" --rank 2 "${folder##*/}" | has 'rank 2: pid' ||
    fail "nebula logs does not show rank 2"
# The state of the exchange is distributed over the ranks: together they hold what one rank holds,
# each about its share.
owns='owns [0-9]* of [0-9]* units of the exchange: '
owns+='\([0-9]*\) of \([0-9]*\) parameters, \([0-9]*\) bytes'
for want in "alpha 4" "beta 2"; do
    read -r name n <<<"$want"
    cat "$T/mesh/clusters/$name"/jobs/*/rank-*.log |
        sed -n "s/.*$owns/\1 \2 \3/p" >"$T/owned"
    awk -v ranks="$n" -v name="$name" '
        { sum += $1; all = $2; if ($1 > most) most = $1;
        if ($3 < 16 * $1) { print name ": " $1 " parameters in " $3 " bytes"; bad = 1 } }
        END {
            if (NR != ranks || sum != all || most > all / ranks * 1.3) {
            print name ": " NR " ranks own " sum " of " all " parameters, one of them " most;
            bad = 1 }
            exit bad }' "$T/owned" || fail "wrong shards: $(cat "$T/owned")"
done
# All ranks except rank 0 wrote their part of the last checkpoint.
for want in "alpha 3" "beta 1"; do
    read -r name n <<<"$want"
    newest=$(ls "$T/mesh/clusters/$name"/jobs/*/checkpoint/step-*.ckpt | tail -1)
    (($(ls "$newest".*.part | wc -l) == n)) ||
        fail "$name: there are not $n parts beside $newest: $(ls "$(dirname "$newest")")"
done
grep -q "4 ranks: dp 2, pp 1, tp 2" "$T/ranks" && grep -q "2 ranks: dp 1, pp 2, tp 1" "$T/ranks" ||
    fail "the workers have other ranks: $(cat "$T/ranks")"
for key in loss_first loss_last eval_loss; do
    a=$(summary "[.clusters[].$key] | @tsv" "$T/one") \
        b=$(summary "[.clusters[].$key] | @tsv" "$T/mesh")
    figures_near 0.02 "$a" "$b" ||
        fail "$key: one rank has $a, the meshes have $b"
done
jq -e 'all(.clusters[]; .steps == 10 and .tokens == 2560)' "$T/mesh/summary.json" >/dev/null ||
    fail "wrong summary.json: $(cat "$T/mesh/summary.json")"
"$nebula" eval "$T/mesh/checkpoint" --corpus "$T/corpus" --windows 4 >/dev/null ||
    fail "the model of the meshes cannot be evaluated"

variants() {
    # Other trainable sets, codecs and overlaps, and a start from the parameters of another run.
    for name in lora overlap; do cp "$T/mesh.yaml" "$T/$name.yaml"; done
    run lora --set trainable=lora --set trainable.rank=4 --set 'trainable.targets=[q, v, down]' \
        --set "init_from=$T/mesh/checkpoint/model.ckpt"
    run overlap --set sync.overlap=2 --set sync.fragments=2 --set sync.codec=int8 \
        --set model.tied=false --set optim.clip.kind=adagc --set recompute=true

    # A replica need not get whole micro-batches. A micro-batch of four sequences is split for dp 2
    # at one cluster, and for dp 4 at the other.
    job "$T/rows.yaml" "{dp: 2, tp: 1}" "{dp: 4}"
    sed -i 's/batch: 1, accumulate: 4/batch: 4, accumulate: 1/' "$T/rows.yaml"
    run rows
    for key in loss_first loss_last; do
        a=$(summary "[.clusters[].$key] | @tsv" "$T/one") \
            b=$(summary "[.clusters[].$key] | @tsv" "$T/rows")
        figures_near 0.02 "$a" "$b" ||
            fail "$key: one rank has $a, replicas of single rows have $b"
    done
}
# mesh: auto uses the number of ranks in the job, whatever the launcher finds.
if [[ $launcher == mpirun ]]; then
    job "$T/auto.yaml" "auto, ranks: 4" "auto, ranks: 2"
    XDG_CACHE_HOME=$BUILD/rates run auto # measured by the test e2e_rates
    jq -e '[.spec.clusters[].mesh | .[0] * .[1] * .[2]] == [4, 2]' "$T/auto/job.json" >/dev/null ||
        fail "wrong meshes from mesh: auto: $(jq -c '[.spec.clusters[].mesh]' "$T/auto/job.json")"
    cat "$T"/auto/clusters/alpha/jobs/*/rank-0.log | has '4 ranks: dp' ||
        fail "the worker with mesh: auto has other ranks"
fi
# The tests below do not depend on the launcher. Waiting ranks of MPI poll, so they run without it.
[[ $launcher == mpirun ]] || variants

# A run that is interrupted and resumed, and a run with a killed worker, have the bits of an
# undisturbed run.
job "$T/whole.yaml" "{dp: 2, tp: 2}" "{pp: 2}"
long=(--steps 50 --set sync.interval=10 --set log_every=1)
for name in cut kill; do cp "$T/whole.yaml" "$T/$name.yaml"; done
run whole "${long[@]}"
want=$(summary '.clusters[0].params_digest' "$T/whole")
started() { # NAME: waits until the run of $pid has made steps after a checkpoint
    wait_step "$T/$1" 22 "$pid" alpha || fail "the run $1 does not reach step 22"
}
pace 150
timeout 600 "$nebula" pretrain "$T/cut.yaml" --local 2 \
    --out "$T/cut" "${long[@]}" >"$T/cut.log" 2>&1 &
pid=$!
started cut
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status after an interrupt is $rc, not 3"
run cut --resume "${long[@]}"
[[ $(summary '.clusters[0].params_digest' "$T/cut") == "$want" ]] ||
    fail "the parameters differ after a resume"
for name in alpha beta; do went_on "$T/cut" $name rank-0.log; done

timeout 600 "$nebula" pretrain "$T/kill.yaml" --local 2 \
    --out "$T/kill" "${long[@]}" >"$T/kill.log" 2>&1 &
pid=$!
started kill
within 20 saved "$T/kill" alpha || fail "there is no checkpoint at step 22"
# Kills any of its ranks.
victim=$(pgrep -f "nebula worker $T/kill/clusters/alpha/.* --rank" | sort -n | tail -n 1)
[[ -n $victim ]] || fail "there is no rank of alpha"
kill -KILL "$victim"
wait "$pid" || fail "the run with a killed rank failed"
digests_equal "$T/kill"
[[ $(summary '.clusters[0].params_digest' "$T/kill") == "$want" ]] ||
    fail "the parameters differ after kill -9 of a rank"
went_on "$T/kill" alpha rank-0.log
none_left() { ! pgrep -f "nebula worker $T/" >/dev/null; }
within 20 none_left || fail "some ranks remain: $(pgrep -af "nebula worker $T/")"

# Impossible meshes are refused before anything starts.
refused() { # MESH REASON
    job "$T/bad.yaml" "$1" "{dp: 1}"
    if "$nebula" pretrain "$T/bad.yaml" --local 2 --out "$T/bad" >"$T/bad.log" 2>&1; then
        fail "mesh $1 was accepted"
    fi
    grep -q "$2" "$T/bad.log" || fail "mesh $1: the reason '$2' is missing: $(cat "$T/bad.log")"
}
refused "{dp: 3}" "does not divide the sequences of a step"
refused "{tp: 4}" "does not divide model.n_kv_heads"
refused "{pp: 3}" "does not divide model.n_layers"
refused "{dp: 0}" "is not in 1..1024"
refused "{cp: 2}" "allowed: dp, pp, tp"
launcher=mpirun
job "$T/mpirun.yaml" "{tp: 2}" "{dp: 1}"
if PATH=$T/empty "$nebula" pretrain "$T/mpirun.yaml" --local 2 \
    --out "$T/bad" >"$T/bad.log" 2>&1; then
    fail "a run without mpirun succeeded"
fi
grep -q "there is no mpirun" "$T/bad.log" ||
    fail "the missing mpirun is not reported: $(cat "$T/bad.log")"
# A launcher that fails: the error names the logs to read.
if [[ -e $BUILD/libnebula_mpi.so ]]; then
    cp "$BUILD/libnebula_mpi.so" "$T/bin/"
    printf '#!/bin/sh\necho "no host answers"\nexit 7\n' >"$T/empty/mpirun"
    chmod +x "$T/empty/mpirun"
    if PATH=$T/empty:$PATH timeout 600 "$nebula" pretrain "$T/mpirun.yaml" --local 2 \
        --out "$T/fails" >"$T/fails.log" 2>&1; then
        fail "a run with a failing launcher succeeded"
    fi
    folder=$(echo "$T"/fails/clusters/alpha/jobs/*)
    text="worker ended (exit status 7); see $folder/rank-*.log, and worker.log of the launcher"
    grep -qF "$text" "$T/fails.log" || fail "the logs are not named: $(cat "$T/fails.log")"
    "$nebula" logs --home "$T/fails/clusters/alpha" "${folder##*/}" | has 'no host answers' ||
        fail "nebula logs does not show the launcher's log"
fi
echo "different meshes exchange identical bytes"
