#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode rtd: generator and discriminator behind a stream end with the very bits of both in one process; also when either
# worker is killed in the middle, when the run is interrupted, over a full disk, and when the text itself travels. What differs between the
# clusters is refused before training, with both digests.
. "$(dirname "$0")/lib.sh"
make_corpus
job() { # FILE [extra keys of the rtd section]
    cat >"$1" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 120
model: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/corpus, seq_len: 64, batch: 4, accumulate: 2}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}${2:+, $2}}
eval: {windows: 16}
checkpoint: {every_steps: 15}
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
    timeout 100 "$nebula" pretrain "$file" --local 2 --out "$out" "$@" >"$out.log" 2>&1 || fail "$out: $(tail -n 5 "$out.log")"
}

umask 022 # what most have
job "$T/job.yaml"
run "$T/job.yaml" "$T/one" --set sync.scheme=synchronous
run "$T/job.yaml" "$T/two" --json
[[ $(tail -n 1 "$T/two.log" | jq -cS 'select(.kind == "summary") | del(.kind)') == "$(jq -cS . "$T/two/summary.json")" ]] || fail "--json does not end with the summary"
want=$(digests "$T/one")
[[ $(digests "$T/two") == "$want" ]] || fail "two agents: $(digests "$T/two"), one process: $want"
for key in eval_loss eval_accuracy; do
    for side in generator discriminator; do
        [[ $(summary ".quality.$side.$key" "$T/one") == "$(summary ".quality.$side.$key" "$T/two")" ]] ||
            fail "$key of the $side differs between one process and two agents"
    done
done
jq -e '.quality | .stream_bytes_per_token < 0.35 and .discriminator.masked_share > 0.12 and .discriminator.masked_share < 0.18
       and .discriminator.replaced_share <= .discriminator.masked_share
       and .fp16_gradient_bytes_per_token > 50 * .wan_bytes_per_token' "$T/two/summary.json" >/dev/null ||
    fail "bytes a token: $(jq -c .quality "$T/two/summary.json")"
[[ -s $T/two/checkpoint/model.ckpt && -s $T/two/checkpoint/generator.ckpt ]] || fail "a model is missing"
for name in alpha beta; do # between the first step and the last, training did not wait for the disk
    jq -s -e --arg c "$name" '[.[] | select(.kind == "checkpoint" and .cluster == $c)] | length >= 5 and all(.while_training)' \
        "$T/two/metrics.jsonl" >/dev/null || fail "$name waited for the disk: $(grep '"checkpoint"' "$T/two/metrics.jsonl" | head -n 3)"
done
cmp -s "$T/two/checkpoint/model.ckpt" "$T/one/checkpoint/model.ckpt" || fail "the discriminators differ"

# kill -9 of each worker in turn, in mid-run; then of each agent.
NEBULA_FAULT=worker.step:+50 timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/kill" >"$T/kill.log" 2>&1 &
pid=$!
for at in "20 worker alpha" "45 worker beta" "70 agent alpha" "90 agent beta"; do
    read -r step what name <<<"$at"
    wait_step "$T/kill" "$step" "$pid" || fail "run ended before step $step: $(tail -n 3 "$T/kill.log")"
    victim=$(pgrep -f "nebula $what .*$T/kill/clusters/$name" | head -n 1 || true)
    [[ $victim ]] || fail "no $what of $name found"
    kill -KILL "$victim"
done
wait "$pid" || fail "the run with killed workers and agents failed: $(tail -n 5 "$T/kill.log")"
[[ $(digests "$T/kill") == "$want" ]] || fail "after kill -9: $(digests "$T/kill"), undisturbed: $want"

# Ctrl-C, and on.
NEBULA_FAULT=worker.step:+50 timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" >"$T/cut.log" 2>&1 &
pid=$!
wait_step "$T/cut" 33 "$pid" || fail "run ended before step 33: $(tail -n 3 "$T/cut.log")"
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "exit status $rc after an interrupt, not 3: $(tail -n 3 "$T/cut.log")"
run "$T/job.yaml" "$T/cut" --resume
[[ $(digests "$T/cut") == "$want" ]] || fail "resumed: $(digests "$T/cut"), undisturbed: $want"

