#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Joining as two operators do it, with real agents: init, invite, join; links come up. A revocation
# cuts a member off within 5 s. A token never shows in the process list. SIGHUP and a changed list
# do not stop a hub.
source "$SOURCE/tests/e2e/lib.sh"
pids=()
clean_up() {
    [[ -z ${agent_pid:-} ]] || kill -CONT "$agent_pid" 2>/dev/null || true # it may be stopped
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null && kill -CONT "$p" 2>/dev/null || true; done
    wait
}
port=$(ten_ports)
enrol=127.0.0.1:$port link=127.0.0.1:$((port + 1))

agent() { # NAME ARGUMENTS...
    local name=$1
    shift
    timeout 600 "$nebula" agent --home "$T/$name" "$@" 2>>"$T/$name.log" &
    pids+=($!)
}
# Root's processes ignore the limit unless they drop a capability.
few_locks=(prlimit --memlock=65536:65536)
((EUID)) || few_locks+=(setpriv --bounding-set=-ipc_lock)
if ! "${few_locks[@]}" true; then
    echo "not checked: no capability can be dropped here, so all memory can be locked"
    few_locks=()
fi
if grep -qa __asan_init "$nebula"; then
    echo "not checked: mlock does nothing under AddressSanitizer"
    few_locks=()
fi
answers() { "$nebula" status --home "$T/$1" >/dev/null 2>&1; }
no_peer() {
    "$nebula" status --home "$T/$1" 2>/dev/null | has "^agent:" &&
        ! "$nebula" status --home "$T/$1" | has "peer: $2"
}

umask 022 # files in HOME must be private all the same
"$nebula" init --name acme --listen "$enrol" --link "$link" --member hub --dir "$T/hub" \
    >"$T/init.out"
grep -q 'recovery code' "$T/init.out" || fail "init shows no recovery code"
code=$(grep -oE '([A-Z2-7]{4}-){7}[A-Z2-7]{4}' "$T/init.out")
! grep -rq "$code" "$T/hub" || fail "the recovery code is in a file of the hub"
agent hub --listen "$link"
within 30 answers hub || fail "the hub's agent does not start"

# A second agent on the same home names the process of the first one.
rc=0
"$nebula" agent --home "$T/hub" --listen "127.0.0.1:$((port + 2))" 2>"$T/second.log" || rc=$?
[[ $rc == 1 ]] &&
    has "another agent uses the home $T/hub (process [0-9]* on host" <"$T/second.log" ||
    fail "a second agent: status $rc, expected 1 and the first one's process:" \
        "$(cat "$T/second.log")"
! grep -qi 'in use' "$T/second.log" || fail "a second agent says 'in use': $(cat "$T/second.log")"

# The two commands.
token=$("$nebula" invite paris --ttl 24h --dir "$T/hub")
[[ $token == neb1:* && $(wc -l <<<"$token") == 1 ]] ||
    fail "invite printed '$token', expected one token neb1:..."
"$nebula" join "$token" --dir "$T/paris" || fail "join"
chmod 750 "$T/paris" # as an operator might do
agent paris
within 30 link_up hub paris || fail "the link does not come up"
cmp -s <("$nebula" members --dir "$T/hub") <("$nebula" members --dir "$T/paris") ||
    fail "hub and paris list different members"
openssl verify -CAfile "$T/paris/federation/ca.pem" "$T/paris/federation/member.pem" >/dev/null ||
    fail "the CA has not signed the certificate of paris"

grep -q "chmod 700 $T/paris" "$T/paris.log" ||
    fail "the agent does not warn of a home open to others"
! grep -q 'chmod 700' "$T/hub.log" || fail "the hub's home is private, but its agent warns"
"$nebula" id --home "$T/lone" --name lone >/dev/null 2>&1
"$nebula" peer add "$("$nebula" id --home "$T/hub")" - --home "$T/lone" >/dev/null
"$nebula" seal init "$T/lone/seal.key" --home "$T/lone" >/dev/null
chmod 700 "$T/paris"
open=$(find "$T/hub" "$T/paris" "$T/lone" -perm /077)
[[ ! $open ]] || fail "others can read $open"

# If no member has an address, joining says so.
"$nebula" init --name quiet --listen "127.0.0.1:$((port + 3))" --member alone --dir "$T/alone" \
    >/dev/null
