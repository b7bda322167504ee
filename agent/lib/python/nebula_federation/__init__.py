# SPDX-License-Identifier: Apache-2.0
"""The programs `nebula` and `nebula-follow` of the wheel.

The wheel has the program as bin/nebula below this folder, beside its library, its documents and
the job files that one may copy (share/nebula).
"""
import os
import pathlib
import runpy
import sys


def main() -> None:
    """Becomes the program. NEBULA_PYTHON tells it which Python has the package nebula."""
    program = pathlib.Path(__file__).resolve().parent / "bin" / "nebula"
    os.environ.setdefault("NEBULA_PYTHON", sys.executable)
    try:
        os.execv(program, ["nebula", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"nebula: cannot start {program}: {error.strerror}")


def follow() -> None:
    """Runs nebula/follow.py by its path: `import nebula` would load libnebula, which the follower
    does not use."""
    file = pathlib.Path(__file__).resolve().parents[1] / "nebula" / "follow.py"
    runpy.run_path(str(file), run_name="__main__")
