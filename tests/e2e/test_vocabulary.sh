#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The corpora of two sites have different vocabularies of equal size. Their embeddings must not be
# averaged. nebula check and a run on one machine report it before the start. If the submitter
# cannot see a site's corpus, the worker of that site reports it.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
sed -e "/{name: gpl/d" "$T/spec.yaml" >"$T/other.yaml"
"$nebula" data build "$T/other.yaml" --out "$T/unlike" >"$T/data.log" 2>&1 ||
    fail "data build failed: $(cat "$T/data.log")"
sed -e "s|^vocabulary:.*|tokenizer: $T/corpus/tokenizer.model|" "$T/other.yaml" >"$T/like.yaml"
"$nebula" data build "$T/like.yaml" --out "$T/like" >"$T/data.log" 2>&1 ||
    fail "data build with a tokenizer failed: $(cat "$T/data.log")"
job() { # FILE CORPUS of beta
    make_job "$1"
    sed -i "s|{name: beta,|{name: beta, corpus: $2,|" "$1"
}
refused() { # WHAT LOG COMMAND…
    local what=$1 log=$2 rc=0
    shift 2
    timeout 600 "$@" >"$log" 2>&1 || rc=$?
    [[ $rc != 0 ]] && grep -q 'build.* with \(the same\|one\) tokenizer' "$log" ||
        fail "$what: exit status $rc"
}
job "$T/unlike.yaml" "$T/unlike"
job "$T/like.yaml" "$T/like"
refused check "$T/check.log" "$nebula" check "$T/unlike.yaml"
refused local "$T/local.log" "$nebula" pretrain "$T/unlike.yaml" --local 2 --out "$T/local" \
    --steps 10
[[ ! -e $T/local ]] || fail "a refused run left $T/local"
"$nebula" check "$T/like.yaml" >"$T/check.log" 2>&1 ||
    fail "check refuses two texts with one tokenizer: $(cat "$T/check.log")"
timeout 600 "$nebula" pretrain "$T/like.yaml" --local 2 --out "$T/run" \
    --steps 10 >"$T/run.log" 2>&1 || fail "the run of two texts with one tokenizer failed"
# One process uses one corpus. Another corpus must not be ignored silently.
rc=0
"$nebula" check "$T/like.yaml" --set sync.scheme=synchronous >"$T/check.log" 2>&1 || rc=$?
[[ $rc == 2 ]] &&
    grep -q 'clusters.corpus: sync.scheme: synchronous is one process with one corpus' \
    "$T/check.log" ||
    fail "a second corpus with sync.scheme synchronous: status $rc, $(cat "$T/check.log")"
rc=0
"$nebula" check "$T/like.yaml" --set data.tokenizer_sha256=ABC >"$T/check.log" 2>&1 || rc=$?
[[ $rc == 2 ]] && grep -q 'data.tokenizer_sha256: "ABC" is not a SHA-256' "$T/check.log" ||
    fail "a wrong data.tokenizer_sha256: status $rc, $(cat "$T/check.log")"

pair
start_alpha
start_beta
wait_for 20 "a link" link_up a beta
refused sites "$T/sites.log" "$nebula" pretrain "$T/unlike.yaml" --home "$T/a" --out "$T/sites" \
    --steps 10
grep -q "cluster beta: the corpus $T/unlike has another vocabulary than the job" "$T/sites.log" ||
    fail "the refusal does not come from beta's worker: $(cat "$T/sites.log")"
echo "a cluster with another vocabulary does not train with the others"
