#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The site of one cluster dies before its report, after the other cluster has ended. pretrain ends
# within --report-within with what it has, names the missing cluster, and exits with status 4. Once
# the site is back, the same command with --resume gets its report.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
make_corpus
make_job "$T/job.yaml"
light "$T/job.yaml"
pair
slow_beta() {
    NEBULA_FAULT=fs.write:+2500 "$nebula" agent --home "$T/b" >>"$T/b.log" 2>&1 &
    pid[b]=$!
}
start_alpha
slow_beta # writing its last checkpoint takes seconds
within 20 link_up a beta || fail "alpha has no link to beta"
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" \
    --set checkpoint.every_steps=1000 --steps 20 --report-within 4 >"$T/run.log" 2>&1 &
run=$!
ended() { [[ $("$nebula" jobs --home "$T/a" --json 2>/dev/null | jq -r '.[0].state') == 'done' ]]; }
within 60 ended || fail "alpha does not end"
kill -KILL "${pid[b]}"
wait "${pid[b]}" || true
SECONDS=0 rc=0
wait "$run" || rc=$?
[[ $rc == 4 ]] || fail "the exit status after $SECONDS s is $rc, not 4"
((SECONDS < 120)) || fail "the command took $SECONDS s"
has 'beta has not reported, and its agent could not be reached for 4 s' "$T/run.log" ||
    fail "the missing cluster is not named: $(cat "$T/run.log")"
jq -e '.missing == ["beta"] and (.clusters | length) == 1 and .clusters[0].steps == 20' \
    "$T/run/summary.json" >/dev/null || fail "the summary is wrong: $(cat "$T/run/summary.json")"
[[ -s $T/run/checkpoint/model.ckpt ]] || fail "the model of the finished cluster is missing"

start_beta
within 20 link_up a beta || fail "alpha has no link to beta"
rc=0
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" \
    --set checkpoint.every_steps=1000 --steps 20 --resume >"$T/again.log" 2>&1 || rc=$?
[[ $rc == 0 ]] || fail "the second command ended with status $rc"
jq -e '(has("missing") | not) and (.clusters | length) == 2' "$T/run/summary.json" >/dev/null ||
    fail "the summary is wrong: $(cat "$T/run/summary.json")"
echo "dead cluster: the run ends with what it has, and names the missing cluster"
