#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula-follow: takes each complete line of a growing file once, goes on where it was stopped,
# begins again with a new run, and ends with the run. Then the same into TensorBoard, MLflow and
# Weights & Biases, offline, read back with their own libraries.
. "$(dirname "$0")/lib.sh"
export PYTHONPATH=$SOURCE/agent/lib/python NEBULA_LIBRARY=/nowhere # it needs no libnebula
check=$SOURCE/tests/e2e/follow_check.py
python=python3
follow() { "$python" -c 'import nebula_federation as n; n.follow()' "$@"; } # nebula-follow

# run OUT TO OPTIONS…: two followers, one after the other; the second one waits for the end of the
# run. Before them one dies as soon as MLflow or W&B has made its first run: they must find it.
run() {
    local out=$T/$1 to=$2
    shift 2
    python3 "$check" make "$out"
    case $to in
    mlflow | wandb)
        "$python" "$check" die "$out" "$to" "$@" >"$out.log" 2>&1 && fail "$to: it did not die"
        [[ -s $out/follow-$to.json ]] || fail "$to: no place was saved: $(cat "$out.log")" ;;
    esac
    follow --to "$to" --once "$@" "$out" >"$out.tsv" 2>"$out.log" || fail "$to: $(cat "$out.log")"
    follow --to "$to" --every 0.1 "$@" "$out" >>"$out.tsv" 2>>"$out.log" & local pid=$!
    sleep 0.5
    python3 "$check" grow "$out"
    sleep 0.5
    python3 "$check" end "$out"
    wait "$pid" || fail "$to: $(tail "$out.log")"
}
run stdout stdout
python3 "$check" stdout "$T/stdout" <"$T/stdout.tsv"
grep -qP '^paris\t-\tevent\tfault: odd$' "$T/stdout.tsv" || fail "no fault"
follow --to stdout --once "$T/stdout" >"$T/again.tsv"
[[ ! -s $T/again.tsv ]] || fail "lines were taken twice"
mkdir "$T/small" && cp "$T/stdout/metrics.jsonl" "$T/small/" && mkdir "$T/small/follow-stdout.tmp"
! follow --to stdout --once "$T/small" >"$T/again.tsv" 2>"$T/small.log" &&
    grep -q "^nebula-follow: cannot write $T/small/follow-stdout.tmp: " "$T/small.log" ||
    fail "a place that cannot be saved: $(cat "$T/small.log")"
echo '{"t": 0, "kind": "step", "cluster": "new", "step": 1, "loss": 9}' >"$T/stdout/metrics.jsonl"
follow --to stdout --once "$T/stdout" >"$T/again.tsv"
grep -qP '^new\t1\ttrain/loss\t9$' "$T/again.tsv" || fail "another run: $(cat "$T/again.tsv")"
printf '%s\n' nonsense '[1]' '{"kind": 7}' '{"kind": "step", "cluster": 5}' \
    '{"kind": "step", "cluster": "new", "step": "x", "loss": NaN, "lr": 1e999}' \
    '{"t": 9, "kind": "step", "cluster": "new", "step": 2, "loss": 8}' >>"$T/stdout/metrics.jsonl"
follow --to stdout --once "$T/stdout" >"$T/again.tsv"
[[ $(cat "$T/again.tsv") == $'new\t2\ttrain/loss\t8' ]] || fail "bad lines: $(cat "$T/again.tsv")"

python=${XDG_CACHE_HOME:-$HOME/.cache}/nebula/peers-data/bin/python3
[[ -x $python ]] || python=python3
# MLflow's file store is in maintenance: from MLflow 3.13 on it needs this variable.
export MLFLOW_DISABLE_TELEMETRY=true MLFLOW_ALLOW_FILE_STORE=true WANDB_MODE=offline
missing=() found=0
for to in tensorboard mlflow wandb; do
    "$python" -c "import $to" 2>/dev/null || { missing+=("$to"); continue; }
    found=1
    stores=('')
    [[ $to != mlflow ]] || stores=("sqlite:///$T/mlflow.db" "file://$T/mlruns")
    for uri in "${stores[@]}"; do
        out=$to${uri%%:*}
        run "$out" "$to" ${uri:+--uri "$uri"}
        "$python" "$check" "$to" "$T/$out" ${uri:+"$uri"} || fail "$out has other values"
    done
done
((!${#missing[@]})) || echo "not installed: ${missing[*]} (tests/peers/data/setup)"
((found)) || skip "none of TensorBoard, MLflow and W&B is installed (tests/peers/data/setup)"
