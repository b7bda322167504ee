#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs as sides of mode distill where the text is not the corpus's: a program that answers as
# the teacher; one that asks for labels of its samples as the student of two teachers, and is
# replaced by one that draws other samples; a program and a built-in teacher for one student.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
command -v python3 >/dev/null || skip "there is no python3"
make_pairs
export PYTHONPATH=$SOURCE/agent/lib/python NEBULA_LIBRARY=$BUILD/libnebula.so.2
[[ -e $NEBULA_LIBRARY ]] || skip "libnebula is not built"
client() { # HOME ROLE …
    NEBULA_AGENT=$1 timeout 300 python3 "$(dirname "$0")/side_client.py" "${@:2}"
}
short() { # NAME CLUSTERS [keys of the distill section]
    job "$T/$1.yaml" "$2" "push_text: true, ahead: 4${3:+, $3}"
    sed -i 's/steps: 60/steps: 20/; s/model: {/model: {vocab: 400, /; s/windows: 20/windows: 2/
        s/batch: 6/batch: 2/; s/every_steps: 10/every_steps: 4/' "$T/$1.yaml"
}
start() { # NAME LOCAL: runs the job in the background
    timeout 600 "$nebula" distill "$T/$1.yaml" --local "$2" --out "$T/$1" >"$T/$1.log" 2>&1 &
    pid=$!
}
ended() { wait "$pid" || fail "the job $1 failed: $(tail -n 4 "$T/$1.log")"; }
taught() { # NAME: all steps have labels
    jq -e '.quality.clusters.beta.taught_share == 1' "$T/$1/summary.json" >/dev/null ||
        fail "$1: $(jq -c .quality "$T/$1/summary.json")"
}
tokenizer=$T/corpus/tokenizer.model
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 10 --set eval.windows=1 --set data.batch=2
init="$T/teacher/checkpoint/model.ckpt"

# ---- a program answers; the student learns its answers, as long as there is room for them
short answers "[{name: alpha, role: teacher, launcher: attach}, {name: beta, role: student,
    threads: 1}]" "source: teacher, mix: 0.5"
start answers 2
client "$T/answers/clusters/alpha" teacher "$tokenizer" >"$T/answers.out" 2>&1 ||
    fail "the teacher failed: $(cat "$T/answers.out")"
ended answers
for text in 'early: .*call nebula_side_answer' 'one: .*1 answers to [0-9]* prompts' \
    'beyond: .*has id 400, outside'; do
    grep -q "$text" "$T/answers.out" || fail "no error like '$text': $(cat "$T/answers.out")"
done
taught answers
short plain "[{name: alpha, role: teacher, launcher: attach}, {name: beta, role: student,
    threads: 1}]"
start plain 2
client "$T/plain/clusters/alpha" teacher "$tokenizer" >"$T/plain.out" 2>&1 ||
    fail "the teacher failed: $(cat "$T/plain.out")"
ended plain
[[ $(digest "$T/plain") != "$(digest "$T/answers")" ]] || fail "the answers changed nothing"
! grep -q '^early' "$T/plain.out" || fail "text of the corpus wants an answer"

# ---- a program samples; two built-in teachers label that
for i in {1..40}; do # ids, and how many of them are given
    echo "[[$((i + 3)), $((i + 4)), 1, $((i + 5)), $((i % 7 + 3)), 2], $((i % 3 + 1))]"
done >"$T/texts"
short own "[{name: alpha, role: teacher, threads: 1, weight: 2}, {name: gamma, role: teacher,
    threads: 1}, {name: beta, role: student, launcher: attach}]" \
    "teacher: {init: $init}, source: student, mix: 0.5"
start own 3
home=$T/own/clusters/beta rc=0
client "$home" student "$tokenizer" "$T/texts" "$T/step" 8 >"$T/own.out" 2>&1 || rc=$?
[[ $rc == 9 ]] || fail "the student ended with $rc: $(cat "$T/own.out")"
client "$home" student "$tokenizer" "$T/texts" "$T/step" >"$T/own2.out" 2>&1 ||
    fail "the second student failed: $(cat "$T/own2.out")"
ended own
left=$(grep -c 'UserWarning: labels of step' "$T/own2.out" || true)
((left >= 1 && left <= 4)) || fail "$left steps were left out: $(cat "$T/own2.out")"
[[ $(grep -h '^learned' "$T/own.out" "$T/own2.out" | sort -u | wc -l) == $((20 - left)) ]] ||
    fail "steps: $(cat "$T/own.out" "$T/own2.out")"

# ---- a program and a built-in teacher
short both "[{name: alpha, role: teacher, launcher: attach}, {name: beta, role: student,
    threads: 1}, {name: gamma, role: teacher, threads: 1, init: $init}]"
start both 3
client "$T/both/clusters/alpha" teacher "$tokenizer" >"$T/both.out" 2>&1 ||
    fail "the teacher failed: $(cat "$T/both.out")"
ended both
taught both
[[ $(digest "$T/both") != "$(digest "$T/plain")" ]] || fail "the second teacher changed nothing"
echo "programs that answer and sample; $left steps of another process's samples left out"
