# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the tests of mode distill: a corpus of pairs, a job, and the digest of the student.
# Source it after lib.sh.
spec() { # FILE SEED [EXTRA]
    local train='character_coverage: 1.0, train_lines: 20000'
    cat >"$1" <<YAML
name: capitals
seed: $2
vocabulary: {size: 400, type: bpe, $train, byte_fallback: true}
holdout: {per_mille: 40, test_per_mille: 40}
sources:
  - {name: capitals, format: tsv, path: $T/pairs.tsv, column: 0, target_column: 1}
YAML
}

# Parallel text without a network: a line of a licence, and the same line in capitals.
make_pairs() {
    cat /usr/share/common-licenses/* 2>/dev/null | tr -d '\t\r' | grep -E '[a-z]{3}.* .*[a-z]{3}' |
        awk 'length($0) < 72 && !seen[$0]++' | sed -n 1,3000p >"$T/lower.txt"
    (($(wc -l <"$T/lower.txt") > 300)) || skip "there are no licences in /usr/share/common-licenses"
    paste "$T/lower.txt" <(tr '[:lower:]' '[:upper:]' <"$T/lower.txt") >"$T/pairs.tsv"
    spec "$T/spec.yaml" 1
    "$nebula" data build "$T/spec.yaml" --out "$T/corpus" >"$T/data.log" 2>&1 ||
        fail "data build failed"
    ! command -v jq >/dev/null ||
        jq -e '.sources[0].test | length == 1' "$T/corpus/corpus.json" >/dev/null ||
        fail "the corpus has no test split"
}

# A test may set batch, windows and lr, for cheaper steps and evaluations.
job() { # FILE CLUSTERS [extra keys of the distill section]
    cat >"$1" <<YAML
job: distill
mode: distill
seed: 5
steps: 60
model: {n_layers: 2, d_model: 48, n_heads: 4, d_ff: 96}
data: {corpus: $T/corpus, seq_len: 96, batch: ${batch:-6}, accumulate: 2}
optim: {lr: ${lr:-0.003}, warmup: 10, schedule: cosine}
distill: {lambda: 0.5, temperature: 1.5, k: 8${3:+, $3}}
eval: {windows: ${windows:-20}}
checkpoint: {every_steps: 10}
log_every: 1
clusters: $2
YAML
}
cluster_list() { # NAME ROLE…: prints a list of clusters with one thread each
    local list=
    while (($#)); do
        list+=", {name: $1, role: $2, threads: 1}"
        shift 2
    done
    echo "[${list:2}]"
}
# shellcheck disable=SC2034 # used by the tests that source this file
both=$(cluster_list alpha teacher beta student)
# shellcheck disable=SC2034
one=$(cluster_list beta student)
run() { # JOB LOCAL OUT [options]
    local file=$1 n=$2 out=$3
    shift 3
    timeout 600 "$nebula" distill "$file" --local "$n" --out "$out" "$@" >"$out.log" 2>&1 ||
        fail "the run $out failed"
}
digest() { summary '.clusters[] | select(.name == "beta") | .params_digest' "$1"; }
