#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A black hole in the middle of a transfer. Both sides notice it (bound 8 s on an idle machine). The
# transfer continues after the link returns (bound 4 s). At most one window is sent twice. HOLE sets
# the length of the outage in seconds.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null || skip "there is no emulated WAN"
hole=${HOLE:-8}
make_corpus
make_job "$T/job.yaml"
out=$T/run

# 600 KB as fp32 at 1 Mbit/s: a transfer takes five seconds.
timeout $((hole + 400)) "$nebula" pretrain "$T/job.yaml" --local 2 --wan 1mbit:40ms --steps 20 \
    --set sync.codec=fp32 --out "$out" >"$T/run.log" 2>&1 &
run=$!
peer() { "$nebula" status --home "$out/clusters/alpha" --json 2>/dev/null | jq ".peers[0].$1"; }
now() { date +%s.%N; }
is() { awk "BEGIN { exit !($1) }"; }
window=0 # the largest so far: bytes in flight may belong to an earlier window
look() {
    local now
    now=$(peer window_bytes || true)
    [[ $now =~ ^[0-9]+$ ]] && ((now > window)) && window=$now
    return 0
}
for ((i = 0; i < 1200; i++)); do # until a transfer is in progress
    look
    sent=$(peer sent_bytes || true)
    [[ $sent =~ ^[0-9]+$ ]] && ((sent > 150000)) && break
    sleep 0.1
done
"$BUILD/wanlink" ctl "$out/wan.ctl" down >/dev/null
down=$(now)
look # a window can only shrink from here on
# Waits until the agent reports this. The test fails if a query after four times the limit (see
# within) does not show it yet. The time of the query itself does not count.
until_peer() { # SINCE LIMIT UP WHAT
    local at
    while at=$(now)
    [[ $(peer up) != "$3" ]]; do
        is "$at - $1 < 4 * $2" || fail "$4 within $2 s"
        sleep 0.1
    done
    awk "BEGIN { print $(now) - $1 }"
}
noticed=$(until_peer "$down" 8 false "the outage was not noticed") || exit 1
look
sleep "$(awk "BEGIN { x = $hole - $noticed; print (x > 0 ? x : 0) }")"
"$BUILD/wanlink" ctl "$out/wan.ctl" up >/dev/null
up=$(now)
back=$(until_peer "$up" 4 true "there was no traffic after the link returned") || exit 1
wait $run || fail "the run failed"
digests_equal "$out"
resent=$(jq -s '[.[] | select(.kind == "link") | .resent_bytes // 0] | max' "$out/metrics.jsonl")
((resent <= window)) || fail "$resent bytes were sent twice, but the window is $window"
((resent > 0)) || fail "nothing was in flight, so the test did not hit a transfer"
echo "noticed after $noticed s, back after $back s, $resent bytes sent again (window $window)"
