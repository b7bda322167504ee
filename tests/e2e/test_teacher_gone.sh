#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A teacher disappears: its agent and worker are stopped for OUTAGE_S seconds (12 here; 600 is ten
# minutes), which the student sees as silence. The student uses up its labels, waits, and reports
# the wait once. Then it continues, and ends with the same bits. The links go down and up again.
# Memory does not grow. A student that continues alone ends without the teacher. When the teacher is
# back, it ends too.
# shellcheck disable=SC2046,SC2086 # $teacher and $student hold several process ids each
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
outage_s=${OUTAGE_S:-12}
make_pairs
brief() { sed -i 's/windows: 20/windows: 4/' "$1"; } # FILE: a short evaluation
job "$T/teacher.yaml" "$one"
brief "$T/teacher.yaml"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 40
# beta is listed first: the command asks its side.
here=$(cluster_list beta student alpha teacher)
job "$T/job.yaml" "$here" \
    "teacher: {init: $T/teacher/checkpoint/model.ckpt}, ahead: 4, when_lost: wait, patience_s: 2"
brief "$T/job.yaml"
run "$T/job.yaml" 2 "$T/calm" --steps 50

out=$T/gone
NEBULA_FAULT=worker.step:+40 timeout $((outage_s + 120)) "$nebula" distill "$T/job.yaml" --local 2 \
    --steps 50 --out "$out" >"$out.log" 2>&1 &
pid=$!
wait_step "$out" 20 "$pid" || fail "the run ended before step 20"
teacher=$(pgrep -f "nebula (agent|worker) .*$out/clusters/alpha" | tr '\n' ' ')
student=$(pgrep -f "nebula (agent|worker) .*$out/clusters/beta" | tr '\n' ' ')
resident() {
    awk '/VmRSS/ {s += $2} END {print s + 0}' $(printf '/proc/%s/status ' $student) 2>/dev/null
}
kill -STOP $teacher
clean_up() { kill -CONT $teacher 2>/dev/null || true; }
said() {
    grep '"kind":"fault".*waiting for the teacher' "$out/metrics.jsonl" | grep -c '"cluster":"beta"'
}
waits() { (($(said) > 0)); }
within 60 waits && [[ $(said) == 1 ]] || fail "the student does not report that it waits"
at=$(steps_done "$out") before=$(resident)
sleep "$outage_s"
[[ $(steps_done "$out") == "$at" ]] ||
    fail "steps were made without labels: $at, then $(steps_done "$out")"
[[ $(said) == 1 ]] || fail "the waiting was reported $(said) times"
after=$(resident)
((after < before + 8192)) ||
    fail "the student's memory grew from $before to $after KiB while it waited"
grep -c "waiting for the teacher" "$out"/clusters/beta/jobs/*/worker.log | grep -qx 1 ||
    fail "the log does not report the waiting exactly once"
kill -CONT $teacher
wait "$pid" || fail "the run failed after the outage"
[[ $(digest "$out") == "$(digest "$T/calm")" ]] ||
    fail "digest after the outage: $(digest "$out"), undisturbed: $(digest "$T/calm")"
jq -e '.quality.clusters.beta.taught_share == 1' "$out/summary.json" >/dev/null ||
    fail "not all labels were used"
jq -s -e '[.[] | select(.kind == "note" and .cluster == "beta" and
    .text == "labels are coming again")] | length >= 1' "$out/metrics.jsonl" >/dev/null ||
    fail "the return of the labels is not reported"
echo "gone for $outage_s s at step $at: waited ($(jq -c .quality.clusters.beta.stall \
    "$out/summary.json")), reported it once, ended with the same bits"

# A student that makes all its steps alone does not wait for labels that may never come. The teacher
# returns later and makes no more labels.
gone_for_good() { # NAME [more keys of the distill section [more keys of the teacher]]
    local alone='when_lost: alone, patience_s: 1'
    out=$T/$1
    job "$T/$1.yaml" "$here" \
        "teacher: {init: $T/teacher/checkpoint/model.ckpt${3:+, $3}}, ahead: 4, $alone${2:+, $2}"
    brief "$T/$1.yaml"
    NEBULA_FAULT=worker.step:+40 timeout 600 "$nebula" distill "$T/$1.yaml" --local 2 --steps 50 \
        --out "$out" >"$out.log" 2>&1 &
    pid=$!
    wait_step "$out" 20 "$pid" || fail "$1: the run ended before step 20"
    teacher=$(pgrep -f "nebula (agent|worker) .*$out/clusters/alpha" | tr '\n' ' ')
    kill -STOP $teacher
    ended() { grep -q "job distill: done" "$out/clusters/beta/agent.log"; }
    within 60 ended ||
        fail "$1: the student does not end without its teacher: $(tail -n 3 \
            "$out"/clusters/beta/jobs/*/worker.log)"
    compgen -G "$out/clusters/beta/jobs/*/model.ckpt" >/dev/null || fail "$1: there is no model"
    kill -CONT $teacher
    wait "$pid" || fail "$1: the teacher did not end"
    jq -e '.quality.clusters.beta | .taught_share > 0 and .taught_share < 1 and
        (.chrf | type == "number")' "$out/summary.json" >/dev/null ||
        fail "$1: wrong quality: $(jq -c .quality.clusters.beta "$out/summary.json")"
    grep -h "ends without the last" "$out"/clusters/beta/jobs/*/worker.log ||
        fail "$1: the student had all labels, so the test shows nothing"
    grep -h "needs no more labels" "$out"/clusters/alpha/jobs/*/worker.log ||
        fail "$1: the teacher made all labels"
}
gone_for_good alone
gone_for_good pushed "push_text: true"
gone_for_good learns "push_text: true" "learn: true"
