#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The jobs of configs/ run as they are, from any folder, on the corpora that quickstart and the
# recipes leave in the cache folder. If a corpus is missing, the error names the command that makes
# it.
. "$(dirname "$0")/lib.sh"
configs=$(cd "$(dirname "$0")/../../configs" && pwd)
export HOME=$T/home
unset XDG_CACHE_HOME
mkdir -p "$HOME" "$T/work"
cd "$T/work"
run() { timeout 600 "$nebula" "$@" >"$T/run.log" 2>&1; } # its exit status

for job in quickstart rtd-two-clusters; do
    run pretrain "$configs/$job.yaml" --local 2 && fail "$job ran without its corpus"
    text="data.corpus: cannot find $HOME/.cache/nebula/manpages-small.*"
    text+='configs/corpus-manpages --small.*nebula data build configs/manpages-small.yaml'
    has "$text" "$T/run.log" ||
        fail "$job without its corpus: $(cat "$T/run.log")"
done
run distill "$configs/distill-translate.yaml" --local 2 &&
    fail "distill-translate ran without its corpus"
text="data.corpus: cannot find $HOME/.cache/nebula/parallel-small.*"
text+='configs/corpus-parallel.*nebula data build configs/parallel-small.yaml'
has "$text" "$T/run.log" ||
    fail "distill-translate without its corpus: $(cat "$T/run.log")"
for spec in "manpages-small:corpus-manpages --small" manpages:corpus-manpages \
    parallel-small:corpus-parallel parallel:corpus-parallel; do
    run data build "$configs/${spec%%:*}.yaml" --out "$T/none" &&
        fail "${spec%%:*} was built without its text"
    has "run configs/${spec#*:} to get its text\$" "$T/run.log" ||
        fail "${spec%%:*} without its text: $(cat "$T/run.log")"
done
run pretrain "$configs/quickstart.yaml" --local 2 --set data.corpus=elsewhere &&
    fail "quickstart ran without a corpus"
has "data.corpus: cannot find elsewhere.*nebula data build SPEC.yaml --out elsewhere" \
    "$T/run.log" || fail "a job with a corpus of the user's own: $(cat "$T/run.log")"
[[ ! -e out ]] || fail "a run without its corpus left a folder"

# Corpora with the same sources as the real ones.
make_corpus
for tool in install-deps corpus-manpages corpus-parallel; do
    rc=0
    "$configs/$tool" --bogus >"$T/run.log" 2>&1 || rc=$?
    [[ $rc == 2 ]] && has "unknown option '--bogus'" "$T/run.log" ||
        fail "$tool --bogus: $rc, $(cat "$T/run.log")"
done
# The scripts write relative to the current folder and need no HOME. An option at the end without
# its value is refused. The program here does nothing.
mkdir -p "$T/repo/build" "$T/stands" && cp -r "$configs" "$T/repo/configs"
for tool in corpus-manpages corpus-parallel; do printf '#!/bin/sh\n' >"$T/repo/configs/$tool"; done
printf '#!/bin/sh\n[ "$1" = data ]\n' |
    tee "$T/repo/build/wanlink" "$T/repo/build/nebula-clusters" >"$T/repo/build/nebula"
chmod +x "$T/repo/build/"*
for tool in quickstart compare codec-compare stall-compare absence-compare distill-compare; do
    rc=0
    "$configs/$tool" --out >"$T/run.log" 2>&1 || rc=$?
    [[ $rc == 2 ]] && has "$tool: --out needs a value" "$T/run.log" ||
        fail "$tool --out: $rc, $(cat "$T/run.log")"
    # This folder looks like the folder of a run. quickstart must see this before it builds
    # anything.
    [[ $tool != quickstart ]] || mkdir -p "$T/stands/of-$tool/alone"
    (cd "$T/stands" && env -u HOME timeout 600 "$T/repo/configs/$tool" --out "of-$tool") \
        >"$T/run.log" 2>&1 && fail "$tool succeeded without a program"
    [[ $tool != quickstart ]] || has "of-$tool holds a run already" "$T/run.log" ||
        fail "$tool does not look in the current folder: $(cat "$T/run.log")"
    [[ -d $T/stands/of-$tool && ! -e $T/repo/of-$tool ]] ||
        fail "$tool --out wrote into another folder: $(cat "$T/run.log")"
done
sed "s/^sources:.*/sources:/; /^  - /d" "$T/spec.yaml" >"$T/four.yaml"
for l in en de fr es; do
    echo "  - {name: $l, format: text, path: $T/text/$([[ $l == en ]] && echo gpl || echo other)}"
done >>"$T/four.yaml"
"$nebula" data build "$T/four.yaml" \
    --out "$HOME/.cache/nebula/manpages-small" >"$T/data.log" 2>&1 ||
    fail "data build failed: $(cat "$T/data.log")"
for job in quickstart rtd-two-clusters; do
    run pretrain "$configs/$job.yaml" --local 2 --steps 2 --set eval.windows=1 --out "$T/$job" ||
        fail "the job $job failed"
    run eval "$T/$job/checkpoint" --windows 1 || [[ $job == rtd* ]] || fail "eval failed after $job"
done
mkdir "$T/cache" && mv "$HOME/.cache/nebula" "$T/cache/"
XDG_CACHE_HOME=$T/cache run pretrain "$configs/quickstart.yaml" --local 2 --steps 2 \
    --set eval.windows=1 --out "$T/xdg" ||
    fail "the run with XDG_CACHE_HOME failed"
echo "the jobs of configs/ find their corpora, or name what makes them"
