#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The status page beyond loopback: TLS 1.2 and 1.3 with the agent's own certificate or the
# operator's, and a token by header or cookie. Clients without a token, with plain HTTP, with idle
# connections, or with a byte a second do no harm.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
command -v curl >/dev/null || skip "curl is not installed"
pair
a_page() { "$nebula" agent --home "$T/a" "$@" >>"$T/a.log" 2>&1 & pid[a]=$!; }
end_a() {
    kill -TERM "${pid[a]}"
    wait "${pid[a]}" || fail "the agent did not end in order"
    unset 'pid[a]'
}
refused() { # WHAT ARGUMENTS…
    local what=$1
    shift
    if timeout 20 "$nebula" agent --home "$T/a" "$@" 2>"$T/err"; then
        fail "an agent started with $*"
    fi
    grep -q -e "$what" "$T/err" || fail "the reason is missing for $*: $(cat "$T/err")"
}
(umask 077; openssl rand -hex 32 >"$T/token")
token=$(cat "$T/token")

# Wrong options are refused at the start.
refused 'needs --page-token' --page "0.0.0.0:$page"
refused 'go together' --page "0.0.0.0:$page" --page-token "$T/token" --page-cert "$T/none.pem"
refused 'none.pem' --page "0.0.0.0:$page" --page-token "$T/token" --page-cert "$T/none.pem" \
    --page-key "$T/none.pem"
refused 'numeric address' --page "page.example:$page" --page-token "$T/token"
(umask 077; echo short >"$T/short"; cp "$T/token" "$T/open")
chmod 644 "$T/open"
refused 'open to others' --page "0.0.0.0:$page" --page-token "$T/open"
refused 'at least 16 bytes' --page "0.0.0.0:$page" --page-token "$T/short"

