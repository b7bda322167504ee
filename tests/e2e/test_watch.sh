#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula status --watch on a pseudo-terminal (watch.py checks the screen), and its error without a
# terminal.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
here=$(dirname "$0")
python3 -c 'import pty; pty.openpty()' 2>/dev/null ||
    skip "there are no pseudo-terminals (is devpts mounted on /dev/pts?)"
pair
start_alpha; start_beta
wait_for 30 "the link" says a '.peers[0].up'
rc=0; "$nebula" status --watch --home "$T/a" </dev/null >"$T/out" 2>"$T/err" || rc=$?
[[ $rc == 2 && ! -s $T/out ]] && grep -q 'needs a terminal' "$T/err" ||
    fail "without a terminal status --watch ended with status $rc: $(cat "$T/err")"
timeout 600 python3 "$here/watch.py" "$nebula" "$T/a" "${pid[a]}" 2>"$T/watch.log" || {
    kill -CONT "${pid[a]}"
    fail "$(tail -n 5 "$T/watch.log")"
}
