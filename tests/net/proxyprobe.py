# SPDX-License-Identifier: Apache-2.0
"""The measurements of test_wanlink_proxy.sh: proxyprobe.py WANLINK FOLDER"""
import json
import socket
import subprocess
import sys
import threading
import time

wanlink, folder = sys.argv[1:]
bad = False


def check(what, value, low, high):
    global bad
    fine = low <= value <= high
    bad |= not fine
    print(f"{'ok   ' if fine else 'FAIL '} {what}: {value:.3f} (in {low}..{high})")


def echo(conn):
    while piece := conn.recv(65536):
        conn.sendall(piece)
    conn.shutdown(socket.SHUT_WR)


def serve(listener):
    while True:
        conn, _ = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=echo, args=(conn,), daemon=True).start()


listener = socket.create_server(("127.0.0.1", 0), backlog=16)
threading.Thread(target=serve, args=(listener,), daemon=True).start()
target = f"127.0.0.1:{listener.getsockname()[1]}"
ctl_path = folder + "/ctl"
proxy = subprocess.Popen(
    [
        wanlink,
        "proxy",
        "--rate",
        "40mbit",
        "--rate-back",
        "0",
        "--delay",
        "30ms",
        "--delay-back",
        "20ms",
        "--ctl",
        ctl_path,
        "--die-with-stdin",
        "--listen",
        "127.0.0.1:0",
        "--connect",
        target,
        "--listen",
        "127.0.0.1:0",
        "--connect",
        target,
    ],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)
ready = json.loads(proxy.stdout.readline())
ports = [p["listen_port"] for p in ready["pairs"]]


def ctl(command):
    return subprocess.run(
        [wanlink, "ctl", ctl_path, command], capture_output=True, text=True, check=True
    ).stdout


def connect(i):
    s = socket.create_connection(("127.0.0.1", ports[i]))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.settimeout(10)
    return s


def round_trip(s):
    t = time.monotonic()
    s.sendall(b"x" * 100)
    got = 0
    while got < 100:
        got += len(s.recv(100))
    return (time.monotonic() - t) * 1e3


def transfer(i, n, seconds):
    """Sends n patterned bytes, reads the echo to its end, and checks it."""
    data = bytes(range(256)) * (n // 256)
    with connect(i) as s:
        t = time.monotonic()

        def send():
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)

        threading.Thread(target=send, daemon=True).start()
        back = bytearray()
        while piece := s.recv(65536):
            back += piece
        seconds[i] = time.monotonic() - t
        if back != data:
            print(f"FAIL  {len(back)} of {n} bytes came back, or wrong ones")
            seconds[i] = -1


s = connect(0)
check("least round trip of 30 + 20 ms", min(round_trip(s) for _ in range(9)), 50, 53)
size, took = 4 << 20, [0.0, 0.0]
transfer(0, size, took)
check("Mbit/s alone, line of 40", size * 8 / (took[0] - 0.05) / 1e6, 36, 40.5)
threads = [threading.Thread(target=transfer, args=(i, size, took)) for i in range(2)]
for t in threads:
    t.start()
for t in threads:
    t.join()
check("Mbit/s together", 2 * size * 8 / (max(took) - 0.05) / 1e6, 36, 40.5)
check("shared fairly: quicker over slower", min(took) / max(took), 0.7, 1)

assert ctl("down") == "ok\n"
s.settimeout(0.4)
s.sendall(b"kept")
try:
    s.recv(4)
    print("FAIL  bytes came through the black hole")
    bad = True
except TimeoutError:
    pass
assert ctl("up") == "ok\n"
s.settimeout(3)
check("bytes that a black hole kept come after it", len(s.recv(4)), 4, 4)
ctl("delay 100ms")
check("least round trip after delay 100ms", min(round_trip(s) for _ in range(9)), 200, 205)
link = [l for l in json.loads(ctl("stats"))["links"] if l["from"] == 0][0]
check("bytes counted", link["delivered_bytes"], 3 * size, 3 * size + 2000)
check("bytes still under way", link["in_flight_bytes"], 0, 0)
with socket.create_connection(
    ("127.0.0.1", ports[1])
) as reset:  # a reset must not harm the other connections
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    reset.sendall(b"y" * 1000)
check(
    "round trip after another connection was reset", min(round_trip(s) for _ in range(9)), 200, 230
)
proxy.stdin.close()
check("exit status", proxy.wait(5), 0, 0)
sys.exit(bad)
