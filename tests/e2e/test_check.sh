#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula check on a real corpus: its text, its JSON, and its exit status.
source "$(dirname "$0")/lib.sh"
make_corpus
make_job "$T/job.yaml"

expect() { # expect STATUS TEXT arguments of check...
    local status=0 want=$1 text=$2 out
    shift 2
    out=$("$nebula" check "$@" 2>&1) || status=$?
    [[ $status == "$want" ]] || fail "check $*: exit status $status, not $want: $out"
    [[ $out == *"$text"* ]] || fail "check $*: no '$text' in: $out"
}
expect 0 'job e2e is fine' "$T/job.yaml"
expect 0 'exchange  6 times' "$T/job.yaml"
expect 0 '"ok":true' "$T/job.yaml" --json
# An update goes to each other cluster. With one cluster there are no updates. Mode distill sends
# labels.
sed '$a\  - {name: gamma, threads: 1}' "$T/job.yaml" >"$T/three.yaml"
sed '/name: beta/d' "$T/job.yaml" >"$T/one.yaml"
sed 's/^mode: .*/mode: distill/; s/{name: alpha, .*/{name: alpha, role: student}/;
    s/{name: beta, .*/{name: beta, role: teacher}/; s|corpus: [^,]*,|corpus: /nowhere,|;
    s/model: {/&vocab: 512, /; $a\distill: {teacher: {learn: true}}' \
        "$T/job.yaml" >"$T/distill.yaml"
expect 0 ' per cluster to each of 2 others (int4' "$T/three.yaml"
expect 0 'exchange  none: there is one cluster' "$T/one.yaml"
expect 0 'labels    for 60 batches per student, about ' "$T/distill.yaml"
[[ $("$nebula" check "$T/distill.yaml") != *exchange* ]] ||
    fail "check of mode distill shows an exchange: $("$nebula" check "$T/distill.yaml")"
jq -n -e --argjson two "$("$nebula" check "$T/job.yaml" --json)" \
    --argjson three "$("$nebula" check "$T/three.yaml" --json)" \
    --argjson one "$("$nebula" check "$T/one.yaml" --json)" \
    --argjson labels "$("$nebula" check "$T/distill.yaml" --json)" '
    ($three.sent_bytes / $two.sent_bytes - 2 | fabs < 0.001) and $one.sent_bytes == 0 and
        $labels.exchanges == 0 and $labels.sent_bytes == null and $labels.label_batches == 60 and
        $labels.label_bytes_per_token > 1' >/dev/null || fail "wrong number of sent bytes"
# The vocabulary is that of the corpus: 512 pieces x width 64, then two blocks, then the last norm.
want=$((512 * 64 + 2 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128) + 64))
[[ $("$nebula" check "$T/job.yaml" --json | jq .params) == "$want" ]] ||
    fail "the number of parameters is not $want"
sed 's/name: gpl/name: gnu/' "$T/job.yaml" >"$T/source.yaml"
expect 2 "cluster alpha: corpus $T/corpus has no source 'gnu'" "$T/source.yaml"
# A missing corpus concerns the clusters that read it: not an attached trainer, and not a witness.
sed "s/^model: {/&vocab: 512, /;
    s/{name: alpha,/{name: alpha, launcher: attach,/; \$a\\  - {name: west, witness: true}" \
        "$T/job.yaml" >"$T/attach.yaml"
"$nebula" check "$T/attach.yaml" --set data.corpus="$T/nowhere" >"$T/attach.log" 2>&1 ||
    fail "check: $(cat "$T/attach.log")"
[[ $(grep -o 'cluster [a-z]*: there is no corpus' \
    "$T/attach.log") == 'cluster beta: there is no corpus' ]] ||
    fail "wrong warning: $(cat "$T/attach.log")"
sed 's/^model:/modle:/' "$T/job.yaml" >"$T/key.yaml"
expect 2 "key.yaml:5: modle: unknown key (did you mean 'model'?)" "$T/key.yaml"
sed 's/^job:.*/job: ../' "$T/job.yaml" >"$T/name.yaml"
expect 2 'job: ".." is not a name' "$T/name.yaml"
expect 2 '--set: sync.interval: 0 is not in 1..1000000000' "$T/job.yaml" --set sync.interval=0
expect 2 "--set: data: is a section; set one of its keys: data.corpus, data.tokenizer_sha256" \
    "$T/job.yaml" --set data=3
expect 2 '--set: clusters: is a list' "$T/job.yaml" --set clusters=a
expect 2 'data.corpus: is empty' "$T/job.yaml" --set data.corpus=
sed 's/corpus: [^,]*,/corpus: "",/' "$T/job.yaml" >"$T/empty.yaml"
expect 2 "$T/empty.yaml:6: data.corpus: is empty" "$T/empty.yaml"
{ cat "$T/job.yaml" && echo '---' && cat "$T/job.yaml"; } >"$T/both.yaml"
expect 2 "$T/both.yaml:$(($(wc -l <"$T/job.yaml") + 2)): a second document begins here" \
    "$T/both.yaml"
# Nebula cannot know how many ranks mpirun or Slurm starts, and a default of one would be wrong.
# Every command refuses it.
for launcher in mpirun slurm; do
    sed "s/{name: alpha,/{name: alpha, mesh: auto, launcher: $launcher,/" "$T/job.yaml" \
        >"$T/ranks.yaml"
    for command in check plan "pretrain --local 2 --out $T/none"; do
        read -ra words <<<"$command"
        status=0
        "$nebula" "${words[@]}" "$T/ranks.yaml" >"$T/ranks.log" 2>&1 || status=$?
        text="ranks.yaml:12: clusters.ranks: is missing: with launcher: $launcher .*add ranks: N"
        [[ $status == 2 ]] && grep -q "$text" "$T/ranks.log" ||
            fail "$command, mesh: auto with $launcher: status $status, $(cat "$T/ranks.log")"
    done
    sed -i 's/mesh: auto,/mesh: auto, ranks: 4,/' "$T/ranks.yaml"
    expect 0 'job e2e is fine' "$T/ranks.yaml"
done
expect 2 'model.vocab: 100 is below the 512 pieces' "$T/job.yaml" --set model.vocab=100
expect 2 '"ok":false' "$T/job.yaml" --json --set steps=no
sed 's/^mode: .*/mode: rtd/; s/{name: alpha, .*/{name: alpha, role: generator}/;
    s/{name: beta, .*/{name: beta, role: discriminator}/' "$T/job.yaml" >"$T/rtd.yaml"
expect 0 'job e2e is fine' "$T/rtd.yaml" --set model.vocab=513
expect 2 'model.vocab: 512; mode rtd needs the 512 pieces' "$T/rtd.yaml" --set model.vocab=512
expect 0 'trainable.rank does nothing: trainable.mode is not lora' \
    "$T/job.yaml" --set trainable.rank=4
expect 0 'optim.momentum does nothing: optim.name is not muon' \
    "$T/job.yaml" --set optim.momentum=0.9
expect 0 'optim.name: muon does nothing: no matrix of a block learns' \
    "$T/job.yaml" --set optim.name=muon --set trainable=bitfit
expect 0 'sync.tune.interval does nothing: sync.tune.mode is not auto' \
    "$T/job.yaml" --set sync.tune.interval=true
expect 0 'random parameters and is never trained' \
    "$T/job.yaml" --set trainable=lora --set trainable.rank=4
mkdir "$T/empty"
expect 2 "init_from: $T/empty is not a checkpoint that a job can start from" "$T/job.yaml" \
    --set init_from="$T/empty"
# A missing file of any kind gives a warning that names the clusters that need it, with --json too.
expect 0 "clusters alpha, beta: init_from: there is no $T/nowhere on this machine" "$T/job.yaml" \
    --set init_from="$T/nowhere"
expect 0 "cluster alpha: init_from: there is no $T/nowhere on this machine" "$T/distill.yaml" \
    --set init_from="$T/nowhere"
expect 0 "cluster beta: distill.teacher.init: there is no $T/nowhere on this machine" \
    "$T/distill.yaml" --set distill.teacher.init="$T/nowhere"
"$nebula" check "$T/distill.yaml" --json --set data.corpus="$T/nowhere" --set model.vocab=512 \
    --set distill.teacher.init="$T/nowhere" >"$T/warned.json" 2>&1 ||
    fail "check --json: $(cat "$T/warned.json")"
jq -e '(.warnings | length == 3 and any(test("cluster alpha: there is no corpus")) and
    any(test("cluster beta: distill.teacher.init")))
       and [.clusters[] | "\(.name) \(.corpus_here)"] == ["alpha false", "beta false"]' \
           "$T/warned.json" >/dev/null || fail "check --json: $(cat "$T/warned.json")"
"$nebula" check "$T/job.yaml" --json |
    jq -e '.warnings == [] and all(.clusters[]; .corpus_here)' >/dev/null ||
    fail "check --json warns although everything is here"
# STATUS command…: the exit status of every command (nebula help files). With --json the last line
# is an object with the reason.
status_of() {
    local rc=0 want=$1
    shift
    timeout 100 "$nebula" "$@" >"$T/status.out" 2>"$T/status.err" </dev/null || rc=$?
    [[ $rc == "$want" ]] || fail "nebula $*: exit status $rc, not $want: $(cat "$T/status.err")"
    [[ -s $T/status.err || $1 == check ]] || fail "nebula $* fails without a message"
    [[ " $* " != *' --json '* ]] ||
        tail -n 1 "$T/status.out" | jq -e '(.ok | not) and (.error | length > 5)' >/dev/null ||
        fail "nebula $*: $(cat "$T/status.out")"
}
none=$T/none
{ cat "$T/job.yaml" && head -c 1100000 /dev/zero | tr '\0' '#'; } >"$T/huge.yaml"
head -c 70000 /dev/zero | tr '\0' ' ' >"$T/huge.json"
for c in "check $T/huge.yaml --json" "plan $T/huge.yaml --json" \
    "pretrain $T/huge.yaml --local 2 --json" "check $none --json" "plan $none --json" \
    "pretrain $none --local 2 --json" "data build $none --out $none.c --json" \
    "init --home $none --name x" "init --home $none --name x --listen foo" "join foo --home $none" \
    "members --fetch foo --home $none" \
    "rotate foo --home $none" "logs zz --home $none" "id --name A! --home $none" "stop" \
    "invite --home $none" "seal open $none $none.c" \
    "bench codec --codec foo" "agent --page 99999 --home $none" \
    "agent --page example.org:80 --home $none" \
    "agent --listen nonsense --home $none" "agent --listen a:0 --home $none" \
    "agent --workers 0.0.0.0 --home $none" "agent --workers ib0:x --home $none" \
    "agent --page 0.0.0.0:9470 --home $none" "agent --page-cert $none --home $none" \
    "agent --page 9470 --page-key $none --page-token $none --home $none" \
    "eval $none -a probe" "eval $none -aprobe" "peer add nonsense localhost:1 --home $none" \
    "peer add nebid1:a:b:c:d - --home $none"; do
    read -ra words <<<"$c"
    status_of 2 "${words[@]}"
done
for c in "pretrain $T/job.yaml --home $none --out $T/none-run --json" \
    "plan $T/job.yaml --site alpha=$T/huge.json --json" "status --home $none --json" \
    "jobs --home $none --json" "eval $none --corpus $T/corpus --json" "eval $none --json" \
    "eval $none --task translate --json" "eval $none --logits --ids 1" \
    "eval $none --task probe --text $none --train en --test en --json" \
    "rotate localhost:1 --home $none" "members --home $none" \
    "ledger verify $none" "data build $T/spec.yaml --out $T/spec.yaml --json"; do
    read -ra words <<<"$c"
    status_of 1 "${words[@]}"
done
# An agent that runs as root prints another message first.
for c in agent "members --fetch localhost:1" "peer list"; do
    read -ra words <<<"$c"
    status_of 1 "${words[@]}" --home "$none"
    grep -q "no identity in $none: make one with nebula id, or nebula join" "$T/status.err" ||
        fail "$c without keys: $(cat "$T/status.err")"
done
# An interface, an address or a file that is missing may appear later: the agent exits with status
# 1, and systemd restarts it.
"$nebula" id --home "$T/one" --name one >/dev/null 2>&1 || fail "nebula id failed"
for c in "--workers nope0" "--listen nope0:7400" "--listen 192.0.2.1:7400" \
    "--page 9470 --page-token $none"; do
    read -ra words <<<"$c"
    status_of 1 agent --home "$T/one" "${words[@]}"
done
for c in "-a probe" -aprobe "--task probe" --task=probe; do
    read -ra words <<<"$c"
    status_of 1 eval "$none" "${words[@]}" --text "$none" -t en --test en
done
status_of 1 generate "$none" --prompt a # the checkpoint is missing, not its tokenizer
! grep -q tokenizer "$T/status.err" || fail "generate without a checkpoint: $(cat "$T/status.err")"
# A failed init leaves nothing behind, so it can be repeated with another name.
mkdir "$T/hub" && : >"$T/backup"
status_of 1 init --home "$T/hub" --name acme --listen 127.0.0.1:7443 --member one \
    --backup "$T/backup"
[[ ! $(ls -A "$T/hub") && -f $T/backup ]] || fail "a failed init left: $(ls -A "$T/hub")"
status_of 2 init --home "$T/hub/new" --name 'acme!' --listen 127.0.0.1:7443 --member one
[[ ! $(ls -A "$T/hub") ]] || fail "a failed init left: $(ls -A "$T/hub")"
! flock "$T/hub" "$nebula" init --home "$T/hub" --name acme --listen 127.0.0.1:7443 \
    --member two >/dev/null 2>"$T/err" || fail "two inits ran at once"
grep -q 'another nebula init, id or join works' "$T/err" ||
    fail "two inits ran at once: $(cat "$T/err")"
[[ ! $(ls -A "$T/hub") ]] || fail "an init beside another one left: $(ls -A "$T/hub")"
"$nebula" init --home "$T/hub" --name acme --listen 127.0.0.1:7443 --member two >/dev/null ||
    fail "the init after a failed init failed"
# A bench writes into a folder of its own and removes it. Existing files in DIR stay.
mkdir -p "$T/bench/bench-corpus"
for step in 1 2 3; do echo "$step" >"$T/bench/step-00000000000$step.ckpt"; done
echo mine >"$T/bench/bench-corpus/corpus.json"
cp -r "$T/bench" "$T/bench-was"
"$nebula" bench checkpoint --params 1000 --dir "$T/bench" >"$T/bench.log" 2>&1 ||
    fail "bench checkpoint: $(cat "$T/bench.log")"
(NEBULA_FAULT=fs.write:3 status_of 1 bench data --dir "$T/bench")
diff -r "$T/bench-was" "$T/bench" >&2 || fail "bench --dir changed what was there"
expect 2 'no-such.yaml' "$T/no-such.yaml"
spec_refused() { # TEXT SED-EXPRESSION
    local rc=0
    sed "$2" "$T/spec.yaml" >"$T/bad-spec.yaml"
    "$nebula" data build "$T/bad-spec.yaml" --out "$T/none" >"$T/spec.log" 2>&1 || rc=$?
    [[ $rc == 2 && ! -e $T/none ]] && grep -qF "$1" "$T/spec.log" ||
        fail "data build, $2: $rc, $(cat "$T/spec.log")"
}
spec_refused 'bad-spec.yaml:5: seed: given twice' 's/^seed: 1/&\nseed: 2/'
spec_refused 'bad-spec.yaml:2: size: given twice' 's/{size: 512,/{size: 512, size: 513,/'
spec_refused 'spec: a second document begins here' '$a---\nname: more'
spec_refused 'bad-spec.yaml:2: size: is not an integer' 's/size: 512,/size: 512.7,/'
# A repeated build keeps the existing corpus and reports it, also in a folder whose name is not
# UTF-8. A damaged corpus is rebuilt.
cp -r "$T/corpus" "$T/gr"$'\xfc'"n"
"$nebula" data build "$T/spec.yaml" --out "$T/gr"$'\xfc'"n" --json 2>&1 | tail -n 1 |
    jq -e '.kind == "summary" and .unchanged and (.corpus | endswith("/gr?n"))' >/dev/null ||
    fail "data build failed in a folder whose name is not UTF-8"
cp -r "$T/corpus" "$T/damaged" && rm "$T/damaged/tokenizer.model" "$T/damaged/gpl/train-00000.bin"
"$nebula" data build "$T/spec.yaml" --out "$T/damaged" >"$T/damaged.log" 2>&1 &&
    grep -q "warn  the corpus in $T/damaged is damaged; it is rebuilt" "$T/damaged.log" ||
    fail "a damaged corpus: $(cat "$T/damaged.log")"
diff -r "$T/corpus/gpl" "$T/damaged/gpl" &&
    "$nebula" check "$T/job.yaml" --set data.corpus="$T/damaged" >"$T/damaged.log" 2>&1 ||
    fail "a damaged corpus was not rebuilt: $(cat "$T/damaged.log")"
rc=0
"$nebula" eval "$T/none" --corpus "$T/corpus" --beam 3 >"$T/beam.log" 2>&1 || rc=$?
[[ $rc == 2 ]] && grep -q -- '--beam, --out, .* need --task translate' "$T/beam.log" ||
    fail "eval --beam without a task: $(cat "$T/beam.log")"
expect 2 'unrecognized option' "$T/job.yaml" --frobnicate
# If the printed text cannot be written, the command fails.
for command in "check $T/job.yaml" "check --help" help --version "completion bash"; do
    read -ra words <<<"$command"
    status=0
    "$nebula" "${words[@]}" >/dev/full 2>"$T/full" || status=$?
    [[ $status == 1 ]] && grep -q 'standard output is incomplete: No space left' "$T/full" ||
        fail "$command on a full disk: $status, $(cat "$T/full")"
done
# Every command's help uses the name that the user types.
for command in $("$nebula" help | awk '/^  [a-z]/ { print $1 }'); do
    [[ $("$nebula" "$command" --help) == "Usage: nebula $command "* ]] ||
        fail "nebula $command --help begins with another name"
done
expect 2 "Try \`nebula check --help' or" "$T/job.yaml" --frobnicate
configs=$(dirname "$0")/../../configs
"$nebula" check --reference |
    cmp - <(sed '1,/^<!-- nebula check --reference -->$/d;
    /^<!-- end -->$/,$d' "$configs/README.md") ||
    fail "configs/README.md is outdated: tests/write-reference puts the keys into it"
expect 0 'job example is fine' "$configs/example.yaml"
expect 0 'stream    400 batches of about' "$configs/rtd-two-clusters.yaml"
rm -r "$T/corpus" # a corpus of another site: no error, but no size
expect 0 'not on this machine' "$T/job.yaml"
expect 0 'the size is not known' "$T/job.yaml"
text="warn  cluster beta: there is no corpus in $T/corpus on this machine: "
text+="it must be on the cluster's machine"
expect 0 "$text" "$T/job.yaml"
for want in 'help:usage: nebula COMMAND' \
    'help pretrain:Usage: nebula pretrain ' 'version:nebula 0.' \
    'distill --help:labels of a teacher' \
    'eval --help:nebula eval --task=probe --help' 'eval --task probe --help:--train=LANGUAGE'; do
    read -ra words <<<"${want%%:*}"
    out=$("$nebula" "${words[@]}") || fail "nebula ${want%%:*} failed"
    [[ $(tr -s ' \n' ' ' <<<"$out") == *"${want#*:}"* ]] || fail "nebula ${want%%:*}: $out"
done
rc=0
"$nebula" help frobnicate >"$T/help.log" 2>&1 || rc=$?
[[ $rc == 2 ]] && grep -q "unknown command or topic 'frobnicate'" "$T/help.log" ||
    fail "help of an unknown command ended with status $rc"
# Topics: nebula help lists them, each fits on a screen, and the manual contains their texts.
topics=$("$nebula" help | awk '/^    [a-z]/ { print $1 }')
(($(wc -w <<<"$topics") >= 8)) || fail "nebula help lists too few topics: $topics"
"$nebula" completion man | sed 's/\\-/-/g; s/\\e/\\/g; s/^\\&//' >"$T/manual"
for topic in $topics; do
    "$nebula" help "$topic" >"$T/topic" || fail "nebula help $topic"
    (($(wc -l <"$T/topic") <= 60 && $(wc -L <"$T/topic") <= 79)) ||
        fail "nebula help $topic is too long or too wide"
    sed -n "/^.SS \"nebula help $topic\"/,/^.fi/p" "$T/manual" | sed '1,2d;
        $d' | cmp - "$T/topic" || fail "the manual lacks the topic $topic"
done

# Mode distill trains on pairs. If the corpus is here, plain text is refused before the run starts.
# It is allowed as a source that only students send.
make_corpus
cat >"$T/pairs.yaml" <<YAML
job: d
mode: distill
steps: 10
model: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/corpus, seq_len: 64, batch: 4}
optim: {lr: 1e-3}
distill: {teacher: {n_layers: 2, d_model: 64, n_heads: 4, d_ff: 128, learn: true}}
clusters: [{name: a, role: teacher}, {name: b, role: student}]
YAML
expect 2 'cluster a: mode distill trains on pairs, source and target' "$T/pairs.yaml"
expect 2 "source gpl of $T/corpus is not parallel text" "$T/pairs.yaml"
expect 2 'cluster b: mode distill trains on pairs' "$T/pairs.yaml" --set distill.push_text=true
# A trainer that attaches has its own memory and text, so the check does not count them.
{
    sed '/^  - {name/d; /^clusters:/d' "$T/attach.yaml" &&
        echo 'clusters: [{name: a, launcher: attach}, {name: b, launcher: attach}]'
} >"$T/both.yaml"
expect 0 "the attached trainers decide their memory" "$T/both.yaml"
expect 0 'cluster   a: a trainer attaches' "$T/both.yaml"

# A mistyped word gets a suggestion, in a few lines.
typed() { # MESSAGE ARGUMENTS...
    local want=$1
    shift
    rc=0
    "$nebula" "$@" >"$T/typed.log" 2>&1 || rc=$?
    [[ $rc == 2 ]] && grep -qF "$want" "$T/typed.log" && (($(wc -l <"$T/typed.log") <= 4)) ||
        fail "nebula $*: $rc: $(cat "$T/typed.log")"
}
typed "unknown command 'chekc'; did you mean 'check'?" chekc job.yaml
typed "did you mean 'status'?" stat
typed "unknown command 'ps'; did you mean 'jobs'?" ps
typed "'nebula help' lists all commands" zzzzqqqq
typed "unknown command or topic 'tunning'; did you mean 'tuning'?" help tunning
typed "'tuning' is a topic, not a command: nebula help tuning" tuning
typed "unrecognized option '--lcoal'; did you mean '--local'?" pretrain --set train.steps=3 \
    --lcoal 2 job.yaml
typed "unrecognized option '--jsno'; did you mean '--json'?" check -q --jsno
typed "'lst' is none of add, list, remove; did you mean 'list'?" peer lst
typed "did you mean 'verify'?" ledger verfiy "$T"
typed "'bild' is not build; did you mean 'build'?" data bild spec.yaml
echo "check: all as expected"
