#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Attached loops of several ranks, as processes that hold parts of each tensor. A job has two
# clusters with different meshes; every round has equal digests. The digests are the same for all
# meshes, because the client's steps are. A loop continues from a checkpoint on another mesh.
. "$(dirname "$0")/lib.sh"
client=$BUILD/attach_client
[[ -x $client ]] || skip "attach_client is not built"
make_corpus
job() { # FILE
    make_job "$1"
    sed -i "s/steps: 60/steps: 40/; s/model: {/model: {vocab: 512, /; s/overlap: 0/overlap: 2/;
        s/fragments: 1/fragments: 2/; s/threads: 1/threads: 1, launcher: attach/" "$1"
}
# NAME, then the client's options of alpha and beta
run() {
    job "$T/$1.yaml"
    sed -i "s/\(every_steps: [0-9]*\)/\1, copy: ${copy:-true}/" "$T/$1.yaml"
    timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 2 --out "$T/$1" \
        ${seal:+--seal-key "$seal"} >"$T/$1.log" 2>&1 & pid=$!
    # shellcheck disable=SC2086
    timeout 600 "$client" "$T/$1/clusters/alpha" e2e 1 $2 >"$T/$1-a.log" 2>&1 & a=$!
    # shellcheck disable=SC2086
    timeout 600 "$client" "$T/$1/clusters/beta" e2e -1 $3 >"$T/$1-b.log" 2>&1 & b=$!
}
finish() { # NAME
    wait $a || fail "the loop of alpha failed: $(cat "$T/$1-a.log")"
    wait $b || fail "the loop of beta failed: $(cat "$T/$1-b.log")"
    wait $pid || fail "the job $1 failed"
    digests_equal "$T/$1"
    round_digests_equal "$T/$1"
    echo "$1: $(summary '.clusters[0].params_digest' "$T/$1")"
}
run plain "" "--mesh rows 2"
finish plain
want=$(summary '.clusters[0].params_digest' "$T/plain")
run meshes "--mesh cols 3" "--mesh hsdp 4"
finish meshes
run strided "--mesh strided 3" "--mesh rows 4"
finish strided
for name in meshes strided; do
    [[ $(summary '.clusters[0].params_digest' "$T/$name") == "$want" ]] ||
        fail "the digest of $name differs from that of plain"
done

# A rank dies; the others hear of it. The loop comes back with other ranks, and ends with the same
# bits. The checkpoint of step 20 is there before the next step, so before the death too.
copy=false run back "--mesh rows 4 --die-at 27" "--mesh cols 2"
rc=0; wait $a || rc=$?
((rc != 0)) || fail "the loop of alpha should have died"
has 'has ended, or the loop' "$T/back-a.log" || fail "nobody heard that a rank died"
timeout 600 "$client" "$T/back/clusters/alpha" e2e 1 --mesh cols 3 >"$T/back-a.log" 2>&1 & a=$!
finish back
has 'begins at 20' "$T/back-a.log" || fail "alpha did not start from the checkpoint of step 20"
[[ $(summary '.clusters[0].params_digest' "$T/back") == "$want" ]] ||
    fail "the digest differs after a change of the mesh"
# Jobs with a built-in model compare the same list: a frozen base has other values on one site,
# which is an error on both before a step is made.
run base "--mesh rows 2 --base 97" "--mesh cols 2 --base 101"
differs() { # NAME ERE: both loops end, and say how
    for loop in $a $b; do
        rc=0; wait "$loop" || rc=$?
        [[ $rc == 11 ]] || fail "a loop with other tensors ended with status $rc"
    done
    ! wait $pid || fail "the job $1 should fail"
    for log in a b; do
        grep -Eq "status 1: .*$2" "$T/$1-$log.log" || fail "$log does not say what differs"
    done
}
hex='[0-9a-f]{32}'
differs base "\"base\": cluster [a-z]* has 9×50 .* digest $hex, cluster [a-z]* has .* digest $hex"

