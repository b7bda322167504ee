#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Verifying and reading a checkpoint takes longer than a worker may be silent. But the work makes
# progress, so the worker does not count as hanging, and the run continues from the checkpoint.
# (hang_after_s 0.2 allows six seconds outside of steps. Each section costs 0.15 s of reading.)
source "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
# One rank waits for rank 0.
sed -i -e 's/seq_len: 64, batch: 4/seq_len: 64, batch: 8/' \
    -e 's/{name: alpha,/{name: alpha, mesh: {tp: 2},/' "$T/job.yaml"
options=(--local 2 --set hang_after_s=0.2 --set checkpoint.every_steps=20 --set log_every=1)
pace 200 # twenty steps take more than four seconds
timeout 600 "$nebula" pretrain "$T/job.yaml" --out "$T/run" "${options[@]}" >"$T/run.log" 2>&1 &
pid=$!
wait_step "$T/run" 30 "$pid" || fail "the run did not reach step 30"
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status of the first run is $rc, not 3"
start=$SECONDS
NEBULA_FAULT=worker.step:+200,file.read:+150 timeout 600 "$nebula" pretrain "$T/job.yaml" \
    --out "$T/run" "${options[@]}" --resume >"$T/slow.log" 2>&1 ||
    fail "the run with a slow disk failed"
((SECONDS - start > 14)) || fail "the disk was not slow: $((SECONDS - start)) s"
! grep -h 'worker hangs\|restart [0-9]' "$T"/run/clusters/*/agent.log "$T/slow.log" ||
    fail "a reading worker counts as hanging"
grep -qh 'verifying .*ckpt: [0-9]* %' "$T"/run/clusters/*/jobs/*/{worker,rank-0}.log ||
    fail "the progress is not reported"
digests_equal "$T/run"
[[ $(summary '[.clusters[].steps] | unique | tostring' "$T/run") == '[60]' ]] ||
    fail "wrong number of steps: $(summary .clusters "$T/run")"
echo "verified and read for longer than a worker may be silent, $((SECONDS - start)) s in all"
