#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package over a library without an agent. What needs NumPy or PyTorch runs where these
# are installed (PYTHON=python of an environment that has them).
set -euo pipefail
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "no python3"; exit 77; }
T=$(mktemp -d /tmp/nebula-python-XXXXXX)
trap 'rm -rf "$T"' EXIT
cc -shared -fPIC -O1 -Wall -Werror -I"$SOURCE" "$SOURCE"/tests/unit/python/fake_*.c \
    -o "$T/libnebula.so.2"
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SOURCE/agent/lib/python \
    NEBULA_LIBRARY=$T/libnebula.so.2
for part in placements federation device quickstart align; do
    "$python" "$SOURCE/tests/unit/python/$part.py"
done
