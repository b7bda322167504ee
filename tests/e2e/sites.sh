# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Two agents, alpha (with a status page) and beta, and functions that wait for their state. Source
# it after lib.sh.
port=$(ten_ports) page=$((port + 1))
declare -A pid
stop_agents() {
    for p in "${pid[@]}"; do
        kill -INT "$p" 2>/dev/null || true
    done
    wait 2>/dev/null || true
}
clean_up() { stop_agents; }
start_alpha() {
    "$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" --page "$page" "$@" >>"$T/a.log" 2>&1 &
    pid[a]=$!
}
start_beta() { "$nebula" agent --home "$T/b" >>"$T/b.log" 2>&1 & pid[b]=$!; }
pair() {
    local a b
    a=$("$nebula" id --home "$T/a" --name alpha 2>/dev/null) &&
        b=$("$nebula" id --home "$T/b" --name beta 2>/dev/null) || fail "nebula id failed"
    "$nebula" peer add "$b" - --home "$T/a" >/dev/null &&
        "$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/b" >/dev/null || fail "peer add failed"
}
# wait_for SECONDS WHAT COMMAND…: until the command succeeds.
wait_for() {
    local end=$((SECONDS + 4 * $1)) what=$2 # see within
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "no success in time: $what"
        sleep 0.4
    done
}
# says a|b FILTER: the agent's status matches the jq filter.
says() { "$nebula" status --home "$T/$1" --json 2>/dev/null | jq -e "$2" >/dev/null; }