# Likewise during the evaluation at the end, where one checkpoint is kept: its batches are there to be taken again.
NEBULA_FAULT=worker.eval@beta:+1500 timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/last" --set checkpoint.keep=1 >"$T/last.log" 2>&1 &
pid=$!
wait_step "$T/last" 120 "$pid" || fail "run ended before step 120: $(tail -n 3 "$T/last.log")"
sleep 2
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "exit status $rc after an interrupt of the evaluation, not 3: $(tail -n 3 "$T/last.log")"
run "$T/job.yaml" "$T/last" --set checkpoint.keep=1 --resume
[[ $(digests "$T/last") == "$want" ]] || fail "resumed in the evaluation: $(digests "$T/last"), undisturbed: $want"

# A full disk on the generator's side ends the job with the reason; with room again it goes on.
if NEBULA_FAULT=spool.write:40 timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/full" >"$T/full.log" 2>&1; then fail "trained over a full disk"; fi
grep -q 'cannot store a batch: disk full' "$T/full.log" || fail "full disk: $(tail -n 3 "$T/full.log")"
run "$T/job.yaml" "$T/full" --resume
[[ $(digests "$T/full") == "$want" ]] || fail "after a full disk: $(digests "$T/full"), undisturbed: $want"

# A batch that cannot be read again, likewise: that ends the job with the reason, and not the generator's agent, which tells of it. Reads are for
# the worker's put, the other side's message or a tick, as it happens.
for nth in 3 5 8 11; do
    rm -rf "$T/unread"
    if NEBULA_FAULT=spool.read:$nth timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/unread" >"$T/unread.log" 2>&1; then fail "trained without a batch"; fi
    grep -q 'cannot read a batch' "$T/unread.log" || fail "a batch was not read: $(tail -n 3 "$T/unread.log")"
    grep -q 'job rtd: failed' "$T/unread/clusters/alpha/agent.log" || fail "its agent ended: $(tail -n 3 "$T/unread/clusters/alpha/agent.log")"
done
run "$T/job.yaml" "$T/unread" --resume
[[ $(digests "$T/unread") == "$want" ]] || fail "after a batch that was not read: $(digests "$T/unread"), undisturbed: $want"

# The text travels too: the same models, and less than two bytes a token. Two batches to one step of the generator also agree.
job "$T/push.yaml" "push_text: true"
run "$T/push.yaml" "$T/push"
[[ $(digests "$T/push") == "$want" ]] || fail "with pushed text: $(digests "$T/push"), without: $want"
jq -e '.quality.stream_bytes_per_token < 2' "$T/push/summary.json" >/dev/null || fail "pushed text: $(jq -c .quality "$T/push/summary.json")"
job "$T/ratio.yaml" "generator_steps: 1, discriminator_steps: 2, ahead: 1"
run "$T/ratio.yaml" "$T/ratio1" --steps 30 --set sync.scheme=synchronous
run "$T/ratio.yaml" "$T/ratio2" --steps 30
[[ $(digests "$T/ratio1") == "$(digests "$T/ratio2")" ]] || fail "with a ratio of 1:2 the digests differ"
[[ $(summary '[.clusters[].steps] | join(" ")' "$T/ratio2") == "15 30" ]] || fail "ratio 1:2 made $(summary '[.clusters[].steps] | join(" ")' "$T/ratio2") steps"

# A generator that makes two steps to each of the discriminator's: that one passes events over, and saves as often as the job says.
job "$T/passed.yaml" "generator_steps: 2, discriminator_steps: 1"
run "$T/passed.yaml" "$T/passed" --steps 60 --set checkpoint.every_steps=10
saves() { jq -s --arg c "$1" '[.[] | select(.kind == "checkpoint" and .cluster == $c and .step < 60)] | length' "$T/passed/metrics.jsonl"; }
(($(saves alpha) >= 4 && $(saves beta) >= 4)) || fail "of steps 10 to 50 alpha saved $(saves alpha), beta $(saves beta)"

