#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Operating an agent: status page and metrics by curl, jobs, logs, stop and resume. After SIGTERM
# the agent saves a checkpoint, tells the others, and exits with status 3. The restarted agent
# continues the job, and both clusters end with equal parameters.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
command -v curl >/dev/null || skip "curl is not installed"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
pace 20
pair
start_alpha; start_beta
wait_for 30 "the link" says a '.peers[0].up'
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" --set steps=400 \
    --set hang_after_s=600 --set data.corpus="$T/corpus" >"$T/run.log" 2>&1 &
pid[run]=$!
wait_for 60 "the first rounds" says a '.jobs[0].clusters | length == 2 and all(.round > 2)'
# The workers wait, so that the job is still in its middle after the checks.
worker_at() { pgrep -f "^[^ ]*nebula worker $T/$1/"; } # HOME
workers=("$(worker_at a)" "$(worker_at b)")
kill -STOP "${workers[@]}"

url=http://127.0.0.1:$page
get() { curl -sf -m 10 "$url$1"; }
code() { curl -s -m 10 -o /dev/null -w '%{http_code}' "$@"; }
get /api/v1/history >/dev/null || fail "cannot read /api/v1/history"
has_curve() {
    get /api/v1/history | jq -e '.version == 1 and
        (.jobs[0].clusters | length == 2 and all(.loss | length > 3))'
}
wait_for 20 "curves" has_curve
get /api/v1/status | jq -e '.name == "alpha" and .jobs[0].clusters[0].codec == "int4" and
    (.jobs[0].clusters | all(.device | test("^(cpu|cuda)"))) and
    .faults.diverged == 0' >/dev/null || fail "wrong status: $(get /api/v1/status)"
get / | has '<title>Nebula' || fail "the page has no title"
curl -sI -X GET "$url/" | has -i "^content-security-policy: default-src 'none'" ||
    fail "the page has no Content-Security-Policy"
[[ $(code "$url/nothing") == 404 && $(code -X POST "$url/") == 405 &&
    $(code "$url/../../etc/passwd") == 404 ]] || fail "wrong answers to unknown paths and methods"
[[ $(code -H 'Host: evil.example' "$url/api/v1/status") == 403 ]] ||
    fail "a request with a foreign Host was answered"
head -c 20000 /dev/zero | tr '\0' x >"$T/long"
[[ $(code -H "X-Long: $(cat "$T/long")" "$url/") != 200 ]] || fail "a request of 20 KB was answered"
get /metrics >"$T/metrics" || fail "cannot read /metrics"
grep -q '^nebula_peer_up{peer="beta"} 1$' "$T/metrics" ||
    fail "metrics lack the link to beta: $(cat "$T/metrics")"
# Every report says what runs, as --version does.
build=$("$nebula" --version --json)
commit=$(jq -r .commit <<<"$build")
get /api/v1/status | jq -e --argjson b "$build" '.about == $b' >/dev/null ||
    fail "the status has another build: $(get /api/v1/status | jq -c .about)"
grep -q "^nebula_agent_info{agent=\"alpha\",.*commit=\"$commit\".*isa=\"" "$T/metrics" ||
    fail "metrics lack the build: $(grep agent_info "$T/metrics")"
"$nebula" status --home "$T/a" | has -F "($commit)" || fail "nebula status lacks the build"
"$nebula" doctor --home "$T/a" >"$T/doctor" || true
has "^ok *build .*($commit)" "$T/doctor" || fail "nebula doctor lacks the build"
for cluster in alpha beta; do
    labels="job_id=\"[0-9a-f]*\",cluster=\"$cluster\",codec=\"int4\""
    grep -q "^nebula_cluster_codec_info{$labels} 1$" "$T/metrics" ||
        fail "metrics lack the codec of $cluster: $(cat "$T/metrics")"
    grep -q "^nebula_cluster_interval_steps{.*cluster=\"$cluster\"} [1-9]" "$T/metrics" ||
        fail "metrics lack H of $cluster: $(cat "$T/metrics")"
