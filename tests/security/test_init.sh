#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Making and replacing a hub, as an operator does: an init that is killed after each of its files; a
# CA restored from its backup, also by mistake on another hub; a withdrawn invitation; a hub and a
# site that move to another address. Also `nebula seal init`, which never replaces a key by itself.
source "$SOURCE/tests/e2e/lib.sh"
init() { timeout 600 "$nebula" init --listen 127.0.0.1:7443 "$@"; } # ARGUMENTS...
code_in() { grep -E '^ *([A-Z2-7]{4}-){7}[A-Z2-7]{4}$' "$1"; } # FILE: the line with its indent
fails_with() { # TEXT COMMAND...
    local text=$1
    shift
    ! "$@" >"$T/out" 2>"$T/err" || fail "$* succeeded, expected the error '$text'"
    grep -qF -- "$text" "$T/err" || fail "$*: expected the error '$text', found: $(cat "$T/err")"
}

# ---- killed: the same init makes everything again, unless the list and the code were done --------
for ((k = 1, remade = 0, rc = 1; rc != 0; k++)); do
    h=$T/killed-$k rc=0
    NEBULA_FAULT=fs.folder:$k:kill init --name acme --member hub --home "$h" >"$T/first" \
        2>/dev/null ||
        rc=$?
    again=0
    init --name acme --member hub --home "$h" >"$T/second" 2>"$T/err" || again=$?
    if ((again == 0)); then
        ((remade += 1))
        cp "$T/second" "$T/first"
    else
        grep -q 'already in a federation' "$T/err" ||
            fail "killed at $k, the second init says: $(cat "$T/err")"
    fi
    code_in "$T/first" | init --restore "$h/ca-backup" --home "$h" >/dev/null 2>"$T/err" ||
        fail "killed at $k: the code does not open the backup: $(cat "$T/err")"
    "$nebula" invite paris --home "$h" >/dev/null || fail "killed at $k: the hub cannot invite"
done
((remade >= 5)) || fail "killed $((k - 2)) times, made again $remade times, expected 5 or more"

# ---- a lost hub
init --name acme --member hub --home "$T/hub" >"$T/init" || fail "init"
"$nebula" invite paris --home "$T/hub" >/dev/null || fail "invite"
restore() { code_in "$T/init" | init --restore "$T/hub/ca-backup" "$@"; } # ARGUMENTS...
fails_with 'copy members.neb and seen' restore --home "$T/new"
[[ ! -e $T/new ]] || fail "a refused restore left: $(ls -A "$T/new")"
mkdir -p "$T/new/federation" && cp "$T/hub/federation/"{members.neb,seen} "$T/new/federation/"
cp -r "$T/hub/keys" "$T/hub/identity" "$T/new/"
restore --home "$T/new" >/dev/null 2>"$T/err" || fail "restore: $(cat "$T/err")"
cmp -s "$T/hub/federation/members.neb" "$T/new/federation/members.neb" ||
    fail "the restored hub has another list than the lost one"
"$nebula" invite rome --home "$T/new" >/dev/null || fail "the restored hub cannot invite"
fails_with 'does not open it' init --restore "$T/hub/ca-backup" --home "$T/new" \
    <<<'AAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA-AAAA'
# An invitation is withdrawn by its name.
"$nebula" revoke rome --home "$T/new" >"$T/out" || fail "an invitation cannot be withdrawn"
grep -q 'rome is not a member; the open invitations of that name have ended' "$T/out" ||
    fail "nebula revoke does not say that invitations have ended: $(cat "$T/out")"
