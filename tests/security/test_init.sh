#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Making a hub, and taking a lost one's place, as an operator types it: an init that is killed behind each of its files and run again; a
# CA restored from its backup with the code as it was shown, on a new host and by mistake on another hub; an invitation that is withdrawn; a
# hub and a site that move to another address, with an agent that runs meanwhile.
# Naming the key that a site seals with: once, and another one only on purpose.
source "$SOURCE/tests/e2e/lib.sh"
init() { timeout 60 "$nebula" init --listen 127.0.0.1:7443 "$@"; } # arguments...
code_in() { grep -E '^ *([A-Z2-7]{4}-){7}[A-Z2-7]{4}$' "$1"; } # FILE: the line, indented as it is
fails_with() { # TEXT command...
    local text=$1
    shift
    ! "$@" >"$T/out" 2>"$T/err" || fail "$* went well"
    grep -qF -- "$text" "$T/err" || fail "$*: no word of '$text': $(cat "$T/err")"
}

# ---- killed: the same init again makes it anew, or a list was there, and the code had been shown
for ((k = 1, anew = 0, rc = 1; rc != 0; k++)); do
    h=$T/killed-$k rc=0
    NEBULA_FAULT=fs.folder:$k:kill init --name acme --member hub --home "$h" >"$T/first" 2>/dev/null || rc=$?
    again=0
    init --name acme --member hub --home "$h" >"$T/second" 2>"$T/err" || again=$?
    if ((again == 0)); then
        ((anew += 1))
        cp "$T/second" "$T/first"
    else
        grep -q 'in a federation already' "$T/err" || fail "killed at $k, and again: $(cat "$T/err")"
    fi
    code_in "$T/first" | init --restore "$h/ca-backup" --home "$h" >/dev/null 2>"$T/err" || fail "killed at $k: the code does not open the backup: $(cat "$T/err")"
    "$nebula" invite paris --home "$h" >/dev/null || fail "killed at $k: no hub"
done
((anew >= 5)) || fail "killed $k times, made anew only $anew times"

