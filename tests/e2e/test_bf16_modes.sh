#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `precision: bf16` on processors in the other modes. Mode rtd ends with the same bits on two agents
# as in one process. A student in bf16 learns from a teacher in fp32. The summary names the
# precision.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
export NEBULA_BF16=plain # works on any machine
make_pairs
batch=2 windows=8
devices() { summary '[.clusters[].device] | join(" ")' "$1"; }

job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20
job "$T/fp32.yaml" "$both" "teacher: {init: $T/teacher/checkpoint/model.ckpt}"
sed 's/role: student,/role: student, precision: bf16,/' "$T/fp32.yaml" >"$T/bf16.yaml"
run "$T/fp32.yaml" 2 "$T/fp32"
run "$T/bf16.yaml" 2 "$T/bf16"
[[ $(devices \
    "$T/bf16") =~ ^cpu\ \([a-z0-9]+,\ 1\ threads\)\ cpu\ \([a-z0-9]+,\ bf16,\ 1\ threads\)$ ]] ||
    fail "wrong devices: $(devices "$T/bf16")"
[[ $(digest "$T/bf16") != "$(digest "$T/fp32")" ]] || fail "bf16 changed nothing"
loss() { summary '.quality.clusters.beta.eval_loss' "$1"; }
awk -v a="$(loss "$T/fp32")" \
    -v b="$(loss "$T/bf16")" 'BEGIN { d = a - b; exit !(a > 0 && b > 0 && d < 0.1 && d > -0.1) }' ||
    fail "the held-out loss is $(loss "$T/bf16"), in fp32 $(loss "$T/fp32")"

cat >"$T/rtd.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 30
model: {n_layers: 2, d_model: 48, n_heads: 4, d_ff: 96}
data: {corpus: $T/corpus, seq_len: 64, batch: 4, accumulate: 2}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}}
eval: {windows: 8}
clusters:
  - {name: alpha, role: generator, threads: 1, precision: bf16}
  - {name: beta, role: discriminator, threads: 1, precision: bf16}
YAML
rtd() { # OUT [options]
    local out=$1
    shift
    timeout 600 "$nebula" pretrain "$T/rtd.yaml" --local 2 --out "$out" "$@" >"$out.log" 2>&1 ||
        fail "the run $out failed"
}
rtd "$T/one" --set sync.scheme=synchronous
rtd "$T/two"
digests() { summary '[.clusters[].params_digest] | join(" ")' "$1"; }
[[ $(digests "$T/one") == "$(digests "$T/two")" ]] ||
    fail "digests: two agents $(digests "$T/two"), one process $(digests "$T/one")"
[[ $(devices "$T/two") == *bf16*bf16* ]] || fail "wrong devices: $(devices "$T/two")"
echo "distill and rtd train in bf16"
