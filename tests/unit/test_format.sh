#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source is as clang-format (.clang-format) writes it. Other versions than Debian 12's write some places otherwise.
set -euo pipefail
cd "${SOURCE:-$(dirname "$0")/../..}"
version=$(clang-format --version 2>/dev/null || true)
[[ $version == *"version 14."* ]] || { echo "cannot run here: clang-format 14 is needed, there is: ${version:-none}"; exit 77; }
find agent intra inter compress security kernels tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 -P2 -n20 clang-format --dry-run --Werror
