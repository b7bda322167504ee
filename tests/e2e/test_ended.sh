#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What an agent leaves that has ended in order: commands say at once that none runs, and its ledger is checked by whoever may only read it. A limit
# of the size of files is an error that says what could not be written, not a signal. A HOME whose name is not UTF-8 is refused.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
pair
start_alpha
start_beta
wait_for 20 "the link" link_up b alpha
run() { timeout 60 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/$1" >"$T/$1.log" 2>&1; }
run one || fail "the run"

# ---- ended
kill -TERM "${pid[b]}"
wait "${pid[b]}" || fail "beta's agent ended with $?"
[[ ! -e $T/b/agent.sock ]] || fail "its socket is left"
none() { # a command at a home where no agent runs
    local rc=0 start=$SECONDS
    "$nebula" "$@" --home "$T/b" >"$T/none" 2>&1 || rc=$?
    ((rc)) &&
        has 'no agent runs in .*: *start one\|no agent runs in .*start one with nebula agent' \
        "$T/none" || fail "nebula $1, status $rc: $(cat "$T/none")"
    ((SECONDS - start <= 3)) || fail "nebula $1 took $((SECONDS - start)) s to find nobody"
}
none status
start_beta
wait_for 20 "beta's agent" link_up b alpha
kill -KILL "${pid[b]}" # its socket stays
wait "${pid[b]}" || true
[[ -S $T/b/agent.sock ]] || fail "no socket is left of an agent that was killed: nothing was tested"
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
            fail "nebula ledger $what of a folder that cannot be written: $(cat "$T/read")"
    done
    [[ $(find "$copy" -name 'ledger.db-*') == '' ]] || fail "it left files: $(ls "$copy")"
else
    echo "not tried: a reader who may not write"
fi

# ---- a limit of sizes
start_beta
wait_for 20 "beta's agent" link_up b alpha
prlimit --pid "${pid[b]}" --fsize=40000: # the soft limit: who is not root could not take it back
run two || true # it cannot go on, whichever file it is that has no room
rc=0
if kill -0 "${pid[b]}" 2>/dev/null; then
    prlimit --pid "${pid[b]}" --fsize=unlimited: || true # or it has ended meanwhile
    kill -TERM "${pid[b]}"
fi
wait "${pid[b]}" || rc=$?
((rc < 128)) || fail "a limit of sizes ended the agent by signal $((rc - 128))"
has 'File too large\|error .*cannot' "$T/b.log" || fail "nothing is said"

# ---- names
odd="$T/gr"$'\xf6\xdf'"e"
rc=0
cp -r "$T/b" "$odd"
timeout 20 "$nebula" agent --home "$odd" >"$T/odd.log" 2>&1 || rc=$?
((rc && rc < 124)) && has 'is not UTF-8 text' "$T/odd.log" ||
    fail "a HOME that is not UTF-8, status $rc: $(cat "$T/odd.log")"
rc=0
timeout 20 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$odd/run" >"$T/odd.log" 2>&1 || rc=$?
((rc && rc < 124)) && has 'is not UTF-8 text' "$T/odd.log" ||
    fail "an --out that is not UTF-8, status $rc: $(cat "$T/odd.log")"
echo "an agent that has ended is not waited for, its ledger can be read, and limits and names have their errors"
