#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode distill: a student learns from a teacher on another cluster. The student ends with the same
# bits when either worker is killed, and when the labels are replayed from the cache without a
# teacher. When the teacher is lost, the student continues alone or waits. Clusters that differ are
# refused before training, with both digests.
. "$(dirname "$0")/lib.sh"

. "$(dirname "$0")/pairs.sh"
make_pairs
batch=3 windows=8 lr=0.01

# A teacher for this test: a student that learns from the text alone.
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 60
teacher=$T/teacher/checkpoint/model.ckpt
job "$T/job.yaml" "$both" "teacher: {init: $teacher}, cache: $T/cache"

run "$T/job.yaml" 2 "$T/two" --json
[[ $(tail -n 1 "$T/two.log" |
    jq -cS 'select(.kind == "summary") | del(.kind)') == "$(jq -cS . "$T/two/summary.json")" ]] ||
    fail "--json does not end with the summary"
want=$(digest "$T/two")
jq -e '.mode == "distill" and .quality.label_bytes_per_target_token < 24 and
    .quality.clusters.beta.taught_share == 1
       and .quality.clusters.beta.chrf >= 0 and .quality.clusters.beta.eval_loss < 6
       and .quality.fp16_logits_bytes_per_target_token >
           20 * .quality.label_bytes_per_target_token' "$T/two/summary.json" >/dev/null ||
    fail "wrong quality: $(jq -c .quality "$T/two/summary.json")"
[[ $want != "$(summary '.clusters[0].params_digest' "$T/teacher")" ]] ||
    fail "the student has the teacher's parameters"

# A replay of the labels from the cache, without a teacher, gives the same student. The cache does
# not serve other text.
job "$T/replay.yaml" "$one" "cache: $T/cache"
run "$T/replay.yaml" 1 "$T/replay"
[[ $(digest "$T/replay") == "$want" ]] ||
    fail "digest after a replay from the cache: $(digest "$T/replay"), with a teacher: $want"
if timeout 600 "$nebula" distill "$T/replay.yaml" --local 1 --out "$T/other" \
    --seed 6 >"$T/other.log" 2>&1; then
    fail "a cache of another seed was used"
fi
grep -Eq "there [0-9a-f]{64}, here [0-9a-f]{64}" "$T/other.log" ||
    fail "the error does not name the digests"

# The labels of another teacher replace the first ones; none of the first ones remain.
job "$T/second.yaml" "$both" "teacher: {init: $T/two/checkpoint/model.ckpt}, cache: $T/cache"
run "$T/second.yaml" 2 "$T/second" --steps 20
run "$T/replay.yaml" 1 "$T/again" --steps 20
[[ $(digest "$T/again") == "$(digest "$T/second")" ]] ||
    fail "replayed from the cache: $(digest "$T/again"), with the second teacher: $(digest \
        "$T/second")"
if timeout 600 "$nebula" distill "$T/replay.yaml" --local 1 \
    --out "$T/mixed" >"$T/mixed.log" 2>&1; then
    fail "labels of two teachers were used"
fi
grep -q "no labels of step 20 " "$T/mixed.log" || fail "the error does not name the missing labels"

# kill -9 of each worker in turn.
NEBULA_FAULT=worker.step:+100 timeout 600 "$nebula" distill "$T/job.yaml" --local 2 \
    --out "$T/kill" --set distill.cache= >"$T/kill.log" 2>&1 &
pid=$!
kill_workers "$T/kill" "$pid" 13-alpha 27-beta
wait "$pid" || fail "the run with killed workers failed"
[[ $(digest "$T/kill") == "$want" ]] ||
    fail "digest after kill -9: $(digest "$T/kill"), undisturbed: $want"

# The teacher's agent is stopped: the student continues with cross-entropy, and uses labels again
# when the agent is back.
NEBULA_FAULT=worker.step:+50 timeout 600 "$nebula" distill "$T/job.yaml" --local 2 --out "$T/lost" \
    --set distill.cache= --set distill.ahead=2 \
    --set distill.when_lost=alone --set distill.patience_s=1 >"$T/lost.log" 2>&1 &
