#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a run to a Hugging Face folder and back. The losses are the same, a job can start from the
# folder, and adapters are exported alone and merged. An import or export that cannot work is
# refused, and leaves no half-written files.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i 's/windows: 16/windows: 2/' "$T/job.yaml"

score() {
    "$nebula" eval "$1" --corpus "$T/corpus" --windows 8 --json "${@:2}" |
        jq -r 'select(.source == "mean").loss'
}
near() {
    awk -v a="$1" -v b="$2" -v d="$3" 'BEGIN { exit !(a - b < d && b - a < d) }' ||
        fail "$4: $1 against $2"
}
run() { # NAME options…
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 20 \
        --out "$T/$1" "${@:2}" >"$T/$1.log" 2>&1 || fail "the run $1 failed"
}

run first
"$nebula" export "$T/first/checkpoint" "$T/hf" --shard-size 200K >"$T/export.log" 2>&1 ||
    fail "export failed: $(cat "$T/export.log")"
for f in config.json tokenizer.model tokenizer_config.json model.safetensors.index.json \
    model-00001-of-00003.safetensors; do
    [[ -s $T/hf/$f ]] || fail "the folder lacks $f: $(ls "$T/hf")"
done
jq -e '.model_type == "llama" and .hidden_size == 64 and .num_key_value_heads == 2 and
    .tie_word_embeddings and .vocab_size == 512
       and .eos_token_id == 2 and .rope_theta == 10000' "$T/hf/config.json" >/dev/null ||
           fail "wrong config.json: $(cat "$T/hf/config.json")"
"$nebula" import "$T/hf" --out "$T/back" >"$T/import.log" 2>&1 ||
    fail "import failed: $(cat "$T/import.log")"
near "$(score "$T/first/checkpoint")" "$(score "$T/back")" 1e-9 "loss after the way there and back"
[[ $("$nebula" generate "$T/back" --prompt "This License" --tokens 8) == "This License"* ]] ||
    fail "generate from an imported folder failed"

# A job starts from the folder and need not repeat its shape. It starts at the loss where the first
# run ended.
sed "s|^model: .*|model: {init: $T/back}|" "$T/job.yaml" >"$T/next.yaml"
timeout 600 "$nebula" check "$T/next.yaml" >"$T/check.log" 2>&1 ||
    fail "check failed: $(cat "$T/check.log")"
! grep 'vocabulary' "$T/check.log" ||
    fail "check warns of a vocabulary that is beside the model and in the corpus"
cp -r "$T/back" "$T/bare" && rm "$T/bare/tokenizer.model"
timeout 600 "$nebula" check "$T/next.yaml" --set "model.init=$T/bare" >"$T/bare.log" 2>&1 ||
    fail "check failed: $(cat "$T/bare.log")"
(($(grep -c \
    "vocabulary of $T/bare/model.ckpt is unknown, since there is no $T/bare/tokenizer.model" \
    "$T/bare.log") == 1)) ||
    fail "no warning about a model of an unknown vocabulary: $(cat "$T/bare.log")"
timeout 600 "$nebula" pretrain "$T/next.yaml" --local 2 --steps 20 --set optim.warmup=20 \
    --out "$T/next" >"$T/next.log" 2>&1 || fail "the run from the imported model failed"
digests_equal "$T/next"
[[ $(summary '.clusters[0].loss_first < 5.5' "$T/next") == true &&
    $(summary '.clusters[0].loss_first > 5.9' "$T/first") == true ]] ||
    fail "first losses: $(summary '.clusters[0].loss_first' \
        "$T/first"), then $(summary '.clusters[0].loss_first' "$T/next")"

# Only the first start needs model.init. A killed worker and a resumed run continue from their
# checkpoints, even if the folder of model.init is gone.
next() {
    timeout 600 "$nebula" pretrain "$T/next.yaml" --local 2 --steps 20 --set optim.warmup=20 \
        --set checkpoint.every_steps=4 "$@"
}
run=$T/gone
NEBULA_FAULT=worker.step:+400 next --out "$run" >"$run.log" 2>&1 &
pid=$!
wait_step "$run" 1 "$pid" && within 30 saved "$run" alpha && within 30 saved "$run" beta ||
    fail "there is no checkpoint"
