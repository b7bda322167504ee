# SPDX-License-Identifier: Apache-2.0
"""nebula status --watch on a real pseudo-terminal. usage: watch.py NEBULA HOME AGENT-PID
A small terminal interprets the output and records lines that would wrap. It knows only the
sequences below; any other one is an error."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

nebula, home, agent = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEQUENCE = re.compile(rb"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    def __init__(self, rows, cols):
        self.other, self.cursor, self.wrap, self.wrapped, self.old = False, True, True, [], 0
        self.size(rows, cols)

    def size(self, rows, cols):
        self.rows, self.cols, self.row, self.col = rows, cols, 0, 0
        self.lines = [b""] * rows

    def feed(self, data):
        while data:
            if data[0] == 0x1B:
                m = SEQUENCE.match(data)
                if not m:
                    return data  # the rest of the sequence is still to come
                self.command(m[1], m[2])
                data = data[m.end():]
                continue
            c, data = data[:1], data[1:]
            if c == b"\r":
                self.col = 0
            elif c == b"\n":
                if self.row + 1 == self.rows:
                    self.wrapped.append("scrolled")
                self.row = min(self.row + 1, self.rows - 1)
            else:
                assert c[0] >= 0x20 and c[0] != 0x7F, c
                if self.col >= self.cols:
                    self.wrapped.append(self.lines[self.row])
                line = self.lines[self.row]
                self.lines[self.row] = line[:self.col].ljust(self.col) + c + line[self.col + 1:]
                self.col += 1
        return b""

    def command(self, args, letter):
        if letter == b"H" and not args:
            self.row = self.col = 0
            self.old -= self.old > 0
            if self.old == 1:  # this frame has the new size
                self.old, self.lines = 0, [b""] * self.rows
                self.wrapped.clear()
        elif letter == b"K" and args == b"2":
            self.lines[self.row] = b""
        elif letter == b"J" and args == b"2":
            self.lines = [b""] * self.rows
        elif letter in b"hl" and args in (b"?1049", b"?25", b"?7"):
            name = {b"?1049": "other", b"?25": "cursor", b"?7": "wrap"}[args]
            setattr(self, name, letter == b"h")
        else:
            raise ValueError(f"unknown sequence {args}{letter}")


class Watch:
    def __init__(self, rows=30, cols=100):
        self.screen, self.rest = Screen(rows, cols), b""
        sized, tell = os.pipe()
        self.pid, self.fd = pty.fork()
        if not self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.close(tell)
            os.read(sized, 1)  # waits until the size is set
            os.execv(nebula, [nebula, "status", "--watch", "--home", home])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        os.close(sized)
        os.close(tell)
        self.before = termios.tcgetattr(self.fd)

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.rest = self.screen.feed(self.rest + os.read(self.fd, 65536))
            except OSError:
                return False
        return True

    def until(self, what, condition, seconds=120):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or not self.read(0.1):
                sys.exit(f"FAILED: not within {seconds} s: {what}\n" +
                         "\n".join(map(str, self.screen.lines)))

    def shows(self, *texts):
        return all(any(t in line for line in self.screen.lines) for t in texts)

    def resize(self, rows, cols):
        assert not self.screen.wrapped, self.screen.wrapped
        self.screen.size(rows, cols)
        self.screen.old = 3  # the rest of this frame and the next one may have the old size
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.until("a frame of the new size", lambda: not self.screen.old)

    def end(self, want):
        """Checks the exit status, and that the terminal is restored."""
        status, end = None, time.monotonic() + 120
        while status is None and time.monotonic() < end:
            self.read(0.1)
            pid, s = os.waitpid(self.pid, os.WNOHANG)
            status = s if pid else None
        while select.select([self.fd], [], [], 0)[0] and self.read(0):
            pass
        assert status is not None and os.waitstatus_to_exitcode(status) == want, status
        self.restored()
        assert not self.screen.wrapped, self.screen.wrapped
        os.close(self.fd)

    def restored(self):
        s = self.screen
        assert (s.other, s.cursor, s.wrap) == (False, True, True), (s.other, s.cursor, s.wrap)
        assert termios.tcgetattr(self.fd) == self.before


# The screen in windows of any size; q ends the command.
w = Watch()
w.until("the status", lambda: w.shows(b"agent: alpha", b"peer: beta", b"round trip:"))
assert w.screen.other and not w.screen.cursor and not w.screen.wrap
assert not termios.tcgetattr(w.fd)[3] & (termios.ECHO | termios.ICANON)
widest = max(map(len, w.screen.lines))
for rows, cols in ((10, 40), (4, 17), (2, 1), (1, 1), (60, 300), (8, widest)):
    w.resize(rows, cols)
    start = time.monotonic()
    w.until(f"a redraw for {cols} columns",
            lambda: w.screen.lines[0].startswith(b"agent: alpha"[:cols]))
    if cols < 17:  # only the part beyond the width is missing
        w.until("a cut line", lambda: len(w.screen.lines[0]) == min(cols, len(b"agent: alpha")))
    w.until("another frame", lambda: time.monotonic() > start + 1.2)
    assert not w.screen.wrapped, (rows, cols, w.screen.wrapped)
w.resize(30, 100)
w.until("the whole status again", lambda: w.shows(b"agent: alpha", b"peer: beta"))
os.write(w.fd, b"x")  # a key without a function
w.until("another frame", lambda: w.shows(b"agent: alpha"))
os.write(w.fd, b"q")
w.end(0)

# Ctrl-C, Ctrl-\, and signals from other processes.
for stop in (b"\x03", b"\x1c", signal.SIGTERM, signal.SIGHUP):
    w = Watch()
    w.until("the status", lambda: w.shows(b"agent: alpha"))
    os.kill(w.pid, stop) if isinstance(stop, signal.Signals) else os.write(w.fd, stop)
    w.end(0)

# Ctrl-Z restores the terminal; fg shows the screen again.
w = Watch()
w.until("the status", lambda: w.shows(b"agent: alpha"))
os.write(w.fd, b"\x1a")
w.until("the pause", lambda: not w.screen.other)
pid, status = os.waitpid(w.pid, os.WUNTRACED)
assert os.WIFSTOPPED(status)
w.restored()
w.screen.size(30, 100)
os.kill(w.pid, signal.SIGCONT)
w.until("the screen again", lambda: w.screen.other and w.shows(b"agent: alpha"))

# The agent does not answer for a while: the screen shows that, in a narrow window too. When the
# agent is back, so is the status.
os.kill(agent, signal.SIGSTOP)
w.until("the agent's absence", lambda: w.shows(b"does not answer", b"retrying"))
w.resize(6, 24)
w.until("the absence, narrow", lambda: w.shows(b"retrying every second"))
os.kill(agent, signal.SIGCONT)
w.until("the agent's return", lambda: w.shows(b"agent: alpha"))
os.write(w.fd, b"Q")
w.end(0)
print("status --watch: sizes from 1x1 to 300x60 without a wrapped line, keys, signals, no agent")
