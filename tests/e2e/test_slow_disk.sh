#!/usr/bin/env bash
# Agents that take longer to write an update to disk than the others wait for a word: they say meanwhile that they are there, no link goes
# down, and rounds are agreed on.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/d_model: 64/d_model: 256/; s/d_ff: 128/d_ff: 512/; s/codec: int4/codec: bf16/; s/steps: 60/steps: 30/' "$T/job.yaml"
NEBULA_FAULT=service.submit:+6000 timeout 120 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/run" >"$T/run.log" 2>&1 || fail "the run: $(tail -n 5 "$T/run.log")"
digests_equal "$T/run"
round_digests_equal "$T/run"
(($(summary '.rounds' "$T/run") >= 3)) || fail "rounds: $(summary '.rounds' "$T/run")"
(($(stat -c %s "$(find "$T/run/clusters" -path '*/blobs/*' | head -n 1)") > 1 << 20)) || fail "the updates are too small to take a thread"
awk "BEGIN { exit !($(summary '.wall_s' "$T/run") >= 18) }" || fail "the disks were not slow: $(summary '.wall_s' "$T/run") s"
for log in "$T"/run/clusters/*/agent.log; do # before the end: one agent ends before the other
    ! sed '/: done$/,$d' "$log" | has 'is down' || fail "a link went down: $(grep -h 'is down' "$log")"
done
echo "three rounds over disks of six seconds an update, no link down"
