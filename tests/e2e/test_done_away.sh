#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Mode rtd: the generator's agent dies after its last batch, before the discriminator has saved what
# it learned from it. The discriminator ends, and its agent is restarted, so nobody opens the stream
# again. When the generator is back, it must still learn that its batches are consumed.
. "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
cat >"$T/job.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 40
model: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/corpus, seq_len: 32, batch: 1, accumulate: 1}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}}
eval: {windows: 2}
checkpoint: {every_steps: 15}
log_every: 1
clusters:
  - {name: alpha, role: generator, threads: 1}
  - {name: beta, role: discriminator, threads: 1}
YAML
pair
state() { "$nebula" jobs --home "$T/$1" --json 2>/dev/null | jq -r '.[0].state'; }
is() { [[ $(state "$1") == "$2" ]]; }
slow_beta() {
    NEBULA_FAULT=worker.step:+50,fs.write:+4000 "$nebula" agent --home "$T/b" >>"$T/b.log" 2>&1 &
    pid[b]=$!
}
dead() { ! pgrep -f "nebula worker .*$T/a/" >/dev/null; }

start_alpha
slow_beta
within 20 link_up a beta || fail "alpha has no link to beta"
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 &
pid[run]=$!
within 90 says b '.jobs[0].step == 40' || fail "the discriminator does not get all batches"
# It writes its last checkpoint, to a slow disk.
worker=$(pgrep -o -f "nebula worker .*$T/b/") || fail "the discriminator ended too early"
kill -STOP "$worker"
kill -KILL "${pid[a]}"
wait "${pid[a]}" || true
within 20 dead || fail "the generator outlives its agent"
! is b 'done' || fail "the discriminator ended too early: the disk was not slow"
kill -CONT "$worker"
within 60 is b 'done' || fail "the discriminator does not end: $(state b)"
kill -INT "${pid[b]}"
wait "${pid[b]}" || true
start_beta
start_alpha
within 20 link_up a beta || fail "alpha has no link to beta"
within 50 is a 'done' || fail "the generator does not end: $(tail -n 3 "$T"/a/jobs/*/worker.log)"
grep -q 'going on from' "$T"/a/jobs/*/worker.log ||
    fail "the generator had already ended, so the test shows nothing"
echo "a producer learns that its consumer is done"
