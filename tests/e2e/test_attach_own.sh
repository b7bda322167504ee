#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs with `model: attached`: loops that do not begin with equal values; a group with an owner; the
# agent's list of tensors in status, check and plan; a loop that comes back with other tensors.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
make_corpus # of make_job, which needs one
job() { # FILE, init, groups
    make_job "$1"
    sed -i "s/steps: 60/steps: 40/; s/^model: .*/model: attached/; /^optim:/d; /^eval:/d; /^data:/d
        s/overlap: 0/overlap: 2/; s/sources: [^]]*\], threads: 1/threads: 1, launcher: attach/" "$1"
    printf 'init: %s\ngroups: [%s]\n' "$2" "$3" >>"$1"
}
home() { echo "$T/$1/clusters/$2"; }
# NAME, then the client's options of alpha and beta
run() {
    timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 --out "$T/$1" >"$T/$1.log" 2>&1 & pid=$!
    # shellcheck disable=SC2086
    timeout 600 "$client" "$(home "$1" alpha)" e2e 1 $2 >"$T/$1-a.log" 2>&1 & a=$!
    # shellcheck disable=SC2086
    timeout 600 "$client" "$(home "$1" beta)" e2e -1 $3 >"$T/$1-b.log" 2>&1 & b=$!
}

# Both claim to begin with equal values, and do not.
job "$T/unequal.yaml" equal '{match: "*.experts.*", exchange: never}'
run unequal "--brief 0.25" "--brief 0.5"
! wait $pid || fail "a job whose loops begin with different values should fail"
wait $a $b || true
has 'init: equal, but the loops of clusters alpha and beta do not begin with the same values' \
    "$T/unequal.log" || fail "the difference is not named: $(tail -5 "$T/unequal.log")"

# The norms are alpha's: beta's own work on them does not count. Both end with equal bits.
job "$T/owner.yaml" '{from: beta}' \
    '{match: "*.experts.*", exchange: never}, {match: "ln.*", exchange: {owner: alpha}, eta: 0.5}'
# The first parameters arrive damaged, are refused, and are fetched again.
export NEBULA_FAULT=snapshot.damage@beta:1
run owner "--brief 0.25" "--brief 0.5 --die-at 25"
unset NEBULA_FAULT
rc=0; wait $a || rc=$?
[[ $rc == 18 ]] && has 'fragment [01] of the snapshot does not match its digest' "$T/owner-a.log" ||
    fail "damaged first parameters ended with status $rc: $(cat "$T/owner-a.log")"
alpha() { # until beta has opened its checkpoint again
    local rc=18
    while [[ $rc == 18 ]]; do
        rc=0
        timeout 600 "$client" "$(home owner alpha)" e2e 1 --brief 0.25 \
            >"$T/owner-a.log" 2>&1 || rc=$?
    done
    return "$rc"
}
alpha & a=$!
rc=0; wait $b || rc=$?
[[ $rc == 137 ]] || fail "beta should be killed, but ended with status $rc: $(cat "$T/owner-b.log")"

# A loop that comes back with other tensors is refused; the job goes on when the right one is back.
rc=0; timeout 600 "$client" "$(home owner beta)" e2e -1 --other 0.5 >"$T/other.log" 2>&1 || rc=$?
[[ $rc == 11 ]] && has 'the job has begun with other tensors: tensor ' "$T/other.log" ||
    fail "other tensors ended with status $rc: $(cat "$T/other.log")"

# The agent knows the groups; check and plan take its list. The list does not have the tensors that
# are never exchanged, because clusters may have different ones.
id=$(jq -r .id "$T/owner/job.json")
"$nebula" status --home "$(home owner alpha)" --json >"$T/status.json" || fail "no status"
groups='[.jobs[0].groups[] | [.match, .tensors]]'
[[ $(jq -c "$groups | map(.[0])" "$T/status.json") == '["*.experts.*","ln.*","*"]' ]] &&
    jq -e "$groups | map(.[1] > 0) == [false, true, true]" "$T/status.json" >"$T/all" ||
    fail "status shows other groups: $(jq -c "$groups" "$T/status.json")"
list=$(home owner alpha)/jobs/$id/tensors.json
cmp "$list" "$(home owner beta)/jobs/$id/tensors.json" || fail "the agents have different lists"
"$nebula" check "$T/owner.yaml" --tensors "$list" --json >"$T/check.json" || fail "check failed"
[[ $(jq -c '[.groups[] | [.params, .bytes > 0]]' "$T/check.json") == \
    "$(jq -c '[.jobs[0].groups[] | [.params, .match != "*.experts.*"]]' "$T/status.json")" ]] ||
    fail "check counts other parameters: $(jq -c .groups "$T/check.json")"
"$nebula" plan "$T/owner.yaml" --tensors "$list" --ranks beta=4 --json >"$T/plan.json" ||
    fail "plan failed"
jq -e '.exchange_bytes > 0 and .memory.alpha.rank_bytes > 2 * .memory.beta.rank_bytes and
    .memory.alpha.frame_bytes > 3.9 * .memory.beta.frame_bytes' \
    "$T/plan.json" >"$T/all" || fail "plan is wrong: $(cat "$T/plan.json")"
# A masked sum needs the whole update on one rank.
sed '/name: beta/{p;s/beta/gamma/}' "$T/unequal.yaml" >"$T/private.yaml"
list=$(sed 's/"group":[12]/"group":1/g' "$list" >"$T/tensors.json" && echo "$T/tensors.json")
"$nebula" plan "$T/private.yaml" --set sync.gate=private --set sync.codec=bf16 \
    --set sync.private_range=0.1 --tensors "$list" --ranks beta=4 --json \
    >"$T/plan.json" 2>"$T/plan.log" || fail "plan of a private job failed"
jq -e '.memory.alpha.rank_bytes == .memory.beta.rank_bytes' "$T/plan.json" >"$T/all" ||
    fail "plan divides what rank 0 holds alone: $(cat "$T/plan.json")"

# The disk of the first cluster has lost its list and who agrees with it. Its loop comes back.
timeout 600 "$client" "$(home owner beta)" e2e -1 --brief 0.5 --detach-at 30 \
    >"$T/owner-b.log" 2>&1 & b=$!
wait $b || fail "the loop of beta failed: $(cat "$T/owner-b.log")"
kill "$(pgrep -P "$a")"; wait "$a" || true # the job waits for beta before this loop can end
kill -KILL "$(pgrep -f "nebula agent --home $(home owner alpha) " | head -n 1)"
rm "$(home owner alpha)/jobs/$id"/tensors.*
timeout 600 "$client" "$(home owner alpha)" e2e 1 --brief 0.25 >"$T/owner-a.log" 2>&1 & a=$!
timeout 600 "$client" "$(home owner beta)" e2e -1 --brief 0.5 >"$T/owner-b.log" 2>&1 & b=$!
wait $a || fail "the loop of alpha failed: $(cat "$T/owner-a.log")"
wait $b || fail "the loop of beta failed: $(cat "$T/owner-b.log")"
wait $pid || fail "the job with an owner failed: $(tail -5 "$T/owner.log")"
digests_equal "$T/owner"
round_digests_equal "$T/owner"
echo "attached loops agree on their tensors, first values and groups"
