#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# While a job runs and after it, no key of an identity, of the CA, of a worker or of the page is on
# a command line, in an environment, in a log, in an answer, or in any file but its own, in any form
# that programs write keys in. The search must find planted keys.
source "$SOURCE/tests/e2e/lib.sh"
source "$SOURCE/tests/e2e/sites.sh"
workers=()
clean_up() {
    kill -CONT "${workers[@]}" 2>/dev/null || true
    [[ ! ${run:-} ]] || end_now "$run"
    stop_agents
}
make_corpus
pace 40
(umask 077; openssl rand -hex 32 >"$T/token")
"$nebula" init --name acme --listen "127.0.0.1:$port" --link "127.0.0.1:$((port + 2))" --member \
    hub --dir "$T/hub" >/dev/null
NO_COLOR=1 "$nebula" agent --verbose --home "$T/hub" --listen "127.0.0.1:$((port + 2))" --page \
    "0.0.0.0:$page" --page-token "$T/token" >>"$T/hub.log" 2>&1 &
pid[hub]=$!
invitation=$("$nebula" invite paris --ttl 1h --dir "$T/hub")
within 20 "$nebula" join "$invitation" --dir "$T/paris" --endpoint "127.0.0.1:$((port + 3))" \
    >"$T/join.log" ||
    fail "paris cannot join"
"$nebula" agent --verbose --home "$T/paris" --listen "127.0.0.1:$((port + 3))" >>"$T/paris.log" \
    2>&1 &
pid[paris]=$!
within 20 link_up hub paris || fail "no link"
make_job "$T/job.yaml"
light "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
clusters "$T/job.yaml" hub paris
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/hub" --out "$T/run" --steps 120 \
    --set hang_after_s=600 >"$T/run.log" 2>&1 &
run=$!
wait_step "$T/run" 20 "$run" paris || fail "the job does not run: $(tail -n 3 "$T/run.log")"
mapfile -t workers < <(pgrep -f "^[^ ]*nebula worker $T/")
kill -STOP "${workers[@]}" # the job still runs when the search is over

cat >"$T/search.py" <<'PY'
import base64, os, re, sys
top, when = sys.argv[1:3]
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

