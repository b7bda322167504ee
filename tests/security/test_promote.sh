#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Of two voters the leader is lost. The survivor commits nothing until `nebula promote`, and then
# continues alone. Lists that do not follow from each other (a copied hub) stop the job on both
# sides, also if versions in between were missed. They stop it once, and not again after the repair.
source "$SOURCE/tests/e2e/lib.sh"
pids=()
clean_up() {
    for p in "${pids[@]}"; do kill -9 "$p" 2>/dev/null || true; done
    wait
}
port=$(ten_ports)
agent() { # NAME PORT
    "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$2" 2>>"$T/$1.log" &
    pids+=($!)
    last=$!
}
step_of() { "$nebula" status --home "$T/$1" --json 2>/dev/null | jq -r '.jobs[0].step // 0'; }
beyond() { (($(step_of "$1") > $2)); }
rounds() { grep -c '"kind": *"round"' "$1/metrics.jsonl" || true; }
more_rounds() { (($(rounds "$1") > $2)); }

federation() { # HUB MEMBER
    "$nebula" init --name acme --listen "127.0.0.1:$port" --link "127.0.0.1:$((port + 1))" \
        --member "$1" --dir "$T/$1" >/dev/null
    agent "$1" $((port + 1))
    hub_pid=$last
    local token
    token=$("$nebula" invite "$2" --ttl 1h --dir "$T/$1")
    within 20 "$nebula" join "$token" --dir "$T/$2" --endpoint "127.0.0.1:$((port + 2))" \
        >/dev/null ||
        fail "$2 cannot join"
    agent "$2" $((port + 2))
    member_pid=$last
    within 20 link_up "$1" "$2" || fail "no link: $1 $2"
    port=$((port + 3))
}
start_job() { # FIRST SECOND SUBMITTER OUT
    make_job "$T/job.yaml"
    light "$T/job.yaml"
    shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
    sed -i "s/name: alpha/name: $1/; s/name: beta/name: $2/" "$T/job.yaml"
    "$nebula" pretrain "$T/job.yaml" --home "$T/$3" --out "$T/$4" --steps 1000000 >"$T/$4.log" \
        2>&1 &
    pids+=($!)
    within 30 beyond "$3" 30 || fail "the job does not run: $(tail -n 3 "$T/$4.log")"
    within 30 more_rounds "$T/$4" 2 || fail "no rounds are committed"
}

make_corpus
pace 10
federation hub paris
start_job paris hub hub run # paris leads
kill -9 "$member_pid"
within 20 grep -q 'link to paris is down' "$T/hub.log" ||
    fail "hub did not notice that paris was lost"
sleep 1
before=$(rounds "$T/run")
at=$(step_of hub)
within 30 beyond hub $((at + 30)) ||
    fail "hub alone is at step $(step_of hub), expected over $((at + 30))"
(($(rounds "$T/run") == before)) ||
    fail "one of two voters committed: $(rounds "$T/run") rounds, expected $before"
"$nebula" promote paris --dir "$T/hub" >/dev/null || fail "promote"
within 20 grep -q 'given up by nebula promote' "$T/hub.log" ||
    fail "the job does not notice the promotion: $(tail -n 3 "$T/hub.log")"
within 30 more_rounds "$T/run" $((before + 3)) ||
    fail "the survivor commits nothing: $(tail -n 3 "$T/hub.log")"
