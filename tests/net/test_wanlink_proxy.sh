#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wanlink proxy, the relay that needs no root: rate, delay, black hole and shared line.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
W=${BUILD:-build}/wanlink
dir=$(mktemp -d /tmp/nebula-wanproxy-XXXXXX)
name=localhost; getent hosts localhost >/dev/null || name=127.0.0.1 # a root without /etc/hosts
"$W" proxy --rate 40mbit --delay 30ms --delay-back 20ms --ctl "$dir/ctl" \
    --listen 127.0.0.1:0 --connect 127.0.0.1:1 --listen $name:0 --connect 127.0.0.1:1 \
    >"$dir/first" & first=$!
for _ in $(seq 1200); do grep -q ready "$dir/first" && break; sleep 0.05; done
kill $first; wait $first
[[ $? == 0 && ! -e $dir/ctl ]] || { echo "FAIL  start and stop"; exit 1; }
"$W" proxy --loss 1% --listen 127.0.0.1:0 --connect 127.0.0.1:1 2>/dev/null
[[ $? == 2 ]] || { echo "FAIL  --loss was accepted"; exit 1; }
python3 "$here/proxyprobe.py" "$W" "$dir"
status=$?
rm -rf "$dir"
exit $status
