#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The leader has a slow disk. To write an update, to store one that has arrived, or to read one for
# its worker takes longer than the others wait for a message. Meanwhile its heartbeats go on. So no
# link goes down, no agent believes that it is dead or becomes leader, and every round contains its
# update.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml" "grace_s: 60, commit_all: false"
sed -i -e 's/d_model: 64/d_model: 384/; s/d_ff: 128/d_ff: 768/; s/codec: int4/codec: fp32/;
    s/steps: 60/steps: 20/' "$T/job.yaml"
light "$T/job.yaml"
clusters "$T/job.yaml" a b c
# The steps last long enough for all agents to be linked before the first update.
NEBULA_FAULT=worker.step:+300,service.submit@a:+5500,service.finish@a:+5500,ipc.copy@a:+900 \
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 3 --out "$T/run" >"$T/run.log" 2>&1 ||
    fail "the run failed"
digests_equal "$T/run"
round_digests_equal "$T/run"
(($(summary '.rounds' "$T/run") >= 2)) || fail "only $(summary '.rounds' "$T/run") rounds were made"
bytes=$(stat -c %s "$(find "$T/run/clusters" -path '*/blobs/*.blob' | head -n 1)")
((bytes > 2 * (4 << 20))) || fail "updates of $bytes bytes are too small to be copied in pieces"
# Only lines before the first agent's end count, because the agents do not end at the same time.
first_done=$(sed -n 's/^\([^ ]*\) .*: done$/\1/p' "$T"/run/clusters/*/agent.log | sort | head -n 1)
apart=$(awk -v end="$first_done" '$1 < end && /is down|rounds wait for|left out/' \
    "$T"/run/clusters/*/agent.log)
[[ $first_done && ! $apart ]] || fail "a link went down, or an agent was taken for dead: $apart"
few=$(jq -R -s '[split("\n")[] | fromjson? | select(.kind == "round" and .updates != 3)] | length' \
    "$T/run/metrics.jsonl")
[[ $few == 0 ]] ||
    fail "$few rounds lack an update: $(grep '"kind": *"round"' "$T/run/metrics.jsonl")"
awk "BEGIN { exit !($(summary '.wall_s' "$T/run") >= 2 * (3 * 5.5 + 3 * 3 * 0.9)) }" ||
    fail "the disk was not slow: $(summary '.wall_s' "$T/run") s"
echo "rounds over a slow disk: no link down, nobody left out"
