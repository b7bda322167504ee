#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Other paths for text and labels. The student pushes its text to a teacher that does not have this
# text. The first of two students relays the labels, so the teacher sends them once. Both end with
# the bits of the plain run, also when workers are killed.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_pairs
batch=4 windows=6
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20
teacher=$T/teacher/checkpoint/model.ckpt
job "$T/job.yaml" "$both" "teacher: {init: $teacher}"
run "$T/job.yaml" 2 "$T/plain"
want=$(digest "$T/plain")
killed() { # JOB LOCAL OUT STEP-CLUSTER…: a run with killed workers
    local file=$1 n=$2 out=$3 pid
    shift 3
    # Slow steps: the run must still be in progress when this script looks.
    NEBULA_FAULT=worker.step:+100 timeout 600 "$nebula" distill "$file" --local "$n" \
        --out "$out" >"$out.log" 2>&1 &
    pid=$!
    kill_workers "$out" "$pid" "$@"
    wait "$pid" || fail "the run $out failed"
}

# Pushed text: the teacher reads other text with the same vocabulary.
spec "$T/spec2.yaml" 1
sed -i "/^vocabulary:/d; s/path: .*pairs.tsv/path: ${T//\//\\/}\/other.tsv/" "$T/spec2.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/spec2.yaml"
head -n 400 "$T/pairs.tsv" | awk -F'\t' '{print $2 "\t" $1}' >"$T/other.tsv"
"$nebula" data build "$T/spec2.yaml" --out "$T/other" >"$T/data2.log" 2>&1 ||
    fail "data build failed"
apart=${both/threads: 1/"threads: 1, corpus: $T/other"}
job "$T/push.yaml" "$apart" "teacher: {init: $teacher}, push_text: true"
run "$T/push.yaml" 2 "$T/push"
[[ $(digest "$T/push") == "$want" ]] ||
    fail "digest with pushed text: $(digest "$T/push"), when both read it: $want"
asked=$(summary '.quality.wan_bytes_per_target_token' "$T/push")
jq -e '.quality.wan_bytes_per_target_token > .quality.label_bytes_per_target_token' \
    "$T/push/summary.json" >/dev/null || fail "too few bytes a target token: $asked"
killed "$T/push.yaml" 2 "$T/pushkill" 13-alpha 27-beta 40-alpha
[[ $(digest "$T/pushkill") == "$want" ]] ||
    fail "digest with pushed text and killed workers: $(digest "$T/pushkill"), undisturbed: $want"
# The teacher's text need not be parallel text.
sed "s/format: tsv, path: .*/format: text, path: ${T//\//\\/}\/lower.txt}/" "$T/spec2.yaml" \
    >"$T/spec5.yaml"
"$nebula" data build "$T/spec5.yaml" --out "$T/mono" >"$T/data5.log" 2>&1 ||
    fail "data build failed"
sed "s#$T/other#$T/mono#" "$T/push.yaml" >"$T/mono.yaml"
run "$T/mono.yaml" 2 "$T/pushmono"
[[ $(digest "$T/pushmono") == "$want" ]] ||
    fail "pushed to a teacher with text of one language: $(digest \
        "$T/pushmono"), read by both: $want"
# Without push_text a teacher with other text is refused. Another vocabulary is always refused.
sed 's/, push_text: true//' "$T/push.yaml" >"$T/bad.yaml"
if timeout 600 "$nebula" distill "$T/bad.yaml" --local 2 --out "$T/bad" >"$T/bad.log" 2>&1; then
    fail "a run with different shards succeeded"
fi
grep -q "shards differs between the clusters" "$T/bad.log" ||
    fail "the error does not name the different shards"
sed -i '/^tokenizer:/d' "$T/spec2.yaml"
grep '^vocabulary:' "$T/spec.yaml" | sed 's/size: 400/size: 390/' >>"$T/spec2.yaml"
"$nebula" data build "$T/spec2.yaml" --out "$T/words" >"$T/data3.log" 2>&1 ||
    fail "data build failed"
