#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run on a corpus that streams: it makes its training shards itself, resumes with the same bits,
# also after the loss of the cache, and ends when a source has changed.
. "$(dirname "$0")/lib.sh"
make_corpus
rm -r "$T/corpus"
echo 'stream: {shuffle: 1, shard_tokens: 65536}' >>"$T/spec.yaml"
"$nebula" data build "$T/spec.yaml" --out "$T/corpus" >"$T/data.log" 2>&1 ||
    fail "data build failed"
[[ ! $(find "$T/corpus" -name 'train-*') ]] || fail "the training shards are on disk"
make_job "$T/job.yaml"
tiny "$T/job.yaml"
sed -i 's/steps: 60/steps: 120/; s/every_steps: 20/every_steps: 30/' "$T/job.yaml"
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/whole" >"$T/whole.log" 2>&1 ||
    fail "the run failed"
want=$(summary '.clusters[0].params_digest' "$T/whole")
for sides in "distill student student" "rtd generator discriminator"; do # nebula check says so
    read -r mode first second <<<"$sides"
    sed "s/^mode: .*/mode: $mode/; /^sync:/d; s/\(alpha\), .*/\1, role: $first}/
        s/\(beta\), .*/\1, role: $second}/" "$T/job.yaml" >"$T/sides.yaml"
    if "$nebula" check "$T/sides.yaml" >"$T/check.log" 2>&1; then fail "mode $mode is fine"; fi
    grep -q "take no corpus that streams" "$T/check.log" || fail "$mode: $(cat "$T/check.log")"
done
# The files may be gone: a cluster that ends removes those that it does not need any more.
[[ -d $T/corpus/cache ]] || fail "no shard was made"

NEBULA_FAULT=worker.step:+60 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" \
    >"$T/cut.log" 2>&1 &
pid=$!
wait_step "$T/cut" 60 "$pid" || fail "the run ended too early"
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc == 3 ]] || fail "the exit status after an interrupt is $rc, not 3"
rm -r "$T/corpus/cache"
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/cut" \
    --resume >>"$T/cut.log" 2>&1 || fail "the resumed run failed"
[[ $(summary '.clusters[0].params_digest' "$T/cut") == "$want" ]] ||
    fail "the resumed run has other parameters"

# Without the text a run ends with one clear error.
rm -r "$T/corpus/cache"
find "$T/text" -type f -exec sed -i 's/the/teh/' {} +
rc=0
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/changed" >"$T/changed.log" 2>&1 ||
    rc=$?
[[ $rc == 1 ]] || fail "the exit status with another text is $rc"
grep -q 'has changed since the corpus was built' "$T/changed.log" || fail "no reason"
