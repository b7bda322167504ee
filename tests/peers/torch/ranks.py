# SPDX-License-Identifier: Apache-2.0
"""A loop of one or several ranks that trains nothing: a rank hears of its own mistake in a count,
and the loop goes on; the other cluster may be away for longer than the time limit of the ranks' own
group; closing twice is allowed.

usage: [torchrun --nproc-per-node 2] ranks.py SEED
"""
import datetime
import os
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "agent/lib/python"))
import nebula

D, FF, KV, VOCAB = 64, 192, 32, 512  # of configs/examples/attach.yaml
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
layer = {
    "self_attn.q_proj": (D, D),
    "self_attn.k_proj": (KV, D),
    "self_attn.v_proj": (KV, D),
    "self_attn.o_proj": (D, D),
    "mlp.gate_proj": (FF, D),
    "mlp.up_proj": (FF, D),
    "mlp.down_proj": (D, FF),
    "input_layernorm": (D,),
    "post_attention_layernorm": (D,),
}
shapes = {"model.embed_tokens": (VOCAB, D), "model.norm": (D,),
          **{f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}}
good = torch.arange(8)
with nebula.attach({f"{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}) as fed:
    try:
        fed.count(good + (VOCAB if rank == ranks - 1 else 0), good)
        if rank == ranks - 1:
            sys.exit(f"rank {rank} did not hear of an id outside the vocabulary")
    except nebula.Error as e:
        if rank < ranks - 1 or "outside the vocabulary" not in str(e):
            raise
    for step in fed.steps():
        fed.count(good, good)
        fed.step(tokens=512, loss=9 - 0.1 * step)
    fed.close(1)  # and once more at the end of `with`
