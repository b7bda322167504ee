# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the end-to-end tests: a small corpus of real text, a small job, and checks of what a run
# leaves behind. A test sources this file with $BUILD set. It works in $T, which is removed at its
# end (KEEP=1 keeps it).
set -euo pipefail
: "${BUILD:?set BUILD to the build folder}"
nebula=$BUILD/nebula
T=$(mktemp -d /tmp/nebula-e2e-XXXXXX)
[[ ! ${KEEP:-} ]] || echo "working in $T"
# Every test ends here: its own clean_up runs, if it has one. Then the digests of every round must
# be equal on all clusters, in every run that is still there. A test of differing digests sets
# digests_may_differ=1.
at_end() {
    local rc=$? m=()
    trap - EXIT
    ! declare -F clean_up >/dev/null || clean_up || true
    if ((rc == 0)) && [[ ! ${digests_may_differ:-} ]]; then
        mapfile -t m < <(find "$T" -name metrics.jsonl)
        ((${#m[@]} == 0)) || (rounds_agree "${m[@]}") || rc=1
    fi
    mapfile -t m < <(pgrep -f -- "$T/") # agents whose starter was killed still write there
    ((${#m[@]} == 0)) || end_now "${m[@]}"
    [[ ${KEEP:-} ]] || rm -rf "$T"
    exit "$rc"
}
trap at_end EXIT

# Prints the reason and the end of every log in $T; so a reason need not repeat the last lines of a
# log.
fail() {
    echo "FAILED: $*" >&2
    find "$T" -name '*.log' -exec sh -c 'echo "--- $1"; tail -n 15 "$1"' _ {} \; >&2
    exit 1
}
# Like grep -q, but reads all of its input. `writer | grep -q x` fails under pipefail, because grep
# -q stops at the first match and the writer gets SIGPIPE.
has() { [[ $(grep -c "$@") != 0 ]]; }
# Kills the given processes and all that they started, parents first, and waits until none is left.
# Otherwise agents and workers would write into a folder that is being removed.
end_now() {
    local p all i
    mapfile -t all < <(for p in "$@"; do family "$p"; done)
    ((${#all[@]})) || return 0
    kill -KILL "${all[@]}" 2>/dev/null || true
    for ((i = 0; i < 600; i++)); do # Z: dead, and its parent has not waited for it yet
        ps -o stat= -p "${all[*]}" | grep -qv '^Z' || break
        sleep 0.1
    done
}
family() { # PID: it and its descendants
    local c
    echo "$1"
    for c in $(pgrep -P "$1"); do family "$c"; done
}
# From here on, every step of the built-in trainer sleeps for this time. A run lasts longer without
# computing more.
pace() { export NEBULA_FAULT=worker.step:+$1; } # MS
# Makes the steps of a job cheap, for tests that need many steps and not what the job learns.
light() { sed -i 's/seq_len: 64, batch: 4/seq_len: 32, batch: 1/' "$1"; } # FILE
# Also makes the model small, for tests with many rounds: most of the time of a round goes into the
# codec. An update has a quarter of its bytes then.
tiny() { # FILE
    light "$1"
    shape "$1" "n_layers: 1, d_model: 32, n_heads: 2, n_kv_heads: 1, d_ff: 64"
}
# The command must fail with STATUS and TEXT and leave nothing at $T/no, its output path.
refuses() { # STATUS TEXT command…
    local status=$1 text=$2 rc=0
    shift 2
    timeout 600 "$nebula" "$@" >"$T/refused.log" 2>&1 || rc=$?
    [[ $rc == "$status" ]] || fail "$*: status $rc, expected $status: $(cat "$T/refused.log")"
    grep -qF -- "$text" "$T/refused.log" || fail "$*: no '$text': $(cat "$T/refused.log")"
    [[ ! -e $T/no && ! -e $T/no.nebula-building && ! -e $T/no.nebula-building.lock ]] ||
        fail "$*: left something behind"
}
skip() { echo "cannot run here: $*"; exit 77; }
# Tests wait by polling. This sleep starts no process.
exec {nap}<> <(:)
sleep() { read -rt "$1" -u "$nap" || true; }
# within SECONDS COMMAND...: COMMAND must succeed within four times SECONDS. An idle machine needs
# at most SECONDS. The bound only ends a test that hangs.
within() {
    local end=$((SECONDS + 4 * $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.4
    done
}
# FILE KEYS: another shape for the model of make_job.
shape() { sed -i "s/n_layers: 2, d_model: 64, .* d_ff: 128/$2/" "$1"; }
# Prints the first of ten ports that no other test of this build folder uses. The ports are below
# the range that the kernel gives to clients (32768 and up), and above those that nebula chooses
# itself (10000 to 19999). Each call takes the next ten, from a random start.
ten_ports() {
    (
        flock 9
        n=$(cat "$BUILD/ports" 2>/dev/null) || true
        [[ $n =~ ^[0-9]+$ ]] || n=$RANDOM
        echo $(((n + 1) % 1199)) >"$BUILD/ports"
        echo $((20000 + n % 1199 * 10))
    ) 9>"$BUILD/ports.lock"
}
# True if the agent of $T/HOME has a link to PEER. Without jq, because starting jq takes longer than
# the rest.
link_up() { peer_is true "$@"; }
# True if the agent has noticed that PEER is away. It then no longer keeps updates for that peer. An
# agent that does not answer counts as "not noticed".
is_away() { peer_is false "$@"; }
peer_is() { # UP HOME PEER
    local status
    status=$("$nebula" status --home "$T/$2" --json 2>/dev/null) || return 1
    [[ $status =~ \"name\":\"$3\",\"endpoint\":\"[^\"]*\",\"up\":$1 ]]
}

# Makes a corpus of real English text that every Debian has: licences, as two sources. It is built
# once per build folder, and rebuilt when the program or this file is newer. Each test gets a copy.
# A corpus does not contain the paths of its sources, so a copy stays valid.
make_corpus() {
    local made=$BUILD/licences program=$BUILD/nebula
    [[ -e $program ]] || program=$nebula
    (
        flock 9 # also held during the copy: no other test rebuilds it meanwhile
        if [[ ! $made/done -nt $program || ! $made/done -nt ${BASH_SOURCE[0]} ]]; then
            rm -rf "$made"
            split_licences "$made/text"
            licences_spec "$made/text" >"$made/spec.yaml"
            "$nebula" data build "$made/spec.yaml" --out "$made/corpus" >"$T/data.log" 2>&1 ||
                fail "data build failed"
            touch "$made/done"
        fi
        cp -r "$made/text" "$T/"
        [[ ! -d $made/corpus ]] || cp -r "$made/corpus" "$T/"
    ) 9>"$made.lock" || exit 1
    licences_spec "$T/text" >"$T/spec.yaml"
}
split_licences() { # DIR
    local f group
    mkdir -p "$1/gpl" "$1/other"
    for f in /usr/share/common-licenses/*; do
        [[ -f $f && ! -L $f ]] || continue
        case ${f##*/} in
        GPL* | LGPL*) group=gpl ;;
        *) group=other ;;
        esac
        csplit -s -z -f "$1/$group/${f##*/}-" -b %03d.txt "$f" '/^$/' '{*}' 2>/dev/null || true
    done
}
licences_spec() { # DIR of the text
    local train='character_coverage: 1.0, train_lines: 100000'
    cat <<YAML
name: licences
vocabulary: {size: 512, type: bpe, $train, byte_fallback: true}
holdout: {per_mille: 60}
seed: 1
sources:
  - {name: gpl, format: text, path: $1/gpl}
  - {name: other, format: text, path: $1/other}
YAML
}

# make_job FILE [extra lines for the sync section, comma separated]
make_job() {
    local outer='outer: {lr: 0.9, momentum: 0.6}'
    cat >"$1" <<YAML
job: e2e
mode: replicas
seed: 5
steps: 60
model: {n_layers: 2, d_model: 64, n_heads: 4, n_kv_heads: 2, d_ff: 128, tied: true}
data: {corpus: $T/corpus, seq_len: 64, batch: 4, accumulate: 1}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
sync: {scheme: federated, interval: 10, fragments: 1, overlap: 0, codec: int4, $outer${2:+, $2}}
eval: {windows: 16}
checkpoint: {every_steps: 20}
clusters:
  - {name: alpha, sources: [{name: gpl, weight: 1}], threads: 1}
  - {name: beta, sources: [{name: other, weight: 1}], threads: 1}
YAML
}

# clusters FILE NAME…: replaces alpha and beta. Cluster b reads source gpl, all others read source
# other.
clusters() {
    local file=$1 c
    shift
    sed -i -e '/^  - {name: beta/d' -e '/^  - {name: alpha/d' "$file"
    for c in "$@"; do
        local source=other
        [[ $c != b ]] || source=gpl
        echo "  - {name: $c, sources: [{name: $source, weight: 1}], threads: 1}" >>"$file"
    done
}
# Process ids in the local run at $run: the agent and the worker of a cluster. The oldest process
# counts, because a child of an agent has the agent's command line until it becomes the worker.
# started_by waits for the child of `timeout` and prints its id.
agent_of() { pgrep -o -f "nebula agent --home $run/clusters/$1 "; }
worker_of() { pgrep -o -f "nebula worker .*$run/clusters/$1/"; }
started_by() {
    within 30 pgrep -P "$1" -f 'nebula (pretrain|distill)' || fail "the run did not start"
}
# RUN PID STEP-CLUSTER…: kills (kill -9) the worker of each cluster when beta has made STEP steps.
# A worker may be on its way back from the kill before, so the script waits for it.
kill_workers() {
    local run=$1 at
    there() { victim=$(worker_of "${at#*-}"); }
    for at in "${@:3}"; do
        wait_step "$run" "${at%-*}" "$2" || fail "the run ended before step ${at%-*}"
        within 30 there || fail "no worker of ${at#*-} found"
        kill -KILL "$victim"
    done
}
# saved: a cluster of the local run DIR has a checkpoint. went_on: its worker continued from a
# checkpoint. The final parameters cannot show this, because a run from the start ends with the same
# bits.
saved() { compgen -G "$1/clusters/$2/jobs/*/checkpoint/step-*.ckpt" >/dev/null; } # DIR CLUSTER
went_on() { # DIR CLUSTER LOG
    cat "$1/clusters/$2"/jobs/*/"$3" | has 'going on from step [1-9]' ||
        fail "$2 started from step 0: $(cat "$1/clusters/$2"/jobs/*/"$3")"
}
ledgers_verify() { # RUN CLUSTER…
    local r=$1 c
    shift
    for c in "$@"; do
        "$nebula" ledger verify "$r/clusters/$c" >"$T/verify.log" 2>&1 ||
            fail "the ledger of $c does not verify: $(cat "$T/verify.log")"
    done
}

summary() { jq -r "$1" "$2/summary.json"; } # summary FILTER DIR
digests_equal() { # DIR; there must be digests
    jq -e '[.clusters[].params_digest] | unique | length == 1 and
        (.[0] | type == "string" and length > 0)' "$1/summary.json" >/dev/null ||
        fail "digests differ in $1: $(summary "[.clusters[].params_digest] | tostring" "$1")"
}

# Figures of all clusters of two runs, separated by tabs, may differ by at most BOUND. A value that
# is not a number fails: to mawk, a NaN equals everything.
figures_near() { # BOUND FIGURES FIGURES
    awk -v bound="$1" -v a="$2" -v b="$3" 'BEGIN {
        n = split(a, x, "\t")
        if (!n || split(b, y, "\t") != n) exit 1
        for (i = 1; i <= n; i++) {
            d = x[i] - y[i]
            if (x[i] !~ /^-?[0-9]/ || y[i] !~ /^-?[0-9]/ || d > bound || d < -bound) exit 1
        }
    }'
}

# In each file, the digests of every round must be equal on all clusters. A half-written line of a
# killed process is skipped. One jq reads all files, and lines of rounds only, because starting jq
# takes longer than reading most files.
rounds_agree() { # METRICS…
    local odd
    odd=$({ grep -aH '"round"' "$@" || true; } | jq -R -n -r '
        [inputs | capture("^(?<file>[^:]*):(?<line>.*)$") | .file as $file | .line | fromjson? |
            select(.kind == "round" and .digest) | .file = $file] |
        group_by([.file, .round, .fragment])[] | select([.[].digest] | unique | length > 1) |
        "\(.[0].file): round \(.[0].round): " +
            ([.[] | "\(.cluster) \(.digest)"] | join(", "))') || fail "cannot read $*"
    [[ ! $odd ]] || fail "digests differ in $odd"
}
# Also checks that two clusters reported at least one round with a digest.
round_digests_equal() { # DIR
    jq -s -e '[.[] | select(.kind == "round" and (.digest // "" | length > 0))] |
        group_by([.round, .fragment]) | any([.[].cluster] | unique | length > 1)' \
        "$1/metrics.jsonl" >/dev/null || fail "no round of two clusters in $1/metrics.jsonl"
    rounds_agree "$1/metrics.jsonl"
}

# Prints the largest NUMBER in lines of a KIND in the metrics of a run, for CLUSTER ('' for any);
# ELSE if there is none. Tests call it often on a growing file whose last line may be half-written.
# It uses awk, because jq would need as much CPU as the run.
largest() { # DIR KIND NUMBER CLUSTER ELSE [TEXT in the line]
    [[ -e $1/metrics.jsonl ]] || { echo "$5"; return; }
    awk -v kind="\"kind\":\"$2\"" -v number="\"$3\":" -v cluster="\"cluster\":\"$4\"" -v one="$4" \
        -v most="$5" -v text="${6:-}" '
        /}$/ && index($0, kind) && (one == "" || index($0, cluster)) &&
        (text == "" || index($0, text)) && match($0, number "[0-9]+") {
            n = substr($0, RSTART + length(number), RLENGTH - length(number)) + 0
            if (n > most) most = n
        }
        END { print most + 0 }' "$1/metrics.jsonl"
}
# steps_done DIR [CLUSTER]: the newest step of a cluster (beta).
steps_done() { largest "$1" step step "${2-beta}" 0; }
# wait_step DIR STEP PID [CLUSTER]: until a cluster (beta) has made this step. Status 1: the run of
# PID ended, or hangs. wait_round: until this round is merged, by any cluster if none is given.
wait_step() { wait_number step "$1" "$2" "$3" "${4:-beta}"; }
wait_round() { wait_number round "$1" "$2" "$3" "${4:-}"; }
# It reads each line once, because tests wait often, and the file grows.
wait_number() { # KIND DIR NUMBER PID CLUSTER
    local end=$((SECONDS + 240)) kind="\"kind\":\"$1\"" cluster=${5:+"\"cluster\":\"$5\""}
    local file='' line part='' rc=1
    while ((SECONDS < end)); do
        [[ $file || ! -e $2/metrics.jsonl ]] || exec {file}<"$2/metrics.jsonl"
        while [[ $file ]] && { IFS= read -r -u "$file" line || { part+=$line && false; }; }; do
            line=$part$line part=''
            [[ $line == *"$kind"* && $line == *"$cluster"* ]] || continue
            [[ $line =~ \"$1\":([0-9]+) ]] && ((BASH_REMATCH[1] >= $3)) && rc=0 && break 2
        done
        kill -0 "$4" 2>/dev/null || break
        sleep 0.04
    done
    [[ ! $file ]] || exec {file}<&-
    return $rc
}
