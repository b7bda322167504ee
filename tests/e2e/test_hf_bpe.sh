#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Hugging Face folder with a byte-level tokenizer.json and no tokenizer.model (Qwen2.5, SmolLM2):
# import it, build a corpus with its vocabulary, train adapters on two clusters, continue a text,
# export it. Some vocabularies are refused: without an end of documents, of another kind, damaged,
# or not the one of the model.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i 's/windows: 16/windows: 2/' "$T/job.yaml"
vocabulary() {
    cmp "$SOURCE/tests/golden/bpe/qwen2.json" "$1/tokenizer.json" &&
        cmp "$T/bpe/tokenizer_config.json" "$1/tokenizer_config.json" ||
        fail "$1 does not have the vocabulary of the folder"
}

# A model of that kind: the shape and weights of a run, with the vocabulary of another model.
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 10 \
    --out "$T/first" >"$T/first.log" 2>&1 || fail "the run that makes a model failed"
"$nebula" export "$T/first/checkpoint" "$T/bpe" >"$T/export.log" 2>&1 ||
    fail "export failed: $(cat "$T/export.log")"
rm "$T/bpe/tokenizer.model"
jq '.eos_token_id = 0 | .bos_token_id = null' "$T/bpe/config.json" >"$T/config.json" &&
    mv "$T/config.json" "$T/bpe/config.json"
cp "$SOURCE/tests/golden/bpe/qwen2.json" "$T/bpe/tokenizer.json"
echo '{"bos_token": null, "eos_token": {"content": "<|endoftext|>"}, "chat_template": "x"}' \
    >"$T/bpe/tokenizer_config.json"
"$nebula" import "$T/bpe" --out "$T/ckpt" --json >"$T/import.json" 2>"$T/import.log" ||
    fail "import failed: $(cat "$T/import.log")"
# The file has a hole before its last token. The tokenizers library closes the hole.
jq -e .tokenizer "$T/import.json" >/dev/null &&
    ! grep -v "id 459 in this file; its id here is 458" "$T/import.log" ||
    fail "the import lacks its vocabulary, or prints another warning: $(cat "$T/import.json" \
        "$T/import.log")"
vocabulary "$T/ckpt"
[[ $("$nebula" generate "$T/ckpt" --prompt "größer, 自由 " --tokens 4) == "größer, 自由 "* ]] ||
    fail "generate from an imported folder failed"

# A corpus from the folder, and from the file. A changed tokenizer_config.json causes a rebuild only
# if the end of documents changes.
sed "s|^vocabulary:.*|tokenizer: $T/ckpt|" "$T/spec.yaml" >"$T/folder.yaml"
sed "s|^vocabulary:.*|tokenizer: $T/bpe/tokenizer.json|" "$T/spec.yaml" >"$T/file.yaml"
build() { "$nebula" data build "$1" --out "$2" --json >"$T/data.json" 2>"$T/data.log"; }
build "$T/folder.yaml" "$T/text8" || fail "data build failed: $(cat "$T/data.log")"
vocabulary "$T/text8"
[[ ! -e $T/text8/tokenizer.model && $(jq .vocab "$T/text8/corpus.json") == 460 ]] ||
    fail "the corpus has the wrong vocabulary: $(ls "$T/text8")"
build "$T/file.yaml" "$T/text8" && jq -e .unchanged "$T/data.json" >/dev/null ||
    fail "the corpus was rebuilt: $(cat "$T/data.json" "$T/data.log")"
sed -i 's/"x"/"y"/' "$T/bpe/tokenizer_config.json"
build "$T/file.yaml" "$T/text8" && jq -e .unchanged "$T/data.json" >/dev/null ||
    fail "another chat template caused a rebuild: $(cat "$T/data.json" "$T/data.log")"
sed -i 's/"y"/"x"/' "$T/bpe/tokenizer_config.json"
sed -i 's/<|endoftext|>/<|im_start|>/' "$T/text8/tokenizer_config.json"
build "$T/file.yaml" "$T/text8" && jq -e '.unchanged == false' "$T/data.json" >/dev/null ||
    fail "a damaged vocabulary was not rebuilt: $(cat "$T/data.json" "$T/data.log")"
vocabulary "$T/text8"

# Adapters on this model, on two clusters. With the vocabulary beside them they continue a text and
# can be exported.
sed -e "s|^model: .*|model: {init: $T/ckpt}|" \
    -e "s|$T/corpus|$T/text8|" "$T/job.yaml" >"$T/lora.yaml"
