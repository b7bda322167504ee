#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Foreign trainers attach through libnebula. Cases: two attached trainers; one beside a built-in
# worker, with equal bits; kill -9 and a new attach; a second trainer of one agent; a stop; Ctrl-C
# in a Python loop; a trainer that was away for longer than the others keep updates.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
make_corpus
job() { # FILE, then launchers of alpha and beta
    make_job "$1"
    sed -i "s/steps: 60/steps: 80/; s/model: {/model: {vocab: 512, /; s/overlap: 0/overlap: 2/;
        s/fragments: 1/fragments: 2/
        s/\(name: alpha.*\)threads: 1/\1threads: 1, launcher: $2/;
        s/\(name: beta.*\)threads: 1/\1threads: 1, launcher: $3/" "$1"
}
run() { timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 --out "$T/$1" >"$T/$1.log" 2>&1; }
home() { echo "$T/$1/clusters/$2"; }

# Two attached trainers pull to +1 and -1. One is killed, the other detaches in mid-run. Both are
# restarted.
job "$T/two.yaml" attach attach
# The checkpoint of step 20 is there before the next step, so before the kill too.
sed -i 's/every_steps: 20/every_steps: 20, copy: false/' "$T/two.yaml"
run two & pid=$!
rc=0; timeout 600 "$client" "$(home two alpha)" "" 1 --die-at 33 >"$T/a.log" 2>&1 & a=$!
timeout 600 "$client" "$(home two beta)" e2e -1 --detach-at 50 >"$T/b.log" 2>&1 & b=$!
wait $a || rc=$?
[[ $rc == 137 ]] || fail "alpha should be killed, but ended with status $rc: $(cat "$T/a.log")"
timeout 600 "$client" "$(home two alpha)" e2e 1 >"$T/a2.log" 2>&1 & a=$!
wait $b || fail "beta did not detach: $(cat "$T/b.log")"
# While a trainer is attached, a second one is refused; the error names the pid of the first.
rc=0; timeout 600 "$client" "$(home two alpha)" e2e 1 >"$T/second.log" 2>&1 || rc=$?
[[ $rc == 12 ]] && grep -q 'already has a trainer, process' "$T/second.log" ||
    fail "a second trainer ended with status $rc: $(cat "$T/second.log")"
timeout 600 "$client" "$(home two beta)" e2e -1 >"$T/b2.log" 2>&1 & b=$!
wait $a || fail "the trainer of alpha failed: $(cat "$T/a2.log")"
wait $b || fail "the trainer of beta failed: $(cat "$T/b2.log")"
wait $pid || fail "the job of two attached trainers failed"
digests_equal "$T/two"
round_digests_equal "$T/two"
grep -q 'begins at 20' "$T/a2.log" ||
    fail "alpha did not start from the checkpoint of step 20: $(cat "$T/a2.log")"
grep -q 'begins at 40' "$T/b2.log" ||
    fail "beta did not start from the checkpoint of step 40: $(cat "$T/b2.log")"
want=$(summary '.clusters[0].params_digest' "$T/two")
for log in a2 b2; do
    grep -q "digest $want" "$T/$log.log" || fail "$log reports another digest: $(cat "$T/$log.log")"
done
[[ $(summary '.clusters[0].device' "$T/two") == 'attached trainer' &&
    $(summary '.clusters[0].eval_loss' "$T/two") == 1.5 ]] ||
    fail "the summary is wrong: $(jq -c ".clusters[0]" "$T/two/summary.json")"

