#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run that was interrupted (Ctrl-C) or whose worker was killed (kill -9) ends with the very bits of a run that was not.
. "$(dirname "$0")/lib.sh"
make_corpus
rm -r "$T/corpus" # it is built again at its path below, and a vocabulary knows the path of its text
"$nebula" data build "$T/spec.yaml" --out "$T/corpus" >"$T/data.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data.log")"
make_job "$T/job.yaml"
light "$T/job.yaml"
pace 4
sed -i 's/steps: 60/steps: 400/; s/every_steps: 20/every_steps: 30/; s/interval: 10/interval: 20/; s/overlap: 0/overlap: 3/; s/fragments: 1/fragments: 2/; s,codec: int4,codec: topk:512/4096,' "$T/job.yaml"

timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/whole" >"$T/whole.log" 2>&1 || fail "uninterrupted run: $(tail -n 3 "$T/whole.log")"
want=$(summary '.clusters[0].params_digest' "$T/whole")


# Ctrl-C, twice, and on.
resume=()
for at in 60 220; do
    NEBULA_FAULT=worker.step:+25 timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" "${resume[@]}" >>"$T/cut.log" 2>&1 &
    pid=$!
    wait_step "$T/cut" "$at" "$pid" || fail "run ended before step $at: $(tail -n 3 "$T/cut.log")"
    if timeout 20 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" --resume >"$T/two.log" 2>&1; then fail "two runs in one folder"; fi
    grep -q 'another nebula works in' "$T/two.log" || fail "two runs: $(cat "$T/two.log")"
    kill -INT "$pid"
    rc=0; wait "$pid" || rc=$?
    [[ $rc == 3 ]] || fail "exit status $rc after an interrupt, not 3: $(tail -n 3 "$T/cut.log")"
    resume=(--resume)
done
timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" --resume >>"$T/cut.log" 2>&1 || fail "resumed run: $(tail -n 3 "$T/cut.log")"
digests_equal "$T/cut"
[[ $(summary '.clusters[0].params_digest' "$T/cut") == "$want" ]] || fail "the resumed run has other parameters"

# A corpus that was built anew of the same text is the same; with other text in a source the cluster that learns from it says so, and goes on.
build() { "$nebula" data build "$1" --out "$T/corpus" >"$T/data.log" 2>&1 || fail "data build: $(tail -n 3 "$T/data.log")"; }
other_text='holds other text than the newest checkpoint'
cp -r "$T/corpus" "$T/corpus.was" && cp -r "$T/text" "$T/text.was"
for what in same other; do
    NEBULA_FAULT=worker.step:+25 timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/$what" >"$T/$what.log" 2>&1 &
    pid=$!
    wait_step "$T/$what" 60 "$pid" || fail "run ended before step 60: $(tail -n 3 "$T/$what.log")"
    kill -INT "$pid"
    wait "$pid" && fail "$what: no interrupt"
    if [[ $what == same ]]; then
        rm -rf "$T/corpus" && build "$T/spec.yaml"
    else
        sed "/^vocabulary:/d; \$ a tokenizer: $T/corpus.was/tokenizer.model" "$T/spec.yaml" >"$T/spec2.yaml"
        for i in $(seq 200); do echo "Paragraph $i of a licence that nobody has written yet." >"$T/text/gpl/new-$i.txt"; done
        build "$T/spec2.yaml"
    fi
    timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/$what" --resume >>"$T/$what.log" 2>&1 || fail "$what: $(tail -n 3 "$T/$what.log")"
    digests_equal "$T/$what"
done
[[ $(summary '.clusters[0].params_digest' "$T/same") == "$want" ]] || fail "resumed with the same corpus, the run has other parameters"
if cat "$T/same.log" "$T/same"/clusters/*/jobs/*/worker.log | has "$other_text"; then fail "the same text was taken for another"; fi
has "alpha: .*$other_text" "$T/other.log" || fail "other text was not noticed: $(tail -n 5 "$T/other.log")"
if has "beta: .*$other_text" "$T/other.log"; then fail "a source that beta does not read was missed"; fi
rm -rf "$T/corpus" "$T/text" && mv "$T/corpus.was" "$T/corpus" && mv "$T/text.was" "$T/text"

# Another job is not resumed over it.
if timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" --resume --seed 9 >"$T/other.log" 2>&1; then fail "another seed was resumed"; fi
grep -q "seed differs.* perhaps with init_from: $T/cut/checkpoint/model.ckpt" "$T/other.log" || fail "no reason: $(cat "$T/other.log")"

# kill -9 of each worker in turn: the agent starts it again from its checkpoint.
NEBULA_FAULT=worker.step:+15 timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/kill" >"$T/kill.log" 2>&1 &
pid=$!
for at in 80 200; do
    wait_step "$T/kill" "$at" "$pid" || fail "run ended before step $at: $(tail -n 3 "$T/kill.log")"
    name=$([[ $at == 80 ]] && echo alpha || echo beta)
    victim=$(pgrep -f "nebula worker $T/kill/clusters/$name/" | head -n 1 || true)
    [[ -n $victim ]] || fail "no worker of $name found"
    kill -KILL "$victim"
done
wait "$pid" || fail "the run with killed workers failed: $(tail -n 5 "$T/kill.log")"
digests_equal "$T/kill"
[[ $(summary '.clusters[0].params_digest' "$T/kill") == "$want" ]] || fail "after kill -9 the parameters differ from an undisturbed run"
echo "interrupted, resumed and killed runs end with the same bits"
