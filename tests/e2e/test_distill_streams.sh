#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Other ways for text and labels: the student's text is pushed to a teacher that has none of it, and the first of two students
# passes the labels on, so that they leave the teacher once. Both end with the bits of the plain way, also when workers are killed.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_pairs
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 60
teacher=$T/teacher/checkpoint/model.ckpt
job "$T/job.yaml" "$both" "teacher: {init: $teacher}"
run "$T/job.yaml" 2 "$T/plain"
want=$(digest "$T/plain")
killed() { # JOB LOCAL OUT "STEP NAME"... : the run, with workers killed
    local file=$1 n=$2 out=$3 pid at step name victim
    shift 3
    NEBULA_FAULT=worker.step:+50 timeout 120 "$nebula" distill "$file" --local "$n" --out "$out" >"$out.log" 2>&1 & # still running when this script looks
    pid=$!
    for at in "$@"; do
        read -r step name <<<"$at"
        wait_step "$out" "$step" "$pid" || fail "run ended before step $step: $(tail -n 3 "$out.log")"
        victim=$(pgrep -f "nebula worker .*$out/clusters/$name" | head -n 1 || true)
        [[ $victim ]] || fail "no worker of $name found"
        kill -KILL "$victim"
    done
    wait "$pid" || fail "$out: $(tail -n 5 "$out.log")"
}

# Pushed: the teacher reads other text with the same vocabulary.
spec "$T/spec2.yaml" 1
sed -i "/^vocabulary:/d; s/path: .*pairs.tsv/path: ${T//\//\\/}\/other.tsv/" "$T/spec2.yaml"
echo "tokenizer: $T/corpus/tokenizer.model" >>"$T/spec2.yaml"
head -n 400 "$T/pairs.tsv" | awk -F'\t' '{print $2 "\t" $1}' >"$T/other.tsv"
"$nebula" data build "$T/spec2.yaml" --out "$T/other" >"$T/data2.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data2.log")"
apart="[{name: alpha, role: teacher, threads: 1, corpus: $T/other}, {name: beta, role: student, threads: 1}]"
job "$T/push.yaml" "$apart" "teacher: {init: $teacher}, push_text: true"
run "$T/push.yaml" 2 "$T/push"
[[ $(digest "$T/push") == "$want" ]] || fail "pushed: $(digest "$T/push"), read by both: $want"
asked=$(summary '.quality.wan_bytes_per_target_token' "$T/push")
jq -e '.quality.wan_bytes_per_target_token > .quality.label_bytes_per_target_token' "$T/push/summary.json" >/dev/null || fail "bytes: $asked"
killed "$T/push.yaml" 2 "$T/pushkill" "13 alpha" "27 beta" "40 alpha"
[[ $(digest "$T/pushkill") == "$want" ]] || fail "pushed and killed: $(digest "$T/pushkill"), undisturbed: $want"
# Its text need not even be parallel.
sed "s/format: tsv, path: .*/format: text, path: ${T//\//\\/}\/lower.txt}/" "$T/spec2.yaml" >"$T/spec5.yaml"
"$nebula" data build "$T/spec5.yaml" --out "$T/mono" >"$T/data5.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data5.log")"
sed "s#$T/other#$T/mono#" "$T/push.yaml" >"$T/mono.yaml"
run "$T/mono.yaml" 2 "$T/pushmono"
[[ $(digest "$T/pushmono") == "$want" ]] || fail "pushed to a teacher with text of one language: $(digest "$T/pushmono"), read by both: $want"
# Without push_text such a teacher is refused, and another vocabulary always.
sed 's/, push_text: true//' "$T/push.yaml" >"$T/bad.yaml"
if timeout 60 "$nebula" distill "$T/bad.yaml" --local 2 --out "$T/bad" >"$T/bad.log" 2>&1; then fail "trained on unlike shards"; fi
grep -q "shards differs between the clusters" "$T/bad.log" || fail "shards: $(tail -n 3 "$T/bad.log")"
sed -i '/^tokenizer:/d' "$T/spec2.yaml"
echo 'vocabulary: {size: 390, type: bpe, character_coverage: 1.0, train_lines: 20000, byte_fallback: true}' >>"$T/spec2.yaml"
"$nebula" data build "$T/spec2.yaml" --out "$T/words" >"$T/data3.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data3.log")"
sed "s#$T/other#$T/words#" "$T/push.yaml" >"$T/bad.yaml"
if timeout 60 "$nebula" distill "$T/bad.yaml" --local 2 --out "$T/bad2" >"$T/bad2.log" 2>&1; then fail "trained with unlike vocabularies"; fi
grep -Eq "vocabulary differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" "$T/bad2.log" || grep -q "vocabulary of" "$T/bad2.log" ||
    fail "vocabulary: $(tail -n 3 "$T/bad2.log")"
