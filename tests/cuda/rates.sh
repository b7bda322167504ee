#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures two emulated devices once, for tests that need any rates of them. The rates of the
# processors are those of e2e_rates.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
cp "$BUILD/nebula" "$T/" # the program looks for its objects beside itself
cp "${EMULATED:?}" "$T/libnebula_device.so"
cp "${EMULATED_NCCL:?}" "$T/libnebula_nccl.so"
cp -r "$BUILD/rates" "$T/rates"
XDG_CACHE_HOME=$T/rates EMU_DEVICES=2 EMU_NCCL_SHARED_DEVICE=1 "$T/nebula" plan --profile |
    jq -e '.device | .count == 2 and .link > 0' >/dev/null
rm -rf "$BUILD/rates-device"
cp -r "$T/rates" "$BUILD/rates-device"
