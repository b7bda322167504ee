#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The gate profile `private`. With three clusters, all end with the same parameters, every blob of
# every ledger looks like noise, and the loss is that of an open run. With four, one agent is killed
# in mid-run, and the other three finish with the sum of the remaining updates. `nebula check`
# reports settings that do not fit the profile.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus

job() { # FILE CLUSTERS GATE
    make_job "$1" "gate: $3, codec: bf16, row_weights: false, grace_s: 4"
    sed -i '/name: alpha/d; /name: beta/d; s/codec: int4, //; s/steps: 60/steps: 40/' "$1"
    for ((i = 0; i < $2; i++)); do
        echo "  - {name: c$i, sources: [{name: $([[ $((i % 2)) == 0 ]] && echo gpl ||
            echo other), weight: 1}], threads: 1}" >>"$1"
    done
}

job "$T/three.yaml" 3 private
# Rank 0 of the mesh masks, so it holds the whole exchange.
sed -i 's/{name: c1,/{name: c1, mesh: {dp: 2}, launcher: local,/' "$T/three.yaml"
timeout 600 "$nebula" pretrain "$T/three.yaml" --local 3 --out "$T/three" >"$T/three.log" 2>&1 ||
    fail "the run of three clusters failed"
digests_equal "$T/three"
cat "$T"/three/clusters/c1/jobs/*/rank-1.log | has 'owns 0 of [0-9]* units of the exchange' ||
    fail "another rank of c1 holds units of the exchange: $(cat \
        "$T"/three/clusters/c1/jobs/*/rank-1.log)"
round_digests_equal "$T/three"
[[ $(jq -s '[.[] | select(.kind == "round") | .codec] | unique | .[0]' \
    "$T/three/metrics.jsonl") == '"sum16"' ]] || fail "the codec is not sum16"
job "$T/open.yaml" 3 trusted
timeout 600 "$nebula" pretrain "$T/open.yaml" --local 3 --out "$T/open" >"$T/open.log" 2>&1 ||
    fail "the open run failed"
loss() { summary '[.clusters[].eval_loss] | add / length' "$1"; }
a=$(loss "$T/three") b=$(loss "$T/open")
awk "BEGIN { d = $a - $b; exit !(d < 0.05 && d > -0.05) }" ||
    fail "the loss is $a with masks, $b in the open run"
echo "three clusters: loss $a with masks, $b in the open"

# Checks every masked update on every disk. The bytes after the header must be uniform: chi-square
# over 256 values has mean 255 and deviation 22.6. The same figure of an open update is far off.
chi() { # FILE BYTES_TO_SKIP
    tail -c "+$(($2 + 1))" "$1" | od -An -v -tu1 -w1 |
        awk '{ seen[$1]++; n++ } END {
        for (i = 0; i < 256; i++) x += (seen[i] - n / 256) ^ 2 * 256 / n; printf "%d\n", x }'
}
count=0
for blob in "$T"/three/clusters/*/blobs/*; do
    [[ $(head -c 4 "$blob") == NBS1 ]] || fail "$blob is not a masked update"
    x=$(chi "$blob" $((20 + 64 + 3 * 32)))
    ((x > 110 && x < 420)) || fail "$blob is not noise: chi-square $x"
    count=$((count + 1))
done
((count >= 9)) || fail "only $count updates on the disks"
open=$(find "$T/open/clusters" -path '*/blobs/*' | head -n 1)
x=$(chi "$open" 100)
((x > 1000)) || fail "an open update has chi-square $x, so the test shows nothing"
for c in 0 1 2; do
    "$nebula" ledger verify "$T/three/clusters/c$c" >"$T/verify.log" 2>&1 ||
        fail "the ledger of c$c does not verify: $(cat "$T/verify.log")"
    [[ $(stat -c %a "$T/three/clusters/c$c"/jobs/*/sum.keys) == 600 ]] ||
        fail "others can read sum.keys"
done
echo "$count masked updates look like noise (an open one: $x)"