mv "$T/back" "$T/away"
kill -KILL "$(worker_of alpha)"
restarted() { cat "$run"/clusters/alpha/jobs/*/worker.log | has 'going on from step [1-9]'; }
within 30 restarted || fail "a killed worker did not go on without $T/back"
kill -INT "$(started_by "$pid")"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "exit status $rc after an interrupt, not 3"
if next --out "$run" --resume --set model.rope_theta=5000 >"$run.other" 2>&1; then
    fail "a run was resumed with another rope_theta"
fi
has 'model.rope_theta is 5000' <"$run.other" ||
    fail "the reason is missing: $(tail -n 3 "$run.other")"
next --out "$run" --resume >>"$run.log" 2>&1 || fail "the run could not be resumed without $T/back"
[[ $(summary '.clusters[0].params_digest' \
    "$run") == "$(summary '.clusters[0].params_digest' "$T/next")" ]] ||
    fail "the parameters differ after a resume without $T/back"
mkdir "$T/back"
next --out "$run" --resume >>"$run.log" 2>&1 ||
    fail "the run could not be resumed with an empty $T/back"
rmdir "$T/back"
if next --out "$T/never" >"$T/never.log" 2>&1; then
    fail "a run started without its initial model"
fi
grep -q 'there is no\|cannot' "$T/never.log" || fail "the reason is missing: $(cat "$T/never.log")"
mv "$T/away" "$T/back"

# Merged adapters give the loss of the model with its adapters. A PEFT folder can be imported again.
run lora --set trainable=lora --set trainable.rank=4 --set "init_from=$T/first/checkpoint" \
    --set optim.lr=0.03
"$nebula" export "$T/lora/checkpoint" "$T/merged" --merge-lora --like "$T/hf" >/dev/null 2>&1 ||
    fail "export --merge-lora failed"
"$nebula" export "$T/lora/checkpoint" "$T/adapter" --adapter >/dev/null 2>&1 ||
    fail "export --adapter failed"
"$nebula" import "$T/merged" --out "$T/merged-back" >/dev/null 2>&1 ||
    fail "import of the merged model failed"
"$nebula" import "$T/hf" --adapter "$T/adapter" --out "$T/lora-back" >/dev/null 2>&1 ||
    fail "import --adapter failed"
near "$(score "$T/lora/checkpoint")" "$(score "$T/merged-back")" 1e-5 "merged"
near "$(score "$T/lora/checkpoint")" "$(score "$T/lora-back")" 1e-9 "adapter"

# The job holds the digest of the start model of all clusters. A site with another model is refused:
# its adapters must not be averaged with the others.
base=$(jq -r .spec.init_sha256 "$T/lora/job.json")
[[ $base =~ ^[0-9a-f]{64}$ ]] ||
    fail "the job does not contain the digest of its start model: $base"
mkdir "$T/moved" && cp "$T/first/checkpoint/model.ckpt" "$T/moved/model.ckpt"
adapters() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 10 --set trainable=lora \
        --set trainable.rank=4 --set "init_from=$1" --set "init_sha256=$base" \
        --out "$2" >"$2.log" 2>&1
}
adapters "$T/moved" "$T/moved-run" || fail "equal parameters in another place were refused"
if adapters "$T/next/checkpoint" "$T/unlike-run"; then
    fail "adapters of another model were accepted"
fi
text="does not hold the parameters that the job starts from "
text+="(digest [0-9a-f]*; the job's is ${base:0:12})"
grep -q "$text" "$T/unlike-run.log" || fail "the reason is missing"

# Parameters trained with other positions are another model, unless the job sets the positions
# itself.
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 4 --set optim.warmup=4 \
    --set model.rope_theta=5000 --out "$T/turned" >"$T/turned.log" 2>&1 ||
    fail "the run with another rope_theta failed"
rc=0
"$nebula" check "$T/job.yaml" --set "init_from=$T/turned/checkpoint" >"$T/check.log" 2>&1 || rc=$?
[[ $rc == 2 ]] && has 'model.rope_theta 5000, but the job has 10000' "$T/check.log" ||
    fail "a model of other positions ended with status $rc: $(cat "$T/check.log")"
"$nebula" check "$T/job.yaml" --set "init_from=$T/turned/checkpoint" \
    --set model.rope_theta=10000 >"$T/check.log" 2>&1 ||
    fail "positions that the job sets itself were refused: $(cat "$T/check.log")"

# Scaled positions, as in Llama 3.1: imported, inherited by a job that does not set them, trained,
# and exported.
scaling='{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40}'
words='llama3, factor 8, low_freq_factor 1, high_freq_factor 4, original_max_position_embeddings 40'
cp -r "$T/hf" "$T/long"
jq --argjson s "$scaling" '.rope_scaling = $s' "$T/hf/config.json" >"$T/long/config.json"
"$nebula" import "$T/long" --out "$T/long-back" >"$T/import.log" 2>&1 ||
    fail "import of scaled positions failed: $(cat "$T/import.log")"
[[ $(score "$T/long-back") != "$(score "$T/back")" ]] || fail "scaled positions change nothing"
sed "s|^model: .*|model: {init: $T/long-back}|" "$T/job.yaml" >"$T/long.yaml"
timeout 600 "$nebula" pretrain "$T/long.yaml" --local 2 --steps 4 --set optim.warmup=4 \
    --out "$T/scaled" >"$T/scaled.log" 2>&1 || fail "a job of scaled positions failed"
digests_equal "$T/scaled"
"$nebula" export "$T/scaled/checkpoint" "$T/scaled-hf" >"$T/export.log" 2>&1 ||
    fail "export of scaled positions failed: $(cat "$T/export.log")"
jq -e --argjson s "$scaling" '.rope_theta == 10000 and .rope_scaling == $s' \
    "$T/scaled-hf/config.json" >/dev/null ||
    fail "wrong config.json: $(cat "$T/scaled-hf/config.json")"
refuses 1 "rope_scaling is default, the checkpoint's is $words: another model" export \
    "$T/scaled/checkpoint" "$T/no" --like "$T/hf"
linear=(--set model.rope_scaling.rope_type=linear --set model.rope_scaling.factor=2)
refuses 2 "model.rope_scaling is linear, factor 2, but model.init ($T/long-back) has $words" \
    check "$T/long.yaml" "${linear[@]}"
refuses 2 "was trained with model.rope_scaling $words, but the job has default" check \
    "$T/job.yaml" --set "init_from=$T/long-back"
"$nebula" check "$T/job.yaml" --set "init_from=$T/long-back" "${linear[@]}" >"$T/check.log" 2>&1 ||
    fail "positions that the job sets itself were refused: $(cat "$T/check.log")"
jq '.rope_scaling.rope_type = "yarn"' "$T/long/config.json" >"$T/yarn.json" &&
    mv "$T/yarn.json" "$T/long/config.json"
refuses 1 "must have rope_type default, linear or llama3" import "$T/long" \
    --out "$T/no"

refuses 2 "give --out CKPT" import "$T/hf"
refuses 2 "--dtype" export "$T/back" "$T/no" --dtype fp8
refuses 1 "exists already" import "$T/hf" --out "$T/back"
refuses 1 "exists already" export "$T/back" "$T/hf"
refuses 1 "there is no config.json" import "$T/text" --out "$T/no"
refuses 1 "there is no $T/bare/tokenizer.model: name the model's vocabulary" generate "$T/bare" \
    --prompt x
refuses 1 "merged into the model (--merge-lora), or alone as a PEFT folder (--adapter)" export \
    "$T/lora/checkpoint" "$T/no"
refuses 1 "no LoRA adapters" export "$T/back" "$T/no" --adapter
sed -i 's/"rms_norm_eps": 1e-5/"rms_norm_eps": 1e-6/' "$T/merged/config.json"
refuses 1 "rms_norm_eps is 1e-06" export "$T/back" "$T/no" --like "$T/merged"
sed "s|^model: .*|model: {init: $T/back, n_layers: 4}|" "$T/job.yaml" >"$T/other.yaml"
refuses 2 "model.n_layers is 4, but model.init" check "$T/other.yaml"
sed "s|^model: .*|model: {init: $T/back, tied: false}|" "$T/job.yaml" >"$T/untied.yaml"
refuses 2 "model.tied is 0, but model.init ($T/back) has 1" check "$T/untied.yaml"
refuses 2 "model.rope_theta is 500000, but model.init" check "$T/next.yaml" \
    --set model.rope_theta=5e5
timeout 600 "$nebula" check "$T/next.yaml" --set model.rope_theta=10000 \
    --set model.tied=true >"$T/check.log" 2>&1 ||
    fail "a job that repeats the shape was refused: $(cat "$T/check.log")"
cp -r "$T/hf" "$T/chat"
truncate -s -1 "$T/hf/model-00002-of-00003.safetensors"
refuses 1 "model-00002-of-00003.safetensors" import "$T/hf" --out "$T/no"
for k in 1 3 5; do
    NEBULA_FAULT=fs.write:$k refuses 1 "cannot write" import "$T/merged" --out "$T/no"
    NEBULA_FAULT=fs.fsync:$k refuses 1 "cannot sync" export "$T/back" "$T/no" --shard-size 100K
done
"$nebula" export "$T/next/checkpoint" "$T/next-hf" >/dev/null 2>&1 ||
    fail "export of the second run failed"
refuses 1 "is a Hugging Face folder" eval "$T/merged" --corpus "$T/corpus"
make_corpus_again() {
    sed 's/size: 512/size: 500/' "$T/spec.yaml" >"$T/spec2.yaml" &&
        "$nebula" data build "$T/spec2.yaml" --out "$T/corpus2"
}
make_corpus_again >/dev/null 2>&1 || fail "the second corpus could not be built"
refuses 1 "another tokenizer.model" export "$T/back" "$T/no" --like "$T/next-hf" \
    --tokenizer "$T/corpus2/tokenizer.model"

# Some files beside the weights change the model that transformers loads from the folder: tokens
# that tokenizer.model lacks, and an adapter. Also a tokenizer.model that is not a vocabulary.
beside() { # NAME JSON WARNING: what an import prints
    rm -rf "$T/chat-back" "$T"/chat/{added_tokens,tokenizer}.json
    cp "$T/hf/tokenizer_config.json" "$T/chat/"
    echo "$2" >"$T/chat/$1"
    "$nebula" import "$T/chat" --out "$T/chat-back" >"$T/chat.log" 2>&1 ||
        fail "import with $1 failed: $(cat "$T/chat.log")"
    grep -qF -- "adds $3" "$T/chat.log" ||
        fail "no warning about the tokens in $1: $(cat "$T/chat.log")"
}
beside added_tokens.json '{"<|im_start|>": 512, "<|im_end|>": 513, "<s>": 1}' \
    "2 tokens to its tokenizer.model ('<|im_start|>', ...)"
beside tokenizer_config.json '{"model_max_length": 1000000000000000019884624838656,
    "x": [NaN, "\ud83d"],
    "added_tokens_decoder": {"1": {"content": "<s>"}, "512": {"content": "<|im_start|>"}}}' \
    "1 token to its tokenizer.model ('<|im_start|>')"
beside tokenizer.json \
    '{"added_tokens": [{"id": 512, "content": "<|im_start|>"}, {"id": 1, "content": "<s>"}]}' \
    "1 token to its tokenizer.model ('<|im_start|>')"
mkdir "$T/chat/additional_chat_templates" &&
    echo '{{ x }}' >"$T/chat/additional_chat_templates/tool_use.jinja"
"$nebula" import "$T/chat" --out "$T/talk" >/dev/null 2>&1 &&
    "$nebula" export "$T/talk" "$T/talk-hf" >/dev/null 2>&1 ||
    fail "a folder with chat templates failed"
diff -r "$T/chat/additional_chat_templates" "$T/talk-hf/additional_chat_templates" >&2 ||
    fail "chat templates were lost"
cp "$T/adapter/"* "$T/chat/"
refuses 1 "transformers would add the adapter" import "$T/chat" --out "$T/no"
"$nebula" import "$T/chat" --adapter "$T/chat" --out "$T/chat-lora" >/dev/null 2>&1 ||
    fail "import of the adapter beside the weights failed"
cmp "$T/chat-lora/model.ckpt" "$T/lora-back/model.ckpt" ||
    fail "the adapter beside the weights gives another model"
refuses 1 "no model: import the model that the adapter is for, with --adapter $T/adapter" \
    import "$T/adapter" --out "$T/no"
rm "$T/chat/"adapter_*
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n' \
    >"$T/chat/tokenizer.model"
refuses 1 "$T/chat/tokenizer.model is not a SentencePiece vocabulary" import "$T/chat" --out "$T/no"

# A model has diverged. A value that is not a number becomes null, or an error says that it is not a
# number. The error never blames the corpus.
gain() { # BYTES: the fp32 value of every element of the last norm
    local f=$T/lost/model.safetensors head at
    rm -rf "$T/lost" "$T/lost-back"
    "$nebula" export "$T/next/checkpoint" "$T/lost" >/dev/null 2>&1 ||
        fail "export of the model failed"
    head=$(od -An -t u8 -N 8 "$f" | tr -d ' ')
    at=$((8 + head + $(dd if="$f" bs=1 skip=8 count="$head" status=none |
        jq '."model.norm.weight".data_offsets[0]')))
    for ((k = 0; k < 64; k++)); do
        printf '%b' "$1"
    done | dd of="$f" bs=1 seek="$at" conv=notrunc status=none
    "$nebula" import "$T/lost" --out "$T/lost-back" >/dev/null 2>&1 ||
        fail "import of the diverged model failed"
}
gain '\x00\x24\x74\x49' # 1e6: finite losses, but no perplexity
"$nebula" eval "$T/lost-back" --corpus "$T/corpus" --windows 2 --json >"$T/lost.json" ||
    fail "eval of the diverged model failed"
jq -s -e 'length == 3 and all(.[]; .loss > 710 and .perplexity == null)' \
    "$T/lost.json" >/dev/null || fail "losses above the range of exp: $(cat "$T/lost.json")"
gain '\x99\x76\x96\x7e' # 1e38
refuses 1 "the loss on gpl is not a finite number: the model has diverged" eval "$T/lost-back" \
    --corpus "$T/corpus" --windows 2
refuses 1 '"ok":false' eval "$T/lost-back" --corpus "$T/corpus" --windows 2 --json

# An import that is killed leaves nothing under its output name and does not block the next one.
if (NEBULA_FAULT=fs.write:5:kill timeout 600 "$nebula" import "$T/next-hf" --out "$T/killed") \
    >/dev/null 2>&1; then
    fail "the import was not killed"
fi
[[ ! -e $T/killed && -e $T/killed.nebula-building ]] || fail "a killed import left $(ls "$T")"
"$nebula" import "$T/next-hf" --out "$T/killed" >/dev/null 2>&1 ||
    fail "the import after a killed import failed"
! compgen -G "$T/killed.*" >/dev/null || fail "leftovers of the killed import remain"

# Folders of others stay, also if they are named like a temporary folder. A command refuses an input
# that lies in a folder that the command would remove.
cp -r "$T/next-hf" "$T/base.partial"
"$nebula" import "$T/base.partial" --out "$T/base" >/dev/null 2>&1 ||
    fail "import of a folder named .partial failed"
"$nebula" export "$T/base" "$T/like" --like "$T/base.partial" >/dev/null 2>&1 ||
    fail "export like a folder named .partial failed"
diff -r "$T/next-hf" "$T/base.partial" >&2 || fail "an import changed its source folder"
[[ -s $T/base/tokenizer.model && -s $T/base/hf/config.json ]] ||
    fail "an import lacks files: $(ls -R "$T/base")"
cp -r "$T/next-hf" "$T/no.nebula-building"
while read -ra command; do
    rc=0
    timeout 600 "$nebula" "${command[@]}" >"$T/within.log" 2>&1 || rc=$?
    [[ $rc == 1 && $(<"$T/within.log") == *"lies in it"* ]] ||
        fail "${command[*]}: status $rc: $(<"$T/within.log")"
done <<END
import $T/no.nebula-building --out $T/no
export $T/base $T/no/ --like $T/no.nebula-building
export $T/base $T/no --tokenizer $T/no.nebula-building/tokenizer.model
END
diff -r "$T/next-hf" "$T/no.nebula-building" >&2 ||
    fail "a refused import changed its source folder"
rm -r "$T/no.nebula-building"

# Two imports at once: the second is refused, and the first completes.
exec 8>"$T/no.nebula-building.lock"
flock 8
rc=0
timeout 600 "$nebula" import "$T/next-hf" --out "$T/no" >"$T/twice.log" 2>&1 || rc=$?
[[ $rc == 1 && ! -e $T/no && $(<"$T/twice.log") == *"another nebula process is building"* ]] ||
    fail "the second import ended with status $rc: $(<"$T/twice.log")"
exec 8>&-
"$nebula" import "$T/next-hf" --out "$T/no" >/dev/null 2>&1 ||
    fail "import failed after the other one was done"
rm -r "$T/no"

printf 'X' | dd of="$T/back/model.ckpt" bs=1 seek=100000 conv=notrunc status=none
refuses 1 "digest does not match; use an older checkpoint" export "$T/back" "$T/no"
echo "export and import keep the losses"
