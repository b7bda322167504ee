#!/usr/bin/env bash
# Agents that take longer than the others wait for a word: to write an update to disk, to have one that has arrived on disk, to read what the
# worker is given. They say meanwhile that they are there, no link goes down, nobody is taken for dead, and rounds
# are agreed on.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i -e 's/d_model: 64/d_model: 384/; s/d_ff: 128/d_ff: 768/; s/codec: int4/codec: fp32/; s/steps: 60/steps: 20/' "$T/job.yaml"
NEBULA_FAULT=service.submit:+5500,service.finish:+5500,ipc.copy:+1000 timeout 170 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/run" >"$T/run.log" 2>&1 ||
    fail "the run: $(tail -n 5 "$T/run.log")"
digests_equal "$T/run"
round_digests_equal "$T/run"
(($(summary '.rounds' "$T/run") >= 2)) || fail "rounds: $(summary '.rounds' "$T/run")"
bytes=$(stat -c %s "$(find "$T/run/clusters" -path '*/blobs/*.blob' | head -n 1)")
((bytes > 2 * (4 << 20))) || fail "the updates of $bytes bytes are too small to be copied in pieces"
awk "BEGIN { exit !($(summary '.wall_s' "$T/run") >= 2 * (5.5 + 5.5 + 2 * 3)) }" || fail "the disks were not slow: $(summary '.wall_s' "$T/run") s"
for log in "$T"/run/clusters/*/agent.log; do # before the end: one agent ends before the other
    ! sed '/: done$/,$d' "$log" | has 'is down\|rounds wait for' || fail "a link went down, or an agent was taken for dead: $(grep -h 'is down\|rounds wait' "$log")"
done
echo "two rounds over disks that take five seconds and more for all that is done with an update, no link down"
