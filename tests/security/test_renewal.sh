#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An agent renews its certificate, which ends in three minutes, while a job runs. not_after is
# months later, the link stays as it was, and steps and rounds continue.
source "$SOURCE/tests/e2e/lib.sh"
pids=()
clean_up() {
    [[ ! ${run:-} ]] || end_now "$run" # it would wait for its agent
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
port=$(ten_ports)
enrol=127.0.0.1:$port
agent() { # NAME PORT
    timeout 600 "$nebula" agent --home "$T/$1" --listen "127.0.0.1:$2" 2>>"$T/$1.log" &
    pids+=($!)
}
not_after() { date -d "$(openssl x509 -in "$1" -noout -enddate | cut -d = -f 2)" +%s; }
peer() {
    "$nebula" status --home "$T/$1" --json |
        jq -r --arg n "$2" \
        '.peers[] | select(.name == $n) | "up: \(.up), came up \(.connects) times"'
}
step_of() { "$nebula" status --home "$T/$1" --json 2>/dev/null | jq -r '.jobs[0].step // 0'; }
beyond() { (($(step_of "$1") > $2)); }
rounds() { grep -c '"kind": *"round"' "$T/run/metrics.jsonl" || true; }
more_rounds() { (($(rounds) > $1)); }

make_corpus
pace 80
"$nebula" init --name acme --listen "$enrol" --link "127.0.0.1:$((port + 1))" --member hub --dir \
    "$T/hub" >/dev/null
NEBULA_FAULT=$NEBULA_FAULT,ca.brief:1 agent hub $((port + 1)) # the first certificate ends soon
token=$("$nebula" invite paris --ttl 1h --dir "$T/hub")
within 20 "$nebula" join "$token" --dir "$T/paris" --endpoint "127.0.0.1:$((port + 2))" ||
    fail "paris cannot join"
cert=$T/paris/federation/member.pem
cp "$cert" "$T/brief.pem"
ends=$(not_after "$T/brief.pem")
((ends <= $(date +%s) + 180)) ||
    fail "the certificate ends in $((ends - $(date +%s))) s, expected 180 at most"

# The agent starts with another certificate. Otherwise it would renew before there is a job.
"$nebula" members --fetch "$enrol" --dir "$T/paris" >/dev/null ||
    fail "members --fetch gets no certificate"
agent paris $((port + 2))
within 20 link_up hub paris || fail "no link"
within 20 link_up paris hub || fail "no link"
make_job "$T/job.yaml"
light "$T/job.yaml"
shape "$T/job.yaml" 'n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 2, d_ff: 64'
clusters "$T/job.yaml" hub paris
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/hub" --out "$T/run" --steps 100000 \
    >"$T/run.log" 2>&1 &
run=$!
within 30 beyond paris 10 || fail "the job does not run: $(tail -n 3 "$T/run.log")"
grep -q 'certificate was renewed' "$T/paris.log" &&
    fail "the certificate was renewed before the job ran"
cp "$T/brief.pem" "$T/paris/federation/member.new"
mv "$T/paris/federation/member.new" "$cert"
links="$(peer hub paris), $(peer paris hub)"
workers=$(pgrep -f "nebula worker $T/paris/" | sort | tr '\n' ' ')
at=$(step_of paris)

within 90 grep -q 'certificate was renewed' "$T/paris.log" ||
    fail "the certificate was not renewed:" "$(tail -n 3 "$T/paris.log" "$T/paris/renew.log")"
now=$(date +%s) later=$(not_after "$cert")
((now < ends)) || fail "the certificate was renewed $((now - ends)) s after its end"
((later > ends + 80 * 86400)) ||
    fail "not_after was $ends and is $later, expected 80 days later or more"
openssl verify -CAfile "$T/paris/federation/ca.pem" "$cert" >/dev/null ||
    fail "the CA has not signed the new certificate"
beyond paris "$at" || fail "the job made no step during the renewal: step $at"
at=$(step_of paris) had=$(rounds)
within 30 beyond paris $((at + 20)) ||
    fail "paris is at step $(step_of paris), expected over $((at + 20))"
within 30 more_rounds $((had + 3)) ||
    fail "$(rounds) rounds, expected over $((had + 3)) after the renewal"
[[ "$(peer hub paris), $(peer paris hub)" == "$links" ]] ||
    fail "links were $links, now $(peer hub paris), $(peer paris hub)"
[[ $(pgrep -f "nebula worker $T/paris/" | sort | tr '\n' ' ') == "$workers" ]] ||
    fail "the worker was restarted"
for site in hub paris; do
    grep -q 'is down' "$T/$site.log" && fail "$site lost its link: $(grep 'is down' "$T/$site.log")"
done
echo "renewed $((ends - now)) s before its end: not_after is $(((later - ends) / 86400)) days" \
    "later; links: $links; $(rounds) rounds"
