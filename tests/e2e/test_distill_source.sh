#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode distill with other text than the corpus's, and with several teachers. A student's own samples
# go to the teachers as requests, and come back labelled; a teacher's answers come with their
# labels. The student ends with the same bits if any worker is killed.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_pairs
batch=2
job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20 --set eval.windows=1
run "$T/teacher.yaml" 1 "$T/other" --steps 10 --seed 9 --set eval.windows=1
init="teacher: {init: $T/teacher/checkpoint/model.ckpt}"
short() { # NAME CLUSTERS [keys of the distill section]
    job "$T/$1.yaml" "$2" "$3"
    sed -i 's/steps: 60/steps: 16/; s/windows: 20/windows: 2/
        s/every_steps: 10/every_steps: 4/' "$T/$1.yaml"
}
taught() { # NAME: all steps have labels
    jq -e '.quality.clusters.beta.taught_share == 1' "$T/$1/summary.json" >/dev/null ||
        fail "$1: $(jq -c .quality "$T/$1/summary.json")"
}
differs() { # A B
    [[ $(digest "$T/$1") != "$(digest "$T/$2")" ]] || fail "$2: the same student as $1"
}
same() { # A B
    [[ $(digest "$T/$1") == "$(digest "$T/$2")" ]] || fail "$2: another student than that of $1"
}
killed() { # NAME LOCAL STEP-WORKER...: runs the job and kills workers on the way
    local name=$1 pid
    NEBULA_FAULT=worker.step:+500 timeout 600 "$nebula" distill "$T/$name.yaml" --local "$2" \
        --out "$T/$name" >"$T/$name.log" 2>&1 &
    pid=$!
    kill_workers "$T/$name" "$pid" "${@:3}"
    wait "$pid" || fail "the run with killed workers failed"
}

# ---- the student's own samples, with two teachers
two="[{name: alpha, role: teacher, threads: 1, weight: 3}, {name: beta, role: student, threads: 1},
  {name: gamma, role: teacher, threads: 1, init: $T/other/checkpoint/model.ckpt}]"
short both "$two" "$init, push_text: true"
run "$T/both.yaml" 3 "$T/both"
taught both
sed 's/weight: 3/weight: 1/' "$T/both.yaml" >"$T/even.yaml"
run "$T/even.yaml" 3 "$T/even"
differs both even
short own "$two" "$init, push_text: true, source: student, mix: 0.6, ahead: 3"
run "$T/own.yaml" 3 "$T/own"
taught own
differs both own
cp "$T/own.yaml" "$T/kill.yaml"
killed kill 3 3-alpha 6-beta 10-gamma
same own kill
# Two students that are one model, each with samples of its own.
short one_model "$(cluster_list beta student gamma student alpha teacher)" \
    "$init, push_text: true, source: student, mix: 0.7, ahead: 3, federate: true"
echo "sync: {interval: 4, overlap: 2, codec: int4, commit_all: true}" >>"$T/one_model.yaml"
run "$T/one_model.yaml" 3 "$T/one_model"
taught one_model
cp "$T/one_model.yaml" "$T/one_kill.yaml"
killed one_kill 3 5-beta 9-gamma
same one_model one_kill
# When one of them is lost for good, the student goes on with the labels of the other.
NEBULA_FAULT=worker.step:+200 timeout 600 "$nebula" distill "$T/both.yaml" --local 3 \
    --out "$T/lost" --steps 40 --set distill.ahead=2 --set distill.when_lost=alone \
    --set distill.patience_s=1 >"$T/lost.log" 2>&1 &
pid=$!
wait_step "$T/lost" 5 "$pid" || fail "the run ended before step 5"
gamma=$(pgrep -f "nebula agent .*$T/lost/clusters/gamma" | head -n 1)
kill -STOP "$gamma"
said() { grep -q "no labels of gamma .*continuing without them" "$T/lost/metrics.jsonl"; }
within 30 said || fail "the student does not say that it goes on"
kill -CONT "$gamma"
wait "$pid" || fail "the run with a lost teacher failed"
taught lost

# ---- a teacher's answers: the cache has all that a student needs
short answers "$both" "$init, source: teacher, cache: $T/cache"
killed answers 2 4-alpha 7-beta
taught answers
short replay "$one" "source: teacher, cache: $T/cache"
run "$T/replay.yaml" 1 "$T/replay"
same answers replay
# The same from text that the student sends.
short pushed "$both" "$init, source: teacher, push_text: true"
run "$T/pushed.yaml" 2 "$T/pushed"
same answers pushed

# ---- other tasks
for task in text instruct; do
    short "$task" "$both" "$init, task: $task, source: student, push_text: true, ahead: 2"
    run "$T/$task.yaml" 2 "$T/$task" --steps 4
    taught "$task"
    run "$T/$task.yaml" 2 "$T/$task-answers" --steps 4 --set distill.source=teacher
    taught "$task-answers"
    differs "$task" "$task-answers"
done

# ---- nebula check refuses what the run would refuse
refused() { # JOB MESSAGE [options]
    if "$nebula" check "$T/$1.yaml" "${@:3}" >"$T/no.log" 2>&1; then fail "accepted: $*"; fi
    grep -q "$2" "$T/no.log" || fail "no message '$2': $(cat "$T/no.log")"
}
"$nebula" check "$T/own.yaml" >"$T/check.log" 2>&1 || fail "check: $(cat "$T/check.log")"
refused own "needs true: the student sends its samples" --set distill.push_text=false
refused answers "a stream takes at most" --set data.batch=300
refused replay "no labels of step 29" --set steps=30
refused replay "holds labels for another text" --set seed=6
echo "text of the corpus, the student and the teacher; two teachers, one of them lost"
