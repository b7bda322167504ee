# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the end-to-end tests: a small real corpus, a small job, and checks on what a run leaves behind.
# A test sources this with $BUILD set, and works in $T, which is removed at its end (kept when KEEP=1).
set -euo pipefail
: "${BUILD:?set BUILD to the build folder}"
nebula=$BUILD/nebula
T=$(mktemp -d /tmp/nebula-e2e-XXXXXX)
[[ ! ${KEEP:-} ]] || echo "working in $T"
# How every test ends: with its own clean_up, if it has one; with a look at every round of every run that is still there, whose digests
# must be the same on all clusters (but where the test is about their being different: digests_may_differ=1).
at_end() {
    local rc=$? m=()
    trap - EXIT
    ! declare -F clean_up >/dev/null || clean_up || true
    if ((rc == 0)) && [[ ! ${digests_may_differ:-} ]]; then
        mapfile -t m < <(find "$T" -name metrics.jsonl)
        ((${#m[@]} == 0)) || (rounds_agree "${m[@]}") || rc=1
    fi
    [[ ${KEEP:-} ]] || rm -rf "$T"
    exit "$rc"
}
trap at_end EXIT

fail() {
    echo "FAILED: $*" >&2
    find "$T" -name '*.log' -size -200k -exec sh -c 'echo "--- $1"; tail -n 15 "$1"' _ {} \; >&2
    exit 1
}
# grep that reads all of its input: `writer | grep -q x` under pipefail fails whenever grep has seen enough before the writer is done.
has() { [[ $(grep -c "$@") != 0 ]]; }
# A run that is still there when its test fails: what `timeout` was started for would outlive it.
end_now() {
    for p in "$@"; do
        pkill -KILL -P "$p" || true
        kill -KILL "$p" || true
    done 2>/dev/null
}
# Steps of the built-in trainer take so much longer from here on: what has to last, for things to happen meanwhile, lasts without computing.
pace() { export NEBULA_FAULT=worker.step:+$1; } # MS
# Steps of a job that cost little: for tests that need many, and not what they learn.
light() { sed -i 's/seq_len: 64, batch: 4/seq_len: 32, batch: 1/' "$1"; } # FILE
# A command fails so, and leaves nothing at $T/no, where it would write.
refuses() { # STATUS TEXT command…
    local status=$1 text=$2 rc=0
    shift 2
    timeout 60 "$nebula" "$@" >"$T/refused.log" 2>&1 || rc=$?
    [[ $rc == "$status" ]] || fail "$*: status $rc, expected $status: $(cat "$T/refused.log")"
    grep -qF -- "$text" "$T/refused.log" || fail "$*: no '$text': $(cat "$T/refused.log")"
    [[ ! -e $T/no && ! -e $T/no.nebula-building && ! -e $T/no.nebula-building.lock ]] ||
        fail "$*: left something behind"
}
skip() { echo "cannot run here: $*"; exit 77; }
within() { # SECONDS COMMAND...: it succeeds before they are over
    local end=$((SECONDS + $1 + 1)) # a second may have begun long ago
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}
# The first of ten ports that no other test of this build folder has now, below those that the kernel gives to clients (32768 and up): in turn,
# from a random one on.
ten_ports() {
    (
        flock 9
        n=$(cat "$BUILD/ports" 2>/dev/null) || true
        [[ $n =~ ^[0-9]+$ ]] || n=$RANDOM
        echo $(((n + 1) % 1199)) >"$BUILD/ports"
        echo $((20000 + n % 1199 * 10))
    ) 9>"$BUILD/ports.lock"
}
# Whether the agent of $T/HOME has a link to PEER.
link_up() {
    "$nebula" status --home "$T/$1" --json 2>/dev/null |
        jq -e --arg n "$2" '.peers[] | select(.name == $n) | .up' >/dev/null 2>&1
}
# Whether it has noticed that PEER is away: an agent that does not answer has not. Updates do not stay for that one any more.
is_away() {
    "$nebula" status --home "$T/$1" --json 2>/dev/null |
        jq -e --arg n "$2" '.peers[] | select(.name == $n) | .up == false' >/dev/null 2>&1
}

# Two sources of real English text that every Debian has: licences, in two groups. Split and built once in a build folder, and again where the
# program or this file is newer: every test has a copy. A corpus does not hold the paths of its sources.
make_corpus() {
    local made=$BUILD/licences program=$BUILD/nebula
    [[ -e $program ]] || program=$nebula
    (
        flock 9 # also while it is copied: nobody makes it anew then
        if [[ ! $made/done -nt $program || ! $made/done -nt ${BASH_SOURCE[0]} ]]; then
            rm -rf "$made"
            split_licences "$made/text"
            licences_spec "$made/text" >"$made/spec.yaml"
            "$nebula" data build "$made/spec.yaml" --out "$made/corpus" >"$T/data.log" 2>&1 ||
                fail "data build"
            touch "$made/done"
        fi
        cp -r "$made/text" "$T/"
        [[ ! -d $made/corpus ]] || cp -r "$made/corpus" "$T/"
    ) 9>"$made.lock" || exit 1
    licences_spec "$T/text" >"$T/spec.yaml"
}
split_licences() { # DIR
    mkdir -p "$1/gpl" "$1/other"
    local f
    for f in /usr/share/common-licenses/*; do
        [[ -f $f && ! -L $f ]] || continue
        case ${f##*/} in
        GPL* | LGPL*) csplit -s -z -f "$1/gpl/${f##*/}-" -b %03d.txt "$f" '/^$/' \
            '{*}' 2>/dev/null || true ;;
        *) csplit -s -z -f "$1/other/${f##*/}-" -b %03d.txt "$f" '/^$/' '{*}' 2>/dev/null || true ;;
        esac
    done
}
licences_spec() { # DIR of the text
    cat <<YAML
name: licences
vocabulary: {size: 512, type: bpe, character_coverage: 1.0, train_lines: 100000, byte_fallback: true}
holdout: {per_mille: 60}
seed: 1
sources:
  - {name: gpl, format: text, path: $1/gpl}
  - {name: other, format: text, path: $1/other}
YAML
}