"${few_locks[@]}" timeout 600 "$nebula" agent --home "$T/alone" 2>>"$T/alone.log" &
pids+=($!)
within 30 answers alone || fail "the second hub's agent does not start"
# An agent that may lock only little memory for its keys says so at its start and in its status.
# nebula doctor says so too, also before the start.
if ((${#few_locks[@]})); then
    grep -q 'keys may be swapped out to disk: .*limit 64 KiB' "$T/alone.log" ||
        fail "an agent without locked memory does not say so: $(cat "$T/alone.log")"
    "$nebula" status --home "$T/alone" --json |
        jq -e '.keys_locked == false and .lockable_bytes == 65536' >/dev/null ||
        fail "status: expected keys_locked false, lockable_bytes 65536:" \
            "$("$nebula" status --home "$T/alone" --json)"
    swapped() {
        jq -e '.checks[] | select(.name == "keys in memory") |
            .state == "warn" and (.found | test("of 64 KiB"))' >/dev/null
    }
    "$nebula" doctor --home "$T/alone" --json | swapped ||
        fail "doctor does not warn: $("$nebula" doctor --home "$T/alone")"
    # fails: no agent runs
    before_start() { "$@" "$nebula" doctor --home "$T/lone" --json 2>/dev/null || true; }
    before_start "${few_locks[@]}" | swapped ||
        fail "doctor before the start does not warn: $(before_start "${few_locks[@]}")"
    if ! before_start env |
        jq -e '.checks[] | select(.name == "keys in memory") | .state == "warn"' >/dev/null; then
        "$nebula" status --home "$T/hub" --json | jq -e .keys_locked >/dev/null ||
            fail "the hub may lock enough, but says that it cannot"
    fi
fi
"$nebula" join "$("$nebula" invite shy --dir "$T/alone")" --dir "$T/shy" >/dev/null 2>"$T/err" ||
    fail "join"
grep -q 'no member of the federation has an address, so no link is possible yet' "$T/err" ||
    fail "join does not say that no link is possible: $(cat "$T/err")"
within 30 grep -q 'no link with shy is possible' "$T/alone.log" ||
    fail "the hub does not say that no link is possible: $(cat "$T/alone.log")"

# A witness trains in no job.
"$nebula" join "$("$nebula" invite watch --role witness --dir "$T/hub")" --dir "$T/watch" \
    >/dev/null ||
    fail "join of a witness"
agent watch
within 30 link_up hub watch || fail "the link to the witness does not come up"
make_job "$T/job.yaml"
sed -i -e 's/name: alpha/name: hub/; s/name: beta/name: watch/; s/model: {/model: {vocab: 512, /' \
    -e 's/threads: 1/&, launcher: attach/' "$T/job.yaml"
if timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/hub" --out "$T/none" >"$T/err" 2>&1; then
    fail "a job with a witness as cluster ran, expected a refusal"
fi
grep -q '"watch" was invited as a witness' "$T/err" ||
    fail "the refusal does not name the witness: $(tail -n 3 "$T/err")"

# These must fail with a reason, and leave nothing behind.
if "$nebula" join "$token" --dir "$T/thief" 2>"$T/err"; then fail "a used token joined again"; fi
grep -q "invitation for 'paris' was used before, with other keys" "$T/err" ||
    fail "join with a used token gives no reason: $(cat "$T/err")"
[[ ! -e $T/thief/federation ]] || fail "a refused join left a federation behind"
token=$("$nebula" invite rome --ttl 1h --dir "$T/hub")
if "$nebula" join "$token" --name milan --dir "$T/rome" 2>/dev/null; then
    fail "a token for rome joined as milan"
fi
if "$nebula" join "${token%?????}" --dir "$T/rome" 2>/dev/null; then fail "a cut token joined"; fi

# While join waits for a hub that does not answer, its command line shows no token.
kill -STOP "${pids[0]}" && agent_pid=$(pgrep -P "${pids[0]}") && kill -STOP "$agent_pid"
timeout 600 "$nebula" join "$token" --dir "$T/rome" >/dev/null 2>&1 &
joiner=$! seen=
hides_it() {
    seen=$(tr '\0' ' ' <"/proc/$(pgrep -P "$joiner")/cmdline") &&
        [[ $seen == *" join "* && $seen != *"${token:5:40}"* ]]
}
within 10 hides_it 2>/dev/null || true # checked below
[[ $seen == *" join "* ]] || fail "the join was not seen, only '$seen'"
[[ $seen != *"${token:5:40}"* ]] || fail "the token shows in the process list"
kill -CONT "$agent_pid" "${pids[0]}"
wait "$joiner" || fail "join fails with a hub that is slow"
! grep -qF "${token:5:40}" "$T"/*.log || fail "the token is in a log"

# Key files of the hub.
chmod 640 "$T/hub/ca/ca.key"
if "$nebula" invite x --dir "$T/hub" 2>"$T/err"; then fail "a CA key open to others was used"; fi
grep -q 'chmod 600' "$T/err" || fail "the error does not say chmod 600: $(cat "$T/err")"
chmod 600 "$T/hub/ca/ca.key"

# Revocation.
cp -r "$T/paris" "$T/ghost" # with the list that still names it
rm -f "$T/ghost/agent.sock"
"$nebula" revoke paris --dir "$T/hub" >/dev/null
within 5 no_peer hub paris || fail "paris is still a peer 5 s after its revocation"
within 30 grep -qE 'link to hub is down|no longer on the list: the agent ends' "$T/paris.log" ||
    fail "paris still has a link: $(tail -n 3 "$T/paris.log")"
sleep 3
! link_up paris hub || fail "revoked paris has a link to the hub again"
# paris ends, because its link brought it the list. A member that runs on with the old list keeps
# dialling, and is refused.
refused() { "$nebula" status --home "$T/hub" --json | jq .refused.handshakes; }
before=$(refused)
agent ghost
within 30 answers ghost ||
    fail "the agent with the old list does not start: $(tail -n 3 "$T/ghost.log")"
"$nebula" members --dir "$T/ghost" | has paris ||
    fail "ghost does not have the old list, so the test shows nothing"
refused_more() { (($(refused) > before + 1)); }
within 20 refused_more ||
    fail "the hub refused $before handshakes, now $(refused), expected more:" \
        "$(tail -n 3 "$T/hub.log")"
kill -0 "${pids[-1]}" || fail "the agent with the old list has ended: $(tail -n 3 "$T/ghost.log")"
! link_up ghost hub && ! link_up hub paris || fail "a revoked member that keeps dialling has a link"
kill "${pids[-1]}"
if "$nebula" members --fetch "$enrol" --dir "$T/paris" >/dev/null 2>&1; then
    fail "a revoked member got a certificate"
fi

# A new invitation does not admit the old keys, because a thief may have them. So paris makes new
# keys. The token comes through a pipe.
was=$("$nebula" id --home "$T/paris")
token=$("$nebula" invite paris --dir "$T/hub")
if "$nebula" join "$token" --dir "$T/paris" 2>"$T/err"; then fail "revoked keys joined again"; fi
grep -q 'join --new-keys' "$T/err" &&
    grep -q 'keys that were removed from the list before' "$T/hub.log" ||
    fail "join or hub does not name the old keys and --new-keys: $(cat "$T/err")"
echo "$token" | "$nebula" join --new-keys - --dir "$T/paris" >/dev/null || fail "join with new keys"
[[ $("$nebula" id --home "$T/paris") != "$was" && -s $T/paris/former-keys-1/keys/sign.key ]] ||
    fail "paris still has its old keys, or has not kept them in former-keys-1"
agent paris
within 30 link_up hub paris || fail "the link does not come up with new keys"
kill "${pids[-1]}"

# SIGHUP without a change ends nothing.
kill -HUP "$agent_pid"
sleep 0.5
answers hub || fail "SIGHUP ended the agent"

# A rolled-back list: a running agent keeps its own, and an agent refuses to start.
cp "$T/hub/federation/members.neb" "$T/now.neb"
"$nebula" invite last --dir "$T/hub" >"$T/token"
"$nebula" join "$(cat "$T/token")" --dir "$T/last" >/dev/null
cp "$T/now.neb" "$T/hub/federation/members.neb"
within 30 grep -q 'stays in use' "$T/hub.log" || fail "a rolled-back list was not noticed"
grep -q 'is older than' "$T/hub.log" || fail "the hub does not say that the list is older"
kill "$agent_pid"
wait "${pids[0]}" || true
if timeout 60 "$nebula" agent --home "$T/hub" 2>"$T/err"; then
    fail "an agent started with a rolled-back list"
fi
grep -q 'is older than' "$T/err" ||
    fail "the start does not say that the list is older: $(cat "$T/err")"
