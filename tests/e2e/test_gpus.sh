#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a host with several GPUs, the clusters of --local get different ones, and an agent gives its
# worker one GPU per rank. The test needs no GPU: it reads the environment of the processes.
source "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/{name: alpha,/{name: alpha, mesh: {dp: 2},/' -e 's/device: cpu/device: auto/' \
    "$T/job.yaml"
pace 400
CUDA_VISIBLE_DEVICES=3,5,GPU-7 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 20 \
    --out "$T/run" >"$T/run.log" 2>&1 &
pid=$!
sees() { # PATTERN: the GPUs that the newest matching process sees
    local p
    p=$(pgrep -f "$1" | sort -n | tail -n 1) &&
        tr '\0' '\n' <"/proc/$p/environ" | sed -n 's/^CUDA_VISIBLE_DEVICES=//p'
}
seen() { [[ $(sees "nebula worker $T/run/clusters/$1/") == "$2" ]]; }
within 60 seen alpha 3,5 || fail "alpha's ranks see $(sees "nebula worker $T/run/clusters/alpha/")"
within 60 seen beta GPU-7 || fail "beta's worker sees $(sees "nebula worker $T/run/clusters/beta/")"
wait "$pid" || fail "the run failed"
has 'its worker has GPUs CUDA_VISIBLE_DEVICES=3,5, of 2' <"$T/run/clusters/alpha/agent.log" ||
    fail "the log does not name the GPUs: $(cat "$T/run/clusters/alpha/agent.log")"
digests_equal "$T/run"
echo "each cluster has GPUs of its own"
