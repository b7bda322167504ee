#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula-clusters, all clusters of a job in one process, has the losses of the product: with rounds
# in flight, fragments and groups, with Muon, and in a synchronous run with an outer step. It
# continues from its state bit for bit, and a cluster of it can be absent. The product's synchronous
# outer step survives a stop.
. "$(dirname "$0")/lib.sh"
program=$BUILD/nebula-clusters
make_corpus
make_job "$T/job.yaml"
tiny "$T/job.yaml"
loss() { jq -r '.eval_loss' <<<"$1"; }
# same NAME OPTIONS…: both programs end with the same loss and the same bytes. Sets $real.
same() {
    local run=$T/$1 here
    shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$run" "$@" >"$run.log" 2>&1 ||
        fail "pretrain $*"
    here=$("$program" "$T/job.yaml" "$@") || fail "nebula-clusters $*"
    real=$(jq '[.clusters[].eval_loss] | add / length' "$run/summary.json")
    jq -en --argjson a "$real" --argjson b "$(loss "$here")" '$a - $b | fabs < 1e-5' >/dev/null ||
        fail "$*: the product's loss is $real, that of nebula-clusters $(loss "$here")"
}
same rounds --set sync.overlap=3 --set sync.fragments=2 --set sync.codec=topk:64/4096
federated=$real
one=$("$program" "$T/job.yaml" --set sync.scheme=synchronous) || fail "a synchronous run"
same outer --set sync.scheme=synchronous --set sync.interval=1 --set sync.outer.lr=1 \
    --set sync.outer.momentum=0.8 --set optim.beta1=0
jq -en "$real != $federated and $real != $(loss "$one")" >/dev/null ||
    fail "the outer step does nothing"
same muon --set optim.name=muon --set sync.codec=int2
muon=$real
jq -en "$real != $federated" >/dev/null || fail "muon trains like adamw"

# A group with a codec of its own.
cp "$T/job.yaml" "$T/plain.yaml"
cat >>"$T/job.yaml" <<'YAML'
groups:
  - {match: "*embed*", codec: int4}
YAML
same group --set optim.name=muon --set sync.codec=int2
jq -en "$real != $muon" >/dev/null || fail "the group's codec does nothing"
mv "$T/plain.yaml" "$T/job.yaml"

# Its own state: 25 + 35 steps are 60.
for scheme in federated synchronous; do
    options=(--set "sync.scheme=$scheme" --set sync.codec=int2 --set optim.name=muon)
    whole=$("$program" "$T/job.yaml" "${options[@]}") || fail "a run"
    "$program" "$T/job.yaml" "${options[@]}" --state "$T/$scheme.state" --stop-at 25 >"$T/part" ||
        fail "the first part"
    [[ $(jq .steps "$T/part") == 25 ]] || fail "stopped elsewhere: $(cat "$T/part")"
    rest=$("$program" "$T/job.yaml" "${options[@]}" --state "$T/$scheme.state") || fail "the rest"
    [[ $(jq -c 'del(.train_loss)' <<<"$rest") == "$(jq -c 'del(.train_loss)' <<<"$whole")" ]] ||
        fail "a continued run differs: $rest, $whole"
done

# An absence of ten intervals: two clusters make one round after it, three go on without the last.
options=(--set sync.interval=2 --set sync.codec=topk:64/4096)
cp "$T/job.yaml" "$T/job3.yaml"
clusters "$T/job3.yaml" a b c
for n in '' 3; do
    whole=$("$program" "$T/job$n.yaml" "${options[@]}") || fail "clusters: ${n:-2}"
    cut=$("$program" "$T/job$n.yaml" "${options[@]}" --absent 20:40) || fail "--absent: ${n:-2}"
    [[ $(jq .rounds <<<"$whole") == 30 && $(jq .rounds <<<"$cut") == $((n ? 30 : 20)) &&
        $(loss "$cut") != $(loss "$whole") ]] || fail "--absent: $cut, without: $whole"
done
! "$program" "$T/job.yaml" "${options[@]}" --absent 20:28 2>"$T/short.log" ||
    fail "an absence without a merge round"

# The product stops and continues between two outer steps.
sed -i 's/every_steps: 20/every_steps: 7/' "$T/job.yaml"
options=(--set sync.scheme=synchronous --set sync.interval=5 --set sync.outer.momentum=0.8
    --set checkpoint.copy=false) # the checkpoint of a step is there before the next one
run() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/$1" "${@:2}" "${options[@]}"
}
run whole >"$T/whole.log" 2>&1 || fail "the uninterrupted run failed"
NEBULA_FAULT=worker.step:33:kill run killed >"$T/killed.log" 2>&1 ||
    fail "the interrupted run failed"
digest() { jq -r '.clusters[0].params_digest' "$T/$1/summary.json"; }
[[ $(digest whole) == "$(digest killed)" ]] || fail "a restarted run ends with other parameters"
grep -rq 'going on from step 28' "$T/killed" || fail "no worker was restarted"
echo "one process trains like the product"