# metrics.jsonl has the figures of a step that a trainer reports, and null for the others. Steps 1,
# 10, 20 … are written. The trainer reports lr at even steps. It also reports held-out losses, the
# last one at its end.
lines() {
    jq -s "[.[] | select(.cluster == \"alpha\" and .kind == \"$1\")] | $2" "$T/two/metrics.jsonl"
}
[[ $(lines step 'all(.loss > 0) and all(.grad_norm == null) and
    all(if .step % 2 == 0 then .lr - 0.02 | fabs < 1e-6 else .lr == null end)') == true ]] ||
        fail "the step lines are wrong: $(lines step '.[0:3]')"
[[ $(lines step '[.[] | .lr] | unique | length') == 2 ]] ||
    fail "there must be steps with and steps without lr: $(lines step '.[0:3]')"
[[ $(lines eval '[.[].step] | unique | tostring') == '"[40,80]"' &&
    $(lines eval '.[-1].loss') == 1.5 ]] || fail "the held-out losses are wrong: $(lines eval .)"

# An attached trainer and a built-in worker have equal parameters, bit for bit, while the codec
# changes.
job "$T/mixed.yaml" attach local
sed -i 's/codec: int4/codec: int4, tune: {mode: auto, finest: int8}/' "$T/mixed.yaml"
# Slow steps: the link is fast beside them, on a busy machine too.
(pace 60 && run mixed) & pid=$!
STEP_MS=60 timeout 600 "$client" "$(home mixed alpha)" "" 0 --boast-at 30 >"$T/m.log" 2>&1 ||
    fail "the attached trainer of the mixed job failed: $(cat "$T/m.log")"
grep -q '1099511627776 tokens in one step.*allow at most 2048' "$T/m.log" ||
    fail "2^40 tokens of one step were not refused: $(cat "$T/m.log")"
wait $pid || fail "the mixed job failed"
digests_equal "$T/mixed"
round_digests_equal "$T/mixed"
# A library that gathers the final model part by part writes the file that a worker writes.
cmp "$(home mixed alpha)"/jobs/*/model.ckpt "$(home mixed beta)"/jobs/*/model.ckpt ||
    fail "the final models of the mixed run differ"
[[ $(summary '[.clusters[].device] | join(" ")' "$T/mixed") == 'attached trainer cpu ('* ]] ||
    fail "the devices of the mixed run are wrong"

# The exchange of an attached trainer is planned as usual: a link without delay gets a finer codec.
# On a busy machine updates come late, and one of the two may get a coarser codec.
jq -s -e 'any(.[]; .kind == "tune" and .plan_codec == "int8")' \
    "$T/mixed/metrics.jsonl" >/dev/null ||
    fail "no finer codec was planned: $(jq -c 'select(.kind == "tune")' "$T/mixed/metrics.jsonl")"
for c in alpha beta; do
    jq -s -e --arg c "$c" 'any(.[]; .kind == "tune" and .cluster == $c and .plan_codec != "int4")' \
        "$T/mixed/metrics.jsonl" >/dev/null ||
        fail "no other codec was planned for $c: $(jq -c 'select(.kind == "tune")' \
            "$T/mixed/metrics.jsonl")"
done

# Ctrl-C: the trainer gets the stop, saves and reports.
job "$T/stop.yaml" attach attach
sed -i 's/steps: 80/steps: 100000/' "$T/stop.yaml"
run stop & pid=$!
timeout 600 "$client" "$(home stop alpha)" "" 1 >"$T/s1.log" 2>&1 & a=$!
timeout 600 "$client" "$(home stop beta)" "" 1 >"$T/s2.log" 2>&1 & b=$!
within 60 grep -qs '"round"' "$T/stop/metrics.jsonl" || fail "the job makes no round"
pretrain=$(pgrep -P "$pid" -x timeout || echo "$pid") # timeout passes the signal on
kill -INT "$pretrain"
rc=0; wait $a || rc=$?
[[ $rc == 3 ]] || fail "the stopped trainer of alpha ended with status $rc: $(cat "$T/s1.log")"
rc=0; wait $b || rc=$?
[[ $rc == 3 ]] || fail "the stopped trainer of beta ended with status $rc: $(cat "$T/s2.log")"
rc=0; wait $pid || rc=$?
[[ $rc == 3 ]] || fail "the stopped job ended with status $rc"
# Ctrl-C in a Python loop that waits for the other cluster, which has no trainer yet: the loop ends,
# and later continues from its checkpoint. The same holds for Ctrl-C in the loop's hook.
job "$T/python.yaml" attach attach
sed -i 's/overlap: 2/overlap: 0/; s/every_steps: 20/every_steps: 5/' "$T/python.yaml"
loop() {
    NEBULA_AGENT=$(home python alpha) NEBULA_LIBRARY=$BUILD/libnebula.so.2 \
        PYTHONPATH=$SOURCE/agent/lib/python exec timeout 600 python3 \
        "$SOURCE/tests/e2e/attach_client.py" "${@:2}" >"$T/$1.log" 2>&1
}
ended() { ! kill -0 "$1" 2>/dev/null; }
run python & pid=$!
# Tensors that are trained but not exchanged would make the clusters diverge silently, so attach
# refuses them. A tied tensor is exchanged.
! (loop p0 apart) ||
    fail "a loop attached with trained tensors that it does not exchange: $(cat "$T/p0.log")"
grep -q 'tensor lm_head.weight is trained, but .* does not exchange it' "$T/p0.log" ||
    fail "the error does not name the tensors: $(cat "$T/p0.log")"
has 'cannot begin.*tensor lm_head.weight is trained' "$T/python.log" ||
    fail "the submitter does not hear why the loop cannot begin: $(tail -3 "$T/python.log")"
# Beta's loop has the same tensors, and leaves.
timeout 600 "$client" "$(home python beta)" "" 1 --detach-at 3 >"$T/p4.log" 2>&1 & b=$!
loop p1 & a=$!
wait $b || fail "the first trainer of beta failed: $(cat "$T/p4.log")"
within 60 saved "$T/python" alpha || fail "the Python loop saved nothing: $(cat "$T/p1.log")"
waits() { # a step takes 5 ms
    local made
    made=$(wc -l <"$T/p1.log")
    sleep 1
    [[ $(wc -l <"$T/p1.log") == "$made" ]]
}
within 60 waits || fail "the Python loop does not wait for beta: $(tail -n 1 "$T/p1.log")"
kill -INT $a
within 20 ended $a || fail "Ctrl-C in fed.step had no effect"
! wait $a || fail "Ctrl-C in fed.step did not end the loop with an error: $(cat "$T/p1.log")"
grep -q '^KeyboardInterrupt' "$T/p1.log" && ! grep -q 'made 80\|ignored' "$T/p1.log" ||
    fail "Ctrl-C in fed.step ended the loop in a wrong way: $(cat "$T/p1.log")"
timeout 600 "$client" "$(home python beta)" "" 1 >"$T/p4.log" 2>&1 & b=$!
loop p2 20 & a=$!
! wait $a || fail "Ctrl-C in a hook did not end the loop with an error: $(cat "$T/p2.log")"
grep -q 'begins at [1-9]' "$T/p2.log" ||
    fail "the Python loop did not continue from its checkpoint: $(cat "$T/p2.log")"
grep -q '^KeyboardInterrupt' "$T/p2.log" && ! grep -q 'made 20\|ignored' "$T/p2.log" ||
    fail "Ctrl-C in a hook ended the loop in a wrong way: $(cat "$T/p2.log")"
loop p3 & a=$!
wait $a || fail "the third Python loop failed: $(cat "$T/p3.log")"
wait $b || fail "the trainer beside the Python loop failed: $(cat "$T/p4.log")"
wait $pid || fail "the job of the Python loop failed"
grep -q 'begins at 20' "$T/p3.log" ||
    fail "the Python loop did not continue from its checkpoint: $(cat "$T/p3.log")"
digests_equal "$T/python"
grep -q "digest $(summary '.clusters[0].params_digest' "$T/python")" "$T/p3.log" ||
    fail "the Python loop reports another digest"

# Gamma and its trainer are away for longer than the others keep updates. The agent fetches a
# snapshot, and the trainer is told to attach again.
job "$T/away.yaml" local local
sed -i 's/steps: 80/steps: 100000/; s/every_steps: [0-9]*/every_steps: 10/;
    s/sync: {/sync: {commit_all: false, grace_s: 0.5, /' "$T/away.yaml"
echo '  - {name: gamma, sources: [{name: gpl, weight: 1}], threads: 1, launcher: attach}' \
    >>"$T/away.yaml"
pace 20
timeout 600 "$nebula" pretrain "$T/away.yaml" --local 3 --out "$T/away" >"$T/away.log" 2>&1 & pid=$!
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now "$pid" ${a:+"$a"}; }
timeout 600 "$client" "$(home away gamma)" "" 0 >"$T/g.log" 2>&1 & a=$!
rounds() { largest "$T/away" round round "$1" 0; }
reaches() { (($(rounds "$1") >= $2)); }
within 60 reaches gamma 4 || fail "an attached trainer made no rounds"
stopped=("$(run=$T/away && agent_of gamma)" "$(pgrep -P "$a")")
kill -STOP "${stopped[@]}"
within 60 reaches alpha $(($(rounds alpha) + 40)) || fail "the other clusters do not continue"
kill -CONT "${stopped[@]}"
stopped=()
rc=0; wait $a || rc=$?
[[ $rc == 18 ]] && grep -q 'close the handle, attach again' "$T/g.log" ||
    fail "the trainer that was away ended with status $rc: $(cat "$T/g.log")"
round=$(rounds alpha)
timeout 600 "$client" "$(home away gamma)" "" 0 >"$T/g2.log" 2>&1 & a=$!
within 60 reaches gamma "$round" || fail "gamma does not catch up"
echo "attached trainers, killed, detached, stopped and away, end with equal digests"
