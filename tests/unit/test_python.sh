#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package without PyTorch.
set -euo pipefail
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$SOURCE/agent/lib/python NEBULA_LIBRARY=
NEBULA_LIBRARY=$BUILD/libnebula.so.1 python3 "$SOURCE/tests/unit/python/placements.py"
