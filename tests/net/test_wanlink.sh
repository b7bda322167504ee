#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wanlink run: two programs in two namespaces measure rate, delay, loss, reordering, queue and black
# holes; nothing is left behind. Exit status 77 if namespaces or TUN devices cannot be made here.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
W=${BUILD:-build}/wanlink
P=(python3 "$here/netprobe.py")

# ---- inside: run by wanlink with WANLINK_* set ----
bad=0
check() { # WHAT VALUE LOW HIGH
    if awk -v v="$2" -v a="$3" -v b="$4" 'BEGIN{exit !(v != "" && v + 0 >= a && v + 0 <= b)}'; then
        echo "ok    $1: $2 (in $3..$4)"
    else
        echo "FAIL  $1: '$2' not in $3..$4"
        bad=1
    fi
}
fail() { echo "FAIL  $*"; bad=1; }
in0() { "$W" exec "$WANLINK_NS0" -- "$@"; }
ctl() { "$W" ctl "$WANLINK_CTL" "$@"; }
field() { # FROM TO NAME: one number of the statistics
    ctl stats | python3 -c "import json,sys
print([l[sys.argv[3]] for l in json.load(sys.stdin)['links']
    if [l['from'],l['to']]==[int(sys.argv[1]),int(sys.argv[2])]][0])" \
"$@"
}
serve() { # SITE
    local ns=WANLINK_NS$1
    exec {log}< <(exec "$W" exec "${!ns}" -- "${P[@]}" serve 0.0.0.0 9000)
    # shellcheck disable=SC2064 # this server
    trap "kill $!" EXIT # otherwise it would outlive the test and hold its output open
    read -r -t 60 <&"$log" || { echo "FAIL  no server"; exit 1; }
}

shape() { # 20mbit, 40 ms each way, 64 KiB of queue
    serve 1
    read -r median low _ < <(in0 "${P[@]}" rtt 10.77.0.2 9000 9)
    # other load on the machine delays a packet now and then, so only the smallest delay is exact
    check "median round trip of 2 x 40 ms" "$median" 80 110
    check "least round trip" "$low" 80 82

    read -r sent got late rate _ < <(in0 "${P[@]}" udp 10.77.0.2 9000 10 0.8)
    check "nothing lost below the rate" "$got" "$sent" "$sent"
    check "nothing reordered unless asked" "$late" 0 0
    read -r sent got late rate _ < <(in0 "${P[@]}" udp 10.77.0.2 9000 26 1)
    check "UDP goodput at 20 Mbit/s, overdriven" "$rate" 19.6 20.4
    check "drops at the tail of the queue" "$(field 0 1 queue_dropped_packets)" $((sent - got)) \
        $((sent - got))
    ctl rate-oneway 200mbit 0 1 >/dev/null
    ctl queue 1MiB >/dev/null
    read -r sent got late rate _ < <(in0 "${P[@]}" udp 10.77.0.2 9000 230 0.6)
    check "UDP goodput at 200 Mbit/s, overdriven (sender permitting)" "$rate" 30 204
    ctl rate 20mbit >/dev/null

    ctl loss-oneway 5% 0 1 >/dev/null
    read -r sent got late rate _ < <(in0 "${P[@]}" udp 10.77.0.2 9000 10 1.2 472)
    # 3,000 packets: mean 150, deviation 12; four deviations
    check "5 % loss of $sent packets" $((sent - got)) 102 198
    ctl loss 0 >/dev/null
    ctl reorder 5% >/dev/null
    read -r sent got late rate _ < <(in0 "${P[@]}" udp 10.77.0.2 9000 10 0.8)
    check "reordered when asked" "$late" 5 200
    check "and still complete" "$got" "$sent" "$sent"
    ctl reorder 0 >/dev/null

    ctl delay-oneway 10ms 0 1 >/dev/null
    read -r median low _ < <(in0 "${P[@]}" rtt 10.77.0.2 9000 9)
    check "least round trip of 10 + 40 ms" "$low" 50 52

    ctl down >/dev/null
    in0 "${P[@]}" rtt 10.77.0.2 9000 1 2>/dev/null && fail "a packet came through the black hole"
    ctl up >/dev/null
    ctl down-oneway 1 0 >/dev/null
    before=$(field 0 1 delivered_packets)
    in0 "${P[@]}" rtt 10.77.0.2 9000 1 2>/dev/null &&
        fail "an echo came through the one-way black hole"
    check "the other way stays open" "$(field 0 1 delivered_packets)" $((before + 1)) \
        $((before + 1))
    ctl up >/dev/null
    read -r median low _ < <(in0 "${P[@]}" rtt 10.77.0.2 9000 9)
    check "and back" "$low" 50 52

    ctl delay 40ms >/dev/null; ctl rate 100mbit >/dev/null; ctl queue 1bdp >/dev/null
    read -r _ rate < <(in0 "${P[@]}" tcp 10.77.0.2 9000 16000000)
    check "TCP over 100 Mbit/s and 80 ms, Mbit/s with slow start" "$rate" 30 100

    # Super-packets are cut where a segment is lost or delayed. An error in the cut would break the
    # stream.
    ctl delay 5ms >/dev/null; ctl loss 1% >/dev/null; ctl reorder 1% >/dev/null
    cut=$(field 0 1 lost_packets)
    read -r _ rate < <(in0 "${P[@]}" tcp 10.77.0.2 9000 8000000)
    check "TCP with loss and reordering arrives whole, Mbit/s" "$rate" 1 100
    check "packets lost on the way" $(($(field 0 1 lost_packets) - cut)) 10 400
    ctl loss 0 >/dev/null; ctl reorder 0 >/dev/null

    for wrong in "rate fast" "loss 101%" "down-oneway" "down 0 0" "rate 1mbit 0 2" "sing"; do
        # shellcheck disable=SC2086
        ctl $wrong >/dev/null && fail "command '$wrong' was accepted"
    done
    return "$bad"
}

