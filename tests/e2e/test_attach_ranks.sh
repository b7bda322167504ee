#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each rank of an attached loop has its own connection with the agent, here over TCP as on another
# host. A part of an update that is lost is sent again, and so are all after a restart of the agent.
# If no part arrives, all ranks end with one error; the loop comes back, and ends with the bits of a
# loop of one rank.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
make_corpus
pair
start_alpha --workers 127.0.0.1
start_beta
wait_for 20 "two linked agents" says a '[.peers[].up] == [true]'
job() { # NAME [groups] [steps between checkpoints]
    make_job "$T/$1.yaml"
    sed -i "s/steps: 60/steps: 40/; s/^model: .*/model: attached/; /^optim:/d; /^eval:/d; /^data:/d
        s/overlap: 0/overlap: 2/; s/fragments: 1/fragments: 2/
        s/every_steps: 20/every_steps: ${3:-20}/
        s/sources: [^]]*\], threads: 1/threads: 1, launcher: attach/" "$T/$1.yaml"
    printf 'init: equal\ngroups: [%s]\n' "${2:-}" >>"$T/$1.yaml"
    timeout 600 "$nebula" pretrain "$T/$1.yaml" --home "$T/a" --out "$T/$1" >"$T/$1.log" 2>&1 &
    run=$!
    NEBULA_JOB_FROM=alpha timeout 600 "$client" "$T/b" e2e -1 --mesh rows 2 --brief 0.25 \
        >"$T/$1-b.log" 2>&1 & b=$!
}
loop() { # NAME RANKS FAULTS
    NEBULA_FAULT=$3 timeout 600 "$client" "$T/a" e2e 1 --mesh rows "$2" --brief 0.25 \
        >"$T/$1-a.log" 2>&1 & a=$!
}
finish() { # NAME
    wait $a || fail "the loop of alpha failed: $(cat "$T/$1-a.log")"
    wait $b || fail "the loop of beta failed: $(cat "$T/$1-b.log")"
    wait $run || fail "the job $1 failed: $(tail -5 "$T/$1.log")"
    digests_equal "$T/$1"
    round_digests_equal "$T/$1"
    digest=$(summary '.clusters[0].params_digest' "$T/$1")
}

job one
loop one 1 ""
finish one
want=$digest

job far
loop far 3 'carrier.far:*,carrier.put:3,carrier.stray:1'
finish far
[[ $digest == "$want" ]] || fail "the digest differs from that of one rank"
for rank in 1 2; do
    grep -q "rank $rank runs on another host, 127.0.0.1" "$T/a.log" ||
        fail "rank $rank did not connect over TCP: $(tail -5 "$T/a.log")"
done
has 'a rank of a trainer made a request that a rank may not make' "$T/a.log" ||
    fail "a rank could ask the agent to stop the job"
line='rank 0 of the trainer sent N bytes of updates and got N; the other 2 ranks sent N and got N'
read -r own got others theirs < <(
    sed -nE "s/.*${line//N/([0-9]+)}.*/\1 \2 \3 \4/p" "$T/a.log" | tail -1)
((others > own && theirs > got && own > 0)) ||
    fail "rank 0 sent $own and got $got bytes, the others $others and $theirs"
echo "three ranks over TCP: rank 0 sent $own bytes of updates, the others $others"

# The norms are beta's: ranks 1 and 2 of alpha have no part of their updates for a checkpoint.
job owner '{match: "ln.*", exchange: {owner: beta}, fragments: 1}' 1
loop owner 3 ""
finish owner

# The agent is killed in mid-run, and has other keys and another port for workers afterwards: rank 0
# hands these to the other ranks, and all connect again.
job again
loop again 3 'carrier.far:*,carrier.put:+800'
wait_for 60 "a merge" grep -q '"kind":"round"' "$T/again/metrics.jsonl"
kill -KILL "${pid[a]}"
wait "${pid[a]}" 2>/dev/null || true
mv "$T/a.log" "$T/a-before.log"
start_alpha --workers 127.0.0.1
finish again # a merge that is late because of the restart changes the digest of both
has 'attached again to the agent' "$T/again-a.log" || fail "the loop did not attach again"
for rank in 1 2; do
    grep -q "rank $rank runs on another host, 127.0.0.1" "$T/a.log" ||
        fail "rank $rank did not connect to the new agent over TCP"
done
echo "all ranks connect again, over TCP, after a restart of the agent"

job lost
loop lost 3 'carrier.put:*'
rc=0; wait $a || rc=$?
((rc > 10 && rc < 20)) || fail "a loop without a connection ended with status $rc"
said() {
    (($(grep -c "^nebula_.*rank 1's part of the update of round 0 does not reach the agent" \
        "$T/lost-a.log") == 3))
}
within 30 said || # rank 0 may end before the others have spoken
    fail "not all ranks say what is lost: $(cat "$T/lost-a.log")"
loop lost 2 ""
finish lost
[[ $digest == "$want" ]] || fail "the digest differs after a lost connection"
echo "a lost connection is one error on all ranks, and the loop comes back"
