#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a job may do after its submitter was revoked, or a policy became stricter (hub, paris, rome;
# paris submits). A running job continues. A restarted agent holds it and keeps its data, until the
# site's operator resumes it. A plain restart or the revocation of another member holds nothing.
source "$SOURCE/tests/e2e/lib.sh"
declare -A pid
clean_up() {
    # It would wait a minute for reports of agents that end too.
    [[ ! ${run:-} ]] || end_now "$run"
    for p in "${pid[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
port=$(ten_ports)
enrol=127.0.0.1:$port
declare -A at=([hub]=1 [paris]=2 [rome]=3)
agent() { # NAME
    "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$((port + at[$1]))" 2>>"$T/$1.log" &
    pid[$1]=$!
}
restart() { # NAME SIGNAL
    : >"$T/$1.log"
    kill "-$2" "${pid[$1]}"
    wait "${pid[$1]}" 2>/dev/null || true
    agent "$1"
    within 20 answers "$1" ||
        fail "the agent of $1 does not answer after its restart: $(tail -n 3 "$T/$1.log")"
}
answers() { "$nebula" status --home "$T/$1" --json >/dev/null 2>&1; }
step_of() { "$nebula" status --home "$T/$1" --json 2>/dev/null | jq -r '.jobs[0].step // 0'; }
beyond() { (($(step_of "$1") > $2)); }
goes_on() { # NAME: its job makes more steps
    local n
    n=$(step_of "$1")
    within 60 beyond "$1" $((n + 8))
}
job() { "$nebula" jobs --home "$T/$1" --json | jq -r ".[0].$2"; }
is() { [[ $(job "$1" state) == "$2" ]]; }
rounds() { "$nebula" ledger show "$T/$1" --json 2>/dev/null | jq '.chains[0].next // 0'; }
more_rounds() { (($(rounds rome) > $1)); }

make_corpus
pace 30
"$nebula" init --name acme --listen "$enrol" --link "127.0.0.1:$((port + 1))" --member hub --dir \
    "$T/hub" >/dev/null
agent hub
for site in paris rome; do
    token=$("$nebula" invite "$site" --ttl 1h --dir "$T/hub")
    within 20 "$nebula" join "$token" --dir "$T/$site" --endpoint \
        "127.0.0.1:$((port + at[$site]))" ||
        fail "$site cannot join"
    agent "$site"
done
for pair in "hub paris" "hub rome" "paris rome"; do
    # shellcheck disable=SC2086 # two names
    within 20 link_up $pair || fail "no link: $pair"
done
make_job "$T/job.yaml"
light "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
clusters "$T/job.yaml" hub paris rome
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/paris" --out "$T/run" --steps 1000000 \
    --set sync.commit_all=false --set sync.grace_s=2 >"$T/run.log" 2>&1 &
run=$!
within 60 beyond rome 10 && within 60 beyond hub 10 ||
    fail "the job does not run: $(tail -n 3 "$T/run.log")"
id=$(job rome id)

# Nobody was revoked: a restart holds nothing.
restart rome KILL
goes_on rome && is rome running ||
    fail "after a crash the job is $(job rome state), expected running"

# A stricter policy holds the job at the next start, and not before. The job continues only after
# the operator has changed the policy.
(umask 077; echo '{"format": 1, "members": ["hub"]}' >"$T/rome/policy.json")
restart rome TERM
is rome held || fail "the policy refuses the job, but it is $(job rome state), expected held"
grep -q "is held: .*\"paris\" is not among" "$T/rome.log" ||
    fail "the log does not give the reason: $(cat "$T/rome.log")"
"$nebula" jobs --home "$T/rome" | grep -q 'held: .*"paris" is not among' ||
    fail "nebula jobs does not give the reason: $("$nebula" jobs --home "$T/rome")"
"$nebula" status --home "$T/rome" --json |
    jq -e '[.events[].text | select(test("is held"))] | length == 1' >/dev/null ||
    fail "nebula status has not one event: $("$nebula" status --home "$T/rome")"
"$nebula" status --home "$T/rome" --json |
    jq -e --arg id "$id" \
    '.jobs[] | select(.id == $id) | .state == "held" and (.why | test("is not among"))' \
    >/dev/null ||
    fail "nebula status does not list the job as held: $("$nebula" status --home "$T/rome")"
"$nebula" status --home "$T/rome" | grep -q '^  held: .*"paris" is not among' ||
    fail "nebula status does not give the reason: $("$nebula" status --home "$T/rome")"
! "$nebula" resume "$id" --home "$T/rome" >"$T/resume.log" 2>&1 ||
    fail "resume worked against the policy, expected a refusal"
grep -q '"paris" is not among' "$T/resume.log" ||
    fail "resume does not give the reason: $(cat "$T/resume.log")"
[[ -d $T/rome/jobs/$id/checkpoint ]] || fail "the held job has lost its checkpoint folder"
rm "$T/rome/policy.json"
"$nebula" resume "$id" --home "$T/rome" >/dev/null || fail "resume without the policy was refused"
goes_on rome || fail "rome makes no steps after resume: $(tail -n 3 "$T/rome.log")"

# New keys of the submitter are no reason either.
"$nebula" rotate "$enrol" --dir "$T/paris" >"$T/rotate.log" 2>&1 ||
    fail "rotate: $(cat "$T/rotate.log")"
keys_in_use() { grep -q "new keys are in use" "$T/paris.log"; }
within 20 keys_in_use || fail "paris does not use its new keys: $(tail -n 3 "$T/paris.log")"
within 20 link_up rome paris || fail "no link with the new keys"
restart rome KILL
goes_on rome && is rome running ||
    fail "after a rotation the job is $(job rome state), expected running"

# The submitter is revoked: the running job continues at both.
"$nebula" revoke paris --dir "$T/hub" >/dev/null
said() {
    grep -q 'paris, which submitted it, is no longer a member. The running job continues' \
        "$T/$1.log"
}
within 30 said rome && within 30 said hub ||
    fail "the logs of rome and hub do not say that the submitter was removed"
goes_on hub && goes_on rome ||
    fail "hub and rome are at steps $(step_of hub) and $(step_of rome), expected more"

# An agent that restarts holds it, and the other one continues.
restart rome KILL
is rome held || fail "a revoked member's job is $(job rome state), expected held"
grep -q 'is held: "paris", which submitted it, is no longer a member' "$T/rome.log" ||
    fail "no reason in the log: $(cat "$T/rome.log")"
[[ $(job rome home) == paris ]] || fail "the job's submitter is now '$(job rome home)'"
# A new member that gets the same name does not bring it back.
token=$("$nebula" invite paris --ttl 1h --dir "$T/hub")
within 20 "$nebula" join "$token" --dir "$T/paris2" --endpoint "127.0.0.1:$((port + 5))" \
    >/dev/null ||
    fail "another paris cannot join"
listed() {
    "$nebula" status --home "$T/rome" --json | jq -e '[.peers[].name] | index("paris")' >/dev/null
}
within 20 listed || fail "rome's list has no other paris"
restart rome KILL
within 20 listed || fail "rome's list has no other paris, after its restart"
is rome held || fail "with a new paris on the list the job is $(job rome state), expected held"
grep -q 'is held: it is not signed with the keys of "paris"' "$T/rome.log" ||
    fail "no reason in the log: $(cat "$T/rome.log")"
"$nebula" revoke paris --dir "$T/hub" >/dev/null
unlisted() { ! listed; }
within 20 unlisted || fail "the other paris is still on rome's list"
goes_on hub || fail "hub's worker makes no steps"
is hub running || fail "hub's job is $(job hub state), expected running"
"$nebula" resume "$id" --home "$T/rome" >"$T/resume.log" 2>&1 ||
    fail "the operator's resume was refused: $(cat "$T/resume.log")"
grep -q "resumed at this site only" "$T/resume.log" ||
    fail "resume does not say that it holds for this site only: $(cat "$T/resume.log")"
goes_on rome || fail "rome makes no steps after its operator's resume"
# Nobody waits for a removed member.
! tail -n 2 "$T/rome/jobs/$id/worker.log" | grep "are not reachable" ||
    fail "the worker waited for the revoked member"
# The operator's decision lasts over a crash, a stop and another resume. The job does not become the
# operator's own, which no policy would check.
restart rome KILL
goes_on rome && is rome running ||
    fail "after the operator's resume and a crash the job is $(job rome state), expected running"
[[ $(job rome home) == paris ]] || fail "the job's submitter is now '$(job rome home)'"
restart hub TERM
is hub held || fail "hub's job is $(job hub state), expected held"
"$nebula" stop "$id" --home "$T/hub" >/dev/null || fail "nebula stop of a held job was refused"
[[ $("$nebula" status --home "$T/hub" --json | jq '.jobs | length') == 0 ]] ||
    fail "nebula status still lists the stopped job"
is hub stopped || fail "after nebula stop the job is $(job hub state), expected stopped"
"$nebula" resume "$id" --home "$T/hub" >/dev/null || fail "resume at hub was refused"
goes_on hub || fail "hub makes no steps after resume"
# Two of three are a majority: they commit rounds all the time.
at_round=$(rounds rome)
within 60 more_rounds $((at_round + 2)) ||
    fail "rome has $(rounds rome) rounds, expected over $((at_round + 2)): the two commit none"
# What paris signed before is still checked.
"$nebula" ledger verify "$T/rome" >"$T/verify.log" ||
    fail "nebula ledger verify: $(cat "$T/verify.log")"
echo "a running job continues; a start asks list, policy and operator"
