#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clusters with unlike meshes in one job: their workers are several ranks each, and still exchange the same bytes: parameter digests are
# equal after every round and at the end. What one rank would have learned, a mesh learns too; a stopped run goes on. With LAUNCHER
# mpirun ranks talk over MPI, else (local) over TCP, and MPI is not there at all.
source "$(dirname "$0")/../e2e/lib.sh"
launcher=${LAUNCHER:-local}
mkdir "$T/bin" "$T/empty" # the program looks for its objects beside itself
cp "$nebula" "$T/bin/"
if [[ $launcher == mpirun ]]; then
    [[ -e $BUILD/libnebula_mpi.so ]] || skip "this build has no MPI (configs/install-deps, then build again)"
    command -v mpirun >/dev/null || skip "no mpirun on this machine (Debian: openmpi-bin)"
    cp "$BUILD/libnebula_mpi.so" "$T/bin/"
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader # containers forbid the other transfer
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # MPI leaks at its end
fi
nebula=$T/bin/nebula
make_corpus

# job FILE MESH_ALPHA MESH_BETA: as make_job, four micro-batches a step.
job() {
    make_job "$1"
    sed -i -e "s/batch: 4, accumulate: 1/batch: 1, accumulate: 4/" -e "s/{name: alpha,/{name: alpha, launcher: $launcher, mesh: $2,/" \
        -e "s/{name: beta,/{name: beta, launcher: $launcher, mesh: $3,/" "$1"
}
run() { # NAME options…
    local name=$1
    shift
    timeout 120 "$nebula" pretrain "$T/$name.yaml" --local 2 --steps 20 --set sync.interval=5 --out "$T/$name" "$@" >"$T/$name.log" 2>&1 ||
        fail "$name: $(tail -n 5 "$T/$name.log"; cat "$T/$name"/clusters/*/jobs/*/{worker,rank-*}.log)"
    digests_equal "$T/$name"
    round_digests_equal "$T/$name"
}

job "$T/one.yaml" "{dp: 1}" "{dp: 1}"
job "$T/mesh.yaml" "{dp: 2, tp: 2}" "{pp: 2}"
run one
run mesh
cat "$T"/mesh/clusters/*/jobs/*/rank-0.log >"$T/ranks"
# Every rank writes a log of its own, and so does the launcher; `nebula logs` finds them.
folder=$(echo "$T"/mesh/clusters/alpha/jobs/*)
for rank in 1 2 3; do
    [[ $(grep -c "rank $rank: pid [0-9]* follows rank 0" "$folder/rank-$rank.log") == 1 ]] || fail "rank $rank has no log of its own: $(ls "$folder")"
    ! grep -q "rank $((rank % 3 + 1)):" "$folder/rank-$rank.log" || fail "rank $rank writes what another rank says"
done
! grep -q 'ranks: dp\|follows' "$folder/worker.log" || fail "ranks write to the launcher's log: $(cat "$folder/worker.log")"
"$nebula" logs --home "$T/mesh/clusters/alpha" "${folder##*/}" | has '4 ranks: dp 2' || fail "nebula logs does not show rank 0"
"$nebula" logs --home "$T/mesh/clusters/alpha" --rank 2 "${folder##*/}" | has 'rank 2: pid' || fail "nebula logs does not show rank 2"
# The exchange's state is spread over the ranks: together they own what one rank has, each about its share.
for want in "alpha 4" "beta 2"; do
    read -r name n <<<"$want"
    cat "$T/mesh/clusters/$name"/jobs/*/rank-*.log | sed -n 's/.*owns [0-9]* of [0-9]* units of the exchange: \([0-9]*\) of \([0-9]*\) parameters, \([0-9]*\) bytes/\1 \2 \3/p' >"$T/owned"
    awk -v ranks="$n" -v name="$name" '
        { sum += $1; all = $2; if ($1 > most) most = $1; if ($3 < 16 * $1) { print name ": " $1 " parameters in " $3 " bytes"; bad = 1 } }
        END {
            if (NR != ranks || sum != all || most > all / ranks * 1.3) { print name ": " NR " ranks own " sum " of " all " parameters, one of them " most; bad = 1 }
            exit bad }' "$T/owned" || fail "owners: $(cat "$T/owned")"
done
# Every rank but the owner has written its part of the last checkpoint.
for want in "alpha 3" "beta 1"; do
    read -r name n <<<"$want"
    newest=$(ls "$T/mesh/clusters/$name"/jobs/*/checkpoint/step-*.ckpt | tail -1)
    (($(ls "$newest".*.part | wc -l) == n)) || fail "$name: not $n parts beside $newest: $(ls "$(dirname "$newest")")"