done
if command -v promtool >/dev/null; then
    promtool check metrics <"$T/metrics" >"$T/prom.log" 2>&1 ||
        fail "promtool rejects the metrics: $(cat "$T/prom.log")"
fi
for ((i = 0; i < 20; i++)); do
    curl -s -o /dev/null -w '%{time_total}\n' "$url/metrics"
done | sort -n | sed -n 10p >"$T/scrape"
echo "median scrape: $(cat "$T/scrape") s"

id=$("$nebula" jobs --home "$T/a" --json | jq -r '.[0].id')
"$nebula" jobs --home "$T/b" | has "^${id:0:16} .*running *alpha" ||
    fail "wrong list of jobs: $("$nebula" jobs --home "$T/b")"
"$nebula" logs --home "$T/a" "${id:0:8}" >/dev/null || fail "nebula logs failed"
if "$nebula" logs --home "$T/a" ../../etc 2>"$T/err"; then fail "nebula logs accepted a path"; fi
if "$nebula" resume --home "$T/a" "${id:0:8}" 2>"$T/err"; then fail "a running job was resumed"; fi

# In the middle of the job, beta's agent and its worker both get SIGTERM, because Slurm signals
# every process of a cancelled allocation.
step=$("$nebula" status --home "$T/b" --json | jq '.jobs[0].step')
kill -TERM "${workers[1]}" "${pid[b]}"
kill -CONT "${workers[@]}"
st=0; wait "${pid[b]}" || st=$?
unset 'pid[b]'
[[ $st == 3 ]] || fail "the agent's exit status after SIGTERM with a job is $st, not 3"
compgen -G "$T/b/jobs/$id/checkpoint/*" >/dev/null || fail "there is no checkpoint"
kill -0 "${pid[run]}" || fail "the run ended with one of its clusters"
start_beta
wait_for 60 "beta's return" says b ".jobs[0] | .state != \"suspended\" and .step >= $step"
st=0; wait "${pid[run]}" || st=$?
unset 'pid[run]'
[[ $st == 0 ]] || fail "the run failed"
digests_equal "$T/run"
[[ $(summary .build.commit "$T/run") == "$commit" ]] || fail "summary.json lacks the build"
[[ $(summary '[.clusters[].steps] | unique | tostring' "$T/run") == '[400]' ]] ||
    fail "wrong number of steps: $(summary .clusters "$T/run")"

# An agent without a job ends with status 0.
kill -TERM "${pid[b]}"
st=0; wait "${pid[b]}" || st=$?
unset 'pid[b]'
[[ $st == 0 ]] || fail "the exit status of an idle agent is $st"

# A page beyond loopback without a token is refused (more in test_page_tls.sh). With a token, only
# requests with this token are answered.
if timeout 20 "$nebula" agent --home "$T/b" --page "0.0.0.0:$((port + 2))" 2>"$T/err"; then
    fail "a page without a token was accepted"
fi
grep -q 'needs --page-token' "$T/err" || fail "the reason is missing: $(cat "$T/err")"
(umask 077; openssl rand -hex 32 >"$T/token")
"$nebula" agent --home "$T/b" --page $((port + 2)) --page-token "$T/token" >>"$T/b.log" 2>&1 &
pid[b]=$!
safe=http://127.0.0.1:$((port + 2))
answers() { [[ $(code "$safe/") == 200 ]]; }
wait_for 20 "the page" answers
[[ $(code "$safe/api/v1/status") == 401 && $(code "$safe/metrics") == 401 ]] ||
    fail "data was sent without a token"
[[ $(code -H "Authorization: Bearer wrong" "$safe/metrics") == 401 ]] ||
    fail "data was sent for a wrong token"
with_token() { [[ $(code -H "Authorization: Bearer $(cat "$T/token")" "$safe/metrics") == 200 ]]; }
wait_for 30 "metrics for the token" with_token
echo "page, metrics, jobs, logs; SIGTERM at step $step: checkpoint, leave, return; token"
