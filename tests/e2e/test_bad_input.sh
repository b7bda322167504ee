#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A fault at run time gets one clear error, soon, and leaves existing files intact.
. "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"
sed -i 's/windows: 16/windows: 2/' "$T/job.yaml"

expect() { # NAME STATUS PATTERN options…: the run ends with this status and logs this
    local name=$1 status=$2 pattern=$3 rc=0
    shift 3
    timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 \
        --out "$T/$name" "$@" >"$T/$name.log" 2>&1 || rc=$?
    [[ $rc == "$status" ]] || fail "$name: exit status $rc, not $status"
    grep -qE "$pattern" "$T/$name.log" || fail "$name: no line like '$pattern'"
}

cp -r "$T/corpus" "$T/cut"
shard=$T/cut/gpl/train-00000.bin
truncate -s -100 "$shard"
expect cut-shard 1 'train-00000.bin has .* bytes instead of .*; it may be cut short' \
    --set data.corpus="$T/cut"
rm "$shard"
text='train-00000.bin does not exist, but corpus.json lists it; '
text+='rebuild the corpus with nebula data build'
expect no-shard 1 "$text" --set data.corpus="$T/cut"
cp -r "$T/corpus" "$T/mute" && rm "$T/mute/tokenizer.model"
expect no-vocabulary 1 \
    'mute/tokenizer.model is missing: .*; rebuild the corpus with nebula data build' \
    --set data.corpus="$T/mute"
"$nebula" check "$T/job.yaml" --set data.corpus="$T/mute" >"$T/mute.log" 2>&1 &&
    fail "check found no error"
grep -q 'tokenizer.model is missing' "$T/mute.log" || fail "check: $(cat "$T/mute.log")"
echo nonsense >"$T/mute/tokenizer.model"
expect bad-vocabulary 2 'mute/tokenizer.model' --set data.corpus="$T/mute"
[[ ! -e $T/bad-vocabulary && ! -e $T/no-vocabulary ]] ||
    fail "a run that did not start left a folder"
expect no-corpus 1 'data.corpus: cannot find' --set data.corpus="$T/nowhere"
# Clusters may have their own corpora. In a local run all must be here, and their paths are relative
# to the folder in which the run starts. With other sites, a path may exist only there.
cp "$T/job.yaml" "$T/written.yaml"
sed -i "s#{name: beta,#{name: beta, corpus: $T/nowhere,#" "$T/job.yaml"
expect no-corpus-of-one 1 "clusters.corpus: cluster beta: there is no corpus in $T/nowhere"
mkdir "$T/elsewhere"
sed "s#{name: alpha,#{name: alpha, corpus: $T/elsewhere,#" "$T/job.yaml" >"$T/sites.yaml"
timeout 100 "$nebula" pretrain "$T/sites.yaml" --home "$T/nowhere" \
    --out "$T/no-site" >"$T/none.log" 2>&1 && fail "a run without an agent succeeded"
grep -q 'no agent at' "$T/none.log" ||
    fail "the error does not name the missing agent: $(cat "$T/none.log")"
sed -i "s#corpus: $T/nowhere,#corpus: mine,#;
    s#{name: alpha,#{name: alpha, corpus: mine,#" "$T/job.yaml"
ln -s corpus "$T/mine"
(cd "$T" && expect own-corpora 0 'e2e \(replicas\)' --steps 5 --set data.corpus=nowhere)
mv "$T/written.yaml" "$T/job.yaml"
expect unknown-key 2 "unknown key \(did you mean 'sync.interval'\?\)" --set sync.intervall=3
expect bad-wan 2 '.--wan: "nonsense" is not RATE:DELAY' --wan nonsense
mkdir -p "$T/other" && cp -r "$T/corpus/." "$T/other/" &&
    sed -i 's/"gpl"/"gnu"/' "$T/other/corpus.json"
expect other-source 2 "cluster alpha: corpus $T/other has no source 'gpl'" \
    --set data.corpus="$T/other"
expect other-vocabulary 2 'model.vocab: 100 is below the 512 pieces' --set model.vocab=100
expect other-parts 2 'sync.fragments: 5, but the trained parameters have only 4 parts' \
    --set sync.fragments=5
[[ ! -e $T/other-source && ! -e $T/other-vocabulary && ! -e $T/other-parts ]] ||
    fail "a run that did not start left a folder"
other_shape='holds another model: its model.d_ff is 128, the job.s is 64'
expect other-shape 2 "$other_shape" --set init_from="$T/own-corpora/checkpoint" --set model.d_ff=64
"$nebula" check "$T/job.yaml" --set init_from="$T/own-corpora/checkpoint" \
    --set model.d_ff=64 >"$T/shape.log" 2>&1 && fail "check accepted a model of another shape"
