# SPDX-License-Identifier: Apache-2.0
"""Federates a Python training loop through the Nebula agent of its cluster. No build step.

    import nebula
    fed = nebula.attach(model, tokens=batch * seq_len)  # loads the federation's parameters
    for step in fed.steps():                  # continues after the newest checkpoint
        loss = train_one_step()               # yours: forward, backward, optimizer.step()
        fed.step(loss=float(loss))            # exchanges when an exchange is due
    fed.close(eval_loss)

With torch.distributed every rank attaches and makes the same calls; each takes part with what it
holds (DDP, FSDP2, HSDP, tensor and expert parallelism). For Hugging Face's Trainer, Accelerate,
Lightning and torchtitan there are nebula.hf, nebula.accelerate, nebula.lightning and
nebula.torchtitan. Programs that teach or learn in mode distill: nebula.sides. libnebula.h lists
the errors of each call; they are raised as nebula.Error.
"""
from ._lib import AGAIN, DONE, IO, STOP, TRAIN, Error, version
from ._state import Flat
from ._tensors import Parts
from .federation import Federation, attach
from .sides import (Labels, Student, Teacher, Text, distill_loss, pad, student, teacher,
                    vocabulary_digest)

__all__ = ["AGAIN", "DONE", "IO", "STOP", "TRAIN", "Error", "Federation", "Flat", "Labels", "Parts",
           "Student", "Teacher", "Text", "attach", "distill_loss", "pad", "student", "teacher",
           "version", "vocabulary_digest"]
