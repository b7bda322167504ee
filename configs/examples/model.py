# SPDX-License-Identifier: Apache-2.0
"""The parts that the three loops share, and that you have already: a model, batches, an optimiser.

The model is Hugging Face's Llama with the shape of attach.yaml, so its parameters have the names
that the job exchanges."""
import pathlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]  # source folder, or share/ of an installation
sys.path += [str(ROOT / "agent/lib/python"), str(ROOT.parent / "lib/nebula/python")]

SEQ, BATCH, VOCAB = 64, 8, 512


def make_model():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        max_position_embeddings=SEQ, rope_theta=10000.0, rms_norm_eps=1e-5))


def batches(seed):
    """Text of this machine, byte by byte. Another seed gives another order."""
    files = sorted(pathlib.Path("/usr/share/common-licenses").iterdir())
    text = b"".join(p.read_bytes() for p in files if not p.is_symlink())
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    g = torch.Generator().manual_seed(seed)
    while True:
        at = torch.randint(0, len(data) - SEQ - 1, (BATCH,), generator=g)
        rows = torch.stack([data[i:i + SEQ + 1] for i in at])
        yield rows[:, :-1], rows[:, 1:]


def loss_of(model, x, y):
    logits = model(input_ids=x).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