# make_job FILE [extra lines for the sync section, comma separated]
make_job() {
    cat >"$1" <<YAML
job: e2e
mode: replicas
seed: 5
steps: 60
model: {n_layers: 2, d_model: 64, n_heads: 4, n_kv_heads: 2, d_ff: 128, tied: true}
data: {corpus: $T/corpus, seq_len: 64, batch: 4, accumulate: 1}
optim: {lr: 0.003, warmup: 10, schedule: cosine}
sync: {scheme: federated, interval: 10, fragments: 1, overlap: 0, codec: int4, outer: {lr: 0.9, momentum: 0.6}${2:+, $2}}
eval: {windows: 16}
checkpoint: {every_steps: 20}
clusters:
  - {name: alpha, sources: [{name: gpl, weight: 1}], threads: 1}
  - {name: beta, sources: [{name: other, weight: 1}], threads: 1}
YAML
}

# clusters FILE NAME…: these instead of alpha and beta. b reads the one source, all others the other one.
clusters() {
    local file=$1 c
    shift
    sed -i -e '/^  - {name: beta/d' -e '/^  - {name: alpha/d' "$file"
    for c in "$@"; do
        echo "  - {name: $c, sources: [{name: $([[ $c == b ]] && echo gpl ||
            echo other), weight: 1}], threads: 1}" >>"$file"
    done
}
# Processes of a cluster of the local run at $run; what `timeout` (its process) has started, once it is there.
agent_of() { pgrep -f "nebula agent --home $run/clusters/$1 " | head -n 1; }
worker_of() { pgrep -f "nebula worker .*$run/clusters/$1/" | head -n 1; }
started_by() {
    local i
    for ((i = 0; i < 100; i++)); do
        pgrep -P "$1" -f 'nebula pretrain' && return 0
        sleep 0.1
    done
    fail "the run has not started"
}
# Whether a cluster of the local run DIR has a checkpoint; and that its worker went on from one, which final parameters do not tell: from nothing a
# run comes to the same bits.
saved() { compgen -G "$1/clusters/$2/jobs/*/checkpoint/step-*.ckpt" >/dev/null; } # DIR CLUSTER
went_on() {                                                                      # DIR CLUSTER LOG
    cat "$1/clusters/$2"/jobs/*/"$3" | has 'going on from step [1-9]' ||
        fail "$2 began from nothing: $(cat "$1/clusters/$2"/jobs/*/"$3")"
}
ledgers_verify() { # RUN CLUSTER…
    local r=$1 c
    shift
    for c in "$@"; do
        "$nebula" ledger verify "$r/clusters/$c" >"$T/verify.log" 2>&1 ||
            fail "ledger of $c: $(cat "$T/verify.log")"
    done
}

