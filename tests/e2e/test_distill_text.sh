#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode distill on other text than pairs to translate: windows of any text, and prompts with answers,
# of which only the answer is learned. nebula check refuses what the run would refuse.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_corpus
mv "$T/corpus" "$T/prose"
make_pairs
batch=3
task() { # NAME TASK CLUSTERS [keys of the distill section]
    job "$T/$1.yaml" "$3" "task: $2${4:+, $4}"
    sed -i 's/steps: 60/steps: 30/; s/windows: 20/windows: 4/' "$T/$1.yaml"
    [[ $2 != text ]] || sed -i "s#corpus: $T/corpus, seq_len: 96#corpus: $T/prose, seq_len: 64#" \
        "$T/$1.yaml"
}
eval_loss() { summary '.clusters[] | select(.name == "beta") | .eval_loss' "$T/$1"; }

# A language model: the teacher is any model of this vocabulary that was trained causally.
task alone text "$one"
run "$T/alone.yaml" 1 "$T/alone" --steps 60
jq -e '.quality.clusters.beta | .chrf == null and .eval_loss > 0' "$T/alone/summary.json" \
    >/dev/null || fail "quality of a language model: $(jq -c .quality "$T/alone/summary.json")"
"$nebula" eval "$T/alone/checkpoint" --corpus "$T/prose" --windows 4 --json >"$T/eval.json" ||
    fail "the student is no language model"
task text text "$both" "teacher: {init: $T/alone/checkpoint/model.ckpt}"
run "$T/text.yaml" 2 "$T/text_run" --set distill.lambda=1
# labels for each token of the text, from the bytes that the teacher has sent
share() {
    jq '(.clusters[0].wan_payload_bytes / .quality.label_bytes_per_target_token) /
        .clusters[1].tokens' "$T/$1/summary.json"
}
taught() { # NAME LEAST MOST
    jq -e '.quality.clusters.beta | .taught_share == 1 and .chrf == null' "$T/$1/summary.json" \
        >/dev/null || fail "$1: $(jq -c .quality "$T/$1/summary.json")"
    awk -v s="$(share "$1")" -v a="$2" -v z="$3" 'BEGIN { exit !(s >= a && s <= z) }' ||
        fail "$1: labels for $(share "$1") of the tokens"
}
taught text_run 0.95 1.05
awk -v l="$(eval_loss text_run)" 'BEGIN { exit !(l > 0 && l < 6) }' ||
    fail "the student of text learned nothing: $(eval_loss text_run)"

# Prompts and answers: a causal model, and the text that the student sends.
task instruct instruct "$both" "teacher: {learn: true}, push_text: true"
run "$T/instruct.yaml" 2 "$T/instruct"
taught instruct 0.2 0.65 # about half of a pair is the prompt
# The same pairs to translate: another mask, so another model.
task translate translate "$both" "teacher: {learn: true}, push_text: true"
run "$T/translate.yaml" 2 "$T/translate"
[[ $(digest "$T/translate") != "$(digest "$T/instruct")" ]] || fail "instruct is not causal"

refuses() { # JOB REASON [options]: check, and then the run
    local job=$1 why=$2
    shift 2
    if "$nebula" check "$T/$job.yaml" "$@" >"$T/check.log" 2>&1; then
        fail "check accepts $job with $*"
    fi
    grep -q "$why" "$T/check.log" || fail "check does not say '$why': $(cat "$T/check.log")"
}
for name in alone text instruct; do
    "$nebula" check "$T/$name.yaml" >"$T/check.log" 2>&1 || fail "check: $(cat "$T/check.log")"
done
refuses alone "distill.task: text" --set distill.task=translate
refuses alone "has no pairs" --set distill.task=instruct
refuses text "takes at most 64 tokens, but data.seq_len is 128" --set data.seq_len=128
refuses text "set model.vocab" --set model.vocab=600
sed 's/role: teacher, threads: 1/role: teacher, threads: 1, mesh: {tp: 8}/' \
    "$T/text.yaml" >"$T/tp8.yaml"
refuses tp8 "tp: 8 does not divide model.n_heads 4"
refuses text "is not one of: translate, text, instruct" --set distill.task=sing
# Mode rtd: windows that are longer than the text, and batches that no stream takes.
cat >"$T/rtd.yaml" <<YAML
job: rtd
mode: rtd
steps: 10
model: {n_layers: 1, d_model: 16, n_heads: 2, d_ff: 32}
data: {corpus: $T/prose, seq_len: 64, batch: 2}
optim: {lr: 0.003}
clusters: [{name: alpha, role: generator}, {name: beta, role: discriminator}]
YAML
"$nebula" check "$T/rtd.yaml" >"$T/check.log" 2>&1 || fail "check: $(cat "$T/check.log")"
refuses rtd "has too few tokens for windows of 60000" --set data.seq_len=60000 --set data.batch=1
refuses rtd "makes batches of up to .* or data.seq_len" --set data.batch=1000 \
    --set data.accumulate=100
echo "students of text and of prompts; check refuses what the run would refuse"