# ---- a lost hub
init --name acme --member hub --home "$T/hub" >"$T/init" || fail "init"
"$nebula" invite paris --home "$T/hub" >/dev/null || fail "invite"
restore() { code_in "$T/init" | init --restore "$T/hub/ca-backup" "$@"; } # arguments...
fails_with 'copy members.neb and seen' restore --home "$T/new"
[[ ! -e $T/new ]] || fail "a restore that was refused left: $(ls -A "$T/new")"
mkdir -p "$T/new/federation" && cp "$T/hub/federation/"{members.neb,seen} "$T/new/federation/"
cp -r "$T/hub/keys" "$T/hub/identity" "$T/new/"
restore --home "$T/new" >/dev/null 2>"$T/err" || fail "restore: $(cat "$T/err")"
cmp -s "$T/hub/federation/members.neb" "$T/new/federation/members.neb" || fail "a restored hub signed another list"
"$nebula" invite rome --home "$T/new" >/dev/null || fail "the restored hub invites nobody"
fails_with 'does not open it' init --restore "$T/hub/ca-backup" --home "$T/new" <<<'AAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA'
# an invitation is withdrawn by the name
"$nebula" revoke rome --home "$T/new" >"$T/out" || fail "an invitation cannot be withdrawn"
grep -q 'rome is not a member; the open invitations of that name have ended' "$T/out" || fail "withdrawn: $(cat "$T/out")"
fails_with "no member 'rome'" "$nebula" revoke rome --home "$T/new"
# by mistake where another hub is
init --name other --member hub --home "$T/other" >/dev/null || fail "init of another hub"
cp -r "$T/other" "$T/other-was"
fails_with "belongs to federation 'other'" restore --home "$T/other"
diff -r "$T/other-was" "$T/other" >&2 || fail "a restore that was refused changed another hub"
"$nebula" invite oslo --home "$T/other" >/dev/null || fail "the other hub works no more"
# ---- to another address: the hub with its backup, while a site that only dials runs on; then a site
port=$(ten_ports)
pids=()
clean_up() {
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
agent() { # HOME PORT
    timeout 120 "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$2" 2>>"$T/$1.log" &
    pids+=($!)
}
version() { "$nebula" members --home "$T/$1" | sed -n 's/^version: \([0-9]*\).*/\1/p'; }
"$nebula" init --name moves --member hub --listen "127.0.0.1:$port" --link "127.0.0.1:$((port + 1))" --home "$T/first-host" >"$T/moves" || fail "init"
agent first-host $((port + 1))
first=${pids[-1]}
within 20 "$nebula" join "$("$nebula" invite paris --home "$T/first-host")" --home "$T/paris" >/dev/null || fail "paris cannot join"
timeout 120 "$nebula" agent --home "$T/paris" 2>>"$T/paris.log" &
pids+=($!)
paris=$!
within 20 link_up paris hub || fail "no link to the first host"
kill "$first" && wait "$first" || true
mkdir -p -m 700 "$T/second-host/federation" && cp "$T/paris/federation/"{members.neb,seen} "$T/second-host/federation/"
move_hub() { code_in "$T/moves" | "$nebula" init --restore "$T/first-host/ca-backup" --listen "127.0.0.1:$((port + 2))" --link "127.0.0.1:$((port + 3))" --home "$T/second-host"; }
cp -r "$T/second-host" "$T/without-keys" # a hub that is no member says so
code_in "$T/moves" | "$nebula" init --restore "$T/first-host/ca-backup" --member hub --listen 127.0.0.1:7443 --link "127.0.0.1:$((port + 3))" --home "$T/without-keys" >/dev/null 2>"$T/err" || fail "restore without keys"
grep -q "keys of 'hub' in .* are not on the member list" "$T/err" || fail "nobody says that the hub is no member: $(cat "$T/err")"
cp -r "$T/first-host/keys" "$T/first-host/identity" "$T/second-host/"
move_hub >/dev/null 2>"$T/err" || fail "the hub cannot move: $(cat "$T/err")"
agent second-host $((port + 3))
within 20 "$nebula" members --home "$T/paris" --fetch "127.0.0.1:$((port + 2))" >"$T/out" 2>"$T/err" || fail "no list from the second host: $(cat "$T/err")"
grep -q "endpoint: 127.0.0.1:$((port + 3))" "$T/out" || fail "the list has not the hub's new address: $(cat "$T/out")"
within 20 link_up paris hub || fail "paris does not dial the second host: $(tail -n 3 "$T/paris.log")"
kill -0 "$paris" || fail "paris was not there all the time"
# a site that begins to listen, and one that stays where it is
"$nebula" move paris --link "127.0.0.1:$((port + 4))" --home "$T/second-host" >"$T/out" || fail "paris cannot move"
grep -q "paris: 127.0.0.1:$((port + 4)): member list version $(version second-host)" "$T/out" || fail "move: $(cat "$T/out")"
same_version() { [[ $(version paris) == "$(version second-host)" ]]; }
within 20 same_version || fail "the list of the move does not reach paris"
link_up paris hub || fail "a move took the link down"
before=$(version second-host)
"$nebula" move paris --link "127.0.0.1:$((port + 4))" --home "$T/second-host" >/dev/null && [[ $(version second-host) == "$before" ]] || fail "no move, and another list"
fails_with "no member 'rome'" "$nebula" move rome --link - --home "$T/second-host"
fails_with 'expected HOST:PORT' "$nebula" move paris --link nowhere --home "$T/second-host"
fails_with 'move needs --link' "$nebula" move paris --home "$T/second-host"
"$nebula" move paris --link - --home "$T/second-host" | has 'paris: dials' || fail "a site cannot go back to dialling"
# ---- the CA's seal key as a systemd credential: it is not on the hub's disk, and a shell does not have it
mkdir -m 700 "$T/credentials" && mv "$T/hub/ca/seal.key" "$T/credentials/nebula-ca-seal"
fails_with 'credential nebula-ca-seal, run this with systemd-run' "$nebula" invite bonn --home "$T/hub"
CREDENTIALS_DIRECTORY=$T/credentials "$nebula" invite bonn --home "$T/hub" >/dev/null || fail "invite with the credential"
CREDENTIALS_DIRECTORY=$T/credentials "$nebula" revoke bonn --home "$T/hub" >/dev/null || fail "revoke with the credential"

# ---- the key that a site seals with
seal() { "$nebula" seal init "$@" --home "$T/site"; } # KEYFILE arguments...
NEBULA_FAULT=fs.rename:2 seal "$T/seal.key" >/dev/null 2>&1 && fail "seal.json was written"
[[ -s $T/seal.key && ! -e $T/site/seal.json ]] || fail "not interrupted where it should be"
cp "$T/seal.key" "$T/seal.was"
seal "$T/seal.key" >"$T/out" || fail "a seal init that was interrupted does not go on"
cmp -s "$T/seal.key" "$T/seal.was" || fail "the key was replaced"
[[ $(head -n 1 "$T/out") == "$("$nebula" seal id "$T/seal.key")" ]] || fail "it shows another key: $(cat "$T/out")"
fails_with "seal.json names the key $T/seal.key" seal "$T/other.key"
[[ ! -e $T/other.key ]] && grep -qF "$T/seal.key" "$T/site/seal.json" || fail "another key took its place"
rm "$T/site/seal.json"
seal "$T/other.key" >/dev/null || fail "no other key on purpose"
rm "$T/site/seal.json"
fails_with 'garbage' seal "$(head -c 40 /dev/urandom >"$T/garbage" && chmod 600 "$T/garbage" && echo "$T/garbage")"
[[ ! -e $T/site/seal.json ]] || fail "it names what is no key"
printf 'a long passphrase\na long passphrase' | seal "$T/phrase.key" --passphrase >/dev/null 2>"$T/err" || fail "a pipe without an end of its last line: $(cat "$T/err")"
rm "$T/site/seal.json"
printf 'a long passphrase\na long passphras\n' | fails_with 'differ' seal "$T/phrase2.key" --passphrase

echo "an init was killed $((k - 2)) times, and made anew $anew times"
