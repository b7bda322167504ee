#!/usr/bin/env bash
# A site's policy.json refuses a job of another member: both operators read why, nothing is trained there; a job that the policy
# admits runs. A policy that others can write refuses every job.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
port=$(ten_ports)
pids=()
stop_agents() { for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done; wait 2>/dev/null || true; }
clean_up() { stop_agents; }
a=$("$nebula" id --home "$T/a" --name alpha)
b=$("$nebula" id --home "$T/b" --name beta)
"$nebula" peer add "$b" - --home "$T/a" >/dev/null
"$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/b" >/dev/null
"$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" >"$T/a.log" 2>&1 & pids+=($!)
"$nebula" agent --home "$T/b" >"$T/b.log" 2>&1 & pids+=($!)
for ((i = 0; i < 100; i++)); do
    "$nebula" status --home "$T/a" --json 2>/dev/null | jq -e '.peers[0].up' >/dev/null 2>&1 && break
    sleep 0.1
done
((i < 100)) || fail "no link"
policy() { (umask 077; echo "$1" >"$T/b/policy.json"); }
refused() { # text
    n=$((${n:-0} + 1))
    if timeout 60 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/out$n" >"$T/run$n.log" 2>&1; then fail "a job ran that the policy refuses: $1"; fi
    grep -q "$1" "$T/run$n.log" || fail "the submitter was not told '$1': $(tail -n 4 "$T/run$n.log")"
    grep -q "$1" "$T/b.log" || fail "the site's log does not say '$1'"
    [[ ! -d $T/b/jobs || -z $(ls "$T/b/jobs") ]] || fail "a refused job left something behind"
}
policy '{"format": 1, "members": ["gamma"]}'
refused '"alpha" is not among'
policy '{"format": 1, "data": ["/nowhere"]}'
refused 'not below a folder'
policy '{"format": 1, "trainable": ["lora"]}'
refused '"trainable" does not list'
policy '{"format": 1, "tokens_per_step": 255}'
refused 'has 256 tokens, at most 255'
policy '{"format": 1, "memory": "1M"}'
refused 'of memory, at most 0.001'
policy '{"format": 1, "disk": 13000000}' # 10.7 MB, and 4.7 of the vocabulary that its corpus has
refused 'about 0.0154 GB on disk, at most 0.013 GB'
policy '{"format": 1'
if timeout 60 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/outx" >"$T/runx.log" 2>&1; then fail "ran with a broken policy"; fi
grep -q 'cannot be read' "$T/runx.log" || fail "no reason for a broken policy"
policy "{\"format\": 1, \"members\": [\"alpha\"], \"data\": [\"$T\"], \"trainable\": [\"full\"], \"threads\": 1, \"tokens_per_step\": 256,
    \"memory\": \"4G\", \"disk\": \"1G\"}"
timeout 100 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/ok" >"$T/ok.log" 2>&1 || fail "an admitted job did not run: $(tail -n 3 "$T/ok.log")"
digests_equal "$T/ok"
echo "a site's policy refuses what it does not admit, and says so to both"
