#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two clusters with their own processes and keys train one model. Digests are equal after every
# round, all promised files are there, and eval and generate work on the result. All trainable sets
# and codecs work.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"

# FILE: each line is a JSON object with a kind; only the last one is the summary.
summary_last() {
    jq -Rne '[inputs | fromjson | .kind] | length > 1 and all(type == "string") and
        index("summary") == length - 1' "$1" >/dev/null ||
        fail "$1 does not end with the summary, or a line is not JSON: $(tail -n 2 "$1")"
}

umask 022 # the usual value; an agent's files must still be private to its user
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/fed" \
    --json >"$T/fed.jsonl" 2>"$T/fed.log" || fail "the federated run failed"
summary_last "$T/fed.jsonl"
head -n -1 "$T/fed.jsonl" | cmp - "$T/fed/metrics.jsonl" ||
    fail "--json and metrics.jsonl have different lines"
jq -s -e 'all(.[]; (.t | type == "number") and (.kind | type == "string") and
    (.cluster | type == "string"))' "$T/fed/metrics.jsonl" >/dev/null ||
        fail "a line lacks t, kind or cluster"
[[ $(tail -n 1 "$T/fed.jsonl" | jq -cS 'del(.kind)') == "$(jq -cS . "$T/fed/summary.json")" ]] ||
    fail "the last line differs from summary.json"
