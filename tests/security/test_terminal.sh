#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Text from others cannot command the terminal that shows it: a worker's log, a vocabulary with
# control characters, a corpus whose sources have such names.
. "$(dirname "$0")/../e2e/lib.sh"
escape=$'\033'
clean() {
    ! grep -q "[$escape$(printf '\001\a\b\r')]" "$1" ||
        fail "$2: a control character in $(od -c "$1" | head -n 5)"
}

# nebula logs needs no running agent. A log may end in the middle of a character, and may hold zero
# bytes.
id=0123456789abcdef0123456789abcdef
mkdir -p "$T/home/jobs/$id"
printf 'epoch 1\t50 %%\n\033[2J\033]0;owned\a\0\r\342\202\254 end\302' \
    >"$T/home/jobs/$id/worker.log"
"$nebula" logs "$id" --home "$T/home" >"$T/logs.txt" || fail "logs"
clean "$T/logs.txt" logs
[[ $(cat "$T/logs.txt") == $'epoch 1\t50 %\n?[2J?]0;owned???€ end?' ]] ||
    fail "logs: control characters were not replaced: $(cat -v "$T/logs.txt")"

# generate: the prompt comes back through the vocabulary.
make_corpus
make_job "$T/job.yaml"
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 4 --out "$T/run" >"$T/run.log" \
    2>&1 ||
    fail "training a model failed: $(tail -n 3 "$T/run.log")"
"$nebula" export "$T/run/checkpoint" "$T/bpe" >"$T/export.log" 2>&1 ||
    fail "export: $(cat "$T/export.log")"
rm "$T/bpe/tokenizer.model"
jq '.eos_token_id = 0 | .bos_token_id = null' "$T/bpe/config.json" >"$T/config.json" &&
    mv "$T/config.json" "$T/bpe/config.json"
cp "$SOURCE/tests/golden/bpe/qwen2.json" "$T/bpe/tokenizer.json"
echo '{"bos_token": null, "eos_token": {"content": "<|endoftext|>"}}' \
    >"$T/bpe/tokenizer_config.json"
"$nebula" import "$T/bpe" --out "$T/ckpt" >"$T/import.log" 2>&1 ||
    fail "import: $(cat "$T/import.log")"
"$nebula" generate "$T/ckpt" --prompt "a${escape}[2Jb" --tokens 4 >"$T/text.txt" || fail generate
clean "$T/text.txt" generate
grep -qF 'a?[2Jb' "$T/text.txt" ||
    fail "generate: expected 'a?[2Jb', found: $(cat -v "$T/text.txt")"

# eval: the name of a source.
cp -r "$T/corpus" "$T/named"
jq '.sources[0].name = "en\u001b[2J"' "$T/corpus/corpus.json" >"$T/named/corpus.json"
rc=0
"$nebula" eval "$T/run/checkpoint" --corpus "$T/named" >"$T/eval.txt" 2>&1 || rc=$?
((rc)) || fail "eval accepted a source name with control characters"
clean "$T/eval.txt" eval
grep -qF 'control character' "$T/eval.txt" ||
    fail "eval: the error does not name the control character: $(cat "$T/eval.txt")"
