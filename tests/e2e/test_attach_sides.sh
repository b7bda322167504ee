#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs as teacher and student of mode distill, beside built-in ones. A teacher that is killed
# makes no label twice and loses none; bad labels are one error each, and the stream goes on; a
# student goes on at its own step; another vocabulary is refused with both digests.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
command -v python3 >/dev/null || skip "there is no python3"
make_pairs
batch=3
export PYTHONPATH=$SOURCE/agent/lib/python NEBULA_LIBRARY=$BUILD/libnebula.so.2
[[ -e $NEBULA_LIBRARY ]] || skip "libnebula is not built"
client() { # HOME ROLE …
    NEBULA_AGENT=$1 timeout 300 python3 "$(dirname "$0")/side_client.py" "${@:2}"
}
short() { # NAME CLUSTERS [keys of the distill section]
    job "$T/$1.yaml" "$2" "push_text: true, ahead: 4${3:+, $3}"
    sed -i 's/steps: 60/steps: 20/; s/model: {/model: {vocab: 400, /; s/windows: 20/windows: 2/
        s/every_steps: 10/every_steps: 4/' "$T/$1.yaml"
}
start() { # NAME: runs the job in the background
    timeout 600 "$nebula" distill "$T/$1.yaml" --local 2 --out "$T/$1" >"$T/$1.log" 2>&1 &
    pid=$!
}
ended() { wait "$pid" || fail "the job $1 failed: $(tail -n 4 "$T/$1.log")"; }
tokenizer=$T/corpus/tokenizer.model
attached="[{name: alpha, role: teacher, launcher: attach}, {name: beta, role: student, threads: 1}]"

# ---- a teacher
short plain "$attached"
start plain
client "$T/plain/clusters/alpha" teacher "$tokenizer" >"$T/plain.out" 2>&1 ||
    fail "the teacher failed: $(cat "$T/plain.out")"
ended plain
grep -q 'state 1' "$T/plain.out" || fail "the teacher does not know that the job is done"
[[ $(grep -c '^labels of' "$T/plain.out") == 20 ]] || fail "labels: $(cat "$T/plain.out")"
jq -e '.quality.clusters.beta.taught_share == 1 and
    (.clusters[] | select(.name == "alpha") | .device == "attached trainer" and .steps == 20)' \
    "$T/plain/summary.json" >/dev/null || fail "summary: $(jq -c . "$T/plain/summary.json")"
want=$(digest "$T/plain")

# Bad labels every few steps, and a teacher that is killed in mid-run.
cp "$T/plain.yaml" "$T/bad.yaml"
start bad
client "$T/bad/clusters/alpha" teacher "$tokenizer" bad >"$T/bad.out" 2>&1 ||
    fail "the teacher failed: $(cat "$T/bad.out")"
ended bad
[[ $(digest "$T/bad") == "$want" ]] || fail "after bad labels another student"
for text in 'positive: .*row 0, label 0 .*is positive' 'nan: .*is not a number' \
    'unsorted: .*above the one before it' 'outside: .*id 400.*outside the vocabulary' \
    'twice: .*twice in the row' 'mass: .*sum to' 'rows: .*for [0-9]* rows' \
    'wide: .*k 9 is not in 1..8' 'step: .*of step 1 of cluster 1, but those of step 0' \
    'student: .*of cluster 2, but'; do
    grep -q "$text" "$T/bad.out" || fail "no error like '$text': $(cat "$T/bad.out")"
done
cp "$T/plain.yaml" "$T/kill.yaml"
start kill
client "$T/kill/clusters/alpha" teacher "$tokenizer" slow >"$T/kill.out" 2>&1 & teacher=$!
at() { grep -q "$1" "$2"; }
within 60 at 'labels of 7' "$T/kill.out" 2>/dev/null || fail "no labels: $(cat "$T/kill.out")"
kill -KILL "$(sed -n 's/^pid //p' "$T/kill.out")"
wait "$teacher" || true
client "$T/kill/clusters/alpha" teacher "$tokenizer" >"$T/kill2.out" 2>&1 ||
    fail "the second teacher failed: $(cat "$T/kill2.out")"
ended kill
[[ $(digest "$T/kill") == "$want" ]] || fail "after a killed teacher another student"
[[ $(grep -h '^labels of' "$T/kill.out" "$T/kill2.out" | sort -u | wc -l) -ge 19 &&
    $(grep -c '^labels of' "$T/kill2.out") -le 13 ]] ||
    fail "labels were made twice: $(cat "$T/kill.out" "$T/kill2.out")"

# Another vocabulary.
cp "$T/plain.yaml" "$T/other.yaml"
start other
client "$T/other/clusters/alpha" teacher "$(printf '%064d' 7)" >"$T/other.out" 2>&1 &
wait "$pid" && fail "another vocabulary was taught"
wait
grep -Eq "vocabulary differs between the clusters: here [0-9a-f]{64}, there [0-9a-f]{64}" \
    "$T/other.log" || fail "the error does not name the digests: $(tail -n 3 "$T/other.log")"