sed "s#$T/other#$T/words#" "$T/push.yaml" >"$T/bad.yaml"
if timeout 600 "$nebula" distill "$T/bad.yaml" --local 2 --out "$T/bad2" >"$T/bad2.log" 2>&1; then
    fail "a run with different vocabularies succeeded"
fi
grep -Eq "vocabulary differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" \
    "$T/bad2.log" || grep -q "vocabulary of" "$T/bad2.log" ||
    fail "the error does not name the vocabularies"
# A teacher with a padded vocabulary is refused, in one process too: its labels would be read as
# other pieces.
run "$T/teacher.yaml" 1 "$T/wide" --steps 20 --set model.vocab=416
job "$T/wide.yaml" "$(cluster_list beta student alpha teacher)" \
    "teacher: {init: $T/wide/checkpoint/model.ckpt}"
for scheme in federated synchronous; do
    if timeout 600 "$nebula" distill "$T/wide.yaml" --local 2 --out "$T/wide-$scheme" \
        --set sync.scheme=$scheme >"$T/wide.log" 2>&1; then
        fail "$scheme: a student learned from a teacher with another vocabulary"
    fi
    text='a vocabulary of 416, but the student has one of 400: set model.vocab: 416'
    grep -q "$text" "$T/wide.log" ||
        fail "$scheme: the reason is missing"
    run "$T/wide.yaml" 2 "$T/wide-padded-$scheme" --set sync.scheme=$scheme --set model.vocab=416 \
        --steps 20
done

# Relayed labels: the teacher has one stream for any number of students. The first student equals
# the student of the plain run. The second learns from the same labels, from another start.
three=$(cluster_list alpha teacher beta student gamma student)
job "$T/relay.yaml" "$three" "teacher: {init: $teacher}, relay: true, ahead: 6"
run "$T/relay.yaml" 3 "$T/relay"
[[ $(digest "$T/relay") == "$want" ]] ||
    fail "digest with a relay: $(digest "$T/relay"), without: $want"
of() { summary ".clusters[] | select(.name == \"$1\") | .$2" "$3"; }
gamma=$(of gamma params_digest "$T/relay")
[[ $gamma != "$want" ]] || fail "both students are equal"
jq -e '.quality.clusters.gamma.taught_share == 1 and .quality.clusters.beta.taught_share == 1' \
    "$T/relay/summary.json" >/dev/null || fail "not all steps were taught"
plain=$(of alpha wan_sent_bytes "$T/plain") relayed=$(of alpha wan_sent_bytes "$T/relay")
((relayed < plain * 13 / 10)) ||
    fail "the teacher sent $relayed bytes to a relay, $plain to one student"
# The labels themselves cross two links: from the teacher to the first student, and from there to
# the second.
once=$(of alpha wan_payload_bytes "$T/plain") crossed=$(of alpha wan_payload_bytes "$T/relay") \
    passed=$(of beta wan_payload_bytes "$T/relay")
((once > 0 && crossed < once * 11 / 10 && crossed * 11 / 10 > once)) ||
    fail "labels of $crossed bytes left the teacher for two students, $once for one"
((passed < once * 11 / 10 && passed * 11 / 10 > once)) ||
    fail "the relay sent $passed bytes of labels, but received $once"
[[ $(of gamma wan_payload_bytes "$T/relay") == 0 ]] || fail "the last student sent labels"
killed "$T/relay.yaml" 3 "$T/relaykill" 13-beta 27-gamma 40-alpha
[[ $(digest "$T/relaykill") == "$want" && $(of gamma params_digest "$T/relaykill") == "$gamma" ]] ||
    fail "the digests differ after a relay with killed workers"
echo "pushed text ($asked bytes a token) and relayed labels ($relayed bytes) give the same bits"