# Tensors of the loop's own: several dimensions and dtypes, a row longer than a unit, an expert that
# stays at its site.
job() {
    make_job "$1"
    sed -i "s/steps: 60/steps: 40/; s/^model: .*/model: attached/; /^optim:/d; /^eval:/d; /^data:/d
        s/overlap: 0/overlap: 2/; s/fragments: 1/fragments: 2/
        s/every_steps: 20/every_steps: ${every:-20}/
        s/sources: [^]]*\], threads: 1/threads: 1, launcher: attach/" "$1"
    cat >>"$1" <<YAML
groups:
  - {match: "*.experts.*", exchange: never}
  - {match: "ln.*", exchange: {every: 2}, codec: int8, fragments: 1}
init: ${init:-equal}
YAML
}
run own "--mesh rows 1 --own 0.25" "--mesh hsdp 4 --own 0.25"
finish own
want=$(summary '.clusters[0].params_digest' "$T/own")
run cols "--mesh strided 2 --own 0.25" "--mesh cols 3 --own 0.25 --die-at 27"
rc=0; wait $b || rc=$?
((rc != 0)) || fail "the loop of beta should have died"
timeout 600 "$client" "$T/cols/clusters/beta" e2e -1 --mesh rows 2 --own 0.25 \
    >"$T/cols-b.log" 2>&1 & b=$!
finish cols
[[ $(summary '.clusters[0].params_digest' "$T/cols") == "$want" ]] ||
    fail "the digest of own tensors depends on the mesh"
# From here on without the long tensor, whose steps cost the most.
run brief "--mesh rows 1 --brief 0.25" "--mesh rows 2 --brief 0.25"
finish brief
want=$(summary '.clusters[0].params_digest' "$T/brief")
# A mistake of one rank is one error on all ranks. The job waits for the next loop.
run bad "--mesh rows 3 --brief 0.25 --bad name" "--mesh rows 2 --brief 0.25"
all_said() { (($(grep -c "^nebula_.*: status.*$1" "$T/bad-a.log") == 3)); }
mistake() { # KIND STATUS TEXT: what each rank says
    rc=0; wait $a || rc=$?
    [[ $rc == "$2" ]] || fail "a loop with the mistake $1 ended with status $rc"
    within 30 all_said "$3" || # rank 0 may end before the others have spoken
        fail "not all ranks say what is wrong ($1): $(cat "$T/bad-a.log")"
    [[ ! ${4:-} ]] || next "$4"
}
next() { # KIND
    timeout 600 "$client" "$T/bad/clusters/alpha" e2e 1 --mesh rows 3 --brief 0.25 --bad "$1" \
        >"$T/bad-a.log" 2>&1 & a=$!
}
mistake name 11 'the ranks declare different tensors: rank 0 has .*, rank 2 has ' missing
mistake missing 11 'tensor wte: element (142, 0) is registered on none of 3 ranks' nan
mistake nan 11 'tensor wte: element (142, 3) is not a finite number on rank 2' call
mistake call 12 \
    'the ranks make different calls: nebula_checkpoint on rank 2, nebula_step on rank 0' close
mistake close 12 'the ranks make different calls: nebula_close on rank 2, nebula_step on rank 0'
timeout 600 "$client" "$T/bad/clusters/alpha" e2e 1 --mesh rows 3 --brief 0.25 \
    >"$T/bad-a.log" 2>&1 & a=$!
finish bad
[[ $(summary '.clusters[0].params_digest' "$T/bad") == "$want" ]] ||
    fail "the digest differs after mistakes"

# The loop saves the state with its own parameters, and continues from both on other meshes, of 4, 2
# and 8 ranks: at steps 24 and 31, where the library has no checkpoint.
mkdir "$T/own-state" "$T/then-state"
run kept "--mesh rows 4 --brief 0.25 --save-at 24 $T/own-state" "--mesh hsdp 2 --brief 0.25"
wait $a || fail "the loop could not save its state: $(cat "$T/kept-a.log")"
loads() { # STEP MESH RANKS OPTIONS…
    timeout 600 "$client" "$T/kept/clusters/alpha" e2e 1 --mesh "$2" "$3" --brief 0.25 "${@:4}" \
        >"$T/kept-a.log" 2>&1 & a=$!
    within 60 has "begins at $1" "$T/kept-a.log" || fail "the loop did not begin at step $1"
}
loads 24 cols 2 --load "$T/own-state" --save-at 31 "$T/then-state"
wait $a || fail "the loop could not save its state again: $(cat "$T/kept-a.log")"
loads 31 strided 8 --load "$T/then-state"
finish kept
[[ $(summary '.clusters[0].params_digest' "$T/kept") == "$want" ]] ||
    fail "the digest differs after a state of the loop's own"

