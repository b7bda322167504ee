#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lines that are far slower than expected must still carry a job. At 64 kbit/s the link stays up
# while an update crosses, and little is sent twice. With a round trip of 1.4 s the link comes up.
# Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
make_job "$T/job.yaml"

far=$T/far
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 4mbit:1400ms --steps 10 \
    --out "$far" >"$T/far.log" 2>&1 || fail "the run over a long line failed"
digests_equal "$far"
[[ $(summary .rounds "$far") == 1 ]] || fail "there was no round over a long line"

slow=$T/slow
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 64kbit:100ms --steps 10 \
    --set sync.codec=bf16 --out "$slow" >"$T/slow.log" 2>&1 ||
    fail "the run over a slow line failed: $(tail -n 3 "$T/slow.log") $(grep -h 'link to' \
        "$slow"/clusters/*/agent.log | tail -n 4)"
digests_equal "$slow"
[[ $(summary .rounds "$slow") == 1 ]] || fail "there was no round over a slow line"
grep -h 'is down\|came or went' "$slow"/clusters/*/agent.log && fail "the link did not stay up"
jq -se --slurpfile s "$slow/summary.json" '($s[0].trainable_params * 2) as $update
    | [.[] | select(.kind == "link") | .resent_bytes] | max < 0.4 * $update' \
        "$slow/metrics.jsonl" >/dev/null ||
    fail "too much of an update was sent twice: $(jq -c 'select(.kind == "link") | .resent_bytes' \
        "$slow/metrics.jsonl" | tail -n 1)"
printf "a round over 64 kbit/s in %.0f s, and over a round trip of 1.4 s in %.0f s\n" \
    "$(summary .wall_s "$slow")" "$(summary .wall_s "$far")"