summary() { jq -r "$1" "$2/summary.json"; } # summary FILTER DIR
digests_equal() { # DIR: and there are some
    jq -e '[.clusters[].params_digest] | unique | length == 1 and
        (.[0] | type == "string" and length > 0)' "$1/summary.json" >/dev/null ||
            fail "digests differ in $1: $(summary "[.clusters[].params_digest] | tostring" "$1")"
}

# Figures of all clusters of two runs (a tab between them) that differ by no more than BOUND. What is no number differs: a NaN equals everything to mawk.
figures_near() { # BOUND FIGURES FIGURES
    awk -v bound="$1" -v a="$2" -v b="$3" 'BEGIN {
        n = split(a, x, "\t")
        if (!n || split(b, y, "\t") != n) exit 1
        for (i = 1; i <= n; i++) { d = x[i] - y[i];
        if (x[i] !~ /^-?[0-9]/ || y[i] !~ /^-?[0-9]/ || d > bound || d < -bound) exit 1 }
    }'
}

# The digests of every round, one line each, must be the same on all clusters, in each of the files. A line that a killed process left
# half-written is none. One jq for all, and for lines of rounds only: it takes longer to start than most of them to be read.
rounds_agree() { # METRICS…
    local odd
    odd=$({ grep -aH '"round"' "$@" ||
        true; } | jq -R -n -r '[inputs | capture("^(?<file>[^:]*):(?<line>.*)$") | .file as $file |
        .line | fromjson? | select(.kind == "round" and .digest) | .file = $file] |
        group_by([.file, .round, .fragment])[] | select([.[].digest] | unique | length > 1) |
        "\(.[0].file): round \(.[0].round): " + ([.[] | "\(.cluster) \(.digest)"] | join(", "))') ||
        fail "cannot read $*"
    [[ ! $odd ]] || fail "digests differ in $odd"
}
# And at least one round was reported by two clusters, with its digest.
round_digests_equal() { # DIR
    jq -s -e '[.[] | select(.kind == "round" and (.digest // "" | length > 0))] |
        group_by([.round, .fragment]) | any([.[].cluster] | unique | length > 1)' \
        "$1/metrics.jsonl" >/dev/null || fail "no round of two clusters in $1/metrics.jsonl"
    rounds_agree "$1/metrics.jsonl"
}

# The largest NUMBER that lines of a KIND in the metrics of a run say, for a cluster or ('') for any; ELSE where there is none. It is asked
# often, of a file that grows and whose last line may be half written: jq would take as much of the machine as the run.
largest() { # DIR KIND NUMBER CLUSTER ELSE [TEXT, which the line holds]
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
# how far a run is. steps_done DIR [CLUSTER, beta]
steps_done() { largest "$1" step step "${2-beta}" 0; }
wait_step() { # DIR STEP PID [CLUSTER]; 1: the run has ended, or a minute has passed
    local end=$((SECONDS + 60))
    while ((SECONDS < end)); do
        (($(steps_done "$1" "${4:-beta}") >= $2)) && return 0
        kill -0 "$3" 2>/dev/null || return 1
        sleep 0.04
    done
    return 1
}