# Other shards, another vocabulary.
refused() { # CORPUS TERM
    sed "s#role: discriminator,#role: discriminator, corpus: $1,#" "$T/job.yaml" >"$T/bad.yaml"
    rm -rf "$T/bad"
    if timeout 100 "$nebula" pretrain "$T/bad.yaml" --local 2 --out "$T/bad" >"$T/bad.log" 2>&1; then fail "$2: trained on unlike clusters"; fi
    grep -Eq "$2 differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" "$T/bad.log" || fail "$2: $(tail -n 3 "$T/bad.log")"
    (($(steps_done "$T/bad") == 0)) || fail "$2: steps were made before it was refused"
}
sed 's/seed: 1/seed: 2/; s/per_mille: 60/per_mille: 90/' "$T/spec.yaml" >"$T/spec2.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/spec2.yaml"
sed -i '/^vocabulary:/d' "$T/spec2.yaml"
"$nebula" data build "$T/spec2.yaml" --out "$T/shards" >"$T/data2.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data2.log")"
cmp -s "$T/corpus/tokenizer.model" "$T/shards/tokenizer.model" || fail "the vocabulary was not reused"
# With text that travels the discriminator's own is of no account, whatever its sources are called.
sed 's/{name: gpl/{name: elsewhere/' "$T/spec2.yaml" >"$T/spec4.yaml"
"$nebula" data build "$T/spec4.yaml" --out "$T/elsewhere" >"$T/data4.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data4.log")"
sed 's/role: generator,/role: generator, sources: {gpl: 1},/' "$T/push.yaml" >"$T/gpl.yaml"
sed "s#role: discriminator,#role: discriminator, corpus: $T/elsewhere,#" "$T/gpl.yaml" >"$T/there.yaml"
run "$T/gpl.yaml" "$T/gpl" --steps 30
run "$T/there.yaml" "$T/there" --steps 30
[[ $(digests "$T/there") == "$(digests "$T/gpl")" ]] || fail "pushed text, where another corpus is: $(digests "$T/there"), $(digests "$T/gpl")"
sed 's/size: 512/size: 500/' "$T/spec.yaml" >"$T/spec3.yaml"
"$nebula" data build "$T/spec3.yaml" --out "$T/vocabulary" >"$T/data3.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data3.log")"
refused "$T/shards" shards
refused "$T/vocabulary" vocabulary
# The probe on what was trained: two kinds of text, told apart better than by chance, on pages that it was not trained on.
mkdir -p "$T/probe/en"
for kind in gpl other; do
    for f in "$T/text/$kind"/*.txt; do cp "$f" "$T/probe/en/$(basename "$f" .txt).$([[ $kind == gpl ]] && echo 1 || echo 2).txt"; done
done
probe() { timeout 60 "$nebula" eval --task probe "$T/two/checkpoint" --text "$T/probe" --train en --test en --json "$@"; }
probe >"$T/probe.json" || fail "the probe failed: $(cat "$T/probe.json")"
jq -se 'length == 2 and (.[0] | .examples > 50 and .balanced_accuracy > 0.55 and .accuracy <= 1)
        and .[1].kind == "summary" and .[1].balanced_accuracy == .[0].balanced_accuracy' "$T/probe.json" >/dev/null || fail "probe: $(cat "$T/probe.json")"
[[ $(probe) == "$(cat "$T/probe.json")" ]] || fail "the probe does not give the same twice"
[[ $(probe --random) != "$(cat "$T/probe.json")" ]] || fail "the probe of a random model gives the same"
if probe --train none >/dev/null 2>"$T/none.log"; then fail "a folder that is not there was probed"; fi
grep -q 'cannot read the folder' "$T/none.log" || fail "no reason: $(cat "$T/none.log")"
# Neither model has a loss of the next token, or continues text.
no_lm() { # CHECKPOINT WHAT COMMAND...
    local rc=0
    timeout 60 "$nebula" "${@:3}" >"$T/no_lm.log" 2>&1 || rc=$?
    [[ $rc != 0 ]] && grep -q "$1 is the $2 of mode rtd, .*nebula eval --task probe" "$T/no_lm.log" || fail "${*:3}, status $rc: $(tail -n 2 "$T/no_lm.log")"
}
generator=$T/two/checkpoint/generator.ckpt
no_lm "$T/two/checkpoint" discriminator eval "$T/two/checkpoint" --corpus "$T/corpus" --windows 1
no_lm "$T/two/checkpoint" discriminator generate "$T/two/checkpoint" --tokenizer "$T/corpus/tokenizer.model" --prompt "This License"
no_lm "$T/two/checkpoint" discriminator eval "$T/two/checkpoint" --logits --ids "1 2 3"
no_lm "$generator" generator eval "$generator" --corpus "$T/corpus" --windows 1
no_lm "$generator" generator generate "$generator" --ids "1 2 3"
no_lm "$T/two/checkpoint/model.ckpt" discriminator export "$T/two/checkpoint" "$T/no-hf"
no_lm "$generator" generator export "$generator" "$T/no-hf"
"$nebula" eval "$generator" --logits --ids "1 2 3" >/dev/null || fail "logits of a masked language model"
ls "$T"/kill/clusters/*/streams.db >/dev/null || fail "no stream was kept on disk"
open=$(find "$T"/*/clusters -perm /077)
[[ ! $open ]] || fail "others can read $open"
echo "rtd over a stream equals one process, killed, interrupted, pushed and at a ratio; unlike clusters are refused"
