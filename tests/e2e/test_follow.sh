#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula pretrain follows a job at an agent of its own, as under systemd. The agent is killed, and
# later restarted in order. Each time the command reconnects to the job and reports the wait. It
# ends with all reports, also with one of the other cluster that it missed. A cluster that has made
# all its steps waits. It must not report that a peer that has just returned sends nothing.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
make_corpus
sed -i 's/per_mille: 60/per_mille: 800/' "$T/spec.yaml" # makes the evaluation take a while
"$nebula" data build "$T/spec.yaml" --out "$T/much" >"$T/data.log" 2>&1 || fail "data build failed"
make_job "$T/job.yaml"
sed -i "s/steps: 60/steps: 400/; s/windows: 16/windows: 0/; s,$T/corpus,$T/much," "$T/job.yaml"
pair
pace 25
start_alpha
start_beta
wait_for 20 "the link" says a '.peers[0].up'

timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 &
command=$!
wait_step "$T/run" 60 "$command" alpha || fail "alpha did not reach step 60"
kill -KILL "${pid[a]}" && wait "${pid[a]}" 2>/dev/null || true
within 40 has 'does not answer' "$T/run.log" ||
    fail "the command does not report that the agent does not answer"
start_alpha
wait_step "$T/run" 150 "$command" alpha || fail "the command does not follow again after a crash"
has 'answers again' "$T/run.log" || fail "the command does not report that the agent answers again"
kill -TERM "${pid[a]}" && wait "${pid[a]}" 2>/dev/null || true
start_alpha
wait_step "$T/run" 250 "$command" alpha || fail "the command does not follow again after a restart"

# The command is stopped. Meanwhile the agent is killed and restarted once more, and beta ends and
# reports. The command misses that report.
kill -STOP "$(pgrep -P "$command")"
kill -KILL "${pid[a]}" && wait "${pid[a]}" 2>/dev/null || true
start_alpha
merged() {
    says a '.jobs[0].clusters[] | select(.name == "alpha" and .step == 400 and .round >= 39)'
}
end=$((SECONDS + 60))
until merged; do
    ((SECONDS < end)) || fail "alpha does not end: $("$nebula" status --home "$T/a")"
done
worker=$(pgrep -f "nebula worker .*$T/a/" | head -n 1 || true)
# Stops alpha in its last evaluation.
[[ $worker ]] && kill -STOP "$worker" ||
    fail "alpha's last evaluation ended before this script could stop it"
wait_for 60 "beta's report" says b '.jobs[0].state == "ended"'
sleep 1 # the report crosses the link
says a '.jobs[0].state == "running"' ||
    fail "alpha was not stopped: $("$nebula" status --home "$T/a")"
kill -CONT "$(pgrep -P "$command")"
sleep 1
kill -CONT "$worker"
wait "$command" || fail "reports that came while the command was stopped are missing"
[[ $(summary '.clusters | length' "$T/run") == 2 ]] ||
    fail "clusters are missing: $(cat "$T/run/summary.json")"
digests_equal "$T/run"
round_digests_equal "$T/run"

sed 's/steps: 400/steps: 100/; s/momentum: 0.6}/&, grace_s: 2/' "$T/job.yaml" >"$T/back.yaml"
timeout 600 "$nebula" pretrain "$T/back.yaml" --home "$T/a" --out "$T/back" >"$T/back.log" 2>&1 &
command=$!
wait_step "$T/back" 20 "$command" alpha || fail "alpha did not reach step 20"
kill -TERM "${pid[a]}" && wait "${pid[a]}" 2>/dev/null || true
wait_for 60 "all of beta's steps" says b '.jobs[] | select(.state == "running") | .clusters[] |
    select(.name == "beta" and .step == 100)'
sleep 3 # longer than grace_s
start_alpha
wait "$command" || fail "the run whose agent was away failed"
# Agents log whole seconds. Finds the last start of the link, then the first complaint after it.
awk '/link to alpha is up/ {up = $1} /has sent none/ {if (up) print up, $1}' "$T/b.log" |
    while read -r up said; do
        (($(date -d "$said" +%s) - $(date -d "$up" +%s) >= 2)) || exit 1
    done || fail "beta reports that alpha sends nothing, although alpha is just back: $(grep -E \
        'link to|has sent none' "$T/b.log")"
echo "a command follows its job over a killed and restarted agent, and gets the missed reports"