grep -q "$other_shape" "$T/shape.log" || fail "check: $(cat "$T/shape.log")"
sed -i 's/{name: \(alpha\|beta\),/{name: \1, outer_state: device,/' "$T/job.yaml"
# No check can know this before the run: there is no GPU.
CUDA_VISIBLE_DEVICES='' expect no-step 1 'error cluster (alpha|beta): outer_state is device'
sed -i 's/ outer_state: device,//' "$T/job.yaml"
# A run without a step does not occupy its folder: the folder can be used.
expect no-step 0 'e2e \(replicas\)' --steps 5
# Training that has diverged is reported, because its last loss may look normal.
expect diverged 0 \
    '(alpha|beta): 16 steps in a row have learned nothing: their gradients are not finite' \
    --set optim.lr=10 --set optim.weight_decay=10 --set optim.warmup=0 --steps 40
grep -q '"kind":"fault".*"text":"8 steps in a row have learned nothing' \
    "$T/diverged/metrics.jsonl" || fail "a diverged run has no fault line in metrics.jsonl"
mkdir "$T/no-agent" && touch "$T/no-agent/mine"
for out in no-agent no-agent-2; do
    timeout 100 "$nebula" pretrain "$T/job.yaml" --home "$T/nowhere" \
        --out "$T/$out" >"$T/none.log" 2>&1 && fail "a run without an agent succeeded"
    grep -q 'no agent at' "$T/none.log" ||
        fail "the error does not name the missing agent: $(cat "$T/none.log")"
done
[[ $(ls -A "$T/no-agent") == mine && ! -e $T/no-agent-2 ]] ||
    fail "a run that did not start left: $(ls -A "$T"/no-agent*)"
long=$T/$(printf 'x%.0s' {1..90})
timeout 100 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$long" >"$T/long.log" 2>&1 &&
    fail "a socket path of more than 107 characters was accepted"
text="socket path longer than 107 bytes: $long/clusters/alpha/agent.sock; "
text+='choose a shorter --home or --out'
grep -q "$text" "$T/long.log" || fail "a long --out: $(cat "$T/long.log")"
[[ ! -e $long ]] || fail "a run that did not start left $(find "$long")"
ln -s loop "$T/loop"
# The error must not be "there is no corpus".
expect no-way 1 'Too many levels of symbolic links' --set data.corpus="$T/loop"
printf 'not a checkpoint' >"$T/garbage.ckpt"
expect no-model 1 "job.yaml: model.init: there is no $T/nowhere" --set model.init="$T/nowhere"
expect bad-model 2 \
    "job.yaml: model.init: $T/mute is not a checkpoint that a job can start from" \
    --set model.init="$T/mute"
expect bad-init 1 'garbage.ckpt: it has no checkpoint header' --set init_from="$T/garbage.ckpt"

tiny "$T/job.yaml" # from here on nothing depends on the model

# The disk fills up while a checkpoint is written. The error names the disk, and the run can
# continue once there is room.
NEBULA_FAULT=fs.write:20 expect full 1 'No space left on device|disk full' \
    --set checkpoint.every_steps=2
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/full" \
    --set checkpoint.every_steps=2 --resume >"$T/full2.log" 2>&1 ||
    fail "the run did not continue after the disk had room again"
digests_equal "$T/full"

# The newest checkpoint is damaged: the worker reports it and uses the one before.
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/rot" \
    --set checkpoint.every_steps=10 >"$T/rot.log" 2>&1 || fail "the run to be damaged failed"
for ck in "$T"/rot/clusters/*/jobs/*/checkpoint; do
    newest=$(ls "$ck" | tail -n 1)
    printf '\xff' | dd of="$ck/$newest" bs=1 seek=5000 conv=notrunc status=none
done
want=$(summary '.clusters[0].params_digest' "$T/rot")
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/rot" \
    --set checkpoint.every_steps=10 --resume >"$T/rot2.log" 2>&1 ||
    fail "the run did not continue from the older checkpoint"
grep -q 'digest does not match; use an older checkpoint' "$T"/rot/clusters/*/jobs/*/worker.log ||
    fail "the damage was not reported"
[[ $(summary '.clusters[0].params_digest' "$T/rot") == "$want" ]] ||
    fail "the parameters differ after a restart from the older checkpoint"
"$nebula" eval "$T/garbage.ckpt" --corpus "$T/corpus" >"$T/eval.log" 2>&1 &&
    fail "eval accepted a file that is no checkpoint"
grep -q 'no checkpoint header' "$T/eval.log" || fail "eval: $(cat "$T/eval.log")"
# The vocabulary disappears while the job runs: that costs a warning, not the model.
cp -r "$T/corpus" "$T/losing"
(pace 100 && exec timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --out "$T/lost" \
    --set data.corpus="$T/losing") >"$T/lost.log" 2>&1 &
pid=$!
wait_step "$T/lost" 3 "$pid" || fail "the run made no steps"
rm "$T/losing/tokenizer.model"
wait "$pid" || fail "the run failed when its vocabulary disappeared"
text="warn .*models in $T/lost/checkpoint are complete.*"
text+="copy it .* to $T/lost/checkpoint/tokenizer.model"
grep -q "$text" "$T/lost.log" && [[ -s $T/lost/checkpoint/model.ckpt ]] ||
    fail "the warning or the model is missing"