done
grep -q "4 ranks: dp 2, pp 1, tp 2" "$T/ranks" && grep -q "2 ranks: dp 1, pp 2, tp 1" "$T/ranks" || fail "other ranks: $(cat "$T/ranks")"
for key in loss_first loss_last eval_loss; do
    a=$(summary "[.clusters[].$key] | @tsv" "$T/one") b=$(summary "[.clusters[].$key] | @tsv" "$T/mesh")
    figures_near 0.02 "$a" "$b" ||
        fail "$key: one rank has $a, the meshes $b"
done
jq -e 'all(.clusters[]; .steps == 20 and .tokens == 5120)' "$T/mesh/summary.json" >/dev/null || fail "summary.json: $(cat "$T/mesh/summary.json")"
"$nebula" eval "$T/mesh/checkpoint" --corpus "$T/corpus" --windows 4 >/dev/null || fail "the meshes' model cannot be used"

variants() {
    # What is trained, coded and overlapped differently; parameters that came from elsewhere.
    for name in lora overlap; do cp "$T/mesh.yaml" "$T/$name.yaml"; done
    run lora --set trainable=lora --set trainable.rank=4 --set 'trainable.targets=[q, v, down]' --set "init_from=$T/mesh/checkpoint/model.ckpt"
    run overlap --set sync.overlap=2 --set sync.fragments=2 --set sync.codec=int8 --set model.tied=false --set optim.clip.kind=adagc --set recompute=true

    # Replicas need no whole micro-batches: one of four sequences is cut for dp 2 here, and for dp 4 x pp 1 there.
    job "$T/rows.yaml" "{dp: 2, tp: 1}" "{dp: 4}"
    sed -i 's/batch: 1, accumulate: 4/batch: 4, accumulate: 1/' "$T/rows.yaml"
    run rows
    for key in loss_first loss_last; do
        a=$(summary "[.clusters[].$key] | @tsv" "$T/one") b=$(summary "[.clusters[].$key] | @tsv" "$T/rows")
        figures_near 0.02 "$a" "$b" ||
            fail "$key: one rank has $a, replicas of single rows $b"
    done
}
# auto: as many ranks as the job says there are, whatever their launcher finds.
if [[ $launcher == mpirun ]]; then
    job "$T/auto.yaml" "auto, ranks: 4" "auto, ranks: 2"
    XDG_CACHE_HOME=$BUILD/rates run auto # of this machine, measured by the test e2e_rates
    jq -e '[.spec.clusters[].mesh | .[0] * .[1] * .[2]] == [4, 2]' "$T/auto/job.json" >/dev/null || fail "auto: $(jq -c '[.spec.clusters[].mesh]' "$T/auto/job.json")"
    cat "$T"/auto/clusters/alpha/jobs/*/rank-0.log | has '4 ranks: dp' || fail "auto: other ranks"
fi
[[ $launcher == mpirun ]] || variants # no matter of what starts the ranks, and those of MPI poll while they wait

# Interrupted and resumed, and with a killed worker: the same bits as undisturbed.
job "$T/whole.yaml" "{dp: 2, tp: 2}" "{pp: 2}"
long=(--steps 140 --set sync.interval=20 --set log_every=5)
for name in cut kill; do cp "$T/whole.yaml" "$T/$name.yaml"; done
run whole "${long[@]}"
want=$(summary '.clusters[0].params_digest' "$T/whole")
started() { # NAME STEP: $pid has come this far
    local end=$((SECONDS + 110))
    while ((SECONDS < end)); do
        (($(steps_done "$T/$1" '') >= $2)) && return 0
        kill -0 "$pid" 2>/dev/null || fail "$1 ended before step $2: $(tail -n 3 "$T/$1.log")"
        sleep 0.02
    done
    fail "$1 does not come to step $2"
}
timeout 120 "$nebula" pretrain "$T/cut.yaml" --local 2 --out "$T/cut" "${long[@]}" >"$T/cut.log" 2>&1 &
pid=$!
started cut 50
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "exit status $rc after an interrupt, not 3: $(tail -n 3 "$T/cut.log")"
run cut --resume "${long[@]}"
[[ $(summary '.clusters[0].params_digest' "$T/cut") == "$want" ]] || fail "the resumed run has other parameters"
for name in alpha beta; do went_on "$T/cut" $name rank-0.log; done

timeout 120 "$nebula" pretrain "$T/kill.yaml" --local 2 --out "$T/kill" "${long[@]}" >"$T/kill.log" 2>&1 &
pid=$!
started kill 50
within 20 saved "$T/kill" alpha || fail "no checkpoint at step 50"
victim=$(pgrep -f "nebula worker $T/kill/clusters/alpha/.* --rank" | sort -n | tail -n 1) # any of its ranks
[[ -n $victim ]] || fail "no rank of alpha found"
kill -KILL "$victim"
wait "$pid" || fail "the run with a killed rank failed: $(tail -n 5 "$T/kill.log")"
digests_equal "$T/kill"
[[ $(summary '.clusters[0].params_digest' "$T/kill") == "$want" ]] || fail "after kill -9 of a rank the parameters differ"
went_on "$T/kill" alpha rank-0.log
none_left() { ! pgrep -f "nebula worker $T/" >/dev/null; }
within 20 none_left || fail "ranks are left: $(pgrep -af "nebula worker $T/")"

# Meshes that cannot be are refused before anything starts.
refused() { # MESH REASON
    job "$T/bad.yaml" "$1" "{dp: 1}"
    if "$nebula" pretrain "$T/bad.yaml" --local 2 --out "$T/bad" >"$T/bad.log" 2>&1; then fail "mesh $1 was accepted"; fi
    grep -q "$2" "$T/bad.log" || fail "mesh $1: no reason '$2': $(cat "$T/bad.log")"
}
refused "{dp: 3}" "does not divide the sequences of a step"
refused "{tp: 4}" "does not divide model.n_kv_heads"
refused "{pp: 3}" "does not divide model.n_layers"
refused "{dp: 0}" "is not in 1..1024"
refused "{cp: 2}" "allowed: dp, pp, tp"
launcher=mpirun
job "$T/mpirun.yaml" "{tp: 2}" "{dp: 1}"
if PATH=$T/empty "$nebula" pretrain "$T/mpirun.yaml" --local 2 --out "$T/bad" >"$T/bad.log" 2>&1; then fail "no mpirun, and nobody minds"; fi
grep -q "there is no mpirun" "$T/bad.log" || fail "no mpirun: no reason: $(cat "$T/bad.log")"
# A launcher that fails: what the command says names the logs to read.
if [[ -e $BUILD/libnebula_mpi.so ]]; then
    cp "$BUILD/libnebula_mpi.so" "$T/bin/"
    printf '#!/bin/sh\necho "no host answers"\nexit 7\n' >"$T/empty/mpirun"
    chmod +x "$T/empty/mpirun"
    if PATH=$T/empty:$PATH timeout 60 "$nebula" pretrain "$T/mpirun.yaml" --local 2 --out "$T/fails" >"$T/fails.log" 2>&1; then fail "no rank, and nobody minds"; fi
    folder=$(echo "$T"/fails/clusters/alpha/jobs/*)
    grep -qF "worker ended (exit status 7); see $folder/rank-*.log, and worker.log of the launcher" "$T/fails.log" || fail "not named: $(cat "$T/fails.log")"
    "$nebula" logs --home "$T/fails/clusters/alpha" "${folder##*/}" | has 'no host answers' || fail "nebula logs does not show the launcher's log"
fi
echo "unlike meshes exchange identical bytes"
