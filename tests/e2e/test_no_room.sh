#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A site whose disk has no room for the others' updates says so itself, to whoever follows the job elsewhere; nobody is called one that sends
# nothing, and with room there the run ends as if nothing had been.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
pair
start_alpha
NEBULA_FAULT=ledger.open:* start_beta # arriving updates have no file
wait_for 20 "the link" link_up b alpha
timeout 120 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" --set sync.grace_s=1 >"$T/run.log" 2>&1 &
run=$!
wait_for 60 "beta says it" has 'beta: beta cannot store the others.*no room on the disk' "$T/run.log"
sleep 3 # three times the grace: who it is that sends nothing would be said by now
! has 'has sent none' "$T/run.log" || fail "a sender is blamed for a full disk: $(grep 'has sent none' "$T/run.log")"
kill -0 "$run" 2>/dev/null || fail "the run ended: $(tail -n 3 "$T/run.log")"
kill -KILL "${pid[b]}" # its environment is the disk
wait "${pid[b]}" || true
start_beta
wait "$run" || fail "with room there, status $?: $(tail -n 3 "$T/run.log")"
(($(grep -c 'cannot store' "$T/run.log") == 1)) || fail "said so many times: $(grep -c 'cannot store' "$T/run.log")"
digests_equal "$T/run"
echo "a full disk is said where it is, and ends nothing"
