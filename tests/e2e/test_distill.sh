#!/usr/bin/env bash
# Mode distill: a student learns from a teacher on another cluster, ends with the same bits when either worker is killed and
# when the labels are replayed from the cache without a teacher; goes on alone, or waits, when the teacher is lost; clusters
# that differ are refused before training, with both digests.
. "$(dirname "$0")/lib.sh"

# Parallel text without a network: a line of a licence, and the same in capitals.
cat /usr/share/common-licenses/* 2>/dev/null | tr -d '\t\r' | grep -E '[a-z]{3}.* .*[a-z]{3}' | awk 'length($0) < 72 && !seen[$0]++' | sed -n 1,3000p >"$T/lower.txt"
(($(wc -l <"$T/lower.txt") > 300)) || skip "no licences in /usr/share/common-licenses"
paste "$T/lower.txt" <(tr a-z A-Z <"$T/lower.txt") >"$T/pairs.tsv"
spec() { # FILE SEED [EXTRA]
    cat >"$1" <<YAML
name: capitals
seed: $2
vocabulary: {size: 400, type: bpe, character_coverage: 1.0, train_lines: 20000, byte_fallback: true}
holdout: {per_mille: 40, test_per_mille: 40}
sources:
  - {name: capitals, format: tsv, path: $T/pairs.tsv, column: 0, target_column: 1}
YAML
}
spec "$T/spec.yaml" 1
"$nebula" data build "$T/spec.yaml" --out "$T/corpus" >"$T/data.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data.log")"
jq -e '.sources[0].test | length == 1' "$T/corpus/corpus.json" >/dev/null || fail "no test split"

job() { # FILE CLUSTERS [extra keys of the distill section]
    cat >"$1" <<YAML
job: distill
mode: distill
seed: 5
steps: 60
model: {n_layers: 2, d_model: 48, n_heads: 4, d_ff: 96}
data: {corpus: $T/corpus, seq_len: 96, batch: 6, accumulate: 2}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
distill: {lambda: 0.5, temperature: 1.5, k: 8${3:+, $3}}
eval: {windows: 20}
checkpoint: {every_steps: 10}
log_every: 1
clusters: $2
YAML
}
both="[{name: alpha, role: teacher, threads: 1}, {name: beta, role: student, threads: 1}]"
one="[{name: beta, role: student, threads: 1}]"
run() { # JOB LOCAL OUT [options]
    local file=$1 n=$2 out=$3
    shift 3
    timeout 120 "$nebula" distill "$file" --local "$n" --out "$out" "$@" >"$out.log" 2>&1 || fail "$out: $(tail -n 5 "$out.log")"
}
digest() { summary '.clusters[] | select(.name == "beta") | .params_digest' "$1"; }
steps_done() { jq -s '[.[] | select(.kind == "step" and .cluster == "beta") | .step] | max // 0' "$1/metrics.jsonl" 2>/dev/null || echo 0; }
wait_step() { # DIR STEP PID
    local i
    for ((i = 0; i < 2000; i++)); do
        (($(steps_done "$1") >= $2)) && return 0
        kill -0 "$3" 2>/dev/null || return 1
        sleep 0.02
    done
    return 1
}

# A teacher: a student of the text alone.
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 120
teacher=$T/teacher/checkpoint/model.ckpt
job "$T/job.yaml" "$both" "teacher: {init: $teacher}, cache: $T/cache"

run "$T/job.yaml" 2 "$T/two"
want=$(digest "$T/two")
jq -e '.mode == "distill" and .quality.label_bytes_per_target_token < 24 and .quality.clusters.beta.taught_share == 1
       and .quality.clusters.beta.chrf >= 0 and .quality.clusters.beta.eval_loss < 6
       and .quality.fp16_logits_bytes_per_target_token > 20 * .quality.label_bytes_per_target_token' "$T/two/summary.json" >/dev/null ||
    fail "quality: $(jq -c .quality "$T/two/summary.json")"
[[ $want != "$(summary '.clusters[0].params_digest' "$T/teacher")" ]] || fail "the student is the teacher"

# The labels again, from the cache, without a teacher: the same student. And not for other text.
job "$T/replay.yaml" "$one" "cache: $T/cache"
run "$T/replay.yaml" 1 "$T/replay"
[[ $(digest "$T/replay") == "$want" ]] || fail "replayed from the cache: $(digest "$T/replay"), with a teacher: $want"
if timeout 60 "$nebula" distill "$T/replay.yaml" --local 1 --out "$T/other" --seed 6 >"$T/other.log" 2>&1; then fail "a cache of another seed was used"; fi
grep -Eq "there [0-9a-f]{64}, here [0-9a-f]{64}" "$T/other.log" || fail "another cache: $(tail -n 3 "$T/other.log")"

# kill -9 of each worker in turn.
timeout 120 "$nebula" distill "$T/job.yaml" --local 2 --out "$T/kill" --set distill.cache= >"$T/kill.log" 2>&1 &
pid=$!
for at in "13 alpha" "27 beta"; do
    read -r step name <<<"$at"
    wait_step "$T/kill" "$step" "$pid" || fail "run ended before step $step: $(tail -n 3 "$T/kill.log")"
    victim=$(pgrep -f "nebula worker .*$T/kill/clusters/$name" | head -n 1)
    [[ ! $victim ]] || kill -KILL "$victim"
done
wait "$pid" || fail "the run with killed workers failed: $(tail -n 5 "$T/kill.log")"
[[ $(digest "$T/kill") == "$want" ]] || fail "after kill -9: $(digest "$T/kill"), undisturbed: $want"

# The teacher's agent is stopped: the student goes on with cross-entropy, and takes labels again when it is back.
timeout 120 "$nebula" distill "$T/job.yaml" --local 2 --out "$T/lost" --steps 200 --set distill.cache= --set distill.ahead=2 \
    --set distill.when_lost=alone --set distill.patience_s=1 >"$T/lost.log" 2>&1 &
pid=$!
wait_step "$T/lost" 5 "$pid" || fail "run ended before step 5: $(tail -n 3 "$T/lost.log")"
agent=$(pgrep -f "nebula agent .*$T/lost/clusters/alpha" | head -n 1)
kill -STOP "$agent"
for ((i = 0; i < 1500; i++)); do
    grep -q "going on with cross-entropy" "$T/lost/metrics.jsonl" && break
    sleep 0.02
done
kill -CONT "$agent"
wait "$pid" || fail "the run with a lost teacher failed: $(tail -n 5 "$T/lost.log")"
jq -e '.quality.clusters.beta.taught_share | . > 0 and . < 1' "$T/lost/summary.json" >/dev/null || fail "taught: $(jq -c .quality "$T/lost/summary.json")"

# A teacher that learns while it teaches two students; LoRA students; all logits in one process.
job "$T/fly.yaml" "[{name: alpha, role: teacher, threads: 1}, {name: beta, role: student, threads: 1}, {name: gamma, role: student, threads: 1}]" \
    "teacher: {learn: true, n_layers: 3}"
run "$T/fly.yaml" 3 "$T/fly" --steps 20
[[ -s $T/fly/checkpoint/teacher.ckpt && -s $T/fly/checkpoint/model.ckpt && -s $T/fly/checkpoint/gamma.ckpt ]] || fail "a model is missing"
[[ $(summary '.clusters[0].steps' "$T/fly") == 40 ]] || fail "the teacher made $(summary '.clusters[0].steps' "$T/fly") steps for two students"
run "$T/job.yaml" 2 "$T/lora" --steps 10 --set distill.cache= --set init_from="$teacher" --set trainable.mode=lora --set trainable.rank=2
sed 's/^clusters:.*/clusters: [{name: beta, role: student, threads: 1}, {name: alpha, role: teacher, threads: 1}]/' "$T/job.yaml" >"$T/full.yaml"
run "$T/full.yaml" 2 "$T/full" --steps 20 --set distill.k=0 --set sync.scheme=synchronous --set distill.cache=