# A named pipe is refused at once: only a source of a corpus waits for its writer.
mkfifo "$T/pipe"
mkdir "$T/piped" && cp "$T/corpus/corpus.json" "$T/piped" && mkfifo "$T/piped/tokenizer.model"
no_pipe() {
    local rc=0
    timeout 60 "$nebula" "$@" >"$T/p.log" 2>&1 || rc=$?
    [[ $rc == 1 || $rc == 2 ]] && grep -qE '(pipe|model)(:| is) not a regular file' "$T/p.log" ||
        fail "nebula $*: $rc, $(cat "$T/p.log")"
}
no_pipe check "$T/pipe"
no_pipe pretrain "$T/pipe" --local 2
no_pipe plan "$T/pipe"
no_pipe data build "$T/pipe" --out "$T/p"
no_pipe eval "$T/pipe" --corpus "$T/corpus"
no_pipe generate "$T/lost/checkpoint" --tokenizer "$T/piped/tokenizer.model" --prompt x
"$nebula" check /dev/stdin <"$T/job.yaml" >"$T/p.log" 2>&1 ||
    fail "check /dev/stdin: $(cat "$T/p.log")"
"$nebula" generate "$T/lost/checkpoint" --tokenizer <(cat "$T/corpus/tokenizer.model") --prompt x \
    --tokens 1 >"$T/p.log" 2>&1 ||
    fail "generate refused a vocabulary from a pipe of the shell: $(cat "$T/p.log")"

# The program file may be replaced or removed while it runs. The processes that it starts later are
# still found.
mkdir "$T/bin" && cp "$nebula" "$T/bin/nebula"
ln -s "$BUILD"/*.so "$T/bin/" 2>/dev/null || true
(pace 100 && exec timeout 600 "$T/bin/nebula" pretrain "$T/job.yaml" --local 2 --out "$T/gone" \
    --steps 80) >"$T/gone.log" 2>&1 &
pid=$!
wait_step "$T/gone" 3 "$pid" || fail "the run made no steps"
rm "$T/bin/nebula"
# The command restarts the killed agent, and this agent restarts its worker.
kill -KILL "$(run=$T/gone && agent_of beta)"
wait "$pid" || fail "a run whose program file was removed failed"
digests_equal "$T/gone"

# The command has no standard streams. No file of the run may become standard output or error.
timeout 600 "$nebula" pretrain "$T/job.yaml" --local 2 --steps 5 --out "$T/closed" <&- >&- 2>&- ||
    fail "a run without standard streams failed"
jq -e . "$T/closed/metrics.jsonl" >"$T/closed.json" ||
    fail "printed text went into metrics.jsonl: $(head -n 2 "$T/closed/metrics.jsonl")"

# A corpus replaces only a folder that is absent, empty, or a corpus. It never replaces a folder
# that contains its own text.
build_refused() { # OUT PATTERN; runs in $T/b
    (cd "$T/b" && "$nebula" data build "$T/spec.yaml" --out "$1") >"$T/b.log" 2>&1 &&
        fail "data build --out $1 was not refused"
    grep -qE "$2" "$T/b.log" || fail "data build --out $1: $(cat "$T/b.log")"
}
mkdir -p "$T/b/mine/sub" && echo thesis >"$T/b/mine/sub/thesis.tex" && echo note >"$T/b/plain" &&
    cp -r "$T/corpus" "$T/b/with-notes"
echo note >"$T/b/with-notes/NOTES"
mkdir "$T/b/alien" && echo '{"version": 1, "sources": []}' >"$T/b/alien/corpus.json"
find "$T/b" "$T/text" | sort >"$T/before"
build_refused mine 'holds sub, which is not part of a corpus'
(cd "$T/b" && "$nebula" data build "$T/spec.yaml" --out with-notes) >"$T/b.log" 2>&1 ||
    fail "data build refused a corpus that is up to date: $(cat "$T/b.log")"
sed -i 's/"inputs": "./"inputs": "x/' "$T/b/with-notes/corpus.json"
build_refused with-notes 'holds NOTES, which is not part of a corpus'
build_refused alien 'holds corpus.json, which is not part of a corpus'
build_refused plain '/b/plain is not a folder'
build_refused plain/below 'Not a directory'
build_refused . 'is the working folder or contains it'
build_refused / 'is the working folder or contains it'
build_refused "$T/text" 'holds the text of source gpl'
build_refused "$T/text/gpl" 'holds the text of source gpl'
build_refused "$T/text/gpl/corpus" 'lies in source gpl'
find "$T/b" "$T/text" | sort | cmp - "$T/before" ||
    fail "a refused build changed something"
mkdir "$T/b/empty" && ln -s ../corpus "$T/b/link"
for out in empty new/below/. link/; do
    (cd "$T/b" && "$nebula" data build "$T/spec.yaml" --out "$out") >"$T/b.log" 2>&1 ||
        fail "data build --out $out: $(cat "$T/b.log")"
done
[[ -L $T/b/link ]] && cmp "$T/corpus/corpus.json" "$T/b/empty/corpus.json" &&
    cmp "$T/corpus/corpus.json" "$T/b/new/below/corpus.json" ||
    fail "the corpus is missing or differs"
echo "bad input and a full disk are reported, nothing is lost"
