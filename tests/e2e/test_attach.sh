#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Foreign trainers attach through libnebula: two of them; one beside a built-in worker, with the same bits; kill -9 and attach
# again; a second trainer, a wrong job, a stop; Ctrl-C in a Python loop; one that was away for longer than the others keep updates.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
make_corpus
job() { # FILE, then launchers of alpha and beta
    make_job "$1"
    sed -i "s/steps: 60/steps: 80/; s/model: {/model: {vocab: 512, /; s/overlap: 0/overlap: 2/; s/fragments: 1/fragments: 2/
        s/\(name: alpha.*\)threads: 1/\1threads: 1, launcher: $2/; s/\(name: beta.*\)threads: 1/\1threads: 1, launcher: $3/" "$1"
}
run() { timeout 150 "$nebula" pretrain "$T/$1.yaml" --local 2 --out "$T/$1" >"$T/$1.log" 2>&1; }
home() { echo "$T/$1/clusters/$2"; }

# Two attached trainers that pull to +1 and -1; one is killed, one detaches in mid-run; each is started again.
job "$T/two.yaml" attach attach
run two & pid=$!
rc=0; timeout 100 "$client" "$(home two alpha)" "" 1 --die-at 33 >"$T/a.log" 2>&1 & a=$!
timeout 100 "$client" "$(home two beta)" e2e -1 --detach-at 50 >"$T/b.log" 2>&1 & b=$!
wait $a || rc=$?
[[ $rc == 137 ]] || fail "alpha was to be killed, status $rc: $(cat "$T/a.log")"
timeout 100 "$client" "$(home two alpha)" e2e 1 >"$T/a2.log" 2>&1 & a=$!
wait $b || fail "beta did not detach: $(cat "$T/b.log")"
# While one is attached a second is refused, with its pid.
rc=0; timeout 60 "$client" "$(home two alpha)" e2e 1 >"$T/second.log" 2>&1 || rc=$?
[[ $rc == 12 ]] && grep -q 'already has a trainer, process' "$T/second.log" || fail "a second trainer, status $rc: $(cat "$T/second.log")"
timeout 100 "$client" "$(home two beta)" e2e -1 >"$T/b2.log" 2>&1 & b=$!
wait $a || fail "alpha: $(cat "$T/a2.log")"
wait $b || fail "beta: $(cat "$T/b2.log")"
wait $pid || fail "the job of two attached trainers: $(tail -n 3 "$T/two.log")"
digests_equal "$T/two"
round_digests_equal "$T/two"
grep -q 'begins at 20' "$T/a2.log" || fail "not from the checkpoint of step 20: $(cat "$T/a2.log")"
grep -q 'begins at 40' "$T/b2.log" || fail "not from the checkpoint of step 40: $(cat "$T/b2.log")"
want=$(summary '.clusters[0].params_digest' "$T/two")
for log in a2 b2; do grep -q "digest $want" "$T/$log.log" || fail "$log knows another digest: $(cat "$T/$log.log")"; done
[[ $(summary '.clusters[0].device' "$T/two") == 'attached trainer' && $(summary '.clusters[0].eval_loss' "$T/two") == 1.5 ]] || fail "summary: $(jq -c ".clusters[0]" "$T/two/summary.json")"

# What a trainer says of a step is in metrics.jsonl, and what it does not say is null there (steps 1, 10, 20 … are written; it says lr
# at even counts); its own held-out losses, and that of its end.
lines() { jq -s "[.[] | select(.cluster == \"alpha\" and .kind == \"$1\")] | $2" "$T/two/metrics.jsonl"; }
[[ $(lines step 'all(.loss > 0) and all(.grad_norm == null) and all(if .step % 2 == 0 then .lr - 0.02 | fabs < 1e-6 else .lr == null end)') == true ]] || fail "what steps say: $(lines step '.[0:3]')"
[[ $(lines step '[.[] | .lr] | unique | length') == 2 ]] || fail "no step with and one without lr: $(lines step '.[0:3]')"
[[ $(lines eval '[.[].step] | unique | tostring') == '"[40,80]"' && $(lines eval '.[-1].loss') == 1.5 ]] || fail "held-out losses: $(lines eval .)"