# A teacher with other tokens, whose labels are mapped.
short aligned "$attached" "align: text"
start aligned
client "$T/aligned/clusters/alpha" aligned "$tokenizer" >"$T/aligned.out" 2>&1 ||
    fail "the teacher with other tokens failed: $(cat "$T/aligned.out")"
ended aligned
jq -e --argjson share "$(sed -n 's/^share //p' "$T/aligned.out")" '.quality.clusters.alpha |
    .mapped_share - $share | fabs < 1e-9 and $share > 0.2 and $share < 0.95' \
    "$T/aligned/summary.json" >/dev/null ||
    fail "summary: $(jq -c .quality "$T/aligned/summary.json")"
grep -Eq '^alpha +[0-9.]+ % of the positions could be mapped' "$T/aligned.log" ||
    fail "the job does not say the share: $(tail -n 5 "$T/aligned.log")"

# Labels from a server, at temperature 1: the same probabilities, and most of them the same labels.
short server "$attached"
sed -i 's/temperature: 1.5/temperature: 1/' "$T/server.yaml"
start server
client "$T/server/clusters/alpha" server "$tokenizer" >"$T/server.out" 2>&1 ||
    fail "the teacher with a server failed: $(cat "$T/server.out")"
ended server
for text in 'unreachable: .*127.0.0.1:9.*refused' 'in mid-run: .*500' \
    'cap: .*at most 20 .*asks for 21' 'temperature: .*distill.temperature 2' \
    'truncated: .*of 3 of 4 tokens' 'missing: .*1 answers to 2 prompts' \
    "changed: .*'small' before, and now as 'other'" 'denied: .*400' 'down: .*500' 'late: .*time'; do
    grep -q "$text" "$T/server.out" || fail "no error like '$text': $(cat "$T/server.out")"
done
jq -e '.quality.clusters.beta.taught_share == 1' "$T/server/summary.json" >/dev/null ||
    fail "summary: $(jq -c . "$T/server/summary.json")"
cp "$T/server.yaml" "$T/changes.yaml"
start changes
client "$T/changes/clusters/alpha" changes "$tokenizer" >"$T/changes.out" 2>&1 ||
    fail "the teacher with a server that changes failed: $(cat "$T/changes.out")"
! wait "$pid" || fail "labels of two models were mixed"
grep -q "answered as model 'small' before, and now as 'other'" "$T/changes.log" ||
    fail "the job does not name both models: $(tail -n 3 "$T/changes.log")"

# ---- a student
for i in {1..40}; do # ids, and how many of them are given
    echo "[[$((i + 3)), $((i + 4)), 1, $((i + 5)), $((i % 7 + 3)), 2], $((i % 3 + 1))]"
done >"$T/texts"
short learn "[{name: alpha, role: teacher, threads: 1},
    {name: beta, role: student, launcher: attach}]" "teacher: {learn: true}"
start learn
home=$T/learn/clusters/beta
rc=0
client "$home" student "$tokenizer" "$T/texts" "$T/step" 8 >"$T/learn.out" 2>&1 || rc=$?
[[ $rc == 9 ]] || fail "the student ended with $rc: $(cat "$T/learn.out")"
client "$home" student "$tokenizer" "$T/texts" "$T/step" >"$T/learn2.out" 2>&1 ||
    fail "the second student failed: $(cat "$T/learn2.out")"
ended learn
for text in 'few: ' 'outside: .*id 400' 'long: ' 'many: ' 'no target: ' 'credit: .*learn first'; do
    grep -q "$text" "$T/learn.out" || fail "no error like '$text': $(cat "$T/learn.out")"
done
[[ $(grep -h '^learned' "$T/learn.out" "$T/learn2.out" | sort -u | wc -l) == 20 ]] ||
    fail "steps: $(cat "$T/learn.out" "$T/learn2.out")"
jq -e '.clusters[1].eval_loss == 1.25 and .quality.clusters.beta.taught_share == 1' \
    "$T/learn/summary.json" >/dev/null || fail "summary: $(jq -c . "$T/learn/summary.json")"

refused() { # MESSAGE OPTIONS…
    if "$nebula" check "$T/plain.yaml" "${@:2}" >"$T/no.log" 2>&1; then fail "accepted: ${*:2}"; fi
    grep -q "$1" "$T/no.log" || fail "no message '$1': $(cat "$T/no.log")"
}
refused "needs its role, distill.push_text: true" --set distill.push_text=false
refused "its program has its own model" --set distill.teacher.learn=true
refused "model.vocab: is missing" --set model.vocab=0
refuses 2 "distill.align: text needs a teacher with launcher: attach" check "$T/learn.yaml" \
    --set distill.align=text
short mesh "[{name: alpha, role: teacher, launcher: attach},
    {name: beta, role: student, mesh: {tp: 3}}]"
refuses 2 "mesh.tp: 3 does not divide model.n_heads 4" check "$T/mesh.yaml"
echo "attached teachers and students: killed, with bad input, with another vocabulary"
