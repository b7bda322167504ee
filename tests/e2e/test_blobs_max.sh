#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula agent --blobs-max: updates take no more of the disk than is said, but for what the newest checkpoint lacks. A member that comes back after
# longer than the others keep them goes on from a snapshot, and all end with the same digest; without the bound it goes on from the updates.
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
sed -i -e 's/steps: 60/steps: 900/; s/every_steps: 20/every_steps: 20, keep: 16/' "$T/job.yaml"
clusters "$T/job.yaml" a b c
light "$T/job.yaml"
pace 8

rounds() { largest "$run" round round "$1" 0; } # CLUSTER
wait_rounds() { # CLUSTER ROUNDS
    local i
    for ((i = 0; i < 600; i++)); do
        (($(rounds "$1") >= $2)) && return 0
        kill -0 "$job" 2>/dev/null || fail "the run ended before round $2 of $1: $(tail -n 3 "$run.log")"
        sleep 0.1
    done
    fail "no round $2 of $1 after a minute: $(tail -n 5 "$run.log")"
}
updates() { "$nebula" status --home "$run.$1" --json | jq "$2"; } # CLUSTER FILTER

# What takes room, which moves: one round more may be on its way when it is looked at.
within_bounds() {
    kept=$(updates a .updates.used_bytes) cap=$(updates a .updates.cap_bytes) dropped=$(updates a .updates.dropped_rounds)
    on_disk=$(find "$run.a/blobs" -name '*.blob' -printf '%s\n' 2>/dev/null | awk '{ n += $1 } END { print n + 0 }') || true
    [[ $cap == null ]] || ((dropped > 0 && kept <= most && on_disk <= most))
}
most=1300000

absence() { # NAME options of the agents…: c is away for 20 rounds
    local x y key round
    run=$T/$1
    shift
    for x in a b c; do
        key=$("$nebula" id --home "$run.$x" --name "$x" 2>/dev/null) || fail "nebula id"
        eval "local key_$x=\$key"
    done
    for x in a b c; do
        for y in a b c; do
            key=key_$y
            # everybody dials a and b; nobody c
            [[ $x == "$y" ]] || "$nebula" peer add "${!key}" "$([[ $y == a ]] && echo "127.0.0.1:$port" || { [[ $y == b && $x == c ]] && echo "127.0.0.1:$((port + 1))" || echo -; })" --home "$run.$x" >/dev/null || fail "peer add"
        done
    done
    "$nebula" agent --home "$run.a" --listen "127.0.0.1:$port" "$@" >"$run.a.log" 2>&1 & agent[a]=$!
    "$nebula" agent --home "$run.b" --listen "127.0.0.1:$((port + 1))" "$@" >"$run.b.log" 2>&1 & agent[b]=$!
    "$nebula" agent --home "$run.c" "$@" >"$run.c.log" 2>&1 & agent[c]=$!
    for x in a b c; do
        for ((i = 0; i < 100; i++)); do
            [[ $("$nebula" status --home "$run.$x" --json 2>/dev/null | jq '[.peers[] | select(.up)] | length' || true) == 2 ]] && break
            sleep 0.1
        done
    done
    timeout 200 "$nebula" pretrain "$T/job.yaml" --home "$run.a" --out "$run" >"$run.log" 2>&1 & job=$!
    wait_rounds c 12
    stopped=("${agent[c]}" "$(pgrep -f "nebula worker .*$run.c/" | head -n 1)")
    kill -STOP "${stopped[@]}"
    wait_rounds a $(($(rounds a) + 20))
    within 20 within_bounds || fail "beyond what may be kept: $kept and $on_disk of $most, $dropped dropped"
    if [[ $cap != null ]]; then # not at one moment alone: between a round and its removal there is more
        inside=0
        for x in {1..10}; do
            sleep 0.2
            ! within_bounds || inside=$((inside + 1))
        done
        ((inside >= 5)) || fail "within what may be kept at $inside of 10 looks: $kept and $on_disk of $most"
        within 20 within_bounds || true # what is judged below
    fi
    "$nebula" status --home "$run.a" >"$run.status"
    kill -CONT "${stopped[@]}"
    round=$(rounds a)
    wait_rounds c $((round + 3))
    wait "$job" || fail "run failed: $(tail -n 5 "$run.log")"
    job=
    digests_equal "$run"
    round_digests_equal "$run"
    for x in a b c; do "$nebula" ledger verify "$run.$x" >"$T/verify.log" 2>&1 || fail "ledger of $x: $(cat "$T/verify.log")"; done
    snapshots=$(grep -c "a snapshot is here" "$run.c.log" || true)
    stop_all
}

absence free
[[ $cap == null && $dropped == 0 ]] || fail "without the option: cap $cap, $dropped rounds dropped"
((snapshots == 0)) || fail "c needed $snapshots snapshots though all updates were there: the test shows nothing"
((kept > 2000000)) || fail "20 rounds' updates take only $kept bytes: the test shows nothing"
has 'updates kept: .*B$' "$run.status" || fail "status: $(cat "$run.status")"
free=$kept

port=$((port + 2))
absence capped --blobs-max 1M
[[ $cap == 1000000 ]] || fail "cap_bytes is $cap"
((dropped > 0)) || fail "nothing was dropped"
((kept <= most && on_disk <= most)) || fail "updates take $kept bytes, $on_disk on disk, of at most 1 MB"
((snapshots >= 1)) || fail "c came back without a snapshot: $(tail -n 5 "$run.c.log")"
has 'updates of [0-9]* rounds (.*) were dropped for --blobs-max 1.00 MB' "$run.a.log" || fail "no warning: $(tail -n 5 "$run.a.log")"
has 'updates kept: .* of at most 1.00 MB; [1-9][0-9]* rounds were dropped' "$run.status" || fail "status: $(cat "$run.status")"
echo "back after 20 rounds: from updates ($free bytes), and with --blobs-max 1M ($kept bytes, $dropped rounds dropped) from $snapshots snapshot(s)"
