#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two builds of nebula with different protocols: there is no link, and nothing waits silently. Both
# agents name the two protocols and builds in the log (once), in status and in doctor. A job that
# waits for the other site reports this too. A worker of another build than its agent is refused
# with both versions.
source "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
source "$(dirname "$0")/sites.sh"
pair
NEBULA_FAULT=link.protocol@alpha:* start_alpha
start_beta
wait_for 30 "alpha knows" says a '.peers[0].protocol_differs'
wait_for 30 "beta knows" says b '.peers[0].protocol_differs'
build=$("$nebula" --version | head -n 1)
ours=$("$nebula" status --home "$T/b" --json | jq .protocol)
for s in a b; do
    [[ $s == a ]] && here=$((ours + 1)) there=$ours || here=$ours there=$((ours + 1))
    says "$s" ".protocol == $here and .peers[0].protocol == $there and (.peers[0].up | not)" ||
        fail "wrong status of $s: $("$nebula" status --home "$T/$s" --json)"
    "$nebula" status --home "$T/$s" |
        has "CUT: it speaks protocol $there ($build), this agent protocol $here ($build)" ||
        fail "wrong status of $s: $("$nebula" status --home "$T/$s")"
    "$nebula" doctor --home "$T/$s" >"$T/doctor" || true
    has "FAIL.*the link is cut: it speaks protocol $there (.*the agent here protocol $here" \
        <"$T/doctor" || fail "wrong output of doctor for $s: $(cat "$T/doctor")"
done
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/out" >"$T/run.log" 2>&1 &
run=$!
told() { has "it speaks protocol $ours" "$T/run.log"; }
within 30 told || fail "the job waits without a message: $(cat "$T/run.log")"
kill -INT "$run"
wait "$run" || true
for s in a b; do
    (($(grep -c 'cut: it speaks protocol' "$T/$s.log") == 1)) ||
        fail "the message does not come exactly once: $(grep 'cut:' "$T/$s.log")"
done
stop_agents

# A worker of another build than its agent.
NEBULA_FAULT=ipc.protocol@beta:* timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
    --out "$T/local" >"$T/local.log" 2>&1 &
run=$!
refused() {
    local text="the worker is $build and speaks protocol $((ours + 1)), "
    text+="the agent is $build and speaks protocol $ours"
    has "$text" "$T/local/clusters/beta/agent.log"
}
within 40 refused || fail "the agent accepts a worker of another build: $(cat "$T/local.log")"
kill -INT "$run"
wait "$run" || true
echo "versions: no link between two protocols, and both ends report it"
