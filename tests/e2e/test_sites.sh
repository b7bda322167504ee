#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two agents as on two real sites: keys by `nebula id`, trust by `nebula peer add`, a job submitted
# to one of them, and the status. A stranger, whose key nobody added, is refused, logged once, and
# learns nothing.
. "$(dirname "$0")/lib.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
make_job "$T/job.yaml"
port=$(ten_ports)
pids=()
stop_agents() {
    for p in "${pids[@]}"; do
        kill "$p" 2>/dev/null || true
    done
    wait 2>/dev/null || true
}
clean_up() { stop_agents; }

a=$("$nebula" id --home "$T/a" --name alpha) || fail "nebula id failed"
b=$("$nebula" id --home "$T/b" --name beta) || fail "nebula id failed"
"$nebula" id --home "$T/x" --name mallory >/dev/null || fail "nebula id failed"
[[ $a == nebid1:alpha:* && $b == nebid1:beta:* ]] || fail "wrong identity line: $a"
[[ $("$nebula" id --home "$T/a") == "$a" ]] || fail "a second call made another identity"
[[ $(stat -c %a "$T/a/keys/sign.key") == 600 ]] || fail "the key file does not have mode 0600"
"$nebula" peer add "$b" - --home "$T/a" >/dev/null || fail "peer add failed"
"$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/b" >/dev/null || fail "peer add failed"
# Mallory knows alpha, but alpha does not know mallory.
"$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/x" >/dev/null || fail "peer add failed"
"$nebula" peer add "$b" - --home "$T/x" >/dev/null || fail "peer add failed"

"$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" >"$T/a.log" 2>&1 & pids+=($!)
"$nebula" agent --home "$T/b" >"$T/b.log" 2>&1 & pids+=($!)
"$nebula" agent --home "$T/x" >"$T/x.log" 2>&1 & pids+=($!)
within 20 link_up a beta || fail "there is no link"
"$nebula" status --home "$T/a" | has 'link: up' ||
    fail "wrong status: $("$nebula" status --home "$T/a")"

timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" \
    --set data.corpus="$T/corpus" >"$T/run.log" 2>&1 || fail "the run failed"
digests_equal "$T/run"
round_digests_equal "$T/run"
# After a worker's report its process may take a moment to end. Only then has the job ended.
b_job() { "$nebula" status --home "$T/b" --json | jq -r '.jobs[0] | "\(.state) at \(.step)"'; }
b_ended() { [[ $(b_job) == "ended at 60" ]]; }
within 30 b_ended || fail "beta's job is $(b_job), not ended at 60"

# The measured rate and round trip of the link, for a plan and for `auto` keys, without sync.link.
# The test reads the values twice. They may change in between, so it tries three times.
same_link() {
    link=$("$nebula" plan "$T/job.yaml" --home "$T/a" --set data.corpus="$T/corpus" \
        --json 2>"$T/plan.log" | jq -c .link) || fail "plan: $(cat "$T/plan.log")"
    "$nebula" status --home "$T/a" --json |
        jq -e --argjson l "$link" '.peers[0] as $p | $l.measured and ($l.assumed | not) and
        ($l.bits_per_s / $p.goodput_bps - 1 | fabs) < 1e-6 and
        ($l.rtt_s * 1e3 - $p.rtt_ms | fabs) < 0.5 * $p.rtt_ms' >/dev/null
}
same_link || same_link || same_link ||
    fail "plan has the link $link, the agent: $("$nebula" status --home "$T/a" --json |
        jq -c '.peers[0]')"
"$nebula" plan "$T/job.yaml" --home "$T/x" --set data.corpus="$T/corpus" --json 2>"$T/plan.log" |
    jq -e '.link | .assumed and (.measured | not)' >/dev/null ||
    fail "plan uses measured links for mallory: $(cat "$T/plan.log")"
sed 's/interval: 10/interval: auto/' "$T/job.yaml" >"$T/auto.yaml"
timeout 600 "$nebula" pretrain "$T/auto.yaml" --home "$T/a" --out "$T/auto" \
    --set data.corpus="$T/corpus" >"$T/auto.log" 2>&1 || fail "the run with an auto key failed"
grep -q 'the agent has measured the links' "$T/auto.log" ||
    fail "the log does not mention the measured links: $(cat "$T/auto.log")"
# The second job does not remove the first one: a cluster that was away may still ask for its last
# rounds.
for c in a b; do
    "$nebula" status --home "$T/$c" --json | jq -e '.jobs | length == 2' >/dev/null ||
        fail "the first job is gone at $c"
done

within 30 has -i 'refused' "$T/a.log" || fail "alpha's log does not mention the stranger"
sleep 3 # by now mallory has tried several times
refusals=$(grep -ci 'refused' "$T/a.log" || true)
[[ $refusals == 1 ]] ||
    fail "there are $refusals log lines about the stranger, not one: $(cat "$T/a.log")"
"$nebula" status --home "$T/x" --json | jq -e '.peers[0].up == false' >/dev/null ||
    fail "mallory has a link"
text='no link with beta is possible: this agent accepts no connections (no --listen)'
grep -q "$text" "$T/x.log" ||
    fail "no message about two agents that only dial: $(cat "$T/x.log")"
! grep -q 'no link with' "$T/a.log" "$T/b.log" || fail "a link that is up is reported as impossible"
"$nebula" status --home "$T/x" | has 'link: not up since this agent started' ||
    fail "wrong status of a link that never was up: $("$nebula" status --home "$T/x")"

# A job that names an unknown cluster is refused with a reason.
sed 's/name: beta/name: gamma/' "$T/job.yaml" >"$T/other.yaml"
rc=0
timeout 600 "$nebula" pretrain "$T/other.yaml" --home "$T/a" \
    --out "$T/other" >"$T/other.log" 2>&1 || rc=$?
[[ $rc == 1 ]] || fail "the exit status for a job with an unknown cluster is $rc, not 1"
grep -q 'cluster "gamma" is not a member' "$T/other.log" ||
    fail "the reason is missing: $(cat "$T/other.log")"
echo "two sites paired by hand train together; a stranger stays out"
