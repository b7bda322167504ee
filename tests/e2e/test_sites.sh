#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two agents as on two real sites: keys by `nebula id`, trust by `nebula peer add`, a job submitted to one of them, status
# as `wg show`, and a stranger whose key nobody added: refused, logged once, told nothing.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml"
port=$(ten_ports)
pids=()
stop_agents() { for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done; wait 2>/dev/null || true; }
clean_up() { stop_agents; }

a=$("$nebula" id --home "$T/a" --name alpha) || fail "nebula id"
b=$("$nebula" id --home "$T/b" --name beta) || fail "nebula id"
"$nebula" id --home "$T/x" --name mallory >/dev/null || fail "nebula id"
[[ $a == nebid1:alpha:* && $b == nebid1:beta:* ]] || fail "identity line: $a"
[[ $("$nebula" id --home "$T/a") == "$a" ]] || fail "a second call made another identity"
[[ $(stat -c %a "$T/a/keys/sign.key") == 600 ]] || fail "key file is not 0600"
"$nebula" peer add "$b" - --home "$T/a" >/dev/null || fail "peer add"
"$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/b" >/dev/null || fail "peer add"
"$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/x" >/dev/null || fail "peer add"   # mallory knows alpha; alpha not mallory
"$nebula" peer add "$b" - --home "$T/x" >/dev/null || fail "peer add"

"$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" >"$T/a.log" 2>&1 & pids+=($!)
"$nebula" agent --home "$T/b" >"$T/b.log" 2>&1 & pids+=($!)
"$nebula" agent --home "$T/x" >"$T/x.log" 2>&1 & pids+=($!)
for ((i = 0; i < 100; i++)); do
    "$nebula" status --home "$T/a" --json 2>/dev/null | jq -e '.peers[0].up' >/dev/null 2>&1 && break
    sleep 0.1
done
((i < 100)) || fail "no link: $(tail -n 3 "$T/a.log" "$T/b.log")"
"$nebula" status --home "$T/a" | has 'link: up' || fail "status: $("$nebula" status --home "$T/a")"

timeout 120 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" --set data.corpus="$T/corpus" >"$T/run.log" 2>&1 || fail "run: $(tail -n 3 "$T/run.log")"
digests_equal "$T/run"
round_digests_equal "$T/run"
# A report is a worker's last word but one: its process may take a moment to end, and only then the job has.
b_job() { "$nebula" status --home "$T/b" --json | jq -r '.jobs[0] | "\(.state) at \(.step)"'; }
for ((i = 0; i < 300; i++)); do [[ $(b_job) == "ended at 60" ]] && break; sleep 0.1; done
((i < 300)) || fail "beta's status: $(b_job)"

# What the link carried and how long its round trip is, for a plan and for keys that say auto, without sync.link.
# They are read twice, and may move between.
same_link() {
    link=$("$nebula" plan "$T/job.yaml" --home "$T/a" --set data.corpus="$T/corpus" --json 2>"$T/plan.log" | jq -c .link) || fail "plan: $(cat "$T/plan.log")"
    "$nebula" status --home "$T/a" --json | jq -e --argjson l "$link" '.peers[0] as $p | $l.measured and ($l.assumed | not) and ($l.bits_per_s / $p.goodput_bps - 1 | fabs) < 1e-6 and ($l.rtt_s * 1e3 - $p.rtt_ms | fabs) < 0.5 * $p.rtt_ms' >/dev/null
}
same_link || same_link || same_link ||
    fail "plan has $link of: $("$nebula" status --home "$T/a" --json | jq -c '.peers[0]')"
"$nebula" plan "$T/job.yaml" --home "$T/x" --set data.corpus="$T/corpus" --json 2>"$T/plan.log" | jq -e '.link | .assumed and (.measured | not)' >/dev/null || fail "mallory has measured links: $(cat "$T/plan.log")"
sed 's/interval: 10/interval: auto/' "$T/job.yaml" >"$T/auto.yaml"
timeout 120 "$nebula" pretrain "$T/auto.yaml" --home "$T/a" --out "$T/auto" --set data.corpus="$T/corpus" >"$T/auto.log" 2>&1 || fail "auto: $(tail -n 3 "$T/auto.log")"
grep -q 'the agent has measured the links' "$T/auto.log" || fail "auto, and not a word of the link: $(cat "$T/auto.log")"
# The first one has not made room for it: who was away may still ask for its last rounds.
for c in a b; do "$nebula" status --home "$T/$c" --json | jq -e '.jobs | length == 2' >/dev/null || fail "a job that has ended is gone at $c"; done

sleep 3 # mallory has tried several times by now
refusals=$(grep -ci 'refused' "$T/a.log" || true)
[[ $refusals == 1 ]] || fail "$refusals log lines about the stranger, one is right: $(cat "$T/a.log")"
"$nebula" status --home "$T/x" --json | jq -e '.peers[0].up == false' >/dev/null || fail "mallory got in"
grep -q 'no link with beta is possible: this agent takes no connections (no --listen)' "$T/x.log" || fail "two that only dial: $(cat "$T/x.log")"
! grep -q 'no link with' "$T/a.log" "$T/b.log" || fail "a link is up that is said to be impossible"
"$nebula" status --home "$T/x" | has 'link: not up since this agent started' || fail "a link that never was: $("$nebula" status --home "$T/x")"

# A job that names a cluster nobody knows is refused with a reason.
sed 's/name: beta/name: gamma/' "$T/job.yaml" >"$T/other.yaml"
rc=0; timeout 60 "$nebula" pretrain "$T/other.yaml" --home "$T/a" --out "$T/other" >"$T/other.log" 2>&1 || rc=$?
[[ $rc == 1 ]] || fail "exit status $rc for a job of strangers, not 1"
grep -q 'cluster "gamma" is no member' "$T/other.log" || fail "no reason: $(cat "$T/other.log")"
echo "two sites paired by hand train together; a stranger stays out"
