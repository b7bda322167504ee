#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A site's policy.json refuses a job of another member. Both operators get the reason, and nothing
# is trained. A job that the policy admits runs. A damaged policy refuses every job.
source "$SOURCE/tests/e2e/lib.sh"
make_corpus
make_job "$T/job.yaml"
port=$(ten_ports)
pids=()
stop_agents() {
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait 2>/dev/null || true
}
clean_up() { stop_agents; }
a=$("$nebula" id --home "$T/a" --name alpha)
b=$("$nebula" id --home "$T/b" --name beta)
"$nebula" peer add "$b" - --home "$T/a" >/dev/null
"$nebula" peer add "$a" "127.0.0.1:$port" --home "$T/b" >/dev/null
"$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" >"$T/a.log" 2>&1 & pids+=($!)
"$nebula" agent --home "$T/b" >"$T/b.log" 2>&1 & pids+=($!)
within 20 link_up a beta || fail "no link"
policy() { (umask 077; echo "$1" >"$T/b/policy.json"); }
refused() { # TEXT
    n=$((${n:-0} + 1))
    if timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/out$n" >"$T/run$n.log" \
        2>&1; then
        fail "a job ran that the policy refuses: $1"
    fi
    grep -q "$1" "$T/run$n.log" ||
        fail "the submitter's log lacks '$1': $(tail -n 4 "$T/run$n.log")"
    grep -q "$1" "$T/b.log" || fail "the site's log lacks '$1': $(tail -n 4 "$T/b.log")"
    [[ ! -d $T/b/jobs || -z $(ls "$T/b/jobs") ]] || fail "a refused job left: $(ls "$T/b/jobs")"
}
policy '{"format": 1, "members": ["gamma"]}'
refused '"alpha" is not among'
policy '{"format": 1, "data": ["/nowhere"]}'
refused 'not below a folder'
policy '{"format": 1, "trainable": ["lora"]}'
refused '"trainable" does not list'
policy '{"format": 1, "tokens_per_step": 255}'
refused 'has 256 tokens, but at most 255'
policy '{"format": 1, "memory": "1M"}'
refused 'of memory, but at most 0.001'
policy '{"format": 1, "disk": 13000000}' # 10.7 MB, and 4.7 MB for the vocabulary of its corpus
refused 'about 0.0154 GB on disk, but at most 0.013 GB'
# This shows what leaves the site of its text, if its policy only says which folders may be read.
# (The job makes 2,560 tokens per update.)
data="\"format\": 1, \"data\": [\"$T\"]"
asks() { make_job "$T/job.yaml"; sed -i "$1" "$T/job.yaml"; }
policy "{$data}"
asks 's/seq_len: 64, batch: 4/seq_len: 1, batch: 1/; s/interval: 10/interval: 1/'
refused 'would rest on as few as 1 tokens'
asks 's/interval: 10/interval: 10, row_counts: exact/'
refused 'sends counts of the tokens of this site'
asks ''
policy '{"format": 1'
if timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/outx" >"$T/runx.log" 2>&1; \
    then
    fail "a job ran with a broken policy"
fi
grep -q 'cannot be read' "$T/runx.log" ||
    fail "the refusal does not say that the policy is broken: $(cat "$T/runx.log")"
policy "{\"format\": 1, \"members\": [\"alpha\"], \"data\": [\"$T\"], \"trainable\": [\"full\"],
    \"threads\": 1, \"tokens_per_step\": 256, \"memory\": \"4G\", \"disk\": \"1G\"}"
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/ok" >"$T/ok.log" 2>&1 ||
    fail "an admitted job failed: $(tail -n 3 "$T/ok.log")"