# The agent makes its own certificate. The log contains its fingerprint, and the next start keeps
# it.
a_page --page "0.0.0.0:$page" --page-token "$T/token"
https=https://127.0.0.1:$page
pem=$T/a/page/cert.pem
code() { curl -s -m 20 --cacert "$pem" -o /dev/null -w '%{http_code}' "$@"; }
code_is() { [[ $(code "${@:2}") == "$1" ]]; }
bearer=(-H "Authorization: Bearer $token")
wait_for 30 "metrics for the token" code_is 200 "${bearer[@]}" "$https/metrics"
print=$(openssl x509 -in "$pem" -noout -fingerprint -sha256 | sed 's/.*=//')
[[ ${#print} == 95 ]] && grep -qF "$print" "$T/a.log" ||
    fail "the log does not name the fingerprint '$print'"
[[ $(stat -c %a "$T/a/page/key.pem") == 600 ]] || fail "others can read the key"
openssl x509 -in "$pem" -noout -checkip 127.0.0.1 -checkhost localhost | has 'does match' ||
    fail "the certificate has wrong names"
for path in / /api/v1/status /api/v1/history /metrics; do
    [[ $(code "$https$path") == 401 ]] || fail "wrong answer for $path without a token"
    [[ $(code -H 'Authorization: Bearer wrong' "$https$path") == 401 &&
        $(code -H "Authorization: Bearer ${token}0" "$https$path") == 401 ]] ||
        fail "wrong answer for $path with a wrong token"
    [[ $(code -H "Authorization: Bearer ${token:0:63}" "$https$path") == 401 &&
        $(code -H "Cookie: nebula_page=$token" "$https$path") == 401 ]] ||
        fail "wrong answer for $path with part of the token"
    [[ $(code "${bearer[@]}" "$https$path") == 200 ]] ||
        fail "wrong answer for $path with the token"
done
[[ $(code "${bearer[@]}" --tls-max 1.2 "$https/metrics") == 200 &&
    $(code "${bearer[@]}" --tlsv1.3 "$https/metrics") == 200 ]] || fail "TLS 1.2 or 1.3 failed"
if curl -s -m 10 --cacert "$pem" --tls-max 1.1 \
    --ciphers DEFAULT@SECLEVEL=0 "${bearer[@]}" "$https/metrics" >"$T/out"; then
    fail "the agent accepted TLS 1.1"
fi
if curl -s -m 10 "${bearer[@]}" "$https/metrics" >"$T/out"; then
    fail "curl trusts the certificate without an option"
fi

# A browser sends the token once in the address. Then it has a cookie that scripts cannot read and
# other sites cannot send.
curl -s -m 20 --cacert "$pem" -c "$T/jar" -D "$T/head" -o /dev/null "$https/?token=$token" ||
    fail "the login failed"
grep -qi '^HTTP/1.1 303' "$T/head" && grep -qi '^location: /.$' "$T/head" ||
    fail "there is no redirect: $(cat "$T/head")"
grep -qi '^set-cookie: nebula_page=[0-9a-f]*; Path=/; HttpOnly; SameSite=Strict; Secure' \
    "$T/head" || fail "wrong cookie: $(cat "$T/head")"
if grep -q "$token" "$T/head"; then fail "the cookie is the token"; fi
[[ $(code -b "$T/jar" "$https/") == 200 && $(code -b "$T/jar" "$https/api/v1/status") == 200 ]] ||
    fail "the cookie does not open the page"
[[ $(code -H "Cookie: a=b; nebula_page=0000; c" "$https/") == 401 &&
    $(code "$https/?token=wrong") == 401 ]] || fail "a wrong cookie or token was accepted"
curl -s -m 20 --cacert "$pem" -b "$T/jar" "$https/" | has '<title>Nebula' || fail "the page failed"
curl -s -m 20 --cacert "$pem" "${bearer[@]}" "$https/api/v1/status" |
    jq -e '.name == "alpha"' >/dev/null || fail "wrong status"

# Host names, methods, sizes, paths, and plain HTTP on the TLS port.
[[ $(code "${bearer[@]}" -H 'Host: evil.example' "$https/metrics") == 403 &&
    $(code "${bearer[@]}" -H 'Host: 192.0.2.7:9470' "$https/metrics") == 200 ]] ||
    fail "wrong answers to Host headers"
[[ $(code "${bearer[@]}" -X POST -d x "$https/") == 405 &&
    $(code "${bearer[@]}" -I "$https/") == 405 &&
    $(code "${bearer[@]}" "$https/nothing") == 404 ]] || fail "wrong answers to methods and paths"
[[ $(code "${bearer[@]}" -H "X-Long: $(head -c 20000 /dev/zero | tr '\0' x)" "$https/") != 200 ]] ||
    fail "a request of 20 KB was answered"
curl -s -m 20 --cacert "$pem" "${bearer[@]}" -D "$T/head" -o /dev/null "$https/" &&
    grep -qi "^content-security-policy: default-src 'none'" "$T/head" &&
    grep -qi '^cache-control: no-store' "$T/head" || fail "wrong headers: $(cat "$T/head")"
if curl -s -m 20 "${bearer[@]}" "http://127.0.0.1:$page/metrics" >"$T/out"; then
    fail "plain HTTP was answered on the TLS port"
fi
[[ ! -s $T/out ]] || fail "plain HTTP got data: $(head -c 100 "$T/out")"

# 50 connections that send nothing. The number per address is limited, another address is served
# meanwhile, and all are closed in the end. So is a connection that sends a byte a second and is
# never idle.
cat >"$T/hold.py" <<'PY'
import socket, ssl, sys, time
port, n = int(sys.argv[1]), int(sys.argv[2])
idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
plain = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.3", 0))
slow = ssl._create_unverified_context().wrap_socket(plain)
slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
print("held", flush=True)
begin, open_, trickles = time.time(), list(idle), True
while (open_ or trickles) and time.time() - begin < 50:
    for s in list(open_):
        s.settimeout(0.005)
        try:
            gone = s.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            gone = True
        if gone:
            open_.remove(s)
    if trickles:
        try:
            slow.sendall(b"x")
            slow.settimeout(0.005)
            trickles = slow.recv(1) != b""
        except TimeoutError:
            pass
        except OSError:
            trickles = False
    time.sleep(1)
took = time.time() - begin
print(f"{len(open_)} idle connections and {int(trickles)} slow one left after {took:.0f} s")
sys.exit(bool(open_) or trickles)
PY
timeout 600 python3 "$T/hold.py" "$page" 50 >"$T/hold" 2>&1 & pid[hold]=$!
wait_for 20 "50 connections" grep -q held "$T/hold"
[[ $(code --interface 127.0.0.2 "${bearer[@]}" "$https/metrics") == 200 ]] ||
    fail "another address is not served during 50 idle connections"
st=0; wait "${pid[hold]}" || st=$?
unset 'pid[hold]'
[[ $st == 0 ]] || fail "connections stay open: $(cat "$T/hold")"
[[ $(code "${bearer[@]}" "$https/metrics") == 200 ]] ||
    fail "there is no answer after idle connections"
end_a

# After a restart the agent has the same certificate. Then the operator's certificate, for a name. A
# loopback page may have TLS too.
a_page --page "0.0.0.0:$page" --page-token "$T/token"
wait_for 30 "the page again" code_is 200 "${bearer[@]}" "$https/metrics"
[[ $(grep -cF "$print" "$T/a.log") == 2 ]] || fail "the certificate changed after a restart"
end_a
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$T/site.key" \
    -out "$T/site.pem" -days 2 -subj /CN=site -addext subjectAltName=DNS:page.example 2>/dev/null ||
    fail "openssl req failed"
refused 'is not the key of' --page "0.0.0.0:$page" --page-token "$T/token" \
    --page-cert "$T/site.pem" --page-key "$T/a/page/key.pem"
a_page --page "0.0.0.0:$page" --page-token "$T/token" --page-cert "$T/site.pem" \
    --page-key "$T/site.key"
pem=$T/site.pem
named=(--resolve "page.example:$page:127.0.0.1" "${bearer[@]}" "https://page.example:$page/metrics")
wait_for 30 "the operator's certificate" code_is 200 "${named[@]}"
[[ $(code "${named[@]}" -H 'Host: other.example') == 403 ]] ||
    fail "wrong answer for a name that is not in the certificate"
end_a
a_page --page "$page" --page-cert "$T/site.pem" --page-key "$T/site.key"
wait_for 30 "TLS on loopback" code_is 200 -k "https://127.0.0.1:$page/metrics"
end_a
echo "TLS page: own and given certificate, token, cookie; $(tail -n 1 "$T/hold")"
