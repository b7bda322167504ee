#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode rtd: generator and discriminator with a stream between them end with the same bits as both in
# one process. This holds when either worker is killed, when the run is interrupted, when a disk is
# full, and when the text itself is pushed. Clusters that differ are refused before training, with
# both digests.
. "$(dirname "$0")/lib.sh"
make_corpus
job() { # FILE [extra keys of the rtd section]
    cat >"$1" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 60
model: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/corpus, seq_len: 64, batch: 4, accumulate: 2}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}${2:+, $2}}
eval: {windows: 16}
checkpoint: {every_steps: 8}
log_every: 1
clusters:
  - {name: alpha, role: generator, threads: 1}
  - {name: beta, role: discriminator, threads: 1}
YAML
}
digests() { summary '[.clusters[].params_digest] | join(" ")' "$1"; }
run() { # JOB OUT [options]
    local file=$1 out=$2
    shift 2
    timeout 600 "$nebula" pretrain "$file" --local 2 --out "$out" "$@" >"$out.log" 2>&1 ||
        fail "the run $out failed"
}

umask 022 # the usual value
job "$T/job.yaml"
run "$T/job.yaml" "$T/one" --set sync.scheme=synchronous
run "$T/job.yaml" "$T/two" --json
[[ $(tail -n 1 "$T/two.log" |
    jq -cS 'select(.kind == "summary") | del(.kind)') == "$(jq -cS . "$T/two/summary.json")" ]] ||
    fail "--json does not end with the summary"
want=$(digests "$T/one")
[[ $(digests "$T/two") == "$want" ]] ||
    fail "digests: two agents $(digests "$T/two"), one process $want"
for key in eval_loss eval_accuracy; do
    for side in generator discriminator; do
        [[ $(summary ".quality.$side.$key" \
            "$T/one") == "$(summary ".quality.$side.$key" "$T/two")" ]] ||
            fail "$key of the $side differs between one process and two agents"
    done
done
jq -e '.quality | .stream_bytes_per_token < 0.35 and .discriminator.masked_share > 0.12 and
    .discriminator.masked_share < 0.18
       and .discriminator.replaced_share <= .discriminator.masked_share
       and .fp16_gradient_bytes_per_token > 50 * .wan_bytes_per_token' \
           "$T/two/summary.json" >/dev/null ||
    fail "wrong bytes a token: $(jq -c .quality "$T/two/summary.json")"
[[ -s $T/two/checkpoint/model.ckpt && -s $T/two/checkpoint/generator.ckpt ]] ||
    fail "a model is missing"
for name in alpha beta; do # training waits for the disk only at its first and last step
    jq -s -e --arg c "$name" '[.[] | select(.kind == "checkpoint" and .cluster == $c)] |
        length >= 5 and all(.while_training)' \
        "$T/two/metrics.jsonl" >/dev/null ||
        fail "$name waited for the disk: $(grep '"checkpoint"' "$T/two/metrics.jsonl" | head -n 3)"
done
cmp -s "$T/two/checkpoint/model.ckpt" "$T/one/checkpoint/model.ckpt" ||
    fail "the discriminators differ"

# kill -9 of each worker in turn in mid-run; then of each agent.
NEBULA_FAULT=worker.step:+150 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/kill" >"$T/kill.log" 2>&1 &
pid=$!
for at in "9 worker alpha" "20 worker beta" "31 agent alpha" "42 agent beta"; do
    read -r step what name <<<"$at"
    wait_step "$T/kill" "$step" "$pid" || fail "the run ended before step $step"
    victim=$(pgrep -f "nebula $what .*$T/kill/clusters/$name" | head -n 1 || true)
    [[ $victim ]] || fail "there is no $what of $name"
    kill -KILL "$victim"
done
wait "$pid" || fail "the run with killed workers and agents failed"
[[ $(digests "$T/kill") == "$want" ]] ||
    fail "digests after kill -9: $(digests "$T/kill"), undisturbed: $want"

# Ctrl-C, then a resume.
NEBULA_FAULT=worker.step:+100 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/cut" >"$T/cut.log" 2>&1 &
pid=$!
wait_step "$T/cut" 19 "$pid" || fail "the run ended before step 19"
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status after an interrupt is $rc, not 3"
run "$T/job.yaml" "$T/cut" --resume
[[ $(digests "$T/cut") == "$want" ]] ||
    fail "digests after a resume: $(digests "$T/cut"), undisturbed: $want"