# An attached trainer and a built-in worker: the same parameters, bit for bit, while the codec changes.
job "$T/mixed.yaml" attach local
sed -i 's/codec: int4/codec: int4, tune: {mode: auto, finest: int8}/' "$T/mixed.yaml"
run mixed & pid=$!
timeout 100 "$client" "$(home mixed alpha)" "" 0 --boast-at 30 >"$T/m.log" 2>&1 || fail "mixed: $(cat "$T/m.log")"
grep -q '1099511627776 tokens in one step.*allow at most 2048' "$T/m.log" || fail "2^40 tokens of one step: $(cat "$T/m.log")"
wait $pid || fail "the mixed job: $(tail -n 3 "$T/mixed.log")"
digests_equal "$T/mixed"
round_digests_equal "$T/mixed"
[[ $(summary '[.clusters[].device] | join(" ")' "$T/mixed") == 'attached trainer cpu ('* ]] || fail "devices of the mixed run"

# Its exchange is planned like that of any other: a link of no length carries a finer codec (of one of both a coarser one, where the machine is
# so loaded that its updates come late).
jq -s -e 'any(.[]; .kind == "tune" and .plan_codec == "int8")' "$T/mixed/metrics.jsonl" >/dev/null || fail "no finer codec was planned: $(jq -c 'select(.kind == "tune")' "$T/mixed/metrics.jsonl")"
for c in alpha beta; do
    jq -s -e --arg c "$c" 'any(.[]; .kind == "tune" and .cluster == $c and .plan_codec != "int4")' "$T/mixed/metrics.jsonl" >/dev/null ||
        fail "no other codec was planned for $c: $(jq -c 'select(.kind == "tune")' "$T/mixed/metrics.jsonl")"
done

# Ctrl-C: the trainer learns of it, saves and reports.
job "$T/stop.yaml" attach attach
sed -i 's/steps: 80/steps: 100000/' "$T/stop.yaml"
run stop & pid=$!
timeout 100 "$client" "$(home stop alpha)" "" 1 >"$T/s1.log" 2>&1 & a=$!
timeout 100 "$client" "$(home stop beta)" "" 1 >"$T/s2.log" 2>&1 & b=$!
for ((i = 0; i < 400; i++)); do grep -q '"round"' "$T/stop/metrics.jsonl" 2>/dev/null && break; sleep 0.1; done
pretrain=$(pgrep -P "$pid" -x timeout || echo "$pid") # timeout passes the signal on
kill -INT "$pretrain"
rc=0; wait $a || rc=$?
[[ $rc == 3 ]] || fail "a stopped trainer, status $rc: $(cat "$T/s1.log")"
rc=0; wait $b || rc=$?
[[ $rc == 3 ]] || fail "a stopped trainer, status $rc: $(cat "$T/s2.log")"
rc=0; wait $pid || rc=$?
[[ $rc == 3 ]] || fail "the stopped job, status $rc: $(tail -n 3 "$T/stop.log")"
# Ctrl-C in a Python loop that waits for the other cluster, which has no trainer: it ends, and goes on from its checkpoint; likewise
# in its hook.
job "$T/python.yaml" attach attach
sed -i 's/overlap: 2/overlap: 0/; s/every_steps: 20/every_steps: 5/' "$T/python.yaml"
loop() { NEBULA_AGENT=$(home python alpha) NEBULA_LIBRARY=$BUILD/libnebula.so.1 PYTHONPATH=$SOURCE/agent/lib/python exec timeout 100 python3 "$SOURCE/tests/e2e/attach_client.py" "${@:2}" >"$T/$1.log" 2>&1; }
ended() { ! kill -0 "$1" 2>/dev/null; }
run python & pid=$!
# Tensors that are trained and not exchanged would part the clusters without a word; a tied one is exchanged.
! (loop p0 apart) || fail "a loop that trains tensors apart attached: $(cat "$T/p0.log")"
grep -q 'does not exchange: lm_head.weight, model.layers.0.self_attn.q_norm.weight\. ' "$T/p0.log" || fail "what is trained apart is not named: $(cat "$T/p0.log")"
loop p1 & a=$!
within 60 grep -qs 'made [1-9]' "$T/p1.log" || fail "no step of the Python loop: $(cat "$T/p1.log")"
sleep 3 # each step takes 5 ms: now it waits
kill -INT $a
within 20 ended $a || fail "Ctrl-C in fed.step was not heard: $(tail -n 1 "$T/p1.log")"
! wait $a || fail "Ctrl-C in fed.step was no failure: $(cat "$T/p1.log")"
grep -q '^KeyboardInterrupt' "$T/p1.log" && ! grep -q 'made 80\|ignored' "$T/p1.log" || fail "Ctrl-C in fed.step: $(cat "$T/p1.log")"
timeout 100 "$client" "$(home python beta)" "" 1 >"$T/p4.log" 2>&1 & b=$!
loop p2 20 & a=$!
! wait $a || fail "Ctrl-C in a hook was no failure: $(cat "$T/p2.log")"
grep -q 'begins at [1-9]' "$T/p2.log" || fail "the Python loop did not go on from its checkpoint: $(cat "$T/p2.log")"
grep -q '^KeyboardInterrupt' "$T/p2.log" && ! grep -q 'made 20\|ignored' "$T/p2.log" || fail "Ctrl-C in a hook: $(cat "$T/p2.log")"
loop p3 & a=$!
wait $a || fail "the Python loop for the third time: $(cat "$T/p3.log")"
wait $b || fail "the loop beside it: $(cat "$T/p4.log")"
wait $pid || fail "the job of the Python loop: $(tail -n 3 "$T/python.log")"
grep -q 'begins at 20' "$T/p3.log" || fail "the Python loop did not go on from its checkpoint: $(cat "$T/p3.log")"
digests_equal "$T/python"
grep -q "digest $(summary '.clusters[0].params_digest' "$T/python")" "$T/p3.log" || fail "the Python loop knows another digest: $(tail -n 1 "$T/p3.log")"