fates() { # which packets a fresh link lets through
    serve 1
    read -r sent got _ _ fate < <(in0 "${P[@]}" udp 10.77.0.2 9000 10 0.3 472)
    echo "$got $fate"
}

three() { # 10 ms each way, 0-2 with 30
    serve 0
    local ns
    for ns in "$WANLINK_NS1:20" "$WANLINK_NS2:60"; do
        read -r _ low _ < <("$W" exec "${ns%:*}" -- "${P[@]}" rtt 10.77.0.1 9000 9)
        check "least round trip of three sites, ${ns#*:} ms" "$low" "${ns#*:}" "$((${ns#*:} + 4))"
    done
    return "$bad"
}

case ${1:-} in
shape | fates | three) "$1"; exit ;;
esac

# ---- outside ----
"$W" probe || { echo "cannot run here: see the reason above"; exit 77; }
dir=$(mktemp -d /tmp/nebula-wanlink-XXXXXX)
trap 'rm -rf "$dir"' EXIT
gone() { # PID, seconds allowed: no namespace of that emulator is left
    for _ in $(seq $(($2 * 20))); do
        compgen -G "/run/netns/nebw$1?" >/dev/null || return 0
        sleep 0.05
    done
    return 1
}
pid_of() { sed -n 's/.*"pid":\([0-9]*\).*/\1/p' "$1"; }
ready() {
    for _ in $(seq 1200); do grep -q '"ready":true' "$1" && return 0; sleep 0.05; done; return 1
}

"$W" run --rate 20mbit --delay 40ms --queue 64KiB --ctl "$dir/ctl" --stats "$dir/stats" \
    -- bash "$0" shape || bad=1
python3 -c 'import json,sys; json.load(open(sys.argv[1]))["links"][1]' "$dir/stats" ||
    fail "--stats"
[[ -e $dir/ctl ]] && fail "the control socket stayed behind"
"$W" run --delay 10ms --rate 50mbit --sites 3 --pair 0-2:delay=30ms -- bash "$0" three || bad=1

for seed in 7 7 8; do
    "$W" run --wan 20mbit:2ms:5% --seed $seed -- bash "$0" fates >>"$dir/fates" || bad=1
done
mapfile -t fate <"$dir/fates"
[[ ${#fate[@]} == 3 && ${fate[0]} =~ ^[0-9]+\ [0-9a-f]{16}$ ]] || fail "no fates: ${fate[*]}"
[[ ${fate[0]} == "${fate[1]}" ]] || fail "one seed, two fates: ${fate[0]} and ${fate[1]}"
[[ ${fate[0]} != "${fate[2]}" ]] || fail "two seeds, one fate: ${fate[0]}"
echo "ok    seeded loss replays: ${fate[0]}"

"$W" run --wan 20mbit:2ms -- sh -c 'exit 7'
[[ $? == 7 ]] || fail "exit status of the command"
"$W" run --rate quick 2>/dev/null
[[ $? == 2 ]] || fail "exit status of wrong usage"

"$W" run --wan 20mbit:2ms >"$dir/a" & a=$!
ready "$dir/a" || fail "no ready line"
"$W" exec "nebw${a}a" -- ip addr show wan0 >/dev/null || fail "exec"
kill -TERM "$a"
wait "$a" || fail "exit status after SIGTERM"
gone $a 20 || fail "namespaces stay after SIGTERM"

"$W" run --wan 20mbit:2ms >"$dir/b" & b=$!
ready "$dir/b" || fail "no ready line"
kill -KILL $b; wait $b 2>/dev/null
compgen -G "/run/netns/nebw$b?" >/dev/null ||
    fail "the killed emulator left no namespaces, so the test shows nothing"
"$W" run --wan 20mbit:2ms -- true 2>/dev/null || fail "start beside stale namespaces"
gone $b 20 || fail "stale namespaces are not collected"

bash -c "'$W' run --die-with-parent --wan 20mbit:2ms >'$dir/c'; true" & c=$!
ready "$dir/c" || fail "no ready line"
kill -KILL $c; wait $c 2>/dev/null
gone "$(pid_of "$dir/c")" 20 || fail "namespaces stay after the parent was killed"

sleep 0.5 | "$W" run --die-with-stdin --wan 20mbit:2ms >"$dir/d"
gone "$(pid_of "$dir/d")" 20 || fail "namespaces stay after stdin was closed"
((bad)) || echo "all good"
exit $bad
