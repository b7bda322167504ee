# SPDX-License-Identifier: Apache-2.0
"""Federates a Python training loop through the Nebula agent of its cluster."""
from .federation import AGAIN, DONE, STOP, TRAIN, Error, Federation, attach, version

__all__ = ["AGAIN", "DONE", "STOP", "TRAIN", "Error", "Federation", "attach", "version"]