digests_equal "$T/fed"
round_digests_equal "$T/fed"
ls "$T"/fed/clusters/alpha/{ledger.db,identity,jobs/*/merges.log} >/dev/null ||
    fail "the home of alpha is incomplete"
open=$(find "$T/fed/clusters" -perm /077)
[[ ! $open ]] || fail "others can read $open"
jq -e '.job == "e2e" and .mode == "replicas" and .rounds == 6 and .params > 0 and
    .trainable_params == .params and .wall_s > 0
       and (.clusters | length == 2) and .wire_bits_per_param > 1 and .reduction_vs_sync_fp32 > 10
       and all(.clusters[]; .steps == 60 and .tokens == 15360 and .loss_last > 0 and
       .loss_last < .loss_first - 0.5 and .eval_loss > 0
               and .stall_s >= 0 and .train_s > 0 and .wan_sent_bytes > 10000 and
               .wan_recv_bytes > 10000
               and (.params_digest | length == 32) and (.device | length > 0) and
               (.name | length > 0))' \
    "$T/fed/summary.json" >/dev/null || fail "summary.json: $(cat "$T/fed/summary.json")"
for f in checkpoint/model.ckpt checkpoint/tokenizer.model metrics.jsonl plots/loss_tokens.svg \
    plots/loss_seconds.svg; do
    [[ -s $T/fed/$f ]] || fail "$f is missing"
done
[[ $(jq -s '[.[] | select(.kind == "step") | .cluster] | unique | length' \
    "$T/fed/metrics.jsonl") == 2 ]] || fail "metrics.jsonl has the steps of one cluster only"

# The evaluation that training printed equals that of the saved model.
reported=$(summary '.clusters[0].eval_loss' "$T/fed")
"$nebula" eval "$T/fed/checkpoint" --corpus "$T/corpus" --windows 16 --json >"$T/eval.jsonl" ||
    fail "eval failed"
summary_last "$T/eval.jsonl"
scored=$(jq -r 'select(.kind == "summary").loss' "$T/eval.jsonl")
awk -v a="$reported" -v b="$scored" 'BEGIN { exit !(a - b < 1e-4 && b - a < 1e-4) }' ||
    fail "eval says $scored, summary $reported"
# Without --corpus, eval uses the corpus of the run, if that corpus is unchanged.
[[ $("$nebula" eval "$T/fed/checkpoint" --windows 16 --json) == "$(cat "$T/eval.jsonl")" ]] ||
    fail "eval without --corpus gives another result"
[[ $("$nebula" eval "$T/fed/checkpoint/model.ckpt" --windows 16 \
    --json) == "$(cat "$T/eval.jsonl")" ]] ||
    fail "eval of a file without --corpus gives another result"
# CHECKPOINT TEXT: eval without --corpus exits with status 2 and TEXT.
no_corpus() {
    local status=0 out
    out=$("$nebula" eval "$1" 2>&1) || status=$?
    [[ $status == 2 && $out == *"$2"* ]] || fail "eval $1: status $status, $out"
}
mkdir "$T/alone" && cp "$T/fed/checkpoint/model.ckpt" "$T/alone/"
no_corpus "$T/alone" "give --corpus DIR: there is no $T/alone/corpus.sha256"
cp -r "$T/corpus" "$T/moved"
sha=$(sha256sum <"$T/moved/corpus.json") &&
    echo "${sha%-}$T/moved/corpus.json" >"$T/alone/corpus.sha256"
"$nebula" eval "$T/alone" --windows 1 >/dev/null ||
    fail "a note in the form of sha256sum was refused"
echo >>"$T/moved/corpus.json"
no_corpus "$T/alone" "$T/moved was rebuilt after the model learned from it"
rm -r "$T/moved"
no_corpus "$T/alone" "names the corpus $T/moved, which does not exist"
echo nonsense >"$T/alone/corpus.sha256"
no_corpus "$T/alone" "corpus.sha256 is damaged"
[[ $("$nebula" generate "$T/fed/checkpoint" --prompt "This License" --tokens 20 \
    --seed 3) == "This License"* ]] || fail "generate failed"
again() { "$nebula" generate "$T/fed/checkpoint" --prompt "This License" --tokens 30 --seed 3; }
[[ $(again) == "$(again)" ]] || fail "generate is not reproducible"
# Several prompts, and ranks, give the texts of one prompt on one rank.
printf '%s\n' "This License" "The program" >"$T/prompts.txt"
for text in "This License" "The program"; do
    "$nebula" generate "$T/fed/checkpoint" --prompt "$text" --tokens 20 --temperature 0
done >"$T/single.txt"
for mesh in "--tp 1" "--tp 2" "--dp 2"; do
    # shellcheck disable=SC2086
    "$nebula" generate "$T/fed/checkpoint" --prompts "$T/prompts.txt" --tokens 20 --temperature 0 \
        $mesh >"$T/several.txt" || fail "generate $mesh failed"
    diff "$T/single.txt" "$T/several.txt" || fail "generate $mesh: other texts"
done
refuses 1 "does not divide model.n_heads" generate "$T/fed/checkpoint" --ids 1 --tp 7

(cd "$T" && "$nebula" data build spec.yaml --out 'a "second"' --json) >"$T/data.jsonl" \
    2>"$T/second.log" || fail "data build --json failed: $(cat "$T/second.log")"
summary_last "$T/data.jsonl"
[[ $(tail -n 1 "$T/data.jsonl" | jq -r '.corpus, (.sources[0] | .train_tokens > .valid_tokens)' |
    tr '\n' ' ') == 'a "second" true ' ]] ||
    fail "wrong summary of data build: $(tail -n 1 "$T/data.jsonl")"

# A folder --out that contains a run is not overwritten.
if timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/fed" >"$T/again.log" 2>&1; then
    fail "a finished run was overwritten"
fi
grep -q -- '--resume to continue it' "$T/again.log" ||
    fail "the hint is missing: $(cat "$T/again.log")"

# Without --out a run writes to out/JOB, and does not overwrite a run there either.
in_default() {
    (cd "$T" && timeout 600 "$nebula" pretrain job.yaml --local 2 \
        --steps 10 "$@" >"$T/default.log" 2>&1)
}
in_default || fail "the run without --out failed"
digests_equal "$T/out/e2e"
if in_default; then fail "the run in out/e2e was overwritten"; fi
grep -q 'out/e2e has a run already' "$T/default.log" ||
    fail "the hint is missing: $(cat "$T/default.log")"
in_default --resume || fail "--resume without --out failed"

run() { # NAME options…: a shorter run with other settings
    local name=$1; shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 20 --set sync.interval=5 \
        --set eval.windows=1 --set data.batch=2 --out "$T/$name" "$@" >"$T/$name.log" 2>&1 ||
        fail "the run $name failed"
    digests_equal "$T/$name"
    round_digests_equal "$T/$name"
    jq -e 'all(.clusters[]; .loss_last > 0 and .loss_last < .loss_first + 0.2)' \
        "$T/$name/summary.json" >/dev/null || fail "$name: the loss rose"
}
run codec-fp32 --set sync.codec=fp32
run codec-topk --set sync.codec=topk:64/4096
run overlap --set sync.codec=int8 --set sync.overlap=2 --set sync.fragments=2
run untied --set sync.codec=bf16 --set model.tied=false --set model.qkv_bias=true \
    --set optim.clip.kind=adagc --set recompute=true --set data.accumulate=2
run lora --set trainable=lora --set trainable.rank=4 --set 'trainable.targets=[q, v, down]' \
    --set "init_from=$T/fed/checkpoint/model.ckpt"
run bitfit --set trainable=bitfit --set "init_from=$T/fed/checkpoint/model.ckpt"
run last --set trainable=last_layers --set trainable.n=1
run frozen --set 'trainable.freeze=[embeddings]'
for name in lora bitfit last frozen; do # only trainable parameters are exchanged
    jq -e '.trainable_params < .params' "$T/$name/summary.json" >/dev/null ||
        fail "$name: all parameters were trained"
    [[ $(summary '.clusters[0].wan_sent_bytes' \
        "$T/$name") -lt $(summary '.clusters[0].wan_sent_bytes' "$T/codec-fp32") ]] ||
        fail "$name: too many bytes were sent"
done
"$nebula" eval "$T/lora/checkpoint" --corpus "$T/corpus" --windows 4 --merge-lora >/dev/null ||
    fail "eval of the merged LoRA model failed"
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 10 --set sync.scheme=none \
    --out "$T/none" >"$T/none.log" 2>&1 || fail "the run with scheme none failed"
# A run of scheme synchronous uses all processors that its process may use.
first=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
timeout 600 taskset -c "$first" "$nebula" pretrain "$T/job.yaml" --local 2 --steps 10 \
    --set sync.scheme=synchronous --out "$T/sync" >"$T/sync.log" 2>&1 ||
    fail "the run with scheme synchronous failed"
[[ $(jq '.spec.clusters[0].threads' "$T/sync/job.json") == 1 ]] ||
    fail "on one processor the reference has $(jq '.spec.clusters[0].threads' \
        "$T/sync/job.json") threads"
[[ $(summary '.clusters | length' "$T/sync") == 1 &&
    $(summary '.clusters[0].tokens' "$T/sync") == 5120 ]] ||
    fail "the summary of the synchronous run is wrong"
echo "federated runs leave equal parameters and complete files"
