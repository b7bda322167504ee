#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# eval.every_steps measures the held-out loss during the run, into metrics.jsonl and TensorBoard's
# loss/held_out. The run is the same bit for bit with and without it, also after a stop and
# --resume.
. "$(dirname "$0")/lib.sh"
here=$(dirname "$0")
make_corpus
make_job "$T/job.yaml"
run() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/$1" "${@:2}" >"$T/$1.log" 2>&1
}
run plain || fail "the plain run failed"
run every --set eval.every_steps=25 --tensorboard || fail "the run with eval.every_steps failed"
digests_equal "$T/every"
[[ $(summary '.clusters[0].params_digest' \
    "$T/plain") == "$(summary '.clusters[0].params_digest' "$T/every")" ]] ||
    fail "measuring changed the parameters"
[[ $(summary '[.clusters[].eval_loss] | tostring' \
    "$T/plain") == "$(summary '[.clusters[].eval_loss] | tostring' "$T/every")" ]] ||
    fail "measuring changed the result"

evals() {
    jq -s "[.[] | select(.kind == \"eval\" and .cluster == \"$1\")] | $2" "$T/$3/metrics.jsonl"
}
for name in alpha beta; do
    [[ $(evals $name '[.[].step] | tostring' every) == '"[25,50,60]"' ]] ||
        fail "$name measures at $(evals $name '[.[].step]' every)"
    [[ $(evals $name 'all((.sources | keys) == ["gpl", "other"]) and
        all(.loss - (.sources | add / 2) | fabs < 1e-6)' every) == true ]] ||
        fail "wrong losses of the sources: $(evals $name . every)"
    [[ $(evals $name '.[2].loss < .[0].loss and .[0].loss > 1 and .[0].loss < 6.3' \
        every) == true ]] || fail "losses: $(evals $name . every)"
    [[ $(evals $name '[.[].step] | tostring' plain) == '"[60]"' ]] ||
        fail "without the key $name measures at $(evals $name '[.[].step]' plain)"
done
[[ $(evals alpha '.[2].loss' every) == "$(evals beta '.[2].loss' every)" ]] ||
    fail "the clusters measure different parameters at the end"
[[ $(evals alpha '.[1].loss' every) != "$(evals beta '.[1].loss' every)" ]] ||
    fail "the clusters measure equal parameters during the run"
python3 "$here/tfevents.py" "$T/every/tensorboard" >"$T/scalars" 2>"$T/read" ||
    fail "the event files cannot be read: $(cat "$T/read")"
[[ $(jq -s '[.[] | select(.tag == "loss/held_out" and .run == "alpha") | .step] | tostring' \
    "$T/scalars") == '"[25,50,60]"' ]] ||
    fail "wrong values in TensorBoard: $(jq -c 'select(.tag == "loss/held_out")' "$T/scalars")"

# A run that is stopped in the middle and resumed has the bits of an uninterrupted run without
# measurements.
tiny "$T/job.yaml"
sed -i 's/windows: 16/windows: 4/' "$T/job.yaml"
run whole --steps 120 || fail "the uninterrupted run failed"
# Slow steps: the run must still be in progress when this script looks.
NEBULA_FAULT=worker.step:+60 run halves --steps 120 --set eval.every_steps=7 & pid=$!
measured() { (($(grep -c '"kind":"eval".*"cluster":"alpha"' "$T/halves/metrics.jsonl") > 2)); }
within 60 measured 2>/dev/null || fail "the run measures nothing"
kill -INT "$(pgrep -P "$(pgrep -P "$pid" -x timeout || echo "$pid")" -x nebula)" ||
    fail "the run ended early"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the stopped run ended with status $rc"
run halves --steps 120 --set eval.every_steps=7 --resume || fail "the resumed run failed"
[[ $(summary '.clusters[0].params_digest' \
    "$T/whole") == "$(summary '.clusters[0].params_digest' "$T/halves")" ]] ||
    fail "the parameters differ after a stop, a resume and measurements"

# Nothing is held out: the loss is null, not 0.
sed 's/per_mille: 60/per_mille: 0/' "$T/spec.yaml" >"$T/none.yaml"
"$nebula" data build "$T/none.yaml" --out "$T/none" >"$T/data.log" 2>&1 || fail "data build failed"
run unmeasured --steps 20 --set eval.every_steps=10 --set data.corpus="$T/none" --tensorboard ||
    fail "the run without held-out text failed"
[[ $(summary '[.clusters[].eval_loss] | tostring' "$T/unmeasured") == '[null,null]' ]] ||
    fail "the summary without held-out text is wrong: $(summary '.clusters' "$T/unmeasured")"
[[ $(evals alpha '[.[] | [.step, .loss, .sources]] | tostring' \
    unmeasured) == '"[[10,null,{}],[20,null,{}]]"' ]] ||
    fail "the measurements without held-out text are wrong: $(evals alpha . unmeasured)"
grep -Eq '^alpha +20 +[0-9]+ +[0-9.]+ +[0-9.]+ +- ' "$T/unmeasured.log" ||
    fail "the table shows a held-out loss"
python3 "$here/tfevents.py" "$T/unmeasured/tensorboard" >"$T/scalars" 2>"$T/read" ||
    fail "the event files cannot be read: $(cat "$T/read")"
[[ $(jq -s '[.[] | select(.tag == "loss/held_out")] | length' "$T/scalars") == 0 ]] ||
    fail "TensorBoard has a held-out loss: $(jq -c 'select(.tag == "loss/held_out")' "$T/scalars")"

# The other modes refuse the key.
sed 's/mode: replicas/mode: rtd/;
    s/name: alpha, sources.*threads/name: alpha, role: generator, threads/;
    s/name: beta, sources.*threads/name: beta, role: discriminator, threads/' \
        "$T/job.yaml" >"$T/rtd.yaml"
"$nebula" check "$T/rtd.yaml" >"$T/taken" 2>&1 || fail "check of the rtd job: $(cat "$T/taken")"
if "$nebula" check "$T/rtd.yaml" --set eval.every_steps=5 >"$T/refused" 2>&1; then
    fail "mode rtd accepts eval.every_steps"
fi
grep -q 'eval.every_steps: 5: modes rtd and distill evaluate only at the end' "$T/refused" ||
    fail "the reason is missing: $(cat "$T/refused")"
echo "held-out loss at 25, 50, 60: $(evals alpha '[.[].loss]' every | tr -d '\n')"
