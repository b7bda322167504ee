#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run that was interrupted (Ctrl-C), or whose worker was killed (kill -9), ends with the same bits
# as an uninterrupted run.
. "$(dirname "$0")/lib.sh"
make_corpus
rm -r "$T/corpus" # rebuilt below at the same path: a vocabulary contains the path of its text
"$nebula" data build "$T/spec.yaml" --out "$T/corpus" >"$T/data.log" 2>&1 ||
    fail "data build failed"
make_job "$T/job.yaml"
light "$T/job.yaml"
pace 4
sed -i 's/steps: 60/steps: 200/; s/every_steps: 20/every_steps: 15/; s/interval: 10/interval: 20/;
    s/overlap: 0/overlap: 3/; s/fragments: 1/fragments: 2/; s,codec: int4,codec: topk:512/4096,' \
        "$T/job.yaml"

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/whole" >"$T/whole.log" 2>&1 ||
    fail "the uninterrupted run failed"
want=$(summary '.clusters[0].params_digest' "$T/whole")


# Ctrl-C twice, each time with a resume.
resume=()
for at in 40 110; do
    NEBULA_FAULT=worker.step:+40 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
        --out "$T/cut" "${resume[@]}" >>"$T/cut.log" 2>&1 &
    pid=$!
    wait_step "$T/cut" "$at" "$pid" || fail "the run ended before step $at"
    if timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" \
        --resume >"$T/two.log" 2>&1; then
        fail "two runs used one folder"
    fi
    grep -q 'another nebula works in' "$T/two.log" ||
        fail "two runs in one folder: $(cat "$T/two.log")"
    kill -INT "$pid"
    rc=0; wait "$pid" || rc=$?
    [[ $rc == 3 ]] || fail "the exit status after an interrupt is $rc, not 3"
    resume=(--resume)
done
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" \
    --resume >>"$T/cut.log" 2>&1 || fail "the resumed run failed"
digests_equal "$T/cut"
[[ $(summary '.clusters[0].params_digest' "$T/cut") == "$want" ]] ||
    fail "the resumed run has other parameters"

# A corpus rebuilt from the same text is the same corpus. If the text of a source differs, the
# cluster that reads this source reports it and continues.
build() {
    "$nebula" data build "$1" --out "$T/corpus" >"$T/data.log" 2>&1 || fail "data build failed"
}
other_text='no longer holds the text of the newest checkpoint'
cp -r "$T/corpus" "$T/corpus.was" && cp -r "$T/text" "$T/text.was"
for what in same other; do
    NEBULA_FAULT=worker.step:+40 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
        --out "$T/$what" >"$T/$what.log" 2>&1 &
    pid=$!
    wait_step "$T/$what" 40 "$pid" || fail "the run ended before step 40"
    kill -INT "$pid"
    wait "$pid" && fail "the run '$what' was not interrupted"
    if [[ $what == same ]]; then
        rm -rf "$T/corpus" && build "$T/spec.yaml"
    else
        sed "/^vocabulary:/d; \$ a tokenizer: $T/corpus.was/tokenizer.model" "$T/spec.yaml" \
            >"$T/spec2.yaml"
        for i in $(seq 200); do
            echo "Paragraph $i of a licence that nobody has written yet." >"$T/text/gpl/new-$i.txt"
        done
        build "$T/spec2.yaml"
    fi
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/$what" \
        --resume >>"$T/$what.log" 2>&1 || fail "the run '$what' could not be resumed"
    digests_equal "$T/$what"
done
[[ $(summary '.clusters[0].params_digest' "$T/same") == "$want" ]] ||
    fail "the parameters differ after a resume with the same corpus"
if cat "$T/same.log" "$T/same"/clusters/*/jobs/*/worker.log | has "$other_text"; then
    fail "the same text was reported as different"
fi
has "alpha: .*$other_text" "$T/other.log" || fail "the different text was not reported"
if has "beta: .*$other_text" "$T/other.log"; then
    fail "beta reports a source that it does not read"
fi
rm -rf "$T/corpus" "$T/text" && mv "$T/corpus.was" "$T/corpus" && mv "$T/text.was" "$T/text"

# A different job is not resumed in this folder.
if timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" --resume \
    --seed 9 >"$T/other.log" 2>&1; then
    fail "a resume with another seed succeeded"
fi
grep -q "seed differs.* perhaps with init_from: $T/cut/checkpoint/model.ckpt" "$T/other.log" ||
    fail "the reason is missing: $(cat "$T/other.log")"

# kill -9 of each worker in turn: the agent restarts it from its checkpoint.
NEBULA_FAULT=worker.step:+50 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/kill" >"$T/kill.log" 2>&1 &
pid=$!
for at in 50 110; do
    wait_step "$T/kill" "$at" "$pid" || fail "the run ended before step $at"
    name=$([[ $at == 50 ]] && echo alpha || echo beta)
    victim=$(pgrep -f "nebula worker $T/kill/clusters/$name/" | head -n 1 || true)
    [[ -n $victim ]] || fail "no worker of $name found"
    kill -KILL "$victim"
done
wait "$pid" || fail "the run with killed workers failed"
digests_equal "$T/kill"
[[ $(summary '.clusters[0].params_digest' "$T/kill") == "$want" ]] ||
    fail "after kill -9 the parameters differ from an undisturbed run"
echo "interrupted, resumed and killed runs end with the same bits"
