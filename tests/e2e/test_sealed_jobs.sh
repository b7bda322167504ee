#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Modes rtd and distill with all files sealed on disk. The parameters are those of an unsealed run,
# also when workers and the producer's agent are killed. No checkpoint, model or waiting batch is in
# plain text, and another key opens nothing.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
make_pairs
"$nebula" seal init "$T/seal.key" --home "$T/home" >"$T/init.log" || fail "seal init failed"
"$nebula" seal init "$T/other.key" --home "$T/home2" >/dev/null || fail "seal init failed"

cat >"$T/rtd.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 40
model: {n_layers: 2, d_model: 48, n_heads: 4, d_ff: 96}
data: {corpus: $T/corpus, seq_len: 64, batch: 8, accumulate: 2}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {ahead: 4, generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}}
eval: {windows: 8}
checkpoint: {every_steps: 8}
log_every: 1
clusters: $(cluster_list alpha generator beta discriminator)
YAML
digests() { summary '[.clusters[].params_digest] | join(" ")' "$1"; }
# In a copy of the spool at least one batch waits, and every batch is sealed.
cat >"$T/spool.py" <<'PY'
import sqlite3, sys
rows = [r[0] for r in sqlite3.connect(sys.argv[1]).execute("SELECT body FROM batch")]
bad = sum(1 for r in rows if not bytes(r).startswith(b"nebseal"))
print(len(rows), bad)
sys.exit(0 if rows and not bad else 1)
PY
sealed_run() { # COMMAND JOB OUT: kills workers, then alpha's agent, whose spool is checked
    local command=$1 file=$2 out=$3 pid at step what name victim
    # Slow steps: on a busy machine too, the run is still in progress at each kill.
    NEBULA_FAULT=worker.step:+200 timeout 600 "$nebula" "$command" "$file" --local 2 --out "$out" \
        --seal-key "$T/seal.key" >"$out.log" 2>&1 &
    pid=$!
    for at in "9 worker beta" "14 worker alpha" "20 agent alpha"; do
        read -r step what name <<<"$at"
        wait_step "$out" "$step" "$pid" || fail "the run ended before step $step"
        victim=$(pgrep -f "nebula $what .*$out/clusters/$name" | head -n 1 || true)
        [[ $victim ]] || fail "there is no $what of $name"
        # Batches wait until the consumer has saved. The stopped agent's spool does not change
        # during the copy.
        if [[ $what == agent ]]; then
            kill -STOP "$victim"
            mkdir -p "$out.spool" && cp "$out/clusters/alpha/streams.db"* "$out.spool/"
            python3 "$T/spool.py" "$out.spool/streams.db" >"$out.rows" ||
                fail "$command: an unsealed batch, or no batch: $(cat "$out.rows")"
        fi
        kill -KILL "$victim"
    done
    wait "$pid" || fail "the run $out failed"
    local f sealed=0
    while IFS= read -r f; do
        [[ $(head -c 7 "$f") == nebseal ]] || fail "$f is not sealed"
        sealed=$((sealed + 1))
    done < <(find "$out" -name '*.ckpt')
    ((sealed >= 4)) || fail "$out has only $sealed sealed files"
    "$nebula" seal open "$out/checkpoint/model.ckpt" "$out.model" --seal-key "$T/seal.key" ||
        fail "seal open failed"
    "$nebula" seal open "$out/checkpoint/model.ckpt" "$out.model2" \
        --seal-key "$T/other.key" 2>"$out.other" && fail "another key opened the model"
    has 'is sealed with key' "$out.other" || fail "the reason is missing: $(cat "$out.other")"
}

timeout 600 "$nebula" pretrain "$T/rtd.yaml" --local 2 --out "$T/rtd" >"$T/rtd.log" 2>&1 ||
    fail "the run rtd failed"
sealed_run pretrain "$T/rtd.yaml" "$T/rtds"
[[ $(digests "$T/rtds") == "$(digests "$T/rtd")" ]] ||
    fail "rtd sealed: $(digests "$T/rtds"), unsealed: $(digests "$T/rtd")"
cmp -s "$T/rtds.model" "$T/rtd/checkpoint/model.ckpt" ||
    fail "the sealed discriminator differs from the unsealed one"

job "$T/teacher.yaml" "$one"
run "$T/teacher.yaml" 1 "$T/teacher" --steps 20
job "$T/mt.yaml" "$both" "ahead: 4, teacher: {init: $T/teacher/checkpoint/model.ckpt}"
sed -i 's/every_steps: 10/every_steps: 8/; s/steps: 60/steps: 40/' "$T/mt.yaml"
run "$T/mt.yaml" 2 "$T/mt"
sealed_run distill "$T/mt.yaml" "$T/mts"
[[ $(digest "$T/mts") == "$(digest "$T/mt")" ]] ||
    fail "distill sealed: $(digest "$T/mts"), unsealed: $(digest "$T/mt")"
cmp -s "$T/mts.model" "$T/mt/checkpoint/model.ckpt" ||
    fail "the sealed student differs from the unsealed one"
echo "sealed and killed runs of rtd and distill end with the bits of unsealed runs"
echo "waiting batches: $(cat "$T/rtds.rows" "$T/mts.rows" | awk '{print $1}' | paste -sd' ')"