# The same during the final evaluation, with a single checkpoint: its batches can still be read
# again.
NEBULA_FAULT=worker.eval@beta:+3000 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/last" --set checkpoint.keep=1 >"$T/last.log" 2>&1 &
pid=$!
wait_step "$T/last" 60 "$pid" || fail "the run ended before step 60"
sleep 1
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status after an interrupt of the evaluation is $rc, not 3"
run "$T/job.yaml" "$T/last" --set checkpoint.keep=1 --resume
[[ $(digests "$T/last") == "$want" ]] ||
    fail "digests after a resume in the evaluation: $(digests "$T/last"), undisturbed: $want"

# A full disk on the generator's side ends the job with the reason. Once there is room, it
# continues.
if NEBULA_FAULT=spool.write:40 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/full" >"$T/full.log" 2>&1; then
    fail "the run succeeded with a full disk"
fi
grep -q 'cannot store a batch: disk full' "$T/full.log" || fail "the full disk is not reported"
run "$T/job.yaml" "$T/full" --resume
[[ $(digests "$T/full") == "$want" ]] ||
    fail "digests after a full disk: $(digests "$T/full"), undisturbed: $want"

# A batch that cannot be read back ends the job in the same way, but not the generator's agent. The
# agent may read when the worker puts a batch, for a message of the other side, or in a tick.
reads=(3 8)
[[ ${NEBULA_TESTS:-} != nightly ]] || reads=(3 5 8 11)
for nth in "${reads[@]}"; do
    rm -rf "$T/unread"
    if NEBULA_FAULT=spool.read:$nth timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
        --out "$T/unread" >"$T/unread.log" 2>&1; then
        fail "the run succeeded without a batch"
    fi
    grep -q 'cannot read a batch' "$T/unread.log" || fail "the failed read is not reported"
    grep -q 'job rtd: failed' "$T/unread/clusters/alpha/agent.log" ||
        fail "the agent of alpha ended with its job"
done
run "$T/job.yaml" "$T/unread" --resume
[[ $(digests "$T/unread") == "$want" ]] ||
    fail "digests after a batch that could not be read: $(digests "$T/unread"), undisturbed: $want"

# Pushed text gives the same models, with less than two bytes a token. Two batches for each step of
# the generator also agree.
job "$T/push.yaml" "push_text: true"
run "$T/push.yaml" "$T/push"
[[ $(digests "$T/push") == "$want" ]] ||
    fail "digests with pushed text: $(digests "$T/push"), without: $want"
jq -e '.quality.stream_bytes_per_token < 2' "$T/push/summary.json" >/dev/null ||
    fail "pushed text needs too many bytes: $(jq -c .quality "$T/push/summary.json")"
job "$T/ratio.yaml" "generator_steps: 1, discriminator_steps: 2, ahead: 1"
run "$T/ratio.yaml" "$T/ratio1" --steps 30 --set sync.scheme=synchronous
run "$T/ratio.yaml" "$T/ratio2" --steps 30
[[ $(digests "$T/ratio1") == "$(digests "$T/ratio2")" ]] ||
    fail "with a ratio of 1:2 the digests differ"
[[ $(summary '[.clusters[].steps] | join(" ")' "$T/ratio2") == "15 30" ]] ||
    fail "the ratio of 1:2 made $(summary '[.clusters[].steps] | join(" ")' \
        "$T/ratio2") steps"$T/ratio2") steps"

# The generator makes two steps for each step of the discriminator. The discriminator skips events
# and still saves as often as the job says.
job "$T/passed.yaml" "generator_steps: 2, discriminator_steps: 1"
run "$T/passed.yaml" "$T/passed" --steps 60 --set checkpoint.every_steps=10
saves() {
    jq -s --arg c "$1" '[.[] | select(.kind == "checkpoint" and .cluster == $c and .step < 60)] |
        length' "$T/passed/metrics.jsonl"
}
(($(saves alpha) >= 4 && $(saves beta) >= 4)) ||
    fail "of steps 10 to 50 alpha saved $(saves alpha), beta $(saves beta)"

# Different shards, and a different vocabulary.
refused() { # CORPUS TERM
    sed "s#role: discriminator,#role: discriminator, corpus: $1,#" "$T/job.yaml" >"$T/bad.yaml"
    rm -rf "$T/bad"
    if timeout 600 "$nebula" pretrain "$T/bad.yaml" --local 2 \
        --out "$T/bad" >"$T/bad.log" 2>&1; then
        fail "$2: a run of different clusters succeeded"
    fi
    grep -Eq "$2 differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" \
        "$T/bad.log" || fail "$2: the error does not name the digests"
    (($(steps_done "$T/bad") == 0)) || fail "$2: steps were made before the run was refused"
}
sed 's/seed: 1/seed: 2/; s/per_mille: 60/per_mille: 90/' "$T/spec.yaml" >"$T/spec2.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/spec2.yaml"
sed -i '/^vocabulary:/d' "$T/spec2.yaml"
"$nebula" data build "$T/spec2.yaml" --out "$T/shards" >"$T/data2.log" 2>&1 ||
    fail "data build failed"
