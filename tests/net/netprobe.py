#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traffic for the tests of wanlink: small UDP and TCP measurements.

    netprobe.py serve ADDR PORT            UDP echo/sink and TCP sink on one port, until killed
    netprobe.py rtt ADDR PORT N            median and largest round trip of N UDP echoes, ms
    netprobe.py udp ADDR PORT MBIT S [SZ]\
  sends paced UDP, then asks the sink: sent got reordered seconds fates
    netprobe.py tcp ADDR PORT BYTES        sends BYTES, waits for the sink's count: seconds, Mbit/s

UDP: first byte 'E' is echoed, 'S' is counted (bytes 1..8 a sequence number),\
 'Q' asks for the counts.
"""

import hashlib
import random
import socket
import struct
import sys
import threading
import time


def serve(addr, port):
    tcp = socket.socket()
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind((addr, port))
    tcp.listen(16)

    def sink(conn):
        n, digest = 0, hashlib.sha256()
        while True:
            piece = conn.recv(1 << 16)
            if not piece:
                break
            n += len(piece)
            digest.update(piece)
        conn.sendall(struct.pack("<Q", n) + digest.digest())
        conn.close()

    def accept():
        while True:
            conn, _ = tcp.accept()
            threading.Thread(target=sink, args=(conn,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    udp.bind((addr, port))
    got, late, last, first_at, last_at, size, seen = 0, 0, -1, 0.0, 0.0, 0, bytearray()
    fresh = True  # a question does not reset the counts, because its answer may be lost
    print("serving", flush=True)
    while True:
        data, peer = udp.recvfrom(65536)
        if data[:1] == b"E":
            udp.sendto(data, peer)
        elif data[:1] == b"S":
            now = time.monotonic()
            seq = struct.unpack_from("<Q", data, 1)[0]
            if fresh:
                fresh = False
                got, late, last, first_at, size, seen = 0, 0, -1, now, 0, bytearray()
            got += 1
            size += len(data) + 28
            late += seq < last
            last = max(last, seq)
            last_at = now
            seen += struct.pack("<Q", seq)
        elif data[:1] == b"Q":
            fates = hashlib.sha256(bytes(seen)).hexdigest()[:16]
            udp.sendto(f"{got} {late} {last_at - first_at:.6f} {size} {fates}".encode(), peer)
            fresh = True


def rtt(addr, port, n):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    times = []
    for i in range(n):
        t = time.monotonic()
        s.sendto(b"E" + struct.pack("<Q", i), (addr, port))
        s.recv(64)
        times.append((time.monotonic() - t) * 1e3)
    times.sort()
    print(f"{times[len(times) // 2]:.3f} {times[0]:.3f} {times[-1]:.3f}")


def udp(addr, port, mbit, seconds, size=1472):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    gap = (size + 28) * 8 / (mbit * 1e6)
    start = time.monotonic()
    total = int(seconds / gap)
    for i in range(total):
        ahead = start + i * gap - time.monotonic()
        if ahead > 0.001:
            time.sleep(ahead)
        s.sendto(b"S" + struct.pack("<Q", i) + bytes(size - 9), (addr, port))
    time.sleep(0.6)
    s.settimeout(0.5)
    for attempt in range(8):
        s.sendto(b"Q", (addr, port))
        try:
            got, late, span, nbytes, fates = s.recv(256).decode().split()
            break
        except TimeoutError:
            pass
    else:
        sys.exit("netprobe: no answer from the sink")
    # The time from the first packet to the last one covers one packet fewer than arrived.
    rate = (int(nbytes) - size - 28) * 8 / float(span) / 1e6 if float(span) > 0 else 0
    print(f"{total} {got} {late} {rate:.3f} {fates}")


def tcp(addr, port, nbytes):
    s = socket.create_connection((addr, port), timeout=20)
    data = random.Random(1).randbytes(nbytes)
    start = time.monotonic()
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    answer = s.recv(40, socket.MSG_WAITALL)
    took = time.monotonic() - start
    if answer != struct.pack("<Q", nbytes) + hashlib.sha256(data).digest():
        sys.exit(
            f"netprobe: {nbytes} bytes sent, {answer[:8].hex()} (hex) arrived, or others than were "
            "sent"
        )
    print(f"{took:.3f} {nbytes * 8 / took / 1e6:.2f}")


if __name__ == "__main__":
    kind, args = sys.argv[1], sys.argv[2:]
    addr, port = args[0], int(args[1])
    if kind == "serve":
        serve(addr, port)
    elif kind == "rtt":
        rtt(addr, port, int(args[2]))
    elif kind == "udp":
        udp(addr, port, float(args[2]), float(args[3]), *(int(a) for a in args[4:]))
    elif kind == "tcp":
        tcp(addr, port, int(args[2]))
