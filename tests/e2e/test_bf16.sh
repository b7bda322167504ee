#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `precision: bf16` on processors. A cluster in bf16 and one in fp32 exchange the same bytes and
# have equal digests. The loss is near that of fp32. A run can continue in the other precision.
# Adapters train in bf16 too. A processor without bf16 is refused.
. "$(dirname "$0")/lib.sh"
export NEBULA_BF16=plain # works on any machine
make_corpus
make_job "$T/fp32.yaml"
sed -i 's/batch: 4/batch: 2/' "$T/fp32.yaml"
sed 's/{name: alpha,/{name: alpha, device: cpu, precision: bf16,/' "$T/fp32.yaml" >"$T/bf16.yaml"

run() { # NAME JOB options…
    local name=$1 job=$2
    shift 2
    timeout 600 "$nebula" pretrain "$T/$job.yaml" --local 2 \
        --out "$T/$name" "$@" >"$T/$name.log" 2>&1 || fail "the run $name failed"
}
near() { # NAME NAME: losses of both runs
    local key a b
    for key in loss_last eval_loss; do
        a=$(summary "[.clusters[].$key] | @tsv" "$T/$1") \
            b=$(summary "[.clusters[].$key] | @tsv" "$T/$2")
        figures_near 0.05 "$a" "$b" ||
            fail "$key: $1 has $a, $2 has $b"
    done
}
run fp32 fp32
run bf16 bf16
digests_equal "$T/bf16"
round_digests_equal "$T/bf16"
jq -e '(.clusters[0].device | test("^cpu \\(.*, bf16, 1 threads\\)$")) and
    (.clusters[1].device | test("bf16") | not)' "$T/bf16/summary.json" >/dev/null ||
    fail "wrong devices: $(summary '.clusters[].device' "$T/bf16")"
grep -q 'with matrix products in bf16 by plain C' "$T"/bf16/clusters/alpha/jobs/*/worker.log ||
    fail "the worker log does not mention bf16"
[[ $(summary '.clusters[0].params_digest' \
    "$T/bf16") != "$(summary '.clusters[0].params_digest' "$T/fp32")" ]] ||
    fail "bf16 changed nothing"
near bf16 fp32

# The run stops after 20 of 60 steps and continues in the other precision, from the same checkpoint.
# The worker reports its precision.
for order in "fp32 bf16" "bf16 fp32"; do
    read -r from to <<<"$order"
    NEBULA_FAULT=worker.step:+100 timeout 600 "$nebula" pretrain "$T/$from.yaml" --local 2 \
        --out "$T/from-$from" >"$T/from-$from.log" 2>&1 &
    pid=$!
    wait_step "$T/from-$from" 25 "$pid" || fail "the run ended before step 25"
    kill -INT "$pid"
    rc=0; wait "$pid" || rc=$?
    [[ $rc == 3 ]] || fail "the exit status after an interrupt is $rc, not 3"
    run "from-$from" "$to" --resume
    digests_equal "$T/from-$from"
    near "from-$from" fp32
    grep -hq 'bf16 by plain C, 1 threads' "$T/from-$from"/clusters/alpha/jobs/*/worker.log ||
        fail "$from to $to: the worker log does not mention bf16: $(cat \
            "$T/from-$from"/clusters/alpha/jobs/*/worker.log)"
done

run lora bf16 --steps 20 --set trainable=lora --set trainable.rank=4 \
    --set "init_from=$T/fp32/checkpoint/model.ckpt" --set recompute=true
digests_equal "$T/lora"

# Without bf16 support: one sentence with the remedy, and no fallback.
if NEBULA_BF16='' NEBULA_ISA=sse2 timeout 600 "$nebula" pretrain "$T/bf16.yaml" --local 2 \
    --out "$T/none" >"$T/none.log" 2>&1; then
    fail "bf16 was accepted on a processor without it"
fi
grep -q 'precision bf16 on processors: this processor lacks avx512_bf16; set precision: fp32' \
    "$T/none.log" || fail "the reason is missing"
echo "fp32 and bf16 agree"
