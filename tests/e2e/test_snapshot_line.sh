#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A member that was away returns over a line that carries the rounds, but needs longer for a
# snapshot than the others keep updates. The updates since the snapshot are kept until the member
# has them, and one snapshot is enough. Needs root and TUN for the emulated WAN.
. "$(dirname "$0")/lib.sh"
"$BUILD/wanlink" probe >/dev/null 2>&1 || skip "there is no TUN device, or this user is not root"
make_corpus
pace 40
stopped=()
clean_up() { kill -CONT ${stopped[@]:-} 2>/dev/null || true; end_now ${pid:+"$pid"}; }
make_job "$T/job.yaml" "grace_s: 0.5, commit_all: false"
sed -i -e 's/steps: 60/steps: 100000/; s/every_steps: 20/every_steps: 10/' "$T/job.yaml"
light "$T/job.yaml"
clusters "$T/job.yaml" a b c
run=$T/run
rounds() { largest "$run" round round "$1" 0; }
reaches() { (($(rounds "$1") >= $2)); }
"$nebula" pretrain "$T/job.yaml" --local 3 --wan 200mbit:5ms --out "$run" >"$run.log" 2>&1 &
pid=$!
within 60 reaches c 4 || fail "there are no rounds"
for what in "nebula agent --home $run/clusters/c " "nebula worker .*$run/clusters/c/"; do
    stopped+=("$(pgrep -f "$what" | head -n 1)")
done
kill -STOP "${stopped[@]}"
within 30 is_away run/clusters/a c && within 30 is_away run/clusters/b c ||
    fail "c is stopped, but its links are up"
within 60 reaches a $(($(rounds a) + 12)) || fail "the others do not continue" # more than they keep
for from in 0 1; do
    "$BUILD/wanlink" ctl "$run/wan.ctl" "rate 2500kbit $from 2" >/dev/null ||
        fail "cannot slow the link"
done
kill -CONT "${stopped[@]}"
stopped=()
snapshots() { grep -c "$1" "$run/clusters/c/agent.log" || true; }
here() { (($(snapshots 'a snapshot is here') > 0)); }
within 60 here || fail "there is no snapshot"
round=$(rounds a)
within 60 reaches c $((round + 4)) || fail "c does not catch up"
[[ $(snapshots 'fetching a snapshot') == 1 ]] ||
    fail "c fetched $(snapshots 'fetching a snapshot') snapshots"
# From now on the ledgers drop updates again.
prunes() { local n; n=$(find "$run/clusters/a/blobs" -name '*.blob' | wc -l); ((n < 40)); }
within 30 prunes || fail "a keeps $(find "$run/clusters/a/blobs" -name '*.blob' | wc -l) updates"
kill -INT "$pid"
wait "$pid" || true
pid=
echo "one snapshot over a slow line, and c caught up at round $((round + 4))"
