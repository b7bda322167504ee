#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on another host than their agent, in two namespaces: they use TCP with keys of their job.
# Strangers and wrong keys are refused, a broken connection costs a restart, and the parameters are
# those of a run beside the agent. Exit status 77: no namespaces here.
if [[ ${1:-} != inside ]]; then
    "${BUILD:?}/wanlink" run --rate 1gbit --delay 1ms -- true ||
        { echo "cannot run here: no namespaces or TUN devices"; exit 77; }
    exec "$BUILD/wanlink" run --rate 1gbit --delay 1ms -- bash "$0" inside
fi
source "$(dirname "$0")/../e2e/lib.sh"
source "$(dirname "$0")/../e2e/sites.sh"
[[ -e $BUILD/libnebula_mpi.so ]] ||
    skip "this build has no MPI (configs/install-deps, then build again)"
mpirun=$(command -v mpirun) || skip "no mpirun on this machine (Debian: openmpi-bin)"
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader \
    OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # MPI leaks memory when it ends
beside() { "$BUILD/wanlink" exec "$WANLINK_NS0" -- "$@"; }
node() { "$BUILD/wanlink" exec "$WANLINK_NS1" -- "$@"; }
pids=()
clean_up() {
    pkill -TERM -f "nebula (agent|pretrain) .*$T/" || true
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
# The other host: its own network and processes, the shared file system, and no agent at the socket.
mkdir "$T/launch"
: >"$T/nothing"
cat >"$T/launch/mpirun" <<SH
#!/bin/bash
cat >"$T/ticket"
: >"$T/launched"
while [[ -e $T/hold ]]; do sleep 0.1; done
exec "$BUILD/wanlink" exec "$WANLINK_NS1" -- unshare --mount sh -c \
    'mount --bind "$T/nothing" "$T/a/agent.sock" && exec "$mpirun" "\$@" <"$T/ticket"' sh "\$@"
SH
chmod +x "$T/launch/mpirun"

make_corpus
pair
start_a() { # OPTIONS...
    PATH=$T/launch:$PATH beside timeout 600 "$nebula" agent --home "$T/a" --listen \
        "127.0.0.1:$port" "$@" 2>>"$T/a.log" &
    agent=$!
    pids+=("$agent")
    wait_for 20 "the agent" "$nebula" status --home "$T/a"
}
beside timeout 600 "$nebula" agent --home "$T/b" 2>>"$T/b.log" &
pids+=($!)
make_job "$T/job.yaml"
sed -i -e 's/batch: 4, accumulate: 1/batch: 1, accumulate: 4/' -e \
    's/{name: alpha,/{name: alpha, mesh: {dp: 2}, launcher: mpirun,/' "$T/job.yaml"
run() { # NAME OPTIONS...
    local name=$1
    shift
    timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/$name" "$@" \
        >"$T/$name.log" 2>&1
}

# The agent does not listen for other hosts. The submitter gets this reason.
start_a
if run deaf --steps 20; then fail "a worker reached an agent that does not listen"; fi
cat "$T"/a/jobs/*/rank-0.log >"$T/deaf.rank"
grep -q 'where no agent listens at .*: start the agent with --workers ADDRESS' "$T/deaf.rank" ||
    fail "rank 0 does not give the reason: $(cat "$T/deaf.rank")"
pkill -INT -f "nebula agent --home $T/a " && wait "$agent" || true
rm -rf "$T"/a/jobs/*
echo "without --workers a rank on another host says what to do"

# While the launcher waits for its host, a stranger comes first.
pace 60
: >"$T/hold"
rm -f "$T/launched"
start_a --workers 10.77.0.1
run there --steps 60 & pretrain=$!
pids+=("$pretrain")
wait_for 20 "mpirun" test -e "$T/launched"
job=$(basename "$T"/a/jobs/*)
# mpirun gets a ticket, in clear on its network, and no secret. A process that comes before rank 0
# must be able to write as the agent's user, and is noticed.
[[ $(stat -c %s "$T/ticket") == 40 ]] ||
    fail "mpirun got $(stat -c %s "$T/ticket") bytes, expected a ticket of 40: $(od -c "$T/ticket")"
"$BUILD/remote_stranger" take "$T/ticket" "$T/a/jobs/$job" "$T/credentials" ||
    fail "the agent does not answer a ticket"
endpoint=$("$BUILD/remote_stranger" endpoint "$T/credentials")
[[ $endpoint == tcp://10.77.0.1:* ]] || fail "the endpoint is $endpoint, expected tcp://10.77.0.1:*"
worker_pid=$(pgrep -f "nebula agent --home $T/a " | tail -n 1)
node "$BUILD/remote_stranger" open "$endpoint" "$worker_pid" ||
    fail "an attack without keys was not refused (see above)"
node "$BUILD/remote_stranger" keys "$T/credentials" "$job" 00112233445566778899aabbccddeeff ||
    fail "an attack with keys was not refused (see above)"
cp "$T/credentials" "$T/former"
rm "$T/hold"
wait "$pretrain" || fail "there: $(tail -n 5 "$T/there.log"; cat "$T"/a/jobs/*/{worker,rank-0}.log)"
digests_equal "$T/there"
round_digests_equal "$T/there"
grep -q 'already has an answer' "$T"/a/jobs/"$job"/rank-0.log ||
    fail "rank 0 does not notice that it came second: $(cat "$T"/a/jobs/"$job"/rank-0.log)"