# Gamma and its trainer are away for longer than the others keep updates: a snapshot is fetched, and the trainer told to attach again.
job "$T/away.yaml" local local
sed -i 's/steps: 80/steps: 100000/; s/every_steps: [0-9]*/every_steps: 10/; s/sync: {/sync: {commit_all: false, grace_s: 0.5, /' "$T/away.yaml"
echo '  - {name: gamma, sources: [{name: gpl, weight: 1}], threads: 1, launcher: attach}' >>"$T/away.yaml"
pace 20
timeout 150 "$nebula" pretrain "$T/away.yaml" --local 3 --out "$T/away" >"$T/away.log" 2>&1 & pid=$!
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now "$pid" ${a:+"$a"}; }
timeout 120 "$client" "$(home away gamma)" "" 0 >"$T/g.log" 2>&1 & a=$!
rounds() { largest "$T/away" round round "$1" 0; }
reaches() { (($(rounds "$1") >= $2)); }
within 60 reaches gamma 4 || fail "no rounds of an attached trainer: $(tail -n 3 "$T/away.log" "$T/g.log")"
stopped=("$(pgrep -f "^[^ ]*nebula agent --home $(home away gamma) ")" "$(pgrep -P "$a")")
kill -STOP "${stopped[@]}"
within 60 reaches alpha $(($(rounds alpha) + 40)) || fail "the others do not go on: $(tail -n 3 "$T/away.log")"
kill -CONT "${stopped[@]}"
stopped=()
rc=0; wait $a || rc=$?
[[ $rc == 18 ]] && grep -q 'close the handle, attach again' "$T/g.log" || fail "a trainer that was away, status $rc: $(cat "$T/g.log")"
round=$(rounds alpha)
timeout 120 "$client" "$(home away gamma)" "" 0 >"$T/g2.log" 2>&1 & a=$!
within 60 reaches gamma "$round" || fail "it does not catch up: $(tail -n 3 "$T/away.log" "$T/g2.log")"
echo "attached trainers: two with a kill -9 and a detach, one beside a built-in worker, a stop, Ctrl-C in Python: equal digests"
