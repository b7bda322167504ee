#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Attached sides, both of them programs in C: each is killed, each agent is killed, and the link is
# a black hole for OUTAGE_S seconds (4 here; 600 is ten minutes). Each fault costs waiting. No label
# is made twice or lost: the student knows every label that it must get. Then bad values: one error
# each, and the stream goes on. What no other program would mend ends the job: another vocabulary,
# another model, and a side that says so.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
client=$BUILD/side_client
[[ -x $client ]] || skip "side_client is not built"
vocabulary=$(printf '%064d' 3)
outage_s=${OUTAGE_S:-4}
via=$((port + 2))
"$BUILD/wanlink" proxy --ctl "$T/ctl" --listen "127.0.0.1:$via" --connect "127.0.0.1:$port" \
    >"$T/proxy.log" 2>&1 &
pid[proxy]=$!
real=$port port=$via
pair
port=$real
for home in a b; do
    echo '{"format": 1, "push_text": true, "labels": true}' >"$T/$home/policy.json"
    chmod 600 "$T/$home/policy.json"
done
start_alpha
start_beta
wait_for 20 "two linked agents" says a '[.peers[].up] == [true]'

submit() { # NAME STEPS
    cat >"$T/$1.yaml" <<YAML
job: $1
mode: distill
steps: $2
model: {vocab: 400, n_layers: 1, d_model: 16, n_heads: 2, d_ff: 32}
data: {corpus: none, seq_len: 24, batch: 8, accumulate: 2}
optim: {lr: 0.01}
distill: {push_text: true, k: 6, k_max: 8, ahead: 4, temperature: 1.5}
log_every: 1
clusters:
  - {name: alpha, role: teacher, launcher: attach}
  - {name: beta, role: student, launcher: attach}
YAML
    timeout 600 "$nebula" distill "$T/$1.yaml" --home "$T/a" --out "$T/$1" >"$T/$1.log" 2>&1 &
    run=$!
}
teach() { # NAME [options]
    NEBULA_JOB=$1 timeout 600 "$client" "$T/a" "$vocabulary" teacher "${@:2}" \
        >>"$T/$1-teacher.log" 2>&1 & teacher=$!
}
study() { # NAME [options]
    NEBULA_JOB=$1 NEBULA_JOB_FROM=alpha timeout 600 "$client" "$T/b" "$vocabulary" student \
        "$T/$1-step" "${@:2}" >>"$T/$1-student.log" 2>&1 & student=$!
}
kill_client() { # PID of timeout
    kill -KILL "$(pgrep -P "$1")"
    wait "$1" || true
}
learned() { grep -q "^learned $2\$" "$T/$1-student.log"; }
# Each step exactly once. A kill of a side or its agent between a call and its line hides the line.
once() { # NAME STEPS KILLS
    local lines
    [[ $(grep '^learned' "$T/$1-student.log" | sort -u | wc -l) -ge $(($2 - $3)) ]] ||
        fail "$1: steps: $(cat "$T/$1-student.log")"
    for side in student teacher; do
        lines=$(grep -Ec '^(learned|labels of)' "$T/$1-$side.log")
        ((lines >= $2 - $3 && lines <= $2 + $3)) || fail "$1: the $side made $lines steps of $2"
    done
}
finish() { # NAME
    wait "$teacher" || fail "$1: the teacher failed: $(tail -n 3 "$T/$1-teacher.log")"
    wait "$student" || fail "$1: the student failed: $(tail -n 3 "$T/$1-student.log")"
    wait "$run" || fail "$1: the job failed: $(tail -n 4 "$T/$1.log")"
    grep -q '^state 1$' "$T/$1-student.log" || fail "$1: the student is not done"
}

