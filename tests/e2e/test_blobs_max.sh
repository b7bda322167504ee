#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula agent --blobs-max bounds the disk space of updates. Updates that the newest checkpoint
# lacks do not count. A member that was away for longer than the others keep updates continues from
# a snapshot, and all end with the same digest. Without the bound it continues from the updates.
. "$(dirname "$0")/lib.sh"
make_corpus
declare -A agent=()
run='' job=''
stop_all() {
    end_now ${job:+"$job"}
    for c in "${!agent[@]}"; do
        pkill -KILL -P "${agent[$c]}" || true
        kill -KILL "${agent[$c]}" || true
    done 2>/dev/null
    wait 2>/dev/null || true
    agent=()
}
clean_up() { stop_all; }
port=$(ten_ports)

make_job "$T/job.yaml" "grace_s: 1, commit_all: false"
sed -i -e 's/steps: 60/steps: 700/; s/every_steps: 20/every_steps: 20, keep: 16/' \
    -e 's/codec: int4/codec: bf16/' "$T/job.yaml"
clusters "$T/job.yaml" a b c
tiny "$T/job.yaml"
pace 8

rounds() { largest "$run" round round "$1" 0; } # CLUSTER
reaches() { (($(rounds "$1") >= $2)) || ! kill -0 "$job" 2>/dev/null; }
wait_rounds() { # CLUSTER ROUNDS
    within 60 reaches "$1" "$2" && (($(rounds "$1") >= $2)) || fail "$1 did not reach round $2"
}

# The space of updates changes all the time, and one more round may be in flight at a query.
within_bounds() {
    local status want='"used_bytes":([0-9]+),"cap_bytes":([0-9]+|null),"dropped_rounds":([0-9]+)'
    status=$("$nebula" status --home "$run.a" --json)
    [[ $status =~ $want ]] || return 1
    kept=${BASH_REMATCH[1]} cap=${BASH_REMATCH[2]} dropped=${BASH_REMATCH[3]}
    on_disk=$(find "$run.a/blobs" -name '*.blob' -printf '%s\n' 2>/dev/null |
        awk '{ n += $1 } END { print n + 0 }') || true
    [[ $cap == null ]] || ((dropped > 0 && kept <= most && on_disk <= most))
}
most=1300000 kept=0 on_disk=0 cap='' dropped=0

worker() { pgrep -o -f "nebula worker .*$run.$1/"; }
# c has the rounds that it missed, from the updates or from a snapshot.
back() { (($(rounds c) + 2 >= $1)) || has "a snapshot is here" "$run.c.log"; }
absence() { # NAME options of the agents…: c is away for 20 rounds
    local x y key address round
    run=$T/$1
    shift
    for x in a b c; do
        key=$("$nebula" id --home "$run.$x" --name "$x" 2>/dev/null) || fail "nebula id failed"
        eval "local key_$x=\$key"
    done
    for x in a b c; do
        for y in a b c; do
            key=key_$y
            [[ $x != "$y" ]] || continue
            # All dial a, c also dials b, and none dials c.
            address=-
            [[ $y != a ]] || address=127.0.0.1:$port
            [[ $y$x != bc ]] || address=127.0.0.1:$((port + 1))
            "$nebula" peer add "${!key}" "$address" --home "$run.$x" >/dev/null ||
                fail "peer add failed"
        done
    done
    "$nebula" agent --home "$run.a" --listen "127.0.0.1:$port" "$@" >"$run.a.log" 2>&1 & agent[a]=$!
    "$nebula" agent --home "$run.b" --listen "127.0.0.1:$((port + 1))" "$@" >"$run.b.log" 2>&1 &
    agent[b]=$!
    "$nebula" agent --home "$run.c" "$@" >"$run.c.log" 2>&1 & agent[c]=$!
    for x in a b c; do
        for y in a b c; do
            [[ $x == "$y" ]] || within 30 link_up "${run##*/}.$x" "$y" ||
                fail "$x has no link to $y"
        done
    done
    timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$run.a" --out "$run" >"$run.log" 2>&1 &
    job=$!
    wait_rounds c 12
    stopped=("${agent[c]}" "$(worker c)")
    kill -STOP "${stopped[@]}"
    wait_rounds a $(($(rounds a) + 20))
    within 20 within_bounds ||
        fail "more is kept than allowed: $kept and $on_disk of $most, $dropped rounds dropped"
    # One query is not enough: between a round and the removal of its updates, more is kept.
    if [[ $cap != null ]]; then
        inside=0
        for x in {1..10}; do
            sleep 0.1
            ! within_bounds || inside=$((inside + 1))
        done
        ((inside >= 5)) ||
            fail "the bound holds at only $inside of 10 queries: $kept and $on_disk of $most"
    fi
    # The others train on when c is back: the run must not end before.
    others=("$(worker a)" "$(worker b)")
    kill -STOP "${others[@]}"
    within 20 within_bounds || true # judged below
    "$nebula" status --home "$run.a" >"$run.status"
    round=$(rounds a)
    kill -CONT "${stopped[@]}"
    within 60 back "$round" || fail "c does not come back"
    kill -CONT "${others[@]}"
    wait_rounds c $((round + 3))
    wait "$job" || fail "the run failed"
    job=
    digests_equal "$run"
    round_digests_equal "$run"
    for x in a b c; do
        "$nebula" ledger verify "$run.$x" >"$T/verify.log" 2>&1 ||
            fail "the ledger of $x does not verify: $(cat "$T/verify.log")"
    done
    snapshots=$(grep -c "a snapshot is here" "$run.c.log" || true)
    stop_all
}

absence free
[[ $cap == null && $dropped == 0 ]] || fail "without the option: cap $cap, $dropped rounds dropped"
((snapshots == 0)) ||
    fail "c needed $snapshots snapshots although all updates were kept, so the test shows nothing"
((kept > 2000000)) ||
    fail "the updates of 20 rounds take only $kept bytes, so the test shows nothing"
has 'updates kept: .*B$' "$run.status" || fail "wrong status: $(cat "$run.status")"
free=$kept

port=$((port + 2))
absence capped --blobs-max 1M
[[ $cap == 1000000 ]] || fail "cap_bytes is $cap"
((dropped > 0)) || fail "no round was dropped"
((kept <= most && on_disk <= most)) ||
    fail "updates take $kept bytes, $on_disk on disk, but at most 1 MB is allowed"
((snapshots >= 1)) || fail "c came back without a snapshot"
has 'updates of [0-9]* rounds (.*) were dropped because of --blobs-max 1.00 MB' "$run.a.log" ||
    fail "c returned without a snapshot"
has 'updates kept: .* of at most 1.00 MB; [1-9][0-9]* rounds were dropped' "$run.status" ||
    fail "wrong status: $(cat "$run.status")"
echo "back after 20 rounds: from updates ($free bytes)," \
    "with --blobs-max 1M ($kept bytes, $dropped rounds dropped) from $snapshots snapshot(s)"
