#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# After an agent has ended in order, commands report at once that no agent runs, and a user with
# read access can check its ledger. A limit on file sizes gives an error that names the file, not a
# signal. A HOME whose name is not UTF-8 is refused.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
pair
start_alpha
start_beta
wait_for 20 "the link" link_up b alpha
run() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/$1" >"$T/$1.log" 2>&1
}
run one || fail "the first run failed"

# ---- ended
kill -TERM "${pid[b]}"
wait "${pid[b]}" || fail "beta's agent ended with $?"
[[ ! -e $T/b/agent.sock ]] || fail "the agent left its socket"
none() { # a command for a home without an agent
    local rc=0 start=$SECONDS
    "$nebula" "$@" --home "$T/b" >"$T/none" 2>&1 || rc=$?
    ((rc)) &&
        has 'no agent runs in .*: *start one\|no agent runs in .*start one with nebula agent' \
        "$T/none" || fail "nebula $1, status $rc: $(cat "$T/none")"
    ((SECONDS - start <= 3)) ||
        fail "nebula $1 took $((SECONDS - start)) s to find that no agent runs"
}
none status
start_beta
wait_for 20 "beta's agent" link_up b alpha
kill -KILL "${pid[b]}" # the socket remains
wait "${pid[b]}" || true
[[ -S $T/b/agent.sock ]] || fail "a killed agent left no socket: nothing was tested"
none status

# ---- read only
start_beta
wait_for 20 "beta's agent" link_up b alpha
kill -TERM "${pid[b]}"
wait "${pid[b]}" || fail "beta's agent ended with $?"
cp -r "$T/b" "$T/copy of b?%41"
copy="$T/copy of b?%41"
if ((EUID == 0)) && chmod 711 "$T" && chmod -R a+rX,a-w "$copy" &&
    setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$copy/ledger.db" &&
    setpriv --reuid=65534 --regid=65534 --clear-groups "$nebula" --version >/dev/null 2>&1; then
    for what in verify show; do
        setpriv --reuid=65534 --regid=65534 \
            --clear-groups "$nebula" ledger "$what" "/$copy" >"$T/read" 2>&1 ||
            fail "nebula ledger $what of a read-only folder: $(cat "$T/read")"
    done
    [[ $(find "$copy" -name 'ledger.db-*') == '' ]] || fail "the command left files: $(ls "$copy")"
else
    echo "not tried: a reader without write access"
fi

# ---- a limit on file sizes
start_beta
wait_for 20 "beta's agent" link_up b alpha
# the soft limit: only root could raise the hard limit again
prlimit --pid "${pid[b]}" --fsize=40000:
# The run cannot continue, whichever file reaches the limit. If the agent ends, alpha waits for it.
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/two" \
    >"$T/two.log" 2>&1 & two=$!
while kill -0 "$two" 2>/dev/null && kill -0 "${pid[b]}" 2>/dev/null; do sleep 0.2; done
kill "$two" 2>/dev/null || true
wait "$two" || true
rc=0
if kill -0 "${pid[b]}" 2>/dev/null; then
    prlimit --pid "${pid[b]}" --fsize=unlimited: || true # the agent may have ended meanwhile
    kill -TERM "${pid[b]}"
fi
wait "${pid[b]}" || rc=$?
((rc < 128)) || fail "the limit on file sizes ended the agent with signal $((rc - 128))"
has 'File too large\|error .*cannot' "$T/b.log" || fail "the agent does not report the limit"

# ---- names
odd="$T/gr"$'\xf6\xdf'"e"
rc=0
cp -r "$T/b" "$odd"
timeout 100 "$nebula" agent --home "$odd" >"$T/odd.log" 2>&1 || rc=$?
((rc && rc < 124)) && has 'is not UTF-8 text' "$T/odd.log" ||
    fail "a HOME that is not UTF-8, status $rc: $(cat "$T/odd.log")"
rc=0
timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$odd/run" >"$T/odd.log" 2>&1 || rc=$?
((rc && rc < 124)) && has 'is not UTF-8 text' "$T/odd.log" ||
    fail "an --out that is not UTF-8, status $rc: $(cat "$T/odd.log")"
echo "an agent that ended is not waited for, its ledger is readable, limits and names give errors"