# ---- faults
submit faults 60
teach faults --pace 200 --model small
study faults --pace 200
wait_for 60 "steps" learned faults 6
kill_client "$teacher"
teach faults --pace 200 --model small
wait_for 60 "labels after a killed teacher" learned faults 12
kill_client "$student"
study faults --pace 200
wait_for 60 "steps of another student" learned faults 18
kill -KILL "${pid[a]}"
wait "${pid[a]}" 2>/dev/null || true
start_alpha
wait_for 60 "labels after a killed agent of the teacher" learned faults 28
kill -KILL "${pid[b]}"
wait "${pid[b]}" 2>/dev/null || true
start_beta
wait_for 60 "labels after a killed agent of the student" learned faults 36
"$BUILD/wanlink" ctl "$T/ctl" down >/dev/null || fail "cannot cut the link"
used_up() { # the student learned nothing new for two seconds
    local was
    was=$(tail -n 1 "$T/faults-student.log")
    sleep 2
    [[ $(tail -n 1 "$T/faults-student.log") == "$was" ]]
}
within 30 used_up || fail "the student goes on without the link"
before=$(tail -n 1 "$T/faults-student.log")
sleep "$outage_s"
[[ $(tail -n 1 "$T/faults-student.log") == "$before" ]] ||
    fail "steps were made without labels: $before, $(tail -n 1 "$T/faults-student.log")"
"$BUILD/wanlink" ctl "$T/ctl" up >/dev/null || fail "cannot restore the link"
finish faults
once faults 60 2
for side in teacher student; do
    grep -q '^attached again$' "$T/faults-$side.log" || fail "the $side did not attach again"
done
jq -e '.quality.clusters.beta.taught_share == 1 and .clusters[].steps == 60' \
    "$T/faults/summary.json" >/dev/null || fail "summary: $(jq -c . "$T/faults/summary.json")"
echo "killed sides and agents, and $outage_s s without the link: $(jq -c \
    .quality.clusters.beta.stall "$T/faults/summary.json")"

# ---- bad values
submit bad 12
teach bad --bad
study bad --bad
finish bad
once bad 12 0
for text in 'positive: .*row 0, label 0 .*is positive' 'nan: .*is not a number' \
    'infinite: .*is positive' 'unsorted: .*above the one before it' \
    'outside: .*id 400.*outside the vocabulary' 'negative: .*id -1.*outside the vocabulary' \
    'twice: .*twice in the row' 'fewer rows: .*rows, but the text has' 'no rows: .*0 rows' \
    'no k: .*k 0 is not in 1..8' 'wide: .*k 9 is not in 1..8' \
    'another step: .*of step 1 of cluster 1, but those of step 0' \
    'another student: .*of cluster 2, but'; do
    grep -q "^$text" "$T/bad-teacher.log" || fail "no error like '$text'"
done
for text in 'few: .*1 sequences; the job has 2' 'no target: .*at least one given and one target' \
    'long: .*at most 25' 'many: .*data.batch x data.seq_len allow' 'id outside: .*id 400' \
    'credit: .*learn first'; do
    grep -q "^$text" "$T/bad-student.log" || fail "no error like '$text'"
done

# ---- what ends the job
ends() { # NAME TEXT: the job fails with TEXT, and both programs end
    ! wait "$run" || fail "$1: the job did not fail"
    wait "$teacher" || true
    wait "$student" || true
    grep -q "$2" "$T/$1.log" || fail "$1: no '$2': $(tail -n 4 "$T/$1.log")"
}
submit model 400
teach model --pace 20 --model small-1
study model
wait_for 60 "steps" learned model 3
kill_client "$teacher"
teach model --model small-2
ends model 'came from the model "small-1", and would now come from "small-2"'

submit says 400
teach says --pace 20 --end 'the server has gone away for good'
study says
ends says 'the server has gone away for good'

submit other 400
study other
vocabulary=$(printf '%064d' 4)
teach other
ends other 'vocabulary differs between the clusters: here [0-9]*[34], there [0-9]*[34]; '\
'both must use the same (here is "[a-z]*", there is "[a-z]*")'
echo "bad values are one error each; another vocabulary or model ends the job"