# rejoin is refused in a private job. Seeds that were revealed for one history must not be revealed
# for another.
home=$T/three/clusters/c0
"$nebula" agent --home "$home" >"$T/c0.log" 2>&1 &
pid=$!
clean_up() { end_now ${pid:+"$pid"}; }
within 60 grep -q 'agent is ready' "$T/c0.log" ||
    fail "the agent does not start: $(cat "$T/c0.log")"
if "$nebula" rejoin "$(basename "$home"/jobs/*)" --home "$home" >"$T/rejoin" 2>&1; then
    fail "rejoin of a job with masked sums succeeded"
fi
grep -q 'seeds that were revealed for one history' "$T/rejoin" ||
    fail "rejoin does not give the reason: $(cat "$T/rejoin")"
[[ -d $(echo "$home"/jobs/*)/checkpoint && ! -e $(echo "$home"/jobs/*)/former ]] ||
    fail "rejoin changed the job folder"
end_now "$pid"
wait "$pid" 2>/dev/null || true
pid=

# Four clusters. One agent is killed and returns at once. Another is stopped for longer than the
# others wait, so rounds are summed without it.
job "$T/four.yaml" 4 private
sed -i 's/steps: 40/steps: 300/' "$T/four.yaml"
light "$T/four.yaml"
shape "$T/four.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
pace 20
clean_up() { end_now ${pid:+"$pid"}; kill -CONT ${held:-} 2>/dev/null || true; }
timeout 600 "$nebula" pretrain "$T/four.yaml" --local 4 --out "$T/four" >"$T/four.log" 2>&1 &
pid=$!
rounds_of() { # UPDATES: the number of merges of that many updates in the metrics
    {
        cat "$T/four/metrics.jsonl" 2>/dev/null || true
    } | awk -v updates="\"updates\":$1," '/}$/ && /"kind":"round"/ && index($0, updates) {
        n++ } END { print n + 0 }'
}
wait_rounds() { # UPDATES HOW_MANY
    merged() { (($(rounds_of "$1") >= $2)) || ! kill -0 "$pid" 2>/dev/null; }
    within 120 merged "$@" && (($(rounds_of "$1") >= $2)) ||
        fail "there were no $2 merges of $1 updates"
}
agent_of() { pgrep -o -f "nebula agent --home $T/four/clusters/$1 "; }
wait_rounds 4 6
kill -KILL "$(agent_of c1)"
wait_rounds 4 $(($(rounds_of 4) + 8))
held=$(agent_of c3)
kill -STOP "$held"
wait_rounds 3 4
kill -CONT "$held"
wait "$pid" || fail "the run of four clusters failed"
digests_equal "$T/four"
round_digests_equal "$T/four"
grep -q 'was killed and is started again' "$T/four.log" ||
    fail "the log does not mention the killed agent"
echo "four clusters, one killed, one away: $(rounds_of 3) merges of a sum of three"

# Settings that do not fit the profile are refused, with the remedy.
refused() { # SENTENCE SET…
    local say=$1
    shift
    if "$nebula" check "$T/three.yaml" "$@" >"$T/check" 2>&1; then fail "accepted: $*"; fi
    grep -q "$say" "$T/check" || fail "$*: the reason is missing: $(cat "$T/check")"
}
refused 'sync.codec: must be bf16' --set sync.codec=int4
refused 'sync.private_colluders: must leave at least two clusters' --set sync.private_colluders=2
for needs in 'three|each round needs all 3 clusters' \
    'four|each round needs 3 of the 4 clusters: 1 may be away'; do
    "$nebula" check "$T/${needs%%|*}.yaml" 2>/dev/null | has "${needs#*|}" ||
        fail "check does not print: ${needs#*|}"
done
refused 'sync.row_weights: must be false' --set sync.row_weights=true
refused 'sync.tune: must be fixed' --set sync.tune=auto
refused 'sync.gate: private masks the updates of' --set sync.scheme=synchronous
job "$T/two.yaml" 2 private
if "$nebula" check "$T/two.yaml" >"$T/check" 2>&1; then fail "two clusters were accepted"; fi
grep -q 'private needs 3 to 16 clusters' "$T/check" ||
    fail "the reason is missing: $(cat "$T/check")"
