#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A sealed run of a cluster of two ranks. Each seals its own part of every checkpoint with the job's
# key, which only rank 0 gets from the agent. The parameters equal those of a run in clear. Parts of
# other generations are refused by name, and another mesh can continue.
. "$(dirname "$0")/../e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/steps: 60/steps: 120/; s/every_steps: 20/every_steps: 20, keep: 3/' \
    -e 's/seq_len: 64, batch: 4/seq_len: 32, batch: 4/' \
    -e 's/{name: alpha,/{name: alpha, mesh: {dp: 2},/' "$T/job.yaml"
cd "$T"
"$nebula" seal init "$T/seal.key" --home "$T/home" >/dev/null || fail "seal init"
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/clear" >"$T/clear.log" 2>&1 ||
    fail "run in clear: $(tail -n 3 "$T/clear.log")"

NEBULA_FAULT=worker.step:+60 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/run" \
    --seal-key "$T/seal.key" >"$T/run.log" 2>&1 &
pid=$!
wait_step "$T/run" 45 "$pid" alpha || fail "the run ended before step 45: $(tail -n 3 "$T/run.log")"
ranks=$(pgrep -f "nebula worker .*$T/run/clusters/alpha/")
hex=$(od -An -v -tx1 "$T/seal.key" | tr -d ' \n')
victim=
for p in $ranks; do
    tr '\0' '\n' <"/proc/$p/cmdline" >>"$T/ps.txt" 2>/dev/null || true
    tr '\0' '\n' <"/proc/$p/environ" >"$T/environ" 2>/dev/null || true
    cat "$T/environ" >>"$T/ps.txt"
    has -x 'RANK=[01]' "$T/environ" || continue # the launcher
    [[ $(awk '/Max core file size/ {print $5}' "/proc/$p/limits") == 0 ]] ||
        fail "a rank may dump core: $(tr '\0' ' ' <"/proc/$p/cmdline")"
    ! has -x 'RANK=1' "$T/environ" || victim=$p
done
[[ $victim ]] || fail "no rank 1 among $ranks"
! grep -qi "$hex" "$T/ps.txt" || fail "the key is on a command line or in an environment"
kill -KILL "$victim"
wait "$pid" || fail "sealed run: $(tail -n 5 "$T/run.log")"
digests_equal "$T/run"
digest() { summary '.clusters[0].params_digest' "$T/$1"; }
[[ $(digest run) == "$(digest clear)" ]] ||
    fail "the sealed run has other parameters than the run in clear"
cat "$T"/run/clusters/alpha/jobs/*/rank-0.log | has 'going on from step' ||
    fail "rank 0 did not continue from a checkpoint"

# ---- the files -----------------------------------------------------------------------------------
dir=$(echo "$T"/run/clusters/alpha/jobs/*/checkpoint)
while IFS= read -r f; do
    [[ $(head -c 7 "$f") == nebseal ]] || fail "$f is in clear"
done < <(find "$T/run" -name '*.ckpt' -o -name '*.part')
for f in "$dir"/step-*.ckpt; do
    parts=("$f".*.part)
    [[ ${#parts[@]} == 1 && -s ${parts[0]} ]] ||
        fail "expected one part beside $f, found: $(ls "$dir")"
    a=$(stat -c %s "$f") b=$(stat -c %s "${parts[0]}")
    ((a < 2 * b && b < 2 * a)) || fail "rank 0 wrote $a bytes, rank 1 $b, expected similar sizes"
done
# Rank 0 copies only what it writes.
read -r mesh alone < <(jq -s -r '[.[] | select(.kind == "checkpoint")] |
    group_by(.cluster) | map([.[].bytes] | max) | @tsv' "$T/run/metrics.jsonl")
((mesh * 10 < alone * 7)) || fail "rank 0 of two copies $mesh bytes, expected under 70 % of $alone"

# ---- read with the key, by other commands and by another mesh ------------------------------------
newest=$(ls "$dir"/step-*.ckpt | tail -n 1) older=$(ls "$dir"/step-*.ckpt | tail -n 2 | head -n 1)
same=$(ls "$T"/clear/clusters/alpha/jobs/*/checkpoint/"${newest##*/}")
want=$("$nebula" eval "$same" --corpus "$T/corpus" --windows 4)
got=$("$nebula" eval "$newest" --corpus "$T/corpus" --windows 4 --seal-key "$T/seal.key")
[[ $got == "$want" ]] ||
    fail "eval of the sealed checkpoint differs"
"$nebula" seal open "$newest" "$T/opened.ckpt" --seal-key "$T/seal.key" || fail "seal open"
[[ $("$nebula" eval "$T/opened.ckpt" --corpus "$T/corpus" --windows 4) == "$want" ]] ||
    fail "eval of the opened checkpoint differs"
# An open that fails leaves nothing in clear.
if NEBULA_FAULT=fs.rename:2 "$nebula" seal open "$newest" "$T/half.ckpt" --seal-key "$T/seal.key" \
    >"$T/half.log" 2>&1; then
    fail "seal open succeeded with a failing rename"
fi
! compgen -G "$T/half.ckpt*" >/dev/null ||
    fail "a failed seal open left in clear: $(ls "$T"/half.ckpt*)"

own=$(ls "$newest".*.part)
cp "$own" "$T/own.part"
cp "$(ls "$older".*.part)" "$own"
if "$nebula" eval "$newest" --corpus "$T/corpus" --seal-key "$T/seal.key" >"$T/swapped.log" 2>&1; \
    then
    fail "a part of another generation was accepted"
fi
[[ $(grep -c 'error' "$T/swapped.log") == 1 ]] &&
    has "${own##*/} (of rank 1): not part 1 of 1 of its checkpoint" <"$T/swapped.log" ||
    fail "the error does not name the swapped part: $(cat "$T/swapped.log")"
# A resumed run uses the generation before, here with stages in place of replicas.
sed 's/mesh: {dp: 2}/mesh: {pp: 2}/' "$T/job.yaml" >"$T/then.yaml"
rm "$T/run/summary.json"
timeout 600 "$nebula" pretrain "$T/then.yaml" --local 2 --out "$T/run" --resume \
    --seal-key "$T/seal.key" >"$T/then.log" 2>&1 ||
    fail "the resumed run failed: $(tail -n 5 "$T/then.log")"
digests_equal "$T/run"
step_of() { echo $((10#$(basename "$1" .ckpt | tr -dc 0-9))); } # CHECKPOINT
cat "$T"/run/clusters/alpha/jobs/*/rank-0.log |
    has "step-0*$(step_of "$newest").ckpt is damaged and is treated as missing" ||
    fail "the swapped generation was used: $(cat "$T"/run/clusters/alpha/jobs/*/rank-0.log)"
sed -n '/dp 1, pp 2, tp 1/,$p' "$T"/run/clusters/alpha/jobs/*/rank-0.log |
    has "going on from step $(step_of "$older")" ||
    fail "the generation before was not used:" "$(cat "$T"/run/clusters/alpha/jobs/*/rank-0.log)"
echo "ranks seal their own parts; rank 0 copies $mesh bytes, one rank $alone"