def z85(b):
    out = ""
    for i in range(0, len(b), 4):
        n = int.from_bytes(b[i:i + 4], "big")
        out += "".join(Z85[n // 85**k % 85] for k in (4, 3, 2, 1, 0))
    return out.encode()

def forms(b):
    hexed = b.hex()
    pairs = [hexed[i:i + 2] for i in range(0, len(hexed), 2)]
    f = [b, hexed.encode(), hexed.upper().encode(), " ".join(pairs).encode(),
         ":".join(pairs).encode(), base64.b64encode(b).rstrip(b"="),
         base64.urlsafe_b64encode(b).rstrip(b"=")]
    return f + ([z85(b)] if len(b) % 4 == 0 else [])

def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""

def processes():
    for p in filter(str.isdigit, os.listdir("/proc")):
        line = read(f"/proc/{p}/cmdline")
        if top.encode() in line and int(p) != os.getpid():
            yield p, line

def held(p):  # credentials in a worker's memory: the bytes after their magic number
    try:
        with open(f"/proc/{p}/maps") as maps, open(f"/proc/{p}/mem", "rb", 0) as mem:
            for m in maps:
                at, perms, _, _, inode = m.split()[:5]
                begin, end = (int(x, 16) for x in at.split("-"))
                if inode == "0" and perms.startswith("rw") and end - begin <= 1 << 20:
                    mem.seek(begin)
                    try:
                        b = mem.read(end - begin)
                    except OSError:
                        continue
                    for k in re.finditer(b"nebwork2", b):
                        if any(b[k.end():k.end() + 32]):
                            yield b[k.end():k.end() + 32]
    except OSError:
        return

secrets = []  # name, value, the file that may hold it
for member in ("hub", "paris"):
    for kind in ("curve", "sign"):
        path = f"{top}/{member}/keys/{kind}.key"
        secrets.append((f"{member}'s {kind} key", read(path)[8:40], path))
for path in (f"{top}/hub/ca/seal.key",):
    secrets.append(("the key that opens the CA", read(path)[-32:], path))
token = f"{top}/token"
secrets.append(("the page's token", read(token).strip(), token))
secrets.append(("the page's token", bytes.fromhex(read(token).strip().decode()), token))
pem = f"{top}/hub/page/key.pem"
secrets.append(("the page's key", base64.b64decode(b"".join(read(pem).split(b"\n")[1:-2])), pem))
secrets.append(("the page's key", read(pem).split(b"\n")[1], pem))

kept = f"{top}/credentials"  # from one search to the next
if when == "runs":
    found = {(p, s) for p, line in processes() if b"\0worker\0" in line for s in held(p)}
    if len({p for p, _ in found}) < 2:
        print("not checked: the memory of workers, and so their credentials, cannot be read here")
    with open(kept, "w") as f:
        f.write("".join(s.hex() + "\n" for _, s in found))
secrets += [("a worker's credential", bytes.fromhex(x), kept) for x in read(kept).decode().split()]
assert all(len(s) >= 32 for _, s, _ in secrets), [(n, len(s)) for n, s, _ in secrets]
secrets = [(name, forms(value), own) for name, value, own in secrets]

wrong, looked, names = set(), 0, {"files": 0, "agent": 0, "worker": 0}
def look(where, data, path=None):
    global looked
    looked += len(data)
    for name, written, own in secrets:
        if path != own and any(f in data for f in written):
            wrong.add(f"{name} is in {where}")

for p, line in processes():
    look(f"the command line of process {p}", line)
    look(f"the environment of process {p}", read(f"/proc/{p}/environ"))
    for n in ("agent", "worker"):
        names[n] += f"\0{n}\0".encode() in line and b"timeout" not in line
for folder, _, files in os.walk(top):
    for name in files:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            names["files"] += 1
            look(path, read(path), path)
if when == "runs":
    assert names["agent"] == 2 and names["worker"] == 2, names
print(f"{len(secrets)} secrets in {names['files']} files, {names['agent']} agents and "
      f"{names['worker']} workers: {looked >> 20} MiB")
for w in sorted(wrong):
    print("FOUND:", w)
PY
search() { # WHEN: fails if a secret is found; prints all, and writes it to $T/found
    python3 "$T/search.py" "$T" "$1" >"$T/found" || fail "the search failed: $(cat "$T/found")"
    cat "$T/found"
    ! grep '^FOUND' "$T/found" >/dev/null
}
said() { # the answers of status, jobs, members and page
    local site
    for site in hub paris; do
        "$nebula" status --home "$T/$site" --json && "$nebula" jobs --home "$T/$site" &&
            "$nebula" members --dir "$T/$site"
    done
    local url
    for url in / /metrics /api/v1/status /api/v1/history; do
        curl -sk -D - -H "Authorization: Bearer $(cat "$T/token")" "https://127.0.0.1:$page$url" ||
            fail "the page does not answer $url"
    done
}
said >"$T/said.txt"
search runs || fail "a secret is where it does not belong (see above)"
kill -CONT "${workers[@]}"

# Tests the search: one secret of each kind, in one form each, in a file, an environment and a
# command line.
raw() { tail -c +9 "$T/$1" | head -c 32; }
planted() { # TEXT: the search must find exactly this
    ! search again >/dev/null || fail "the search does not find: $1"
    grep -q "^FOUND: $1" "$T/found" || fail "expected '$1', found: $(cat "$T/found")"
}
raw paris/keys/curve.key >"$T/planted"
planted "paris's curve key is in $T/planted"
raw hub/keys/sign.key | base64 >"$T/planted"
planted "hub's sign key is in $T/planted"
python3 - "$T" <<'PY'
import struct, sys
chars = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
key = open(sys.argv[1] + "/hub/keys/curve.key", "rb").read()[8:40]
text = "".join(chars[n // 85**k % 85] for n in struct.unpack(">8I", key) for k in (4, 3, 2, 1, 0))
open(sys.argv[1] + "/planted", "w").write("a line of a log: key " + text + "\n")
PY
planted "hub's curve key is in $T/planted"
if [[ -s $T/credentials ]]; then
    head -n 1 "$T/credentials" >"$T/planted"
    planted "a worker's credential is in $T/planted"
fi
rm "$T/planted"
SECRET=$(raw paris/keys/sign.key | od -An -v -tx1 | tr -d ' \n') bash -c 'sleep 30; :' "$T" &
pid[planted]=$!
planted "paris's sign key is in the environment of process ${pid[planted]}"
end_now "${pid[planted]}"
bash -c 'sleep 30; :' "$T" "$(cat "$T/token")" &
pid[planted]=$!
planted "the page's token is in the command line of process ${pid[planted]}"
end_now "${pid[planted]}"
unset 'pid[planted]'

wait "$run" || fail "the run failed: $(tail -n 3 "$T/run.log")"
run=
said >"$T/said.txt"
search ended || fail "a secret is where it does not belong (see above)"
