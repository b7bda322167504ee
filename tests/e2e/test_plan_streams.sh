#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan for modes rtd and distill: it predicts the steps of both sides, waiting, bytes, and a
# link or window that limits the run. The predictions are compared with the measurements of runs.
# Also the choice of roles, `role: auto`, and refusals. The load of the machine varies. So both
# sides of one run are compared, and absolute rates only where a link or a round trip sets them.
source "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
export XDG_CACHE_HOME=$BUILD/rates # measured once, by the test e2e_rates
make_corpus
mv "$T/corpus" "$T/text-corpus"
make_pairs

cat >"$T/rtd.yaml" <<YAML
job: rtd
mode: rtd
seed: 5
steps: 60
model: {n_layers: 3, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/text-corpus, seq_len: 64, batch: 16, accumulate: 1}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}}
eval: {windows: 8}
checkpoint: {every_steps: 100}
clusters:
  - {name: alpha, role: generator, threads: 1}
  - {name: beta, role: discriminator, threads: 1}
YAML
job "$T/distill.yaml" "$both" \
    "teacher: {learn: true, n_layers: 8, d_model: 96, n_heads: 4, d_ff: 192}"
sed -i -e 's/windows: 20/windows: 2/' -e 's/every_steps: 10/every_steps: 100/' "$T/distill.yaml"