fails_with "no member 'rome'" "$nebula" revoke rome --home "$T/new"
# By mistake, in the home of another hub.
init --name other --member hub --home "$T/other" >/dev/null || fail "init of another hub"
cp -r "$T/other" "$T/other-was"
fails_with "belongs to federation 'other'" restore --home "$T/other"
diff -r "$T/other-was" "$T/other" >&2 || fail "a refused restore changed another hub"
"$nebula" invite oslo --home "$T/other" >/dev/null || fail "the other hub cannot invite any more"
# ---- another address: the hub with its backup, while a site that only dials runs; then a site ----
port=$(ten_ports)
pids=()
clean_up() {
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
agent() { # HOME PORT
    timeout 600 "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$2" 2>>"$T/$1.log" &
    pids+=($!)
}
version() { "$nebula" members --home "$T/$1" | sed -n 's/^version: \([0-9]*\).*/\1/p'; }
"$nebula" init --name moves --member hub --listen "127.0.0.1:$port" --link \
    "127.0.0.1:$((port + 1))" --home "$T/first-host" >"$T/moves" ||
    fail "init"
agent first-host $((port + 1))
first=${pids[-1]}
within 20 "$nebula" join "$("$nebula" invite paris --home "$T/first-host")" --home "$T/paris" \
    >/dev/null ||
    fail "paris cannot join"
timeout 600 "$nebula" agent --home "$T/paris" 2>>"$T/paris.log" &
pids+=($!)
paris=$!
within 20 link_up paris hub || fail "no link to the first host"
kill "$first" && wait "$first" || true
mkdir -p -m 700 "$T/second-host/federation" &&
    cp "$T/paris/federation/"{members.neb,seen} "$T/second-host/federation/"
move_hub() {
    code_in "$T/moves" |
        "$nebula" init --restore "$T/first-host/ca-backup" --listen "127.0.0.1:$((port + 2))" \
        --link "127.0.0.1:$((port + 3))" --home "$T/second-host"
}
cp -r "$T/second-host" "$T/without-keys" # such a hub is not a member, and says so
code_in "$T/moves" |
    "$nebula" init --restore "$T/first-host/ca-backup" --member hub --listen 127.0.0.1:7443 --link \
    "127.0.0.1:$((port + 3))" --home "$T/without-keys" >/dev/null 2>"$T/err" ||
    fail "restore without keys"
grep -q "keys of 'hub' in .* are not on the member list" "$T/err" ||
    fail "init does not say that the hub is no member: $(cat "$T/err")"
cp -r "$T/first-host/keys" "$T/first-host/identity" "$T/second-host/"
move_hub >/dev/null 2>"$T/err" || fail "the hub cannot move: $(cat "$T/err")"
agent second-host $((port + 3))
within 20 "$nebula" members --home "$T/paris" --fetch "127.0.0.1:$((port + 2))" >"$T/out" \
    2>"$T/err" ||
    fail "paris gets no list from the second host: $(cat "$T/err")"
grep -q "endpoint: 127.0.0.1:$((port + 3))" "$T/out" ||
    fail "the list does not have the hub's new address: $(cat "$T/out")"
within 20 link_up paris hub ||
    fail "paris does not dial the second host: $(tail -n 3 "$T/paris.log")"
kill -0 "$paris" || fail "the agent of paris has ended"
# A site that begins to listen, and a move to the same address.
"$nebula" move paris --link "127.0.0.1:$((port + 4))" --home "$T/second-host" >"$T/out" ||
    fail "paris cannot move"
grep -q "paris: 127.0.0.1:$((port + 4)): member list version $(version second-host)" "$T/out" ||
    fail "nebula move does not name the new list: $(cat "$T/out")"
same_version() { [[ $(version paris) == "$(version second-host)" ]]; }
within 20 same_version || fail "paris has list $(version paris), the hub $(version second-host)"
link_up paris hub || fail "a move took the link down"
before=$(version second-host)
"$nebula" move paris --link "127.0.0.1:$((port + 4))" --home "$T/second-host" >/dev/null &&
    [[ $(version second-host) == "$before" ]] ||
    fail "a move to the same address made list $(version second-host), expected $before"
fails_with "no member 'rome'" "$nebula" move rome --link - --home "$T/second-host"
fails_with 'expected HOST:PORT' "$nebula" move paris --link nowhere --home "$T/second-host"
fails_with 'move needs --link' "$nebula" move paris --home "$T/second-host"
"$nebula" move paris --link - --home "$T/second-host" | has 'paris: dials' ||
    fail "nebula move --link - does not make paris dial"
# ---- the CA's seal key as a systemd credential: not on the hub's disk, unknown to a shell --------
mkdir -m 700 "$T/credentials" && mv "$T/hub/ca/seal.key" "$T/credentials/nebula-ca-seal"
fails_with 'credential nebula-ca-seal, run this command with systemd-run' "$nebula" invite bonn \
    --home "$T/hub"
CREDENTIALS_DIRECTORY=$T/credentials "$nebula" invite bonn --home "$T/hub" >/dev/null ||
    fail "invite with the credential"
CREDENTIALS_DIRECTORY=$T/credentials "$nebula" revoke bonn --home "$T/hub" >/dev/null ||
    fail "revoke with the credential"

# ---- the key that a site seals with
seal() { "$nebula" seal init "$@" --home "$T/site"; } # KEYFILE ARGUMENTS...
NEBULA_FAULT=fs.rename:2 seal "$T/seal.key" >/dev/null 2>&1 &&
    fail "seal init succeeded, although the rename of seal.json fails"
[[ -s $T/seal.key && ! -e $T/site/seal.json ]] ||
    fail "expected a key without seal.json: $(ls "$T/seal.key" "$T/site/seal.json" 2>&1)"
cp "$T/seal.key" "$T/seal.was"
seal "$T/seal.key" >"$T/out" || fail "seal init does not complete an interrupted one"
cmp -s "$T/seal.key" "$T/seal.was" || fail "the key was replaced"
[[ $(head -n 1 "$T/out") == "$("$nebula" seal id "$T/seal.key")" ]] ||
    fail "seal init shows another key than seal id: $(cat "$T/out")"
fails_with "seal.json names the key $T/seal.key" seal "$T/other.key"
[[ ! -e $T/other.key ]] && grep -qF "$T/seal.key" "$T/site/seal.json" ||
    fail "another key replaced the first: $(cat "$T/site/seal.json")"
rm "$T/site/seal.json"
seal "$T/other.key" >/dev/null || fail "seal init of another key fails without seal.json"
rm "$T/site/seal.json"
fails_with 'garbage' seal \
    "$(head -c 40 /dev/urandom >"$T/garbage" && chmod 600 "$T/garbage" && echo "$T/garbage")"
[[ ! -e $T/site/seal.json ]] || fail "seal.json names a file that is no key"
printf 'a long passphrase\na long passphrase' |
    seal "$T/phrase.key" --passphrase >/dev/null 2>"$T/err" ||
    fail "a passphrase without a final newline: $(cat "$T/err")"
rm "$T/site/seal.json"
printf 'a long passphrase\na long passphras\n' |
    fails_with 'differ' seal "$T/phrase2.key" --passphrase

echo "an init was killed $((k - 2)) times, and made again $remade times"