lora=(--set trainable=lora --set trainable.rank=4 --set optim.lr=0.03)
timeout 600 "$nebula" check "$T/lora.yaml" "${lora[@]}" >"$T/check.log" 2>&1 ||
    fail "check failed: $(cat "$T/check.log")"
! grep vocabulary "$T/check.log" ||
    fail "check warns of a vocabulary that is beside the model and in the corpus"
timeout 600 "$nebula" pretrain "$T/lora.yaml" --local 2 --steps 20 "${lora[@]}" \
    --out "$T/run" >"$T/run.log" 2>&1 || fail "the run of adapters failed"
digests_equal "$T/run"
vocabulary "$T/run/checkpoint"
[[ $("$nebula" generate "$T/run/checkpoint" --prompt "This License" \
    --tokens 8) == "This License"* ]] || fail "generate failed"
"$nebula" eval "$T/run/checkpoint" --windows 4 --json >"$T/eval.json" || fail "eval failed"
"$nebula" export "$T/run/checkpoint" "$T/merged" --merge-lora >"$T/export.log" 2>&1 ||
    fail "export failed: $(cat "$T/export.log")"
vocabulary "$T/merged"
[[ ! -e $T/merged/tokenizer.model && $(jq .eos_token_id "$T/merged/config.json") == 0 ]] ||
    fail "wrong config.json: $(cat "$T/merged/config.json")"
"$nebula" export "$T/run/checkpoint" "$T/like" --merge-lora --like "$T/bpe" >"$T/export.log" 2>&1 ||
    fail "export --like failed: $(cat "$T/export.log")"
vocabulary "$T/like"

# Ids of another vocabulary, or a different end of documents, would give another text.
cp -r "$T/bpe" "$T/other"
sed -i 's/<|endoftext|>/<|im_start|>/' "$T/other/tokenizer_config.json"
sed "s|^vocabulary:.*|tokenizer: $T/other|" "$T/spec.yaml" >"$T/other.yaml"
build "$T/other.yaml" "$T/unlike" || fail "data build failed: $(cat "$T/data.log")"
sed "s|{name: beta,|{name: beta, corpus: $T/unlike,|" "$T/lora.yaml" >"$T/unlike.yaml"
refuses 2 "with the same tokenizer" check "$T/unlike.yaml" "${lora[@]}"
"$nebula" check "$T/lora.yaml" "${lora[@]}" --set "data.corpus=$T/unlike" >"$T/check.log" 2>&1 ||
    fail "check failed: $(cat "$T/check.log")"
grep -qF "build it with tokenizer: $T/ckpt/tokenizer.json" "$T/check.log" ||
    fail "no warning that the corpus has another vocabulary than the model: $(cat "$T/check.log")"
sed 's/"a":65/"a":64,"~~":65/; s/"`":64,//' "$T/bpe/tokenizer.json" >"$T/other/tokenizer.json"
refuses 1 "has another tokenizer.json than $T/run/checkpoint/tokenizer.json" export \
    "$T/run/checkpoint" "$T/no" --merge-lora --like "$T/other"

rm "$T/other/tokenizer_config.json" && cp "$T/bpe/tokenizer.json" "$T/other/"
refuses 1 "has no EOS piece to end documents with; name one as eos_token" data build \
    "$T/other.yaml" --out "$T/no"
truncate -s -9 "$T/other/tokenizer.json"
refuses 1 "$T/other/tokenizer.json cannot be used (see above)" import "$T/other" --out "$T/no"
refuses 1 "$T/other/tokenizer.json:1:" data build "$T/other.yaml" --out "$T/no"
jq '.model.byte_fallback = true' "$T/bpe/tokenizer.json" >"$T/other/tokenizer.json"
refuses 1 "model.byte_fallback is 'true'" data build "$T/other.yaml" --out "$T/no"
"$nebula" import "$T/other" --out "$T/weights" >"$T/import.log" 2>&1 ||
    fail "import of the weights alone failed: $(cat "$T/import.log")"
grep -q "byte_fallback is 'true'" "$T/import.log" &&
    grep -q "the weights are imported, but you must tokenise text" "$T/import.log" ||
    fail "the warning is missing: $(cat "$T/import.log")"
[[ ! -e $T/weights/tokenizer.json ]] ||
    fail "an unusable vocabulary was copied to the checkpoint"
refuses 1 "a tokenizer.model or a tokenizer.json (--tokenizer)" generate "$T/weights" --prompt x
[[ $("$nebula" generate "$T/weights" --tokenizer "$T/ckpt" --prompt x --tokens 2) == x* ]] ||
    fail "generate with the vocabulary of a folder failed"
echo "a folder with a byte-level tokenizer.json is trained on its own tokens"
