#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Groups of tensors between two sites: norms stay at home, beta owns the embedding, layer 0 is
# exchanged every second round with a codec of its own. A worker that is killed repeats its run with
# the same result.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
cat >>"$T/job.yaml" <<'YAML'
groups:
  - {match: "*norm*", exchange: never}
  - {match: "*embed*", exchange: {owner: beta}}
  - {match: "*layers.0*", exchange: {every: 2}, codec: int8}
YAML

timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/fed" >"$T/fed.log" 2>&1 ||
    fail "the run failed: $(tail "$T/fed.log")"
digests_equal "$T/fed"
round_digests_equal "$T/fed"
# of_rounds FIELDS: what the rounds of a cluster and a fragment have, a line each
of_rounds() {
    jq -r --arg c "$1" --argjson f "$2" \
        "select(.kind == \"round\" and .cluster == \$c and .fragment == \$f) | $3" \
        "$T/fed/metrics.jsonl" | paste -sd' '
}
[[ $(of_rounds alpha 0 .payload_bytes) == "8 8 8 8 8 8" ]] ||
    fail "alpha sends something of the embedding: $(of_rounds alpha 0 .payload_bytes)"
[[ $(of_rounds alpha 0 .tokens) == "0 0 0 0 0 0" ]] || fail "alpha's empty updates have tokens"
jq -s -e 'all(.[] | select(.kind == "round" and .cluster == "beta" and .fragment == 0);
    .payload_bytes > 5000 and .tokens == 2560)' "$T/fed/metrics.jsonl" >/dev/null ||
    fail "beta does not send the embedding"
[[ $(of_rounds beta 1 .step) == "13 33 53 60" ]] ||
    fail "layer 0 is not exchanged every second round: $(of_rounds beta 1 .step)"
[[ $(of_rounds beta 1 .codec) == "int8 int8 int8 int8" ]] || fail "layer 0 has another codec"
[[ $(of_rounds beta 2 .step) == "6 16 26 36 46 56 60" ]] ||
    fail "the rest is not exchanged in every round: $(of_rounds beta 2 .step)"

# The same run again. The worker of alpha is killed after its first checkpoint.
run=$T/again
(
    pace 100
    exec timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$run" >"$T/again.log" 2>&1
) &
started=$!
within 60 saved "$run" alpha || fail "there is no checkpoint"
kill -9 "$(worker_of alpha)" || fail "alpha's worker had ended already"
wait "$started" || fail "the second run failed: $(tail "$T/again.log")"
went_on "$run" alpha worker.log
[[ $(summary '.clusters[0].params_digest' "$run") == \
    $(summary '.clusters[0].params_digest' "$T/fed") ]] ||
    fail "with a restart the run ends with other parameters"
