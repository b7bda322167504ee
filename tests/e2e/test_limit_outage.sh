#!/usr/bin/env bash
# wan.rate_limit on the wire of real sockets, counted by the emulator: over a path that becomes slower than the limit and fast again, over an outage in
# which connections break, and with losses behind it. In any t seconds no more leaves than the limit carries in t + 1 s (inter/rate_limit.h); a path
# that carries the limit gets most of it. Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "no TUN device or not root"
make_corpus
clean_up() { kill ${sampler:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml"
# 7 MB as fp32: half a minute a transfer, in which nobody computes. Of 400 ms a window is three seconds' worth.
sed -i 's/d_model: 64/d_model: 256/; s/d_ff: 128/d_ff: 768/' "$T/job.yaml"
run=$T/run limit=2000000
timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --wan 100mbit:400ms --steps 20 --set sync.codec=fp32 \
    --set wan.rate_limit=2mbit --out "$run" >"$run.log" 2>&1 &
pid=$!
ctl() { "$BUILD/wanlink" ctl "$run/wan.ctl" "$1"; }
sent() { ctl stats 2>/dev/null | jq '[.links[].offered_bytes] | min'; }
for ((i = 0; i < 300; i++)); do
    [[ $(sent || true) =~ ^[0-9]{6,}$ ]] && break
    kill -0 "$pid" 2>/dev/null || fail "the run ended early: $(tail -n 3 "$run.log")"
    sleep 0.1
done
while sleep 0.1; do ctl stats || break; done >"$T/samples" 2>/dev/null &
sampler=$!
uptime() { ctl stats | jq .uptime_s; }
begin=$(uptime)
sleep 4
ctl "rate 300kbit" >/dev/null # a path that is slower: what is handed over queues
slow=$(uptime)
sleep 6
ctl "rate 100mbit" >/dev/null
sleep 4
ctl down >/dev/null # noticed after four seconds: connections break, and what they held is lost
sleep 7
ctl "loss 5%" >/dev/null
ctl up >/dev/null
sleep 10
kill -0 "$pid" 2>/dev/null || fail "the run ended early: $(tail -n 3 "$run.log")"
kill "$sampler" && wait "$sampler" 2>/dev/null || true
sampler=
jq -r 'def of(a): .links[] | select(.from == a) | .offered_bytes; "\(.uptime_s) \(of(0)) \(of(1))"' "$T/samples" >"$T/points"
(($(wc -l <"$T/points") > 60)) || fail "only $(wc -l <"$T/points") samples"
# Every two samples: rate x (t + 1 s), what of that second is repeated, the bucket's depth, and repetitions between two looks of its.
awk -v rate=$((limit / 8)) -v begin="$begin" -v slow="$slow" '
    { at[NR] = $1; bytes[1, NR] = $2; bytes[2, NR] = $3 }
    END {
        for (way = 1; way <= 2; way++) for (i = 1; i <= NR; i++) for (k = i + 1; k <= NR; k++) {
            t = at[k] - at[i]; n = bytes[way, k] - bytes[way, i]; most = rate * (t + 1.25 + 0.02) + 65536 + rate * 0.1
            if (n > most) { printf "way %d: %d bytes from %.1f to %.1f s, at most %d\n", way, n, at[i], at[k], most; exit 1 }
            if (n / most > worst) worst = n / most
        }
        for (i = 1; i <= NR && at[i] < begin + 1;) i++
        for (k = i; k < NR && at[k + 1] < slow;) k++
        share = (bytes[1, k] - bytes[1, i]) / rate / (at[k] - at[i])
        if (!(share > 0.6)) { printf "only %.2f of the limit is used before the path is slow\n", share; exit 1 }
        printf "no two of %d samples of each way exceed what the limit lets pass: at most %.2f of it; %.2f of the limit used\n", NR, worst, share
    }' "$T/points" || fail "the limit was not kept, or not used"
