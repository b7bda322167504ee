#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode rtd with shared embeddings: two clusters end with the bits of one process, also when workers
# and agents are killed and when the text is pushed. Sharing changes the models.
. "$(dirname "$0")/lib.sh"
make_corpus
cat >"$T/job.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 100
model: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/corpus, seq_len: 64, batch: 8}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {generator: {n_layers: 1, d_ff: 64}, ahead: 8, share_embeddings: 10}
eval: {windows: 16}
checkpoint: {every_steps: 15}
log_every: 1
clusters:
  - {name: alpha, role: generator, threads: 1}
  - {name: beta, role: discriminator, threads: 1}
YAML
digests() { summary '[.clusters[].params_digest] | join(" ")' "$1"; }
run() { # OUT [options]
    local out=$1
    shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$out" "$@" >"$out.log" 2>&1 ||
        fail "the run $out failed"
}
run "$T/one" --set sync.scheme=synchronous
run "$T/two"
want=$(digests "$T/one")
[[ $(digests "$T/two") == "$want" ]] ||
    fail "digests: two agents $(digests "$T/two"), one process $want"
run "$T/apart" --set rtd.share_embeddings=0
[[ $(digests "$T/apart") != "$want" ]] || fail "the embeddings were not shared"
run "$T/push" --set rtd.push_text=true
[[ $(digests "$T/push") == "$want" ]] ||
    fail "digests with pushed text: $(digests "$T/push"), without: $want"

NEBULA_FAULT=worker.step:+50 timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/kill" >"$T/kill.log" 2>&1 &
pid=$!
for at in "12 worker beta" "33 worker alpha" "52 agent beta" "71 agent alpha"; do
    read -r step what name <<<"$at"
    wait_step "$T/kill" "$step" "$pid" || fail "the run ended before step $step"
    victim=$(pgrep -f "nebula $what .*$T/kill/clusters/$name" | head -n 1 || true)
    [[ $victim ]] || fail "there is no $what of $name"
    kill -KILL "$victim"
done
wait "$pid" || fail "the run with killed workers and agents failed"
[[ $(digests "$T/kill") == "$want" ]] ||
    fail "digests after kill -9: $(digests "$T/kill"), undisturbed: $want"

refused() { # OPTIONS...
    rm -rf "$T/no"
    if timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
        --out "$T/no" "$@" >"$T/no.log" 2>&1; then
        fail "accepted: $*"
    fi
    grep -q "needs one width for both models" "$T/no.log" || fail "the reason is missing with $*"
}
refused --set rtd.generator.d_model=32
refused --set rtd.share_embeddings=7
echo "shared embeddings over two clusters equal one process: $want"
