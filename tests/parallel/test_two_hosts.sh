#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on two hosts connect over TCP: two namespaces with an emulated link, each with its own
# /etc/hosts. Rank 0's host names itself 127.0.1.1, as Debian's installer does. The other host has
# two addresses for it: one that no host has, and the right one. Exits with 77 if namespaces cannot
# be made.
set -euo pipefail
if [[ ${1:-} != inside ]]; then
    "${BUILD:?}/wanlink" run --rate 1gbit --delay 1ms -- true || {
        echo "cannot run here: there are no namespaces or TUN devices"
        exit 77
    }
    exec "$BUILD/wanlink" run --rate 1gbit --delay 1ms -- bash "$0" inside
fi
source "$(dirname "$0")/lib.sh"
printf '127.0.0.1 localhost\n127.0.1.1 node-0\n' >"$work/hosts0"
printf '127.0.0.1 localhost\n127.77.0.9 node-0\n10.77.0.1 node-0\n' >"$work/hosts1"
rank() { # RANK NAMESPACE
    # shellcheck disable=SC2016
    RANK=$1 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node-0 MASTER_PORT=29517 \
        NEBULA_RANKS_TOKEN=$(printf '7%.0s' {1..64}) \
        timeout 600 "$BUILD/wanlink" exec "$2" -- unshare --mount sh \
        -c 'mount --bind "$0" /etc/hosts && shift && exec "$@"' "$work/hosts$1" - \
        "$mesh_train" 2 1 1 steps=2
}
rank 1 "$WANLINK_NS1" >"$work/one" 2>&1 &
rank 0 "$WANLINK_NS0" >"$work/out" 2>&1 || {
    echo "rank 0: $(cat "$work/out"); rank 1: $(cat "$work/one")"
    exit 1
}
wait $! || { echo "rank 1: $(cat "$work/one")"; exit 1; }
(($(grep -c '^[0-9]' "$work/out") >= 2)) ||
    { echo "the ranks made no steps: $(cat "$work/out")"; exit 1; }
echo "ranks on two hosts connect, whatever a host names itself"