"$nebula" eval "$T/two/checkpoint" --task translate --corpus "$T/corpus" --beam 3 --windows 10 --out "$T/mt" >"$T/eval.log" 2>&1 || fail "eval: $(tail -n 2 "$T/eval.log")"
for f in hypotheses references sources; do [[ $(wc -l <"$T/mt/$f.txt") == 10 ]] || fail "$f.txt has $(wc -l <"$T/mt/$f.txt") lines"; done
diff -q <(tr a-z A-Z <"$T/mt/sources.txt") "$T/mt/references.txt" >/dev/null || fail "sources and references are not pairs"

# Other shards; what a job may not ask for.
spec "$T/spec2.yaml" 1
sed -i "/^vocabulary:/d; s/per_mille: 40, test/per_mille: 60, test/" "$T/spec2.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/spec2.yaml"
"$nebula" data build "$T/spec2.yaml" --out "$T/shards" >"$T/data2.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data2.log")"
sed "s#role: student,#role: student, corpus: $T/shards,#" "$T/job.yaml" >"$T/bad.yaml"
if timeout 100 "$nebula" distill "$T/bad.yaml" --local 2 --out "$T/bad" --set distill.cache= >"$T/bad.log" 2>&1; then fail "trained on unlike shards"; fi
grep -Eq "shards differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" "$T/bad.log" || fail "shards: $(tail -n 3 "$T/bad.log")"
(($(steps_done "$T/bad") == 0)) || fail "steps were made before the shards were refused"
refused() { # MESSAGE OPTIONS...
    local text=$1
    shift
    rm -rf "$T/no"
    if timeout 60 "$nebula" distill "$T/job.yaml" --local 2 --out "$T/no" "$@" >"$T/no.log" 2>&1; then fail "accepted: $*"; fi
    grep -q "$text" "$T/no.log" || fail "$*: $(tail -n 2 "$T/no.log")"
}
refused "need sync.scheme: synchronous" --set distill.k=0
refused "needs a checkpoint" --set distill.teacher.init=
refused "cannot find" --set distill.teacher.init="$T/nowhere"
refused "is not one of: wait, alone" --set distill.when_lost=cry
echo "students over a stream, killed, replayed, alone and from all logits; unlike clusters and impossible jobs are refused"
