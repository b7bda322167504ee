#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A member that was away returns over a link that carries less than the others commit. It would
# fetch one outdated snapshot after another. So it is refused, and the message has both rates. The
# others continue. Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
pace 8
stopped=()
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 0.5, commit_all: false"
sed -i -e 's/steps: 60/steps: 100000/; s/codec: int4/codec: fp32/' "$T/job.yaml"
clusters "$T/job.yaml" a b c
light "$T/job.yaml"
run=$T/run
rounds() { largest "$run" round round "$1" 0; } # CLUSTER
wait_rounds() { # CLUSTER ROUND
    wait_round "$run" "$2" "$pid" "$1" || fail "$1 did not reach round $2, or the run ended"
}
"$nebula" pretrain "$T/job.yaml" --local 3 --wan 200mbit:5ms --out "$run" >"$run.log" 2>&1 &
pid=$!
wait_rounds c 4
for what in "nebula agent --home $run/clusters/c " "nebula worker .*$run/clusters/c/"; do
    stopped+=("$(pgrep -f "$what" | head -n 1)")
done
kill -STOP "${stopped[@]}"
within 30 is_away run/clusters/a c && within 30 is_away run/clusters/b c ||
    fail "c is stopped, but its links are up"
wait_rounds a $(($(rounds a) + 40)) # more rounds than the others keep
for from in 0 1; do
    "$BUILD/wanlink" ctl "$run/wan.ctl" "rate 1mbit $from 2" >/dev/null ||
        fail "cannot slow the link"
done
kill -CONT "${stopped[@]}"
stopped=()
refused() { grep -q 'slower than the others commit' "$run.log" || ! kill -0 "$pid" 2>/dev/null; }
within 90 refused || fail "no member was refused"
line=$(grep -m 1 'slower than the others commit' "$run.log") || fail "no member was refused"
brings=$(sed -E 's/.*carries ([0-9.]+) Mbit.*/\1/' <<<"$line") \
    needs=$(sed -E 's/.*need ([0-9.]+) Mbit.*/\1/' <<<"$line")
awk -v b="$brings" -v n="$needs" 'BEGIN { exit !(b > 0.3 && b < 1.6 && n > b) }' ||
    fail "wrong rates of a 1 Mbit/s link: $line"
failed() { [[ $("$nebula" jobs --home "$run/clusters/c" --json | jq -r '.[0].state') == failed ]]; }
within 30 failed ||
    fail "the job of the refused c is $("$nebula" jobs --home "$run/clusters/c" \
        --json): no alert says so"
before=$(rounds a)
# The others continue without waiting for c in each round. Its agent is still there and votes.
wait_rounds a $((before + 30))
jq -R -s -e --argjson from "$before" '[split("\n")[] | fromjson? |
    select(.kind == "round" and .cluster == "a" and .round > $from) | .travel_s] | min < 0.45' \
    "$run/metrics.jsonl" >/dev/null ||
    fail "each round waited for the refused member"
kill -INT "$pid"
rc=0; wait "$pid" || rc=$?
[[ $rc != 0 ]] || fail "the run succeeded although a member was refused"
has 'error cluster c: .*slower than the others commit' "$run.log" ||
    fail "the final report does not name c"
echo "a link of 1 Mbit/s refused: brings $brings, needs $needs Mbit/s; the others continued"
