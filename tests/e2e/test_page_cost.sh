#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The cost of one viewer of the page and of one scrape, in processor time of the agent's threads
# (/proc). Other load on the machine changes these figures by less than half (caches,
# hyper-threads). The viewer opens a TLS connection for each look, which costs more than a browser's
# connection.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
command -v curl >/dev/null || skip "curl is not installed"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
# A full curve for each cluster: 400 points.
sed -i 's/^steps: 60/log_every: 1\nsteps: 400/' "$T/job.yaml"
pair
(umask 077; openssl rand -hex 32 >"$T/token")
"$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" --page "0.0.0.0:$page" \
    --page-token "$T/token" >>"$T/a.log" 2>&1 &
pid[a]=$!
"$nebula" agent --home "$T/b" --page $((page + 1)) >>"$T/b.log" 2>&1 & pid[b]=$!
wait_for 30 "the link" says a '.peers[0].up'
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" \
    --set data.corpus="$T/corpus" >"$T/run.log" 2>&1 || fail "the run failed"
view() {
    curl -sf -m 20 -k -H "Authorization: Bearer $(cat "$T/token")" \
        "https://127.0.0.1:$page/api/v1/history" "https://127.0.0.1:$page/api/v1/status"
}
has_curves() { view | jq -s -e '.[0].jobs[0].clusters | length == 2 and all(.t | length > 150)'; }
wait_for 20 "full curves" has_curves

# cpu_ns a|b: the processor time of all threads of this agent.
cpu_ns() { awk '{ ns += $1 } END { printf "%.0f\n", ns }' /proc/"${pid[$1]}"/task/*/schedstat; }
sleep 11 # the page counts as watched for 10 s after a look
SPAN=${SPAN:-10}
quiet=$(cpu_ns a); sleep "$SPAN"; quiet=$(($(cpu_ns a) - quiet))
end=$((SECONDS + SPAN)) looks=0 watched=$(cpu_ns a) begin=$(date +%s%N)
while ((SECONDS < end)); do
    view >/dev/null || fail "a look at the page failed"
    looks=$((looks + 1))
    sleep 2
done
watched=$(($(cpu_ns a) - watched)) span=$(($(date +%s%N) - begin))
share() { awk -v ns="$1" -v s="$2" 'BEGIN { printf "%.3f\n", 100 * ns / s }'; }
without=$(share "$quiet" $((SPAN * 1000000000))) with=$(share "$watched" "$span")
echo "agent: $without % of a core without a viewer, $with % with one ($looks looks in $SPAN s)"
awk -v a="$without" -v b="$with" 'BEGIN { exit !(b - a < 2.0) }' ||
    fail "a viewer costs $without to $with % of a core, more than 2 %"

# Scrapes over one connection, as Prometheus does them.
cat >"$T/scrape.py" <<'PY'
import http.client, statistics, sys, time
c, times = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20), []
for _ in range(50):
    start = time.perf_counter()
    c.request("GET", "/metrics")
    r = c.getresponse()
    assert r.status == 200 and b"nebula_cluster_loss_nats" in r.read()
    times.append(time.perf_counter() - start)
print(f"{1e3 * statistics.median(times):.3f}")
PY
before=$(cpu_ns b) begin=$(date +%s%N)
for look in 1 2 3; do
    timeout 600 python3 "$T/scrape.py" $((page + 1)) >"$T/median.$look" || fail "the scrapes failed"
done
median=$(sort -g "$T"/median.* | sed -n 1p)
span=$(($(date +%s%N) - begin))
each=$(awk -v ns=$(($(cpu_ns b) - before)) 'BEGIN { printf "%.3f\n", ns / 150 / 1e6 }')
echo "scrape: median $median ms, $each ms of processor time ($((span / 1000000)) ms for 150)"
awk -v x="$each" 'BEGIN { exit !(x < 5) }' || fail "a scrape takes $each ms of processor time"
