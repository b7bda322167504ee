#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The files of a command that submits to an agent of its own, and how it ends. Modes rtd and
# distill: OUT/checkpoint has the models of that agent's site, with their own names and the
# vocabulary of that cluster. If there is no model.ckpt, a message names the cluster that has it.
# SIGTERM and SIGHUP detach the command, and the job continues. --resume follows the job again.
# SIGINT stops it.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pairs.sh"
. "$(dirname "$0")/sites.sh"
make_pairs
cp -r "$T/corpus" "$T/corpus-other"
ln -s corpus-other "$T/corpus-b" # this link exists at one site only
pair
pace 5
start_alpha
start_beta
wait_for 20 "the link" says a '.peers[0].up'

site() { # COMMAND SITE OUT
    timeout 600 "$nebula" "$1" "$T/job.yaml" --home "$T/$2" --out "$T/$3" >"$T/$3.log" 2>&1 ||
        fail "the run $3 failed"
    at=$T/$2/jobs/$(jq -r .id "$T/$3/job.json") ckpt=$T/$3/checkpoint
}
is_model() {
    cmp -s "$at/model.ckpt" "$ckpt/$1" ||
        fail "$ckpt/$1 is not the model of this site: $(ls "$ckpt")"
}
has_not() { [[ ! -e $ckpt/$1 ]] || fail "$ckpt/$1 must not exist: $(ls "$ckpt")"; }
says_who() { # OUT CLUSTER
    has "gets no model.ckpt.*cluster $2 has it as HOME/jobs/${at##*/}/model.ckpt" "$T/$1.log" ||
        fail "no message names the cluster with the model"
}
noted() {
    has "  $1/corpus.json" "$ckpt/corpus.sha256" && [[ -s $ckpt/tokenizer.model ]] ||
        fail "$ckpt has a wrong corpus note, or no vocabulary: $(cat "$ckpt/corpus.sha256")"
}

own="corpus: $T/corpus-b"
list=$(cluster_list alpha generator beta discriminator)
job "$T/job.yaml" "${list/discriminator/"discriminator, $own"}"
sed -i 's/^mode: distill/mode: rtd/; /^distill:/d; s/^steps: 60/steps: 4/;
    s/accumulate: 2/accumulate: 1/; s/warmup: 10/warmup: 2/' "$T/job.yaml"
site pretrain b rtd-b
[[ $(jq -r '.spec.clusters[1].corpus' "$T/rtd-b/job.json") == "$T/corpus-b" ]] ||
    fail "a link was resolved for all sites: $(jq -c .spec.clusters "$T/rtd-b/job.json")"
is_model model.ckpt
has_not generator.ckpt
noted "$T/corpus-other"
site pretrain a rtd-a
is_model generator.ckpt
has_not model.ckpt
says_who rtd-a beta
noted "$T/corpus"

job "$T/job.yaml" "${both/student/"student, $own"}" "teacher: {learn: true}"
sed -i 's/^steps: 60/steps: 4/; s/accumulate: 2/accumulate: 1/; s/windows: 20/windows: 2/;
    s/warmup: 10/warmup: 2/' "$T/job.yaml"
site distill b distill-b
is_model model.ckpt
has_not teacher.ckpt
noted "$T/corpus-other"
site distill a distill-a
is_model teacher.ckpt
has_not model.ckpt
says_who distill-a beta

# Detached twice, then stopped.
make_corpus
make_job "$T/job.yaml"
sed -i 's/steps: 60/steps: 1000000/; s/every_steps: 20/every_steps: 0/;
    s/seq_len: 64/seq_len: 16/' "$T/job.yaml"
step() {
    "$nebula" status --home "$T/$1" --json |
        jq -r --arg id "$id" '.jobs[] | select(.id == $id) | .step // 0'
}
beyond() { (($(step "$1") > $2)); }
state() {
    "$nebula" jobs --home "$T/$1" --json | jq -r --arg id "$id" '.[] | select(.id == $id) | .state'
}
is() { [[ $(state "$1") == "$2" ]]; }
follow() { # LOG [OPTIONS]
    local log=$T/$1.log
    shift
    "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" "$@" >"$log" 2>&1 &
    command=$!
    wait_step "$T/run" $(($(steps_done "$T/run") + 20)) "$command" || fail "the run made no steps"
    id=$(jq -r .id "$T/run/job.json")
}
ends() { # SIGNAL
    local rc=0
    kill "-$1" "$command"
    wait "$command" || rc=$?
    [[ $rc == 3 ]] || fail "the exit status after SIG$1 is $rc, not 3"
}
goes_on() { # LOG
    has "detached: the job continues .* --resume --out $T/run .* nebula stop $id --home $T/a " \
        "$T/$1.log" || fail "the log does not report the detach"
    for s in a b; do
        wait_for 30 "steps at $s after $1" beyond $s $(($(step $s) + 50))
        is $s running || fail "after $1 the job is $(state $s) at $s"
    done
}
follow term
ends TERM
goes_on term
before=$(steps_done "$T/run")
follow hup --resume
ends HUP
goes_on hup
(($(steps_done "$T/run") > before + 50)) ||
    fail "the job started again from step $(steps_done "$T/run"), before it was at $before"
follow int --resume
ends INT
has 'stopped after a checkpoint' "$T/int.log" || fail "the log does not report the stop"
for s in a b; do wait_for 30 "the stop at $s" is $s stopped; done
echo "models of the asked site; detached by SIGTERM and SIGHUP, followed again, stopped by SIGINT"