pid=$!
wait_step "$T/lost" 5 "$pid" || fail "the run ended before step 5"
agent=$(pgrep -f "nebula agent .*$T/lost/clusters/alpha" | head -n 1)
kill -STOP "$agent"
alone() { has "continuing with cross-entropy" "$T"/lost/clusters/beta/jobs/*/worker.log; }
within 30 alone ||
    fail "the student does not say that it goes on alone"
kill -CONT "$agent"
wait "$pid" || fail "the run with a lost teacher failed"
jq -e '.quality.clusters.beta.taught_share | . > 0 and . < 1' "$T/lost/summary.json" >/dev/null ||
    fail "wrong share of taught steps: $(jq -c .quality "$T/lost/summary.json")"

# A teacher that learns while it teaches two students; LoRA students; all logits in one process.
job "$T/fly.yaml" "$(cluster_list alpha teacher beta student gamma student)" \
    "teacher: {learn: true, n_layers: 3}"
run "$T/fly.yaml" 3 "$T/fly" --steps 20
[[ -s $T/fly/checkpoint/teacher.ckpt && -s $T/fly/checkpoint/model.ckpt &&
    -s $T/fly/checkpoint/gamma.ckpt ]] || fail "a model is missing"
[[ $(summary '.clusters[0].steps' "$T/fly") == 40 ]] ||
    fail "the teacher made $(summary '.clusters[0].steps' "$T/fly") steps for two students"
run "$T/job.yaml" 2 "$T/lora" --steps 10 --set distill.cache= --set init_from="$teacher" \
    --set trainable.mode=lora --set trainable.rank=2
sed "s/^clusters:.*/clusters: $(cluster_list beta student alpha teacher)/" "$T/job.yaml" \
    >"$T/full.yaml"
run "$T/full.yaml" 2 "$T/full" --steps 20 --set distill.k=0 --set sync.scheme=synchronous \
    --set distill.cache=

"$nebula" eval "$T/two/checkpoint" --task translate --corpus "$T/corpus" --beam 3 --windows 10 \
    --out "$T/mt" >"$T/eval.log" 2>&1 || fail "eval failed"
for f in hypotheses references sources; do
    [[ $(wc -l <"$T/mt/$f.txt") == 10 ]] || fail "$f.txt has $(wc -l <"$T/mt/$f.txt") lines"
done
diff -q <(tr '[:lower:]' '[:upper:]' <"$T/mt/sources.txt") "$T/mt/references.txt" >/dev/null ||
    fail "sources and references are not pairs"
"$nebula" eval "$T/two/checkpoint" --task translate --corpus "$T/corpus" --beam 3 --windows 10 \
    --out "$T/mt-tp" --tp 2 --json >"$T/eval-tp.json" 2>&1 || fail "eval on two ranks failed"
diff "$T/mt/hypotheses.txt" "$T/mt-tp/hypotheses.txt" || fail "two ranks translate differently"
jq -e '.chrf > 0 and .bleu >= 0 and .pairs == 10' "$T/eval-tp.json" >/dev/null ||
    fail "eval on two ranks: $(cat "$T/eval-tp.json")"

# A corpus without held-out pairs: the run ends, and the unmeasured values are null.
spec "$T/none.yaml" 1
sed -i "/^vocabulary:/d;
    s/per_mille: 40, test_per_mille: 40/per_mille: 0, test_per_mille: 0/" "$T/none.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/none.yaml"
"$nebula" data build "$T/none.yaml" --out "$T/none" >"$T/none.log" 2>&1 || fail "data build failed"
job "$T/unmeasured.yaml" "$one"
run "$T/unmeasured.yaml" 1 "$T/unmeasured" --steps 2 --set data.corpus="$T/none"
jq -e '.quality.clusters.beta | .eval_loss == null and .chrf == null and .pairs == 0' \
    "$T/unmeasured/summary.json" >/dev/null ||
    fail "the quality without held-out pairs is wrong: $(jq -c .quality \
        "$T/unmeasured/summary.json")"
grep -q "held-out loss - nats per target token, chrF - over 0 pairs" "$T/unmeasured.log" ||
    fail "the log does not show that nothing was held out"
if "$nebula" eval "$T/two/checkpoint" --task translate --corpus "$T/none" >"$T/eval.log" 2>&1; then
    fail "eval translated a corpus without pairs"
fi
grep -q "holds no pairs of at most 96 tokens to translate" "$T/eval.log" ||
    fail "eval does not give the reason"

# Shards that differ between the clusters, and jobs that are not allowed.
spec "$T/spec2.yaml" 1
sed -i "/^vocabulary:/d; s/per_mille: 40, test/per_mille: 60, test/" "$T/spec2.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/spec2.yaml"
"$nebula" data build "$T/spec2.yaml" --out "$T/shards" >"$T/data2.log" 2>&1 ||
    fail "data build failed"
sed "s#role: student,#role: student, corpus: $T/shards,#" "$T/job.yaml" >"$T/bad.yaml"
if timeout 600 "$nebula" distill "$T/bad.yaml" --local 2 --out "$T/bad" \
    --set distill.cache= >"$T/bad.log" 2>&1; then
    fail "a run with different shards succeeded"
fi
grep -Eq "shards differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" \
    "$T/bad.log" || fail "the error does not name the different shards"
(($(steps_done "$T/bad") == 0)) || fail "steps were made before the shards were refused"
refused() { # MESSAGE OPTIONS...
    local text=$1
    shift
    rm -rf "$T/no"
    if timeout 600 "$nebula" distill "$T/job.yaml" --local 2 \
        --out "$T/no" "$@" >"$T/no.log" 2>&1; then
        fail "accepted: $*"
    fi
    grep -q "$text" "$T/no.log" || fail "no message '$text' with $*"
}
refused "needs sync.scheme: synchronous" --set distill.k=0
refused "needs a checkpoint" --set distill.teacher.init=
refused "cannot find" --set distill.teacher.init="$T/nowhere"
refused "is not one of: wait, alone" --set distill.when_lost=cry
echo "students: killed, replayed, alone, from all logits; wrong clusters and jobs are refused"
