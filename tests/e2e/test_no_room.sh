#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A site whose disk has no room for the updates of others reports that itself, also to a command
# that follows the job elsewhere. No sender is blamed. Once there is room, the run ends as usual.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
pair
start_alpha
NEBULA_FAULT=ledger.open:* start_beta # arriving updates have no file
wait_for 20 "the link" link_up b alpha
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" \
    --set sync.grace_s=1 >"$T/run.log" 2>&1 &
run=$!
wait_for 60 "the report of beta" has 'beta: beta cannot store the others.*no room on the disk' \
    "$T/run.log"
sleep 3 # three times grace_s: by now a missing sender would be reported
! has 'has sent none' "$T/run.log" ||
    fail "a sender is blamed for a full disk: $(grep 'has sent none' "$T/run.log")"
kill -0 "$run" 2>/dev/null || fail "the run ended too early"
kill -KILL "${pid[b]}" # NEBULA_FAULT in its environment makes the disk full
wait "${pid[b]}" || true
start_beta
wait "$run" || fail "the run ended with status $? once there was room"
(($(grep -c 'cannot store' "$T/run.log") == 1)) ||
    fail "the warning came more than once: $(grep -c 'cannot store' "$T/run.log") times"
digests_equal "$T/run"
echo "a full disk is reported where it is, and the run continues"
