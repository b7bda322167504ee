#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run continues with another mesh: It starts as dp 2 x tp 2 beside a cluster of one rank, is
# stopped, and resumes as pp 2 beside the same cluster. It reaches the losses of an uninterrupted
# run, and the clusters have equal parameters. Nothing else of a job may change.
source "$(dirname "$0")/../e2e/lib.sh"
[[ -e $BUILD/libnebula_mpi.so ]] ||
    skip "this build has no MPI (run configs/install-deps, then build again)"
command -v mpirun >/dev/null || skip "there is no mpirun on this machine (Debian: openmpi-bin)"
# Containers forbid the other kind of transfer.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader
export OMPI_MCA_mpi_yield_when_idle=1
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # MPI leaks at its end
make_corpus

job() { # FILE ALPHA BETA: the first keys of their entries
    make_job "$1"
    sed -i -e 's/seq_len: 64, batch: 4, accumulate: 1/seq_len: 32, batch: 1, accumulate: 4/' \
        -e 's/codec: int4/codec: fp32/' \
        -e "s/{name: alpha,/{name: alpha, $2/" -e "s/{name: beta,/{name: beta, $3/" "$1"
}
job "$T/first.yaml" "mesh: {dp: 2, tp: 2}," ""
job "$T/then.yaml" "mesh: {pp: 2}, launcher: mpirun, device: cpu," ""
sed -i '/alpha/s/threads: 1/threads: 2/' "$T/then.yaml"
options=(--local 2 --steps 60 --set sync.interval=15 --set log_every=1 \
    --set checkpoint.every_steps=1000)
timeout 600 "$nebula" pretrain "$T/first.yaml" \
    --out "$T/whole" "${options[@]}" >"$T/whole.log" 2>&1 ||
    fail "the uninterrupted run failed"

NEBULA_FAULT=worker.step:+120 timeout 600 "$nebula" pretrain "$T/first.yaml" \
    --out "$T/cut" "${options[@]}" >"$T/cut.log" 2>&1 &
pid=$!
wait_step "$T/cut" 20 "$pid" alpha ||
    fail "the run does not reach step 20"
kill -INT "$(started_by "$pid" | head -n 1)"
rc=0
wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status after an interrupt is $rc, not 3"

refused() { # KEY FILE OPTIONS…
    local key=$1 file=$2
    shift 2
    if "$nebula" pretrain "$T/$file.yaml" --out "$T/cut" \
        --resume "${options[@]}" "$@" >"$T/bad.log" 2>&1; then
        fail "a resume with another $key succeeded"
    fi
    grep -q "begun with another job: $key differs" "$T/bad.log" ||
        fail "wrong error for another $key: $(cat "$T/bad.log")"
}
refused optim.lr "then" --set optim.lr=0.002
sed 's/name: gpl, weight: 1/name: gpl, weight: 2/' "$T/then.yaml" >"$T/sources.yaml"
refused clusters.sources sources

timeout 600 "$nebula" pretrain "$T/then.yaml" --out "$T/cut" \
    --resume "${options[@]}" >"$T/cut.log" 2>&1 || fail "the run could not be resumed as pp 2"
digests_equal "$T/cut"
round_digests_equal "$T/cut"
log=$(echo "$T"/cut/clusters/alpha/jobs/*/rank-0.log)
sed -n '/4 ranks: dp 2, pp 1, tp 2/,$p' "$log" | has '2 ranks: dp 1, pp 2, tp 1, 2 threads each' ||
    fail "the log shows other meshes: $(cat "$log")"
sed -n '/2 ranks: dp 1, pp 2/,$p' "$log" | has 'going on from step' ||
    fail "the second mesh started from step 0: $(cat "$log")"
losses() {
    jq -s -r '[.[] | select(.kind == "step")] | group_by([.cluster, .step])[] | last |
        "\(.cluster) \(.step) \(.loss)"' "$T/$1/metrics.jsonl"
}
losses whole >"$T/want"
losses cut >"$T/got"
[[ $(wc -l <"$T/want") == 120 ]] || fail "there are not 60 steps a cluster: $(wc -l <"$T/want")"
paste -d ' ' "$T/want" "$T/got" | awk '
    NF != 6 || $3 !~ /^[0-9]/ || $6 !~ /^[0-9]/ { print "no losses: " $0; bad = 1;
    next } # a NaN equals everything to mawk
    $1 != $4 || $2 != $5 { print "step " $2 " of " $1 " beside step " $5 " of " $4; bad = 1; exit }
    { d = ($6 - $3) / $3; d = d < 0 ? -d : d; if (d > worst) worst = d;
    if (d > 1e-5) { print $1 ", step " $2 ": " $3 ", resumed " $6; bad = 1 } }
    END { print "largest difference of a loss " worst; exit bad }' || fail "losses differ"
jq -e '.spec.clusters[0].mesh == [1, 2, 1]' "$T/cut/job.json" >/dev/null ||
    fail "job.json keeps the first mesh"

# After a crash of the command, the agents come back and continue with the mesh that they know. When
# they get another mesh, they restart their worker with that mesh.
NEBULA_FAULT=worker.step:+120 timeout 600 "$nebula" pretrain "$T/first.yaml" \
    --out "$T/crash" "${options[@]}" >"$T/crash.log" 2>&1 &
pid=$!
wait_step "$T/crash" 20 "$pid" alpha ||
    fail "the run does not reach step 20"
kill -KILL "$(started_by "$pid" | head -n 1)"
wait "$pid" 2>/dev/null || true
none_left() { ! pgrep -f "nebula (agent|worker) .*$T/crash/" >/dev/null; }
within 60 none_left || fail "the agents outlive their command"
timeout 600 "$nebula" pretrain "$T/then.yaml" --out "$T/crash" \
    --resume "${options[@]}" >"$T/crash.log" 2>&1 ||
    fail "the run could not be resumed after a crash"
digests_equal "$T/crash"
round_digests_equal "$T/crash"
grep -q 'its worker restarts with another mesh' "$T/crash/clusters/alpha/agent.log" ||
    fail "the agent did not first continue by itself: $(cat "$T/crash/clusters/alpha/agent.log")"
! grep -q 'its worker restarts' "$T/crash/clusters/beta/agent.log" ||
    fail "beta restarts its worker, although its mesh is the same"
grep 'ranks: dp' "$T"/crash/clusters/alpha/jobs/*/rank-0.log | tail -n 1 |
    has 'ranks: dp 1, pp 2, tp 1' ||
    fail "wrong last mesh: $(cat "$T"/crash/clusters/alpha/jobs/*/rank-0.log)"
echo "a run continues with another mesh"
