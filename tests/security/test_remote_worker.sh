#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on another host than their agent's: two namespaces with an emulated link between them, where an mpirun of the test starts the
# ranks in the other one, in which the agent's socket does not work. They speak over TCP with keys of their job; strangers, strange keys and the
# job's own keys used for anything else are refused; a connection that breaks costs a restart; the run comes to the same bits as one beside
# its agent, which says what to do where it listens for nobody. Exit status 77 where namespaces cannot be made.
if [[ ${1:-} != inside ]]; then
    "${BUILD:?}/wanlink" run --rate 1gbit --delay 1ms -- true || { echo "cannot run here: no namespaces or TUN devices"; exit 77; }
    exec "$BUILD/wanlink" run --rate 1gbit --delay 1ms -- bash "$0" inside
fi
source "$(dirname "$0")/../e2e/lib.sh"
source "$(dirname "$0")/../e2e/sites.sh"
[[ -e $BUILD/libnebula_mpi.so ]] || skip "this build has no MPI (configs/install-deps, then build again)"
mpirun=$(command -v mpirun) || skip "no mpirun on this machine (Debian: openmpi-bin)"
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # MPI leaks at its end
beside() { "$BUILD/wanlink" exec "$WANLINK_NS0" -- "$@"; }
node() { "$BUILD/wanlink" exec "$WANLINK_NS1" -- "$@"; }
pids=()
clean_up() {
    pkill -TERM -f "nebula (agent|pretrain) .*$T/" || true
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
# The other host: its network, its processes, the file system both have, and no agent behind the socket's file.
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
start_a() { # options…
    PATH=$T/launch:$PATH beside timeout 280 "$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" "$@" 2>>"$T/a.log" &
    agent=$!
    pids+=("$agent")
    wait_for 20 "the agent" "$nebula" status --home "$T/a"
}
beside timeout 280 "$nebula" agent --home "$T/b" 2>>"$T/b.log" &
pids+=($!)
make_job "$T/job.yaml"
sed -i -e 's/batch: 4, accumulate: 1/batch: 1, accumulate: 4/' -e 's/{name: alpha,/{name: alpha, mesh: {dp: 2}, launcher: mpirun,/' "$T/job.yaml"
run() { # NAME options…
    local name=$1
    shift
    timeout 120 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/$name" "$@" >"$T/$name.log" 2>&1
}

# An agent that listens for no other host: the reason reaches whoever submitted the job.
start_a
if run deaf --steps 20; then fail "a worker reached an agent that does not listen"; fi
cat "$T"/a/jobs/*/rank-0.log >"$T/deaf.rank"
grep -q 'where no agent listens at .*: start the agent with --workers ADDRESS' "$T/deaf.rank" || fail "no reason: $(cat "$T/deaf.rank")"
pkill -INT -f "nebula agent --home $T/a " && wait "$agent" || true
rm -rf "$T"/a/jobs/*
echo "without --workers a rank elsewhere says what to do"

# While the launcher waits for its host: whoever comes first.
pace 20
: >"$T/hold"
rm -f "$T/launched"
start_a --workers 10.77.0.1
run there --steps 60 & pretrain=$!
pids+=("$pretrain")
wait_for 20 "mpirun" test -e "$T/launched"
job=$(basename "$T"/a/jobs/*)
# mpirun is given a ticket, in clear on its network, and no secret. Who comes before rank 0 has to write as the agent's user, and is noticed.
[[ $(stat -c %s "$T/ticket") == 40 ]] || fail "mpirun carries more than a ticket: $(od -c "$T/ticket")"
"$BUILD/remote_stranger" take "$T/ticket" "$T/a/jobs/$job" "$T/credentials" || fail "the agent does not answer a ticket"
endpoint=$("$BUILD/remote_stranger" endpoint "$T/credentials")
[[ $endpoint == tcp://10.77.0.1:* ]] || fail "endpoint $endpoint"
worker_pid=$(pgrep -f "nebula agent --home $T/a " | tail -n 1)
node "$BUILD/remote_stranger" open "$endpoint" "$worker_pid" || fail "strangers without keys"
node "$BUILD/remote_stranger" keys "$T/credentials" "$job" 00112233445566778899aabbccddeeff || fail "strangers with keys"
cp "$T/credentials" "$T/former"
rm "$T/hold"
wait "$pretrain" || fail "there: $(tail -n 5 "$T/there.log"; cat "$T"/a/jobs/*/{worker,rank-0}.log)"
digests_equal "$T/there"
round_digests_equal "$T/there"
grep -q 'already has an answer' "$T"/a/jobs/"$job"/rank-0.log || fail "rank 0 came second, and nobody noticed: $(cat "$T"/a/jobs/"$job"/rank-0.log)"
grep -q 'rank 0 runs on another host, 10.77.0.2' "$T/a.log" || fail "the agent does not say where its worker runs: $(cat "$T/a.log")"
connections() { beside ss -Htn state established "( sport = :${endpoint##*:} )"; }
no_connection() { [[ ! $(connections) ]]; }
within 20 no_connection || fail "connections stay: $(connections)"
"$nebula" status --home "$T/a" --json | jq -e '.refused.local > 9 and .refused.workers >= 1' >/dev/null || fail "not counted: $("$nebula" status --home "$T/a" --json)"
# The keys of a worker that has ended are no keys.
node "$BUILD/remote_stranger" former "$T/former" "$job" || fail "a former worker's keys"
echo "ranks on another host train; strangers, strange and former keys are refused"

# The same beside the agent, over its socket.
cp "$T/launch/mpirun" "$T/far"
ln -sf "$mpirun" "$T/launch/mpirun"
run here --steps 60 || fail "here: $(tail -n 5 "$T/here.log")"
[[ $(summary '.clusters[0].params_digest' "$T/here") == $(summary '.clusters[0].params_digest' "$T/there") ]] || fail "other bits on another host"
echo "the same bits as beside the agent"

# A connection that breaks: the worker begins again, from its checkpoint, and nothing is lost.
rm "$T/launch/mpirun" && mv "$T/far" "$T/launch/mpirun"
run broken --steps 60 & pretrain=$!
pids+=("$pretrain")
wait_step "$T/broken" 30 "$pretrain" alpha || fail "broken: $(tail -n 5 "$T/broken.log")"
[[ $(connections) ]] || fail "no connection to break"
beside ss -Kt state established "( sport = :${endpoint##*:} )" >/dev/null 2>&1 || true
if wait_step "$T/broken" 31 "$pretrain" alpha && [[ $(grep -c 'broke and was made again' "$T/a.log") == 0 ]]; then
    sleep 3
fi
wait "$pretrain" || fail "broken: $(tail -n 5 "$T/broken.log")"
digests_equal "$T/broken"
if grep -q 'broke and was made again' "$T/a.log"; then
    [[ $(summary '.clusters[0].params_digest' "$T/broken") == $(summary '.clusters[0].params_digest' "$T/there") ]] || fail "other bits after a restart"
    echo "a connection that breaks costs a restart, and no bit"
else
    zgrep -qs 'CONFIG_INET_DIAG_DESTROY=y' /proc/config.gz && fail "the agent did not see that a connection broke: $(cat "$T/a.log")"
    echo "not tried: this kernel cannot break a connection (CONFIG_INET_DIAG_DESTROY)"
fi