cmp -s "$T/corpus/tokenizer.model" "$T/shards/tokenizer.model" ||
    fail "the vocabulary was not reused"
# With pushed text the discriminator's own text does not matter, nor do the names of its sources.
sed 's/{name: gpl/{name: elsewhere/' "$T/spec2.yaml" >"$T/spec4.yaml"
"$nebula" data build "$T/spec4.yaml" --out "$T/elsewhere" >"$T/data4.log" 2>&1 ||
    fail "data build failed"
sed 's/role: generator,/role: generator, sources: {gpl: 1},/' "$T/push.yaml" >"$T/gpl.yaml"
sed "s#role: discriminator,#role: discriminator, corpus: $T/elsewhere,#" "$T/gpl.yaml" \
    >"$T/there.yaml"
run "$T/gpl.yaml" "$T/gpl" --steps 30
run "$T/there.yaml" "$T/there" --steps 30
[[ $(digests "$T/there") == "$(digests "$T/gpl")" ]] ||
    fail "digests with pushed text and another corpus: $(digests \
        "$T/there"), with the same: $(digests "$T/gpl")"
sed 's/size: 512/size: 500/' "$T/spec.yaml" >"$T/spec3.yaml"
"$nebula" data build "$T/spec3.yaml" --out "$T/vocabulary" >"$T/data3.log" 2>&1 ||
    fail "data build failed"
refused "$T/shards" shards
refused "$T/vocabulary" vocabulary
# The probe on the trained model tells two kinds of text apart better than chance, on pages that it
# was not trained on.
mkdir -p "$T/probe/en"
for kind in gpl other; do
    for f in "$T/text/$kind"/*.txt; do
        cp "$f" "$T/probe/en/$(basename "$f" .txt).$([[ $kind == gpl ]] && echo 1 || echo 2).txt"
    done
done
probe() {
    timeout 600 "$nebula" eval --task probe "$T/two/checkpoint" --text "$T/probe" --train en \
        --test en --json "$@"
}
probe >"$T/probe.json" || fail "the probe failed: $(cat "$T/probe.json")"
jq -se 'length == 2 and (.[0] | .examples > 50 and .balanced_accuracy > 0.55 and .accuracy <= 1)
        and .[1].kind == "summary" and .[1].balanced_accuracy == .[0].balanced_accuracy' \
            "$T/probe.json" >/dev/null || fail "wrong result of the probe: $(cat "$T/probe.json")"
[[ $(probe) == "$(cat "$T/probe.json")" ]] || fail "the probe gives another result the second time"
[[ $(probe --random) != "$(cat "$T/probe.json")" ]] ||
    fail "the probe of a random model gives the same result"
if probe --train none >/dev/null 2>"$T/none.log"; then
    fail "the probe of a missing folder succeeded"
fi
grep -q 'cannot read the folder' "$T/none.log" || fail "the reason is missing: $(cat "$T/none.log")"
# Neither model has a loss of the next token or can continue text.
no_lm() { # CHECKPOINT WHAT COMMAND...
    local rc=0
    timeout 600 "$nebula" "${@:3}" >"$T/no_lm.log" 2>&1 || rc=$?
    [[ $rc != 0 ]] &&
        grep -q "$1 is the $2 of mode rtd, .*nebula eval --task probe" "$T/no_lm.log" ||
        fail "${*:3} ended with status $rc"
}
generator=$T/two/checkpoint/generator.ckpt
no_lm "$T/two/checkpoint" discriminator eval "$T/two/checkpoint" --corpus "$T/corpus" --windows 1
no_lm "$T/two/checkpoint/model.ckpt" discriminator generate "$T/two/checkpoint" \
    --tokenizer "$T/corpus/tokenizer.model" --prompt "This License"
no_lm "$T/two/checkpoint" discriminator eval "$T/two/checkpoint" --logits --ids "1 2 3"
no_lm "$generator" generator eval "$generator" --corpus "$T/corpus" --windows 1
no_lm "$generator" generator generate "$generator" --ids "1 2 3"
no_lm "$T/two/checkpoint/model.ckpt" discriminator export "$T/two/checkpoint" "$T/no-hf"
no_lm "$generator" generator export "$generator" "$T/no-hf"
"$nebula" eval "$generator" --logits --ids "1 2 3" >/dev/null ||
    fail "eval --logits of a masked language model failed"
ls "$T"/kill/clusters/*/streams.db >/dev/null || fail "no stream was kept on disk"
open=$(find "$T"/*/clusters -perm /077)
[[ ! $open ]] || fail "others can read $open"
echo "rtd over a stream equals one process: killed, interrupted, pushed, and at a ratio"
