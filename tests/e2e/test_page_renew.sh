#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The status page's certificate is renewed while the agent runs and a client sends requests all the
# time.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
command -v curl >/dev/null || skip "curl is not installed"
pair
(umask 077; openssl rand -hex 32 >"$T/token")
bearer=(-H "Authorization: Bearer $(cat "$T/token")")
https=https://127.0.0.1:$page
pair_of() { # FILES SUBJECT NAME
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$T/$1.key" \
        -out "$T/$1.pem" -days 3 -subj "/CN=$2" -addext "subjectAltName=DNS:$3" 2>/dev/null ||
        fail "openssl req failed"
}
code() { curl -s -m 20 --cacert "$T/site.pem" -o /dev/null -w '%{http_code}' "$@"; }
code_is() { [[ $(code "${@:2}") == "$1" ]]; }
pair_of site site page.example
"$nebula" agent --home "$T/a" --page "0.0.0.0:$page" --page-token "$T/token" \
    --page-cert "$T/site.pem" --page-key "$T/site.key" >>"$T/a.log" 2>&1 &
pid[a]=$!
wait_for 30 "the page" code_is 200 \
    --resolve "page.example:$page:127.0.0.1" "${bearer[@]}" "https://page.example:$page/metrics"
threads() { find "/proc/${pid[a]}/task" -mindepth 1 -maxdepth 1 | wc -l; }
one_server=$(threads)

# A certificate without its key changes nothing. Once the pair is complete, it is used, and no
# request is refused.
served() {
    timeout 20 openssl s_client -connect "127.0.0.1:$page" </dev/null 2>/dev/null |
        openssl x509 -noout -fingerprint -sha256
}
print_of() { openssl x509 -in "$1" -noout -fingerprint -sha256; }
renewed() { [[ $(served) == "$(print_of "$1")" ]]; }
: >"$T/answers"
(while [[ -e $T/token && ! -e $T/enough ]]; do curl -sk -m 20 -o /dev/null -w '%{http_code}\n' \
    "${bearer[@]}" "$https/metrics" || true; sleep 0.1; done >>"$T/answers") &
asking=$!
old=$(served)
pair_of new site renewed.example
mv "$T/new.pem" "$T/site.pem"
wait_for 20 "a message about a certificate without its key" \
    grep -q 'site.pem was renewed but is unusable' "$T/a.log"
[[ $(served) == "$old" ]] || fail "a certificate without its key is used"
mv "$T/new.key" "$T/site.key"
wait_for 20 "the renewed certificate" renewed "$T/site.pem"
[[ $(served) != "$old" ]] || fail "the certificate did not change"
named=(--resolve "renewed.example:$page:127.0.0.1" "${bearer[@]}" \
    "https://renewed.example:$page/metrics")
[[ $(code "${named[@]}") == 200 ]] ||
    fail "wrong answer for the name of the renewed certificate: $(code "${named[@]}")"
[[ $(code -k "${bearer[@]}" -H 'Host: page.example' "$https/metrics") == 403 ]] ||
    fail "wrong answer for the name of the previous certificate"
for n in 1 2 3; do # repeatedly: the previous server has not ended yet
    pair_of site "site$n" renewed.example
    wait_for 20 "renewal $n" renewed "$T/site.pem"
done
many_answers() { (($(wc -l <"$T/answers") > 20)); }
wait_for 30 "more than 20 answers" many_answers
: >"$T/enough"
wait "$asking" || fail "the shell that sends requests failed"
[[ $(sort -u "$T/answers") == 200 ]] ||
    fail "answers while the certificate was renewed: $(sort "$T/answers" | uniq -c)"
former_ended() { (($(threads) <= one_server)); }
wait_for 40 "the end of the former server" former_ended
kill -TERM "${pid[a]}"; wait "${pid[a]}" || fail "the agent's end"; unset 'pid[a]'
echo "renewed four times under $(wc -l <"$T/answers") requests"
