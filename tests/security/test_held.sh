#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a job may after its submitter was revoked, and after an agent's restart (hub, paris, rome; paris submits): what runs goes on; an agent
# that starts anew passes it through the same door as at its start, holds it, keeps its data, and says so; its own operator's resume goes
# on with it, and that word lasts. A policy that was made stricter meanwhile holds a job too. A restart in between that nobody had reason to
# mind holds nothing, also where another cluster's member was revoked.
source "$SOURCE/tests/e2e/lib.sh"
declare -A pid
clean_up() {
    [[ ! ${run:-} ]] || end_now "$run" # it would wait a minute for reports of agents that end with it
    for p in "${pid[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
port=$(ten_ports)
enrol=127.0.0.1:$port
declare -A at=([hub]=1 [paris]=2 [rome]=3)
agent() { # name
    "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$((port + at[$1]))" 2>>"$T/$1.log" &
    pid[$1]=$!
}
restart() { # name signal
    : >"$T/$1.log"
    kill "-$2" "${pid[$1]}"
    wait "${pid[$1]}" 2>/dev/null || true
    agent "$1"
    within 20 answers "$1" || fail "$1 does not come back"
}
answers() { "$nebula" status --home "$T/$1" --json >/dev/null 2>&1; }
step_of() { "$nebula" status --home "$T/$1" --json 2>/dev/null | jq -r '.jobs[0].step // 0'; }
beyond() { (($(step_of "$1") > $2)); }
goes_on() { # name
    local n
    n=$(step_of "$1")
    within 60 beyond "$1" $((n + 8))
}
job() { "$nebula" jobs --home "$T/$1" --json | jq -r ".[0].$2"; }
is() { [[ $(job "$1" state) == "$2" ]]; }
rounds() { "$nebula" ledger show "$T/$1" --json 2>/dev/null | jq '.chains[0].next // 0'; }
more_rounds() { (($(rounds rome) > $1)); }

make_corpus
pace 15
"$nebula" init --name acme --listen "$enrol" --link "127.0.0.1:$((port + 1))" --member hub --dir "$T/hub" >/dev/null
agent hub
for site in paris rome; do
    token=$("$nebula" invite "$site" --ttl 1h --dir "$T/hub")
    within 20 "$nebula" join "$token" --dir "$T/$site" --endpoint "127.0.0.1:$((port + at[$site]))" || fail "$site cannot join"
    agent "$site"
done
for pair in "hub paris" "hub rome" "paris rome"; do
    # shellcheck disable=SC2086 # two names
    within 20 link_up $pair || fail "no link: $pair"
done
make_job "$T/job.yaml"
clusters "$T/job.yaml" hub paris rome
timeout 240 "$nebula" pretrain "$T/job.yaml" --home "$T/paris" --out "$T/run" --steps 1000000 \
    --set sync.commit_all=false --set sync.grace_s=2 >"$T/run.log" 2>&1 &
run=$!
within 60 beyond rome 10 && within 60 beyond hub 10 || fail "the job does not run: $(tail -n 3 "$T/run.log")"
id=$(job rome id)

# nobody was revoked: a restart holds nothing
restart rome KILL
goes_on rome && is rome running || fail "a crash holds the job: $(job rome state)"

# a stricter policy holds at the next start, and nothing before it; nothing goes on before the operator has changed it
(umask 077; echo '{"format": 1, "members": ["hub"]}' >"$T/rome/policy.json")
restart rome TERM
is rome held || fail "the policy was not asked: $(job rome state)"
grep -q "is held: .*\"paris\" is not among" "$T/rome.log" || fail "the log does not say why: $(cat "$T/rome.log")"
"$nebula" jobs --home "$T/rome" | grep -q 'held: .*"paris" is not among' || fail "nebula jobs does not say why"
"$nebula" status --home "$T/rome" --json | jq -e '[.events[].text | select(test("is held"))] | length == 1' >/dev/null || fail "nebula status does not say it"
"$nebula" status --home "$T/rome" --json | jq -e --arg id "$id" '.jobs[] | select(.id == $id) | .state == "held" and (.why | test("is not among"))' >/dev/null || fail "nebula status does not list it: $("$nebula" status --home "$T/rome")"
"$nebula" status --home "$T/rome" | grep -q '^  held: .*"paris" is not among' || fail "nebula status does not say why"
! "$nebula" resume "$id" --home "$T/rome" >"$T/resume.log" 2>&1 || fail "resume against the policy"
grep -q '"paris" is not among' "$T/resume.log" || fail "resume does not say why: $(cat "$T/resume.log")"
[[ -d $T/rome/jobs/$id/checkpoint ]] || fail "a held job's data is gone"
rm "$T/rome/policy.json"
"$nebula" resume "$id" --home "$T/rome" >/dev/null || fail "resume with another policy"
goes_on rome || fail "not resumed"

# new keys for the submitter are no reason either
"$nebula" rotate "$enrol" --dir "$T/paris" >"$T/rotate.log" 2>&1 || fail "rotate: $(cat "$T/rotate.log")"
keys_in_use() { grep -q "new keys are in use" "$T/paris.log"; }
within 20 keys_in_use || fail "paris keeps its former keys"
within 20 link_up rome paris || fail "no link with the new keys"
restart rome KILL
goes_on rome && is rome running || fail "a rotation holds the job: $(job rome state)"

# the submitter is revoked: what runs goes on, at both
"$nebula" revoke paris --dir "$T/hub" >/dev/null
said() { grep -q 'paris, which submitted it, is no longer a member. The running job continues' "$T/$1.log"; }
within 30 said rome && within 30 said hub || fail "nobody says that the submitter is gone"
goes_on hub && goes_on rome || fail "the others stopped"

# an agent that starts anew holds it; the other one goes on
restart rome KILL
is rome held || fail "a revoked member's job began again: $(job rome state)"
grep -q 'is held: "paris", which submitted it, is no longer a member' "$T/rome.log" || fail "no reason: $(cat "$T/rome.log")"
[[ $(job rome home) == paris ]] || fail "the job's submitter is now '$(job rome home)'"
# nor does it come back with the next one who is given that name
token=$("$nebula" invite paris --ttl 1h --dir "$T/hub")
within 20 "$nebula" join "$token" --dir "$T/paris2" --endpoint "127.0.0.1:$((port + 5))" >/dev/null || fail "another paris cannot join"
listed() { "$nebula" status --home "$T/rome" --json | jq -e '[.peers[].name] | index("paris")' >/dev/null; }
within 20 listed || fail "rome's list has no other paris"
restart rome KILL
within 20 listed || fail "rome's list has no other paris, after its restart"
is rome held || fail "a revoked member's job began again under its name's new holder: $(job rome state)"
grep -q 'is held: it is not signed with the keys of "paris"' "$T/rome.log" || fail "no reason: $(cat "$T/rome.log")"
"$nebula" revoke paris --dir "$T/hub" >/dev/null
unlisted() { ! listed; }
within 20 unlisted || fail "the other paris stays"
goes_on hub || fail "hub's worker stopped"
is hub running || fail "hub's job is $(job hub state)"
"$nebula" resume "$id" --home "$T/rome" >"$T/resume.log" 2>&1 || fail "the operator's word does not count: $(cat "$T/resume.log")"
grep -q "resumed at this site only" "$T/resume.log" || fail "resume does not say whose word it is"
goes_on rome || fail "not resumed by the operator"
# nobody waits for who is no member any more
! tail -n 2 "$T/rome/jobs/$id/worker.log" | grep "are not reachable" || fail "the worker waited for the one that was revoked"
# and it lasts: over a crash, a stop and another resume; nor is it the operator's own job now, which no policy would look at
restart rome KILL
goes_on rome && is rome running || fail "held again: $(job rome state)"
[[ $(job rome home) == paris ]] || fail "the job's submitter is now '$(job rome home)'"
restart hub TERM
is hub held || fail "hub's agent went on with a revoked member's job"
"$nebula" stop "$id" --home "$T/hub" >/dev/null || fail "a held job cannot be given up"
[[ $("$nebula" status --home "$T/hub" --json | jq '.jobs | length') == 0 ]] || fail "given up, it is still in nebula status"
is hub stopped || fail "given up, it is $(job hub state)"
"$nebula" resume "$id" --home "$T/hub" >/dev/null || fail "hub's operator goes on"
goes_on hub || fail "hub does not go on"
# two of three are a majority: they commit rounds together, through all of this
at_round=$(rounds rome)
within 60 more_rounds $((at_round + 2)) || fail "no rounds are committed by the two that are left"
# and what paris signed before is still checked
"$nebula" ledger verify "$T/rome" >"$T/verify.log" || fail "nebula ledger verify: $(cat "$T/verify.log")"
echo "what runs goes on, what starts anew asks: list, policy, operator"