# A teacher whose vocabulary was padded, in one process too: what its labels are of would be read as something else.
run "$T/teacher.yaml" 1 "$T/wide" --steps 20 --set model.vocab=416
job "$T/wide.yaml" "[{name: beta, role: student, threads: 1}, {name: alpha, role: teacher, threads: 1}]" "teacher: {init: $T/wide/checkpoint/model.ckpt}"
for scheme in federated synchronous; do
    if timeout 60 "$nebula" distill "$T/wide.yaml" --local 2 --out "$T/wide-$scheme" --set sync.scheme=$scheme >"$T/wide.log" 2>&1; then fail "$scheme: learnt from another vocabulary"; fi
    grep -q 'a vocabulary of 416, but the student has one of 400: set model.vocab: 416' "$T/wide.log" || fail "$scheme: $(tail -n 3 "$T/wide.log")"
    run "$T/wide.yaml" 2 "$T/wide-padded-$scheme" --set sync.scheme=$scheme --set model.vocab=416 --steps 20
done

# Relayed: the teacher has one stream whatever the number of students; the first is the student of the plain run, the second
# learns from the same labels from another start.
three="[{name: alpha, role: teacher, threads: 1}, {name: beta, role: student, threads: 1}, {name: gamma, role: student, threads: 1}]"
job "$T/relay.yaml" "$three" "teacher: {init: $teacher}, relay: true, ahead: 6"
run "$T/relay.yaml" 3 "$T/relay"
[[ $(digest "$T/relay") == "$want" ]] || fail "relayed: $(digest "$T/relay"), alone: $want"
of() { summary ".clusters[] | select(.name == \"$1\") | .$2" "$3"; }
gamma=$(of gamma params_digest "$T/relay")
[[ $gamma != "$want" ]] || fail "both students are one"
jq -e '.quality.clusters.gamma.taught_share == 1 and .quality.clusters.beta.taught_share == 1' "$T/relay/summary.json" >/dev/null || fail "not all were taught"
plain=$(of alpha wan_sent_bytes "$T/plain") relayed=$(of alpha wan_sent_bytes "$T/relay")
((relayed < plain * 13 / 10)) || fail "the teacher sent $relayed bytes to a relay, $plain to one student"
# Of the labels themselves: once from the teacher, and once from the first student to the second; nothing travels twice.
once=$(of alpha wan_payload_bytes "$T/plain") crossed=$(of alpha wan_payload_bytes "$T/relay") passed=$(of beta wan_payload_bytes "$T/relay")
((once > 0 && crossed < once * 11 / 10 && crossed * 11 / 10 > once)) || fail "labels of $crossed bytes left the teacher for two students, $once for one"
((passed < once * 11 / 10 && passed * 11 / 10 > once)) || fail "the relay passed on $passed bytes of labels, $once had come"
[[ $(of gamma wan_payload_bytes "$T/relay") == 0 ]] || fail "the last student sent labels"
killed "$T/relay.yaml" 3 "$T/relaykill" "13 beta" "27 gamma" "40 alpha"
[[ $(digest "$T/relaykill") == "$want" && $(of gamma params_digest "$T/relaykill") == "$gamma" ]] || fail "relayed and killed: other bits"
echo "pushed text ($asked bytes a target token in all) and relayed labels ($relayed bytes from the teacher, $plain for one student) give the same bits"
