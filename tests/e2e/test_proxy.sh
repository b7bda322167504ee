#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# --wan without namespaces and TUN devices (no root): the clusters use the relay of wanlink, with
# its rate and delay. A warning says that it cannot emulate loss.
. "$(dirname "$0")/lib.sh"
[[ $(id -u) != 0 ]] || command -v setpriv >/dev/null || skip "setpriv is not installed"
make_corpus
make_job "$T/job.yaml"
bare=()
[[ $(id -u) != 0 ]] || bare=(setpriv --bounding-set -sys_admin,-net_admin --inh-caps -all)
"${bare[@]}" true || skip "setpriv cannot drop capabilities here"
"${bare[@]}" "$BUILD/wanlink" probe >/dev/null &&
    fail "wanlink probe finds TUN devices without the capability"

run=$T/run
timeout 600 "${bare[@]}" "$nebula" pretrain "$T/job.yaml" --local 2 --wan 2mbit:60ms:1% \
    --set sync.codec=fp32 --out "$run" >"$T/run.log" 2>&1 ||
    fail "the run over the proxy failed"
grep -q 'without root the WAN emulator is a proxy: the loss of 2mbit:60ms:1% is not emulated' \
    "$T/run.log" || fail "the warning is missing"
digests_equal "$run"
round_digests_equal "$run"
[[ $(summary .rounds "$run") == 6 ]] || fail "the run made $(summary .rounds "$run") rounds, not 6"

# All six updates crossed in fp32 (zstd saves a little), no faster than the rate allows. Goodput is
# estimated from single transfers. Some of them start while the queue drains, so the bound is twice
# the rate.
jq -se --slurpfile s "$run/summary.json" '
    $s[0] as $s | 2e6 as $rate
    | [.[] | select(.kind == "link" and .goodput_bps > 0) | .goodput_bps] as $goodput
    | [.[] | select(.kind == "link" and .rtt_ms > 0) | .rtt_ms] as $rtt
    | all($s.clusters[]; .wan_sent_bytes > 5 * 4 * $s.trainable_params and
    .wan_sent_bytes * 8 < 1.1 * $rate * $s.wall_s)
      and ($goodput | length > 0 and max < 2 * $rate and max > 0.1 * $rate)
      and ($rtt | length > 0 and min > 55)' "$run/metrics.jsonl" >/dev/null ||
    fail "wrong rate or delay of the proxy: $(jq -c '[.wall_s, .clusters[].wan_sent_bytes]' \
        "$run/summary.json") $(jq -c 'select(.kind == "link") | [.goodput_bps, .rtt_ms]' \
        "$run/metrics.jsonl" | tail -n 5)"
echo "without CAP_NET_ADMIN the clusters train through the proxy, at its rate"