# All take the first values of one cluster. Both sites seal what they write.
"$nebula" seal init "$T/seal.key" --home "$T/home" >"$T/sealed" || fail "seal init failed"
seal=$T/seal.key init='{from: alpha}' \
    run from "--mesh cols 2 --brief 0.25" "--mesh rows 3 --brief 0.5"
finish from
find "$T/from" -name '*.ckpt' -o -name '*.part' >"$T/sealed"
(($(grep -c 'part$' "$T/sealed") > 2)) || fail "the ranks wrote no parts: $(cat "$T/sealed")"
while IFS= read -r file; do
    [[ $(head -c 7 "$file") == nebseal ]] || fail "$file is in clear"
done <"$T/sealed"
[[ $(summary '.clusters[0].params_digest' "$T/from") == "$want" ]] ||
    fail "the loops did not begin with the values of alpha"
has 'taken over from a snapshot' "$T/from-b.log" || fail "beta did not get the values of alpha"
# A loop that has these values already gets nothing.
init='{from: alpha}' run same "--mesh cols 2 --brief 0.25" "--mesh rows 3 --brief 0.25"
finish same
[[ $(summary '.clusters[0].params_digest' "$T/same") == "$want" ]] ||
    fail "the digest differs after equal first values"
! has 'taken over from a snapshot' "$T/same-b.log" || fail "beta got values that it had already"
has 'this loop begins with the first parameters' "$T/same/metrics.jsonl" ||
    fail "beta does not say that it has the first values"
# A loop that loads its own state keeps it, also if its agent has no checkpoint and would fetch
# parameters. Only the loop that begins without a state takes those of alpha.
mkdir "$T/from-state"
every=0 init='{from: alpha}' run loaded "--mesh rows 1 --brief 0.25" \
    "--mesh rows 3 --brief 0.5 --save-at 24 $T/from-state"
wait $b || fail "the loop could not save its state: $(cat "$T/loaded-b.log")"
rm -r "$T"/loaded/clusters/beta/jobs/*/checkpoint
timeout 600 "$client" "$T/loaded/clusters/beta" e2e -1 --mesh cols 2 --brief 0.5 --load \
    "$T/from-state" >"$T/loaded-b.log" 2>&1 & b=$!
finish loaded
has 'begins at 24' "$T/loaded-b.log" || fail "the loop of beta did not begin at step 24"
[[ $(summary '.clusters[0].params_digest' "$T/loaded") == "$want" ]] ||
    fail "the digest differs after a state that beta has loaded"
# The example for users.
job "$T/example.yaml"
sed -i '/^groups:/,/ln/d; s/fragments: 2/fragments: 1/' "$T/example.yaml"
timeout 600 "$nebula" pretrain "$T/example.yaml" --local 2 --out "$T/example" \
    >"$T/example.log" 2>&1 & pid=$!
timeout 600 "$BUILD/train_ranks" "$T/example/clusters/alpha" 3 >"$T/example-a.log" 2>&1 & a=$!
timeout 600 "$BUILD/train_ranks" "$T/example/clusters/beta" 1 >"$T/example-b.log" 2>&1 & b=$!
finish example
# Another shape on one site: an error on both, before a step is made.
run differ "--mesh rows 2 --own 0.25" "--mesh cols 2 --other 0.25"
differs differ 'wte.*211×2[45] .*211×2[45] '
# Frozen tensors travel nowhere: their values must be equal before a step is made, whatever the
# mesh. In a group that is never exchanged they may differ, as in the run from.
run frozen "--mesh cols 3 --frozen 0.25" "--mesh rows 2 --own 0.25"
differs frozen "\"blocks.2.base\": cluster [a-z]* has 6×10×7 .*, frozen, with digest $hex, .*$hex"
echo "attached loops on different meshes end with equal digests"
