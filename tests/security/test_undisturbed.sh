#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The results of members do not depend on strangers. A job trains undisturbed, and again while
# strangers send nonsense, half handshakes, huge frames and silence to the hub's port and page. The
# digests of every round and of the end are the same.
. "$(dirname "$0")/../e2e/lib.sh"
. "$(dirname "$0")/../e2e/sites.sh"
make_corpus
make_job "$T/job.yaml"
cat >"$T/strangers.py" <<'PY'
import os, random, socket, sys, threading, time

port, page, stop = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

def greeting(mechanism):
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)

half_gib = (512 << 20).to_bytes(8, "big")
ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
kinds = [
    (port, lambda: os.urandom(1024)),
    (port, lambda: greeting(b"NULL") + ready),
    (port, lambda: greeting(b"PLAIN") + b"\x04\x0b\x05HELLO\x01a\x01b"),
    (port, lambda: greeting(b"CURVE") + b"\x04\xc8\x05HELLO\x01\x00" + os.urandom(192)),
    (port, lambda: greeting(b"CURVE") + b"\x06" + half_gib + os.urandom(4096)),
    (port, lambda: b""),
    (page, lambda: b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n"),
    (page, lambda: b"POST /stop HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"),
]
made = [0] * len(kinds)

def knock(i):
    to, text = kinds[i]
    held = []
    while not os.path.exists(stop):
        s = socket.socket()
        s.settimeout(0.2)
        try:
            s.bind((f"127.0.0.{2 + i}", 0))
            s.connect(("127.0.0.1", to))
            s.sendall(text())
            made[i] += 1
            held.append(s)
        except OSError:
            s.close()
        if len(held) > 30:
            held.pop(0).close()
        time.sleep(0.02 * random.random())

threads = [threading.Thread(target=knock, args=(i,)) for i in range(len(kinds))]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(*made)
PY
pace 100
pair
start_alpha
start_beta
wait_for 20 "the link" link_up b alpha
train() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/$1" >"$T/$1.log" 2>&1 ||
        fail "$1: $(tail -n 3 "$T/$1.log")"
}
train peace
timeout 600 python3 "$T/strangers.py" "$port" "$page" "$T/enough" >"$T/made" 2>"$T/strangers.log" &
strangers=$!
train siege
touch "$T/enough"
wait "$strangers" || fail "strangers.py failed: $(cat "$T/strangers.log")"
read -ra made <"$T/made"
for n in "${made[@]}"; do
    ((n >= 50)) || fail "expected 50 connections or more of each kind, found: $(cat "$T/made")"
done
for run in peace siege; do
    digests_equal "$T/$run"
    round_digests_equal "$T/$run"
done
in_rounds() {
    jq -r 'select(.kind == "round") | "\(.cluster) \(.round) \(.digest)"' "$T/$1/metrics.jsonl" |
        sort -u
}
[[ $(in_rounds peace | grep -c '[0-9a-f]\{32\}$') -ge 10 ]] ||
    fail "expected 10 rounds with digests or more: $(in_rounds peace)"
cmp <(in_rounds peace) <(in_rounds siege) ||
    fail "digests of rounds differ: $(diff <(in_rounds peace) <(in_rounds siege))"
final() { summary '[.clusters[].params_digest, .clusters[].loss_last] | tostring' "$T/$1"; }
[[ $(final peace) == "$(final siege)" ]] ||
    fail "the final parameters or losses differ: $(summary . "$T/siege")"
[[ $(grep -c 'link to .* is down' "$T/a.log") == 0 ]] ||
    fail "a link went down: $(grep 'is down' "$T/a.log")"
echo "connections of strangers, by kind: ${made[*]}; the same digests as in peace"