grep -q 'rank 0 runs on another host, 10.77.0.2' "$T/a.log" ||
    fail "the agent does not say where its worker runs: $(cat "$T/a.log")"
connections() { beside ss -Htn state established "( sport = :${endpoint##*:} )"; }
no_connection() { [[ ! $(connections) ]]; }
within 20 no_connection || fail "connections are still open: $(connections)"
"$nebula" status --home "$T/a" --json |
    jq -e '.refused.local > 9 and .refused.workers >= 1' >/dev/null ||
    fail "refused.local is not over 9, or refused.workers is 0:" \
        "$("$nebula" status --home "$T/a" --json)"
# The keys of a worker that has ended are not valid.
node "$BUILD/remote_stranger" former "$T/former" "$job" ||
    fail "keys of a worker that has ended were not refused"
echo "ranks on another host train; strangers and wrong keys are refused"

# The same run beside the agent, over its socket.
cp "$T/launch/mpirun" "$T/far"
ln -sf "$mpirun" "$T/launch/mpirun"
run here --steps 60 || fail "here: $(tail -n 5 "$T/here.log")"
digest() { summary '.clusters[0].params_digest' "$T/$1"; }
[[ $(digest here) == "$(digest there)" ]] ||
    fail "the parameters on another host differ"
echo "the same parameters as beside the agent"

# A connection breaks: the worker restarts from its checkpoint, and nothing is lost.
rm "$T/launch/mpirun" && mv "$T/far" "$T/launch/mpirun"
run broken --steps 60 & pretrain=$!
pids+=("$pretrain")
wait_step "$T/broken" 30 "$pretrain" alpha || fail "broken: $(tail -n 5 "$T/broken.log")"
[[ $(connections) ]] || fail "no connection to break"
beside ss -Kt state established "( sport = :${endpoint##*:} )" >/dev/null 2>&1 || true
if wait_step "$T/broken" 31 "$pretrain" alpha &&
    [[ $(grep -c 'broke and was made again' "$T/a.log") == 0 ]]; then
    sleep 3
fi
wait "$pretrain" || fail "broken: $(tail -n 5 "$T/broken.log")"
digests_equal "$T/broken"
if grep -q 'broke and was made again' "$T/a.log"; then
    [[ $(digest broken) == "$(digest there)" ]] ||
        fail "the parameters after a restart differ"
    echo "a broken connection costs a restart, and the parameters are the same"
else
    zgrep -qs 'CONFIG_INET_DIAG_DESTROY=y' /proc/config.gz &&
        fail "the agent did not notice the broken connection: $(cat "$T/a.log")"
    echo "not checked: this kernel cannot break a connection (CONFIG_INET_DIAG_DESTROY)"
fi
