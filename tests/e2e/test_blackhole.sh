#!/usr/bin/env bash
# A black hole in the middle of a transfer: both sides notice within seconds, the transfer goes on soon after the link is back, and no
# more than one window is sent twice. HOLE (seconds, 8) may be set to 60 or 600.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null || skip "no emulated WAN"
hole=${HOLE:-8}
make_corpus
make_job "$T/job.yaml"
out=$T/run

# 600 KB as fp32 at 1 Mbit/s: five seconds a transfer.
timeout $((hole + 100)) "$nebula" pretrain "$T/job.yaml" --local 2 --wan 1mbit:40ms --steps 20 --set sync.codec=fp32 --out "$out" >"$T/run.log" 2>&1 &
run=$!
peer() { "$nebula" status --home "$out/clusters/alpha" --json 2>/dev/null | jq ".peers[0].$1"; }
now() { date +%s.%N; }
is() { awk "BEGIN { exit !($1) }"; }
window=0 # the largest that was in force: what flies may have been sent under an earlier one
look() { local now; now=$(peer window_bytes || true); [[ $now =~ ^[0-9]+$ ]] && ((now > window)) && window=$now; return 0; }
for ((i = 0; i < 300; i++)); do # in mid-transfer
    look
    sent=$(peer sent_bytes || true)
    [[ $sent =~ ^[0-9]+$ ]] && ((sent > 150000)) && break
    sleep 0.1
done
"$BUILD/wanlink" ctl "$out/wan.ctl" down >/dev/null
down=$(now)
while [[ $(peer up) != false ]]; do is "$(now) - $down < 30" || fail "the outage was not noticed"; sleep 0.1; done
noticed=$(awk "BEGIN { print $(now) - $down }")
is "$noticed < 8" || fail "noticed only after $noticed s"
look
sleep "$(awk "BEGIN { x = $hole - $noticed; print (x > 0 ? x : 0) }")"
"$BUILD/wanlink" ctl "$out/wan.ctl" up >/dev/null
up=$(now)
while [[ $(peer up) != true ]]; do is "$(now) - $up < 30" || fail "the link did not come back"; sleep 0.1; done
back=$(awk "BEGIN { print $(now) - $up }")
is "$back < 6" || fail "traffic only $back s after the link was back"
wait $run || fail "the run failed: $(tail -n 3 "$T/run.log")"
digests_equal "$out"
resent=$(jq -s '[.[] | select(.kind == "link") | .resent_bytes // 0] | max' "$out/metrics.jsonl")
((resent <= window)) || fail "$resent bytes were sent again, the window is $window"
((resent > 0)) || fail "nothing was in flight: the test did not hit a transfer"
echo "noticed after $noticed s, back after $back s, $resent bytes sent again (window $window)"
