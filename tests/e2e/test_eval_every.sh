#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# eval.every_steps: held-out loss on the way, in metrics.jsonl and as TensorBoard's loss/held_out; the run is the same bit for bit with it
# and without, also after a stop and --resume.
. "$(dirname "$0")/lib.sh"
here=$(dirname "$0")
make_corpus
make_job "$T/job.yaml"
run() { timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/$1" "${@:2}" >"$T/$1.log" 2>&1; }
run plain || fail "plain: $(tail -n 3 "$T/plain.log")"
run every --set eval.every_steps=25 --tensorboard || fail "every: $(tail -n 3 "$T/every.log")"
digests_equal "$T/every"
[[ $(summary '.clusters[0].params_digest' "$T/plain") == "$(summary '.clusters[0].params_digest' "$T/every")" ]] || fail "measuring changed the parameters"
[[ $(summary '[.clusters[].eval_loss] | tostring' "$T/plain") == "$(summary '[.clusters[].eval_loss] | tostring' "$T/every")" ]] || fail "measuring changed the result"

evals() { jq -s "[.[] | select(.kind == \"eval\" and .cluster == \"$1\")] | $2" "$T/$3/metrics.jsonl"; }
for name in alpha beta; do
    [[ $(evals $name '[.[].step] | tostring' every) == '"[25,50,60]"' ]] || fail "$name measures at $(evals $name '[.[].step]' every)"
    [[ $(evals $name 'all((.sources | keys) == ["gpl", "other"]) and all(.loss - (.sources | add / 2) | fabs < 1e-6)' every) == true ]] || fail "sources: $(evals $name . every)"
    [[ $(evals $name '.[2].loss < .[0].loss and .[0].loss > 1 and .[0].loss < 6.3' every) == true ]] || fail "losses: $(evals $name . every)"
    [[ $(evals $name '[.[].step] | tostring' plain) == '"[60]"' ]] || fail "without the key $name measures at $(evals $name '[.[].step]' plain)"
done
[[ $(evals alpha '.[2].loss' every) == "$(evals beta '.[2].loss' every)" ]] || fail "at the end the clusters measure different parameters"
[[ $(evals alpha '.[1].loss' every) != "$(evals beta '.[1].loss' every)" ]] || fail "on the way they measure the same ones"
python3 "$here/tfevents.py" "$T/every/tensorboard" >"$T/scalars" 2>"$T/read" || fail "event files: $(cat "$T/read")"
[[ $(jq -s '[.[] | select(.tag == "loss/held_out" and .run == "alpha") | .step] | tostring' "$T/scalars") == '"[25,50,60]"' ]] || fail "TensorBoard: $(jq -c 'select(.tag == "loss/held_out")' "$T/scalars")"

# Stopped in the middle and resumed: the bits of a run that measures nothing and goes through.
light "$T/job.yaml"
sed -i 's/windows: 16/windows: 4/' "$T/job.yaml"
run whole --steps 300 || fail "whole: $(tail -n 3 "$T/whole.log")"
NEBULA_FAULT=worker.step:+30 run halves --steps 300 --set eval.every_steps=7 & pid=$! # which is still running when this script looks
for ((i = 0; i < 600; i++)); do [[ $(evals alpha length halves 2>/dev/null || echo 0) -gt 2 ]] && break; sleep 0.1; done
kill -INT "$(pgrep -P "$(pgrep -P "$pid" -x timeout || echo "$pid")" -x nebula)" || fail "the run ended early: $(tail -n 3 "$T/halves.log")"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "a stopped run, status $rc: $(tail -n 3 "$T/halves.log")"
run halves --steps 300 --set eval.every_steps=7 --resume || fail "resumed: $(tail -n 3 "$T/halves.log")"
[[ $(summary '.clusters[0].params_digest' "$T/whole") == "$(summary '.clusters[0].params_digest' "$T/halves")" ]] || fail "stopped, resumed and measured: other parameters"

# Nothing held out: the loss is unknown, and not 0.
sed 's/per_mille: 60/per_mille: 0/' "$T/spec.yaml" >"$T/none.yaml"
"$nebula" data build "$T/none.yaml" --out "$T/none" >"$T/data.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data.log")"
run unmeasured --steps 20 --set eval.every_steps=10 --set data.corpus="$T/none" --tensorboard || fail "unmeasured: $(tail -n 3 "$T/unmeasured.log")"
[[ $(summary '[.clusters[].eval_loss] | tostring' "$T/unmeasured") == '[null,null]' ]] || fail "nothing held out: $(summary '.clusters' "$T/unmeasured")"
[[ $(evals alpha '[.[] | [.step, .loss, .sources]] | tostring' unmeasured) == '"[[10,null,{}],[20,null,{}]]"' ]] || fail "nothing held out: $(evals alpha . unmeasured)"
grep -Eq '^alpha +20 +[0-9]+ +[0-9.]+ +[0-9.]+ +- ' "$T/unmeasured.log" || fail "nothing held out: $(tail -n 5 "$T/unmeasured.log")"
python3 "$here/tfevents.py" "$T/unmeasured/tensorboard" >"$T/scalars" 2>"$T/read" || fail "event files: $(cat "$T/read")"
[[ $(jq -s '[.[] | select(.tag == "loss/held_out")] | length' "$T/scalars") == 0 ]] || fail "TensorBoard: $(jq -c 'select(.tag == "loss/held_out")' "$T/scalars")"

# The other modes say that they do not.
sed 's/mode: replicas/mode: rtd/; s/name: alpha, sources.*threads/name: alpha, role: generator, threads/; s/name: beta, sources.*threads/name: beta, role: discriminator, threads/' "$T/job.yaml" >"$T/rtd.yaml"
"$nebula" check "$T/rtd.yaml" >"$T/taken" 2>&1 || fail "the job itself: $(cat "$T/taken")"
if "$nebula" check "$T/rtd.yaml" --set eval.every_steps=5 >"$T/refused" 2>&1; then fail "rtd takes eval.every_steps"; fi
grep -q 'eval.every_steps: 5: modes rtd and distill evaluate only at the end' "$T/refused" || fail "no reason: $(cat "$T/refused")"
echo "held-out loss at 25, 50, 60: $(evals alpha '[.[].loss]' every | tr -d '\n')"
