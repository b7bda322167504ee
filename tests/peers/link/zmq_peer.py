# SPDX-License-Identifier: Apache-2.0
"""One ZeroMQ connection with CURVE and messages of 1 MiB, as in an application.

usage: zmq_peer.py serve|send ADDRESS SECONDS
"""
import os
import sys
import time

import zmq

role, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
# Both ends derive the same pair from a constant: only speed is measured.
public, secret = zmq.curve_keypair() if role == "new" else (
    b"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", b"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")
ctx = zmq.Context()
if role == "serve":
    s = ctx.socket(zmq.PULL)
    s.curve_secretkey, s.curve_publickey, s.curve_server = secret, public, True
    s.bind(f"tcp://{address}:7500")
    done = ctx.socket(zmq.PUSH)
    done.bind(f"tcp://{address}:7501")
    s.recv()
    start, taken, counting = time.monotonic(), 0, False
    while time.monotonic() - start < seconds + 5:
        if s.poll(200):
            n = len(s.recv(copy=False))
            if not counting and time.monotonic() - start > 5:  # the first five seconds are left out
                counting, begin = True, time.monotonic()
            elif counting:
                taken += n
    done.send_string(f"{taken * 8 / (time.monotonic() - begin) / 1e6:.2f}")
    time.sleep(2)
else:
    s = ctx.socket(zmq.PUSH)
    s.sndhwm, s.linger = 16, 0
    s.curve_serverkey, s.curve_publickey, s.curve_secretkey = public, public, secret
    s.connect(f"tcp://{address}:7500")
    result = ctx.socket(zmq.PULL)
    result.linger = 0
    result.connect(f"tcp://{address}:7501")
    block, end = os.urandom(1 << 20), time.monotonic() + seconds + 60
    while time.monotonic() < end and not result.poll(0):
        if s.poll(200, zmq.POLLOUT):
            s.send(block, copy=False)
    print(result.recv_string(zmq.NOBLOCK))