# The agent still does so after a restart.
kill -9 "$hub_pid"
sleep 1
agent hub $((port - 2))
hub_pid=$last
within 20 test -S "$T/hub/agent.sock"
within 30 beyond hub $((at + 10)) || fail "the job makes no steps after a restart"
merged() { cat "$T"/hub/jobs/*/merges.log | wc -l; }
have=$(merged)
grown() { (($(merged) > have + 2)); }
within 30 grown || fail "$(merged) merges, expected over $((have + 2)) after a restart"
kill -9 "$hub_pid"
# Its ledger holds commits with two votes, and then with one. The signed list says why one is
# enough.
"$nebula" ledger verify "$T/hub" >"$T/verify" 2>&1 ||
    fail "the survivor's ledger is refused: $(cat "$T/verify")"
cp -r "$T/hub" "$T/forged" && rm -r "$T/forged/federation"
jq -n '{}' >"$T/forged/members.json"
if "$nebula" ledger verify "$T/forged" >"$T/verify" 2>&1; then
    fail "the ledger is accepted without the list, expected a refusal"
fi

federation hub2 rome
for spare in x y; do
    token=$("$nebula" invite "$spare" --ttl 1h --dir "$T/hub2")
    "$nebula" join "$token" --dir "$T/$spare" >/dev/null 2>&1 || fail "$spare cannot join"
done
within 30 grep -q 'version 4 (join y)' "$T/rome.log" || fail "rome has no version 4"
cp -r "$T/hub2" "$T/copy"
start_job hub2 rome hub2 run2
kill -STOP "$hub_pid" # rome takes version 5 of the copy, the hub makes its own version 7
"$nebula" revoke x --dir "$T/copy" >/dev/null || fail "revoke on the copy"
cp "$T/copy/federation/members.neb" "$T/rome/federation/members.neb.new"
mv "$T/rome/federation/members.neb.new" "$T/rome/federation/members.neb"
within 30 grep -q 'version 5 (revoke x)' "$T/rome.log" || fail "rome did not take the copy's list"
"$nebula" revoke y --dir "$T/hub2" >/dev/null || fail "revoke on the hub"
"$nebula" revoke x --dir "$T/hub2" >/dev/null || fail "revoke on the hub"
if "$nebula" promote hub2 --dir "$T/hub2" 2>"$T/own"; then
    fail "promote of the hub itself worked, expected a refusal"
fi
grep -q "'hub2' is this hub," "$T/own" || fail "promote of the hub gives no reason: $(cat "$T/own")"
"$nebula" promote rome --dir "$T/hub2" >/dev/null || fail "promote on the hub"
[[ $("$nebula" members --dir "$T/hub2" | grep '^history') == "history: back to version 1" ]] ||
    fail "the list's history is not complete: $("$nebula" members --dir "$T/hub2")"
kill -CONT "$hub_pid"
within 30 grep -q 'lists that do not follow from each other' "$T/hub2.log" ||
    fail "hub2 did not notice the fork"
within 30 grep -q 'lists that do not follow from each other' "$T/rome.log" ||
    fail "rome did not notice the fork"
grep -q 'two lists of version 5: .*copy federation/members.neb' "$T/hub2.log" &&
    grep -q 'two lists of version 5' "$T/rome.log" ||
    fail "the logs do not say what to do: $(tail -n 3 "$T/hub2.log" "$T/rome.log")"
ended() { [[ $("$nebula" status --home "$T/$1" --json | jq -r '.jobs[0].state') == ended ]]; }
within 20 ended hub2 || fail "hub2's job has not ended"
within 20 ended rome || fail "rome's job has not ended"
# As the message says: rome takes the hub's side, and both restart.
kill -9 "$member_pid" "$hub_pid"
mkdir "$T/dead" && cp "$T"/rome/federation/{members.neb,seen} "$T/dead/"
agent hub2 $((port - 2))
cp "$T"/hub2/federation/{members.neb,seen} "$T/rome/federation/"
: >"$T/rome.log"
agent rome $((port - 1))
within 20 link_up rome hub2 || fail "rome does not come back: $(tail -n 3 "$T/rome.log")"
sleep 1.5 # until both have sent their lists
! grep -q 'signed member lists' "$T/rome.log" ||
    fail "rome still finds a fork: $(tail -n 3 "$T/rome.log")"
# A member comes back with the list of the dead branch. Sites that know the fork continue.
kill -9 "$last"
cp "$T"/dead/* "$T/rome/federation/"
: >"$T/hub2.log"
agent rome $((port - 1))
within 20 grep -q 'is on a branch of a fork that was known' "$T/hub2.log" ||
    fail "hub2 does not recognise rome's old list: $(tail -n 3 "$T/hub2.log")"
! grep -q 'jobs stop' "$T/hub2.log" || fail "a repaired fork stops jobs again"
echo "a promoted survivor continues alone; a fork stops the job"