plan() { timeout 600 "$nebula" plan "$@" 2>"$T/plan.err" || fail "plan $*: $(cat "$T/plan.err")"; }
of() { jq -r "$2" "$T/$1.json"; }
near() { # NAME PREDICTED MEASURED LOW HIGH: bounds of measured / predicted
    awk -v p="$2" -v m="$3" -v lo="$4" -v hi="$5" 'BEGIN {
        exit !(p > 0 && m / p >= lo && m / p <= hi) }' ||
        fail "$1: predicted $2, measured $3, not within $4 to $5 times"
    echo "$1: predicted $2, measured $3"
}
near_alone() { # the same for seconds that depend on the load of the machine: only at night
    [[ ${NEBULA_TESTS:-} != nightly ]] || near "$@"
}
close() { # NAME PREDICTED MEASURED: shares of time
    awk -v p="$2" -v m="$3" 'BEGIN { d = p - m; exit !(d < 0.3 && d > -0.3) }' ||
        fail "$1: predicted $2, measured $3"
    echo "$1: predicted $2, measured $3"
}
train() { # NAME JOB options
    local name=$1 file=$2
    shift 2
    timeout 600 "$nebula" pretrain "$T/$file.yaml" --local 2 \
        --out "$T/$name" "$@" >"$T/$name.log" 2>&1 || fail "the run $name failed"
}
step_s() { summary ".clusters[] | select(.name == \"$2\") | .train_s / .steps" "$T/$1"; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { print a / b }'; }
# The share of time that a consumer waits, for a run whose quality is at $2.
stall() {
    summary "$2.stall as \$s | .clusters[] | select(.name == \"beta\") | .train_s as \$t | \$s |
        ((.peer_s + .link_s) / (\$t + .peer_s + .link_s))" "$T/$1"
}
rate() {
    summary "$2.stall as \$s | .clusters[] | select(.name == \"beta\") |
        (.steps - 1) / (.train_s + \$s.peer_s + \$s.link_s)" "$T/$1"
}

# A small generator waits for its discriminator.
plan "$T/rtd.yaml" --local 2 --wan 50mbit:20ms --json >"$T/plan.json"
train rtd rtd --wan 50mbit:20ms
[[ $(of plan '.written.stream.bound') == consumer ]] ||
    fail "wrong bound of the stream: $(of plan .written.stream)"
near_alone 'discriminator to generator, seconds a step' \
    "$(of plan '.written.clusters | .[1].step_s / .[0].step_s')" \
    "$(ratio "$(step_s rtd beta)" "$(step_s rtd alpha)")" 0.4 2.5
close 'the generator waits' \
    "$(of plan '.written.clusters[0].wait')" \
    "$(summary '.clusters[0] | .stall_s / (.stall_s + .train_s)' "$T/rtd")"
close 'the discriminator waits' \
    "$(of plan '.written.clusters[1].wait')" "$(stall rtd .quality.discriminator)"
near 'bytes a token' "$(of plan '.written.stream.bytes_per_unit')" \
    "$(summary .quality.stream_bytes_per_token "$T/rtd")" 0.85 1.15
# Received bytes: on a busy machine TCP sends some bytes twice.
near 'bytes sent' "$(of plan '.written.sent_bytes')" \
    "$(summary '.clusters[1].wan_recv_bytes' "$T/rtd")" 0.6 1.6

# Text over a slow line, whose rate sets the pace of tiny models. A batch is 16,384 tokens of about
# seven bits.
tiny='d_model: 16, n_heads: 1, d_ff: 16'
sed -e "s/n_layers: 3, d_model: 64, n_heads: 4, d_ff: 128/n_layers: 1, $tiny/" \
    -e "s/d_model: 32, n_heads: 2, d_ff: 64/$tiny/" \
    -e 's/seq_len: 64, batch: 16/seq_len: 256, batch: 64/; s/windows: 8/windows: 1/' \
    "$T/rtd.yaml" >"$T/thin.yaml"
plan "$T/thin.yaml" --local 2 --wan 150kbit:20ms --set rtd.push_text=true --json >"$T/thin.json"
train thin thin --wan 150kbit:20ms --set rtd.push_text=true --steps 20
[[ $(of thin '.written.stream.bound') == link ]] ||
    fail "wrong bound of the stream: $(of thin .written.stream)"
# The rate is measured from the start of the run, because parallel batches arrive together. TCP
# sends up to half of the bytes twice here.
thin=$(summary '.quality.discriminator.stall as $s | .clusters[] | select(.name == "beta") |
    .steps / (.train_s + $s.start_s + $s.peer_s + $s.link_s)' "$T/thin")
near 'batches/s on a thin line' "$(of thin '.written.stream.rate')" "$thin" 0.3 1.6
awk -v s="$(stall thin .quality.discriminator)" 'BEGIN { exit !(s > 0.25) }' ||
    fail "the discriminator did not wait for the slow line: $(summary .quality.discriminator \
        "$T/thin")"

# A deep teacher that learns makes its student wait.
plan "$T/distill.yaml" --local 2 --wan 50mbit:20ms --json >"$T/taught.json"
train taught distill --wan 50mbit:20ms --steps 30
[[ $(of taught '.written.stream.bound') == producer ]] ||
    fail "wrong bound of the stream: $(of taught .written.stream)"
near_alone 'teacher to student, seconds a step' \
    "$(of taught '.written.clusters | .[0].step_s / .[1].step_s')" \
    "$(ratio "$(step_s taught alpha)" "$(step_s taught beta)")" 0.3 2.5
close 'the student waits' \
    "$(of taught '.written.clusters[1].wait')" "$(stall taught .quality.clusters.beta)"
# Tokens of a step are counted in the corpus, padding included.
jq -e '.corpus_known' "$T/taught.json" >/dev/null || fail "the plan does not look at the corpus"

# A window of one batch over a long path, with a fast teacher: a frozen one, trained briefly.
job "$T/teacher.yaml" "$one"
train_teacher() {
    timeout 600 "$nebula" distill "$T/teacher.yaml" --local 1 --steps 40 --set eval.windows=2 \
        --out "$T/teacher" >"$T/teacher.log" 2>&1 || fail "the run of the teacher failed"
}
train_teacher
job "$T/frozen.yaml" "$both" "teacher: {init: $T/teacher/checkpoint/model.ckpt}, ahead: 1"
sed -i -e 's/windows: 20/windows: 2/' -e 's/every_steps: 10/every_steps: 100/' "$T/frozen.yaml"
plan "$T/frozen.yaml" --local 2 --wan 50mbit:500ms --json >"$T/far.json"
train far frozen --wan 50mbit:500ms --steps 15
[[ $(of far '.written.stream.bound') == window ]] ||
    fail "wrong bound of the stream: $(of far .written.stream)"
near 'batches/s over a long way' \
    "$(of far '.written.stream.rate')" "$(rate far .quality.clusters.beta)" 0.4 1.3
jq -e '.proposed.ahead >= 8 and .proposed.stream.bound != "window" and
    .proposed.stream.rate > 4 * .written.stream.rate' "$T/far.json" >/dev/null ||
    fail "the plan does not propose a wider window: $(of far .proposed)"
# A frozen teacher makes fewer passes than its student and has no moments.
jq -e '.written.clusters | .[0].learns == false and .[0].step_s < .[1].step_s and
    .[0].optim_bytes == 0 and .[1].optim_bytes > 0' "$T/far.json" >/dev/null ||
    fail "wrong plan of a frozen teacher: $(of far .written.clusters)"
# Fewer labels if the link cannot carry all. Two students share the time of their teacher.
plan "$T/frozen.yaml" --local 2 --wan 100kbit:20ms --set distill.k=32 --set distill.ahead=64 \
    --json >"$T/labels.json"
jq -e '.written.stream.bound == "link" and .proposed.k < 32 and
    .proposed.stream.rate > 1.5 * .written.stream.rate' "$T/labels.json" >/dev/null ||
        fail "the plan does not propose fewer labels: $(of labels .)"
sed 's/{name: beta, role: student, threads: 1}/&, {name: gamma, role: student, threads: 1}/' \
    "$T/distill.yaml" >"$T/three.yaml"
plan "$T/distill.yaml" --wan 50mbit:20ms --json >"$T/two.json"
plan "$T/three.yaml" --wan 50mbit:20ms --json >"$T/three.json"
jq -e --argjson two "$(of two '.written.stream.rate')" \
    '.written.stream.served == 2 and (.written.stream.rate * 2 / $two | . > 0.9 and . < 1.1)' \
    "$T/three.json" >/dev/null ||
    fail "rate of a teacher with two students: $(of three .written.stream), with one: $(of two \
        .written.stream)"

# Roles: plan puts the larger model on the faster machine. `role: auto` in a job does the same.
"$nebula" plan --profile >"$T/fast.json"
jq '.fp32 |= map_values(map(. / 8))' "$T/fast.json" >"$T/slow.json"
plan "$T/rtd.yaml" --wan 50mbit:20ms --site "alpha=$T/fast.json" --site "beta=$T/slow.json" \
    --json >"$T/roles.json"
jq -e '.proposed.roles == {alpha: "discriminator", beta: "generator"} and
    .proposed.stream.rate > 1.2 * .written.stream.rate' "$T/roles.json" >/dev/null ||
        fail "wrong roles: $(of roles .proposed)"
plan "$T/distill.yaml" --wan 50mbit:20ms --site "alpha=$T/slow.json" \
    --site "beta=$T/fast.json" >"$T/roles.txt"
grep -q 'beta: role: teacher' "$T/roles.txt" ||
    fail "plan leaves a deep teacher on the slow machine: $(cat "$T/roles.txt")"
sed -e "s#role: generator, threads: 1#role: auto, threads: 1, profile: $T/fast.json#" \
    -e "s#role: discriminator, threads: 1#role: auto, threads: 1, profile: $T/slow.json#" \
    "$T/rtd.yaml" >"$T/auto.yaml"
"$nebula" check "$T/auto.yaml" --json >"$T/check.json" 2>"$T/check.err" ||
    fail "check failed: $(cat "$T/check.err")"
jq -e '[.spec.clusters[].role] == ["discriminator", "generator"] and
    ([.. | strings | select(. == "auto" or test("fast.json"))] | length == 0)' \
        "$T/check.json" >/dev/null || fail "wrong spec from check: $(cat "$T/check.json")"
train auto auto --steps 6
jq -e '[.spec.clusters[].role] == ["discriminator", "generator"]' "$T/auto/job.json" >/dev/null ||
    fail "wrong roles in the run with role: auto: $(cat "$T/auto/job.json")"
[[ -s $T/auto/checkpoint/model.ckpt ]] || fail "the run with role: auto has no model"

refuse() { # STATUS TEXT arguments…
    local want=$1 text=$2 rc=0 out
    shift 2
    out=$(timeout 600 "$nebula" "$@" 2>&1) || rc=$?
    [[ $rc == "$want" && $out == *"$text"* ]] ||
        fail "$*: exit status $rc (not $want), or no '$text' in: $out"
}
sed "s#, profile: $T/slow.json##" "$T/auto.yaml" >"$T/unknown.yaml"
refuse 2 "the machine of cluster beta is not known" check "$T/unknown.yaml"
refuse 2 "the machine of cluster beta is not known" pretrain "$T/unknown.yaml" --out "$T/none"
sed 's/role: auto, threads: 1,/role: auto, sources: {gpl: 1},/' "$T/auto.yaml" >"$T/sources.yaml"
refuse 2 'with role: auto remove them' check "$T/sources.yaml"
refuse 2 'which is one process; give its role' check "$T/auto.yaml" --set sync.scheme=synchronous
sed 's/role: discriminator/role: generator/' "$T/rtd.yaml" >"$T/twice.yaml"
refuse 2 'one with role generator and one with role discriminator' check "$T/twice.yaml"
refuse 2 'mode rtd allows auto only for clusters.role' plan "$T/rtd.yaml" --set sync.interval=auto
refuse 2 'mode distill allows auto only for clusters.role' \
    plan "$T/distill.yaml" --set sync.interval=auto
make_job "$T/replicas.yaml"
sed -i 's/{name: alpha,/{name: alpha, role: auto,/' "$T/replicas.yaml"
refuse 2 'only modes rtd and distill have roles' check "$T/replicas.yaml"
# The job as written does not fit, although it would fit with the proposed roles. The run uses the
# job as written.
jq --argjson m "$(of roles '[.written.clusters[].host_bytes] | add / 2 / 0.85')" '.memory = $m' \
    "$T/fast.json" >"$T/between.json"
refuse 1 'the job does not fit as written, but the proposal does' \
    plan "$T/rtd.yaml" --site "alpha=$T/fast.json" --site "beta=$T/between.json"
jq '.memory = 1e6' "$T/fast.json" >"$T/tiny.json"
refuse 1 'does not fit' plan "$T/rtd.yaml" --site "alpha=$T/tiny.json" --site "beta=$T/tiny.json"
sed -i "s#$T/fast.json#$T/tiny.json#; s#$T/slow.json#$T/tiny.json#" "$T/auto.yaml"
"$nebula" plan "$T/auto.yaml" --json >"$T/cast.json" 2>/dev/null &&
    fail "plan assigns roles although none fits"
jq -e '(.ok | not) and (.error | test("with any choice of roles"))' "$T/cast.json" >/dev/null ||
    fail "wrong JSON when no role fits: $(cat "$T/cast.json")"
refuse 1 'do not fit' plan "$T/auto.yaml"
echo "plan: streams and roles are as predicted"
