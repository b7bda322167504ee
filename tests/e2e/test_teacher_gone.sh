#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A teacher that disappears: its agent and its worker stand still for OUTAGE_S seconds (12 here; 600 is ten minutes), which the
# student's side sees as silence. The student uses up what it has, waits, says so once, and goes on to the same bits; the links
# are down and up again; nothing grows meanwhile. One that goes on alone ends without the teacher, which ends too when it is back.
# shellcheck disable=SC2046,SC2086 # $teacher and $student are several processes each
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
outage_s=${OUTAGE_S:-12}
make_pairs
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 60
here="[{name: beta, role: student, threads: 1}, {name: alpha, role: teacher, threads: 1}]" # beta's side is asked
job "$T/job.yaml" "$here" "teacher: {init: $T/teacher/checkpoint/model.ckpt}, ahead: 4, when_lost: wait, patience_s: 2"
run "$T/job.yaml" 2 "$T/calm" --steps 80

out=$T/gone
NEBULA_FAULT=worker.step:+40 timeout $((outage_s + 120)) "$nebula" distill "$T/job.yaml" --local 2 --steps 80 --out "$out" >"$out.log" 2>&1 &
pid=$!
wait_step "$out" 20 "$pid" || fail "run ended before step 20: $(tail -n 3 "$out.log")"
teacher=$(pgrep -f "nebula (agent|worker) .*$out/clusters/alpha" | tr '\n' ' ')
student=$(pgrep -f "nebula (agent|worker) .*$out/clusters/beta" | tr '\n' ' ')
resident() { awk '/VmRSS/ {s += $2} END {print s + 0}' $(printf '/proc/%s/status ' $student) 2>/dev/null; }
kill -STOP $teacher
clean_up() { kill -CONT $teacher 2>/dev/null || true; }
said() { jq -s '[.[] | select(.kind == "fault" and .cluster == "beta" and (.text | test("waiting for the teacher")))] | length' "$out/metrics.jsonl"; }
for ((i = 0; i < 1000 && $(said) == 0; i++)); do sleep 0.05; done
[[ $(said) == 1 ]] || fail "the student has not said that it waits"
at=$(steps_done "$out") before=$(resident)
sleep "$outage_s"
[[ $(steps_done "$out") == "$at" ]] || fail "steps were made without labels: $at, then $(steps_done "$out")"
[[ $(said) == 1 ]] || fail "it was said $(said) times"
after=$(resident)
((after < before + 8192)) || fail "the student's side grew from $before to $after KiB while it waited"
grep -c "waiting for the teacher" "$out"/clusters/beta/jobs/*/worker.log | grep -qx 1 || fail "the log says it more than once, or never"
kill -CONT $teacher
wait "$pid" || fail "the run did not survive: $(tail -n 5 "$out.log")"
[[ $(digest "$out") == "$(digest "$T/calm")" ]] || fail "after the outage: $(digest "$out"), undisturbed: $(digest "$T/calm")"
jq -e '.quality.clusters.beta.taught_share == 1' "$out/summary.json" >/dev/null || fail "not all labels were used"
jq -s -e '[.[] | select(.kind == "note" and .cluster == "beta" and .text == "labels are coming again")] | length >= 1' "$out/metrics.jsonl" >/dev/null ||
    fail "it was not said that labels come again"
echo "gone for $outage_s s at step $at: waited ($(jq -c .quality.clusters.beta.stall "$out/summary.json")), said so once, ended with the same bits"

# All its steps alone: it does not wait for labels that may never come. The teacher is back later, and makes no more.
gone_for_good() { # NAME [more keys of the distill section [and of the teacher]]
    out=$T/$1
    job "$T/$1.yaml" "$here" "teacher: {init: $T/teacher/checkpoint/model.ckpt${3:+, $3}}, ahead: 4, when_lost: alone, patience_s: 1${2:+, $2}"
    NEBULA_FAULT=worker.step:+40 timeout 120 "$nebula" distill "$T/$1.yaml" --local 2 --steps 80 --out "$out" >"$out.log" 2>&1 &
    pid=$!
    wait_step "$out" 20 "$pid" || fail "$1: run ended before step 20: $(tail -n 3 "$out.log")"
    teacher=$(pgrep -f "nebula (agent|worker) .*$out/clusters/alpha" | tr '\n' ' ')
    kill -STOP $teacher
    ended() { grep -q "job distill: done" "$out/clusters/beta/agent.log"; }
    within 60 ended || fail "$1: the student does not end without its teacher: $(tail -n 3 "$out"/clusters/beta/jobs/*/worker.log)"
    compgen -G "$out/clusters/beta/jobs/*/model.ckpt" >/dev/null || fail "$1: no model"
    kill -CONT $teacher
    wait "$pid" || fail "$1: the teacher did not end: $(tail -n 5 "$out.log")"
    jq -e '.quality.clusters.beta | .taught_share > 0 and .taught_share < 1 and (.chrf | type == "number")' "$out/summary.json" >/dev/null ||
        fail "$1: $(jq -c .quality.clusters.beta "$out/summary.json")"
    grep -h "ends without the last" "$out"/clusters/beta/jobs/*/worker.log || fail "$1: it had all labels: the test shows nothing"
    grep -h "needs no more labels" "$out"/clusters/alpha/jobs/*/worker.log || fail "$1: the teacher made them all"
}
gone_for_good alone
gone_for_good pushed "push_text: true"
gone_for_good learns "push_text: true" "learn: true"