digests_equal "$T/ok"
# alpha gets the losses of this site as means over several steps, with three digits. It has its own
# losses in full.
losses() {
    jq -s -c "[.[] | select(.cluster == \"$1\" and (.kind == \"step\" or .kind == \"eval\")) |
        (.loss, .grad_norm, (.sources // {})[]) | select(. != null)]" "$T/ok/metrics.jsonl"
}
coarse='length > 3 and all(. * 1000 - (. * 1000 | round) | fabs < 1e-6)'
jq -e "$coarse" <<<"$(losses beta)" >/dev/null ||
    fail "alpha got exact losses of beta: $(losses beta)"
! jq -e "$coarse" <<<"$(losses alpha)" >/dev/null ||
    fail "alpha got its own losses rounded: $(losses alpha)"
jq -e '.clusters[] | select(.name == "beta") | [.loss_first, .loss_last, .eval_loss] |
    all(type == "number" and (. * 1000 - (. * 1000 | round) | fabs < 1e-6))' \
    "$T/ok/summary.json" >/dev/null ||
    fail "the summary has exact losses of beta: $(jq -c '.clusters[1]' "$T/ok/summary.json")"
jq -s -e '[.[] | select(.sums)] == []' "$T/ok/metrics.jsonl" >/dev/null ||
    fail "metrics.jsonl holds sums of losses"

# The agent at its start, and nebula check, say what a policy admits. The check also says why it
# does not admit a job.
grep -q 'no policy.json in .*its readers can read them' "$T/b.log" ||
    fail "the agent does not say that it has no policy: $(cat "$T/b.log")"
policy "{$data, \"row_counts\": \"never\"}"
"$nebula" check --policy "$T/b/policy.json" >"$T/said" || fail "check --policy"
admits='row counts never; text stays, labels stay; losses rounded'
grep -q "an update rests on at least 2048 tokens.*$admits" "$T/said" ||
    fail "nebula check does not say what the policy admits: $(cat "$T/said")"
rc=0; "$nebula" check "$T/job.yaml" --policy "$T/b/policy.json" >"$T/said" 2>&1 || rc=$?
((rc == 2)) &&
    grep -q 'site "beta" does not admit the job: it sends counts of the tokens' "$T/said" ||
    fail "nebula check: status $rc, expected 2 and the reason: $(cat "$T/said")"
"$nebula" check "$T/job.yaml" --set sync.row_weights=false --policy "$T/b/policy.json" >"$T/said" \
    2>&1 ||
    fail "nebula check: $(cat "$T/said")"
"$nebula" check "$T/job.yaml" --set sync.interval=1 --json |
    jq -e '.refused_by_default | test("as few as 256 tokens")' >/dev/null ||
    fail "nebula check does not say what a site refuses by default"
"$nebula" check "$T/job.yaml" --json | jq -e '.refused_by_default == null' >/dev/null ||
    fail "nebula check says that a site refuses the job by default"

# A loop waits at beta, but alpha's job does not get it. A job that waits for a loop without end
# would block the site, so the site's policy ends it after some hours.
policy "{$data, \"hours_without_progress\": 0.003}" # 10.8 s
asks 's/model: {/model: {vocab: 512, /; s/job: e2e/job: trap/
    s/\(name: beta.*\)threads: 1/\1threads: 1, launcher: attach/'
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/trap" >"$T/trap.log" 2>&1 &
trap_pid=$!
begun() { grep -q 'job trap waits for a trainer' "$T/b.log"; }
within 20 begun || fail "the job did not begin at beta: $(tail -n 4 "$T/b.log")"
rc=0; timeout 4 "$BUILD/attach_client" "$T/b" trap 1 >"$T/loop.log" 2>&1 || rc=$?
((rc == 124)) || fail "the loop ended with status $rc, expected 124: $(cat "$T/loop.log")"
! grep -q 'trap: process .* is its trainer' "$T/b.log" ||
    fail "alpha's job got a loop that had not named it"
grep -q '"alpha" waits for a trainer. It is another member' "$T/b.log" ||
    fail "the log does not say how a loop gets the job: $(tail -n 4 "$T/b.log")"
idle() { grep -q 'no step was made here for .*hours_without_progress' "$T/b.log"; }
within 20 idle || fail "beta does not stop the idle job: $(tail -n 4 "$T/b.log")"
wait $trap_pid && fail "the submitter's command succeeded, expected a failure" || true
grep -q 'no step was made here' "$T/trap.log" ||
    fail "the submitter gets no reason: $(tail -n 4 "$T/trap.log")"

# The loop that names the job's member gets the job. In this job an update has 5,120 tokens. The
# loop has seen only 2,560, so that update stays here.
policy "{$data, \"tokens_per_update\": 5120}"
sed -i 's/batch: 4/batch: 8/; s/job: trap/job: named/' "$T/job.yaml"
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/named" >"$T/named.log" 2>&1 &
named_pid=$!
NEBULA_JOB_FROM=alpha timeout 600 "$BUILD/attach_client" "$T/b" '' 1 >"$T/loop.log" 2>&1 || true
grep -q 'begins at 0' "$T/loop.log" ||
    fail "a loop that names the job's member does not begin: $(cat "$T/loop.log")"
grep -q 'an update would rest on 2560 tokens, but the policy of this site requires 5120' \
    "$T/b.log" ||
    fail "the update left beta: $(tail -n 4 "$T/b.log")"
wait $named_pid && fail "the submitter's command succeeded, expected a failure" || true
[[ $(largest "$T/named" round round beta -1) == -1 ]] ||
    fail "beta has merged a round, expected none"
echo "a site's policy refuses what it does not admit, and says so to both"
