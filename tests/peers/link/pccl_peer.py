# SPDX-License-Identifier: Apache-2.0
"""PCCL all-reduces over its C API: LIB master ADDRESS | LIB peer ADDRESS SECONDS BYTES CONNECTIONS.

One peer is at each end of the path, the master beside the first. A turn is one all-reduce per
connection at once (PCCL's way to fill a long path), BYTES in all. In an all-reduce of two peers,
each sends and receives as many bytes as the operands have. Prints Mbit/s in one direction for the
turns after the first five seconds, or for the only turn. No encryption, no quantisation.
"""
import ctypes as c
import ipaddress
import os
import sys
import time


class Inet(c.Structure):
    _fields_ = [("protocol", c.c_int), ("ipv4", c.c_uint8 * 4), ("ipv6", c.c_uint8 * 16)]


class Address(c.Structure):
    _fields_ = [("inet", Inet), ("port", c.c_uint16)]


class Params(c.Structure):
    _fields_ = [("master", Address), ("group", c.c_uint32), ("pool", c.c_uint32)]


class Reduce(c.Structure):
    _fields_ = [
        ("count", c.c_size_t),
        ("op", c.c_int),
        ("tag", c.c_uint64),
        ("type", c.c_int),
        ("hint", c.c_int),
        ("quantized", c.c_int),
        ("algorithm", c.c_int),
    ]


class Operation(c.Structure):
    _fields_ = [("send", c.c_void_p), ("recv", c.c_void_p), ("what", Reduce)]


class Info(c.Structure):
    _fields_ = [("world", c.c_uint32), ("tx", c.c_uint64), ("rx", c.c_uint64)]


FLOAT, SUM, WORLD = 10, 0, 1
lib = c.CDLL(sys.argv[1])
role = sys.argv[2]
where = Address(Inet(0, (c.c_uint8 * 4)(*ipaddress.IPv4Address(sys.argv[3]).packed)), 48148)


def must(result, what):
    if result:
        sys.exit(f"{what}: PCCL says {result}")


must(lib.pcclInit(), "init")
if role == "master":
    master = c.c_void_p()
    must(lib.pcclCreateMaster(where, c.byref(master)), "master")
    must(lib.pcclRunMaster(master), "run the master")
    lib.pcclMasterAwaitTermination(master)
    sys.exit(0)

seconds, size, connections = float(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6])
comm = c.c_void_p()
must(
    lib.pcclCreateCommunicator(c.byref(Params(where, 0, connections)), c.byref(comm)),
    "communicator",
)
patience = time.monotonic() + 20
while lib.pcclConnect(comm):
    if time.monotonic() > patience:
        sys.exit("the master does not answer")
    time.sleep(0.5)
world, pending = c.c_int(0), c.c_bool(False)
while True:
    must(lib.pcclGetAttribute(comm, WORLD, c.byref(world)), "attribute")
    if world.value == 2:
        break
    if time.monotonic() > patience:
        sys.exit("the other peer did not come")
    time.sleep(0.1)
    # Both calls wait for all connected peers, so only a peer that is alone may call them.
    must(lib.pcclArePeersPending(comm, c.byref(pending)), "peers")
    if pending.value:
        must(lib.pcclUpdateTopology(comm), "topology")

count = size // 4 // connections
send = [(c.c_float * count)() for _ in range(connections)]
recv = [(c.c_float * count)() for _ in range(connections)]
turn = (Operation * connections)(
    *[
        Operation(
            c.addressof(send[i]),
            c.addressof(recv[i]),
            Reduce(count, SUM, i + 1, FLOAT, 0, FLOAT, 0),
        )
        for i in range(connections)
    ]
)
start, begin, taken, took = time.monotonic(), None, 0, 0.0
while time.monotonic() - start < seconds + 5:
    at, info = time.monotonic(), Info()
    if (
        lib.pcclAllReduceMultipleWithRetry(
            turn, c.c_size_t(connections), comm, c.byref(info), connections
        )
        or info.world < 2
    ):
        break  # the other peer has stopped
    print(
        f"turn of {time.monotonic() - at:.2f} s, {info.rx} bytes, {info.world} peers",
        file=sys.stderr,
        flush=True,
    )
    if at - start >= 5 or time.monotonic() - start >= seconds + 5:
        begin = begin or at
        taken, took = taken + info.rx, time.monotonic() - begin
if taken:
    print(f"{taken * 8 / took / 1e6:.2f}", flush=True)
os._exit(0)  # its threads do not end by themselves
