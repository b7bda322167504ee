# SPDX-License-Identifier: Apache-2.0
"""A Python loop without PyTorch and NumPy, for test_attach.sh. It has the tensors of its job and
does not change them. usage: attach_client.py [STEP | apart]   (with $NEBULA_AGENT)
STEP: raises SIGINT in the hook for the checkpoint of this step. apart: also has two tensors that
the job does not have."""
import array
import math
import signal
import sys
import time

import nebula

# A shell starts its background processes with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
D, FF, KV, VOCAB = 64, 128, 32, 512


def zeros(*shape):
    return memoryview(array.array("f", bytes(4 * math.prod(shape)))).cast("B").cast("f", shape)


def saved(_folder, step):
    if step == int(sys.argv[1]):
        signal.raise_signal(signal.SIGINT)


layer = {"self_attn.q_proj": (D, D), "self_attn.k_proj": (KV, D), "self_attn.v_proj": (KV, D),
         "self_attn.o_proj": (D, D), "mlp.gate_proj": (FF, D), "mlp.up_proj": (FF, D),
         "mlp.down_proj": (D, FF), "input_layernorm": (D,),
         "post_attention_layernorm": (D,)}
shapes = {"model.embed_tokens": (VOCAB, D), "model.norm": (D,),
          **{f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}}
tensors = {f"{name}.weight": zeros(*shape) for name, shape in shapes.items()}
tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # tied: one tensor under two names
if "apart" in sys.argv:
    tensors |= {"lm_head.weight": zeros(VOCAB, D),
                "model.layers.0.self_attn.q_norm.weight": zeros(16)}
with nebula.attach(tensors, on_checkpoint=saved if sys.argv[1:] else None) as fed:
    print(f"begins at {fed.step_count}", flush=True)
    for step in fed.steps():
        time.sleep(0.005)
        fed.step(tokens=256, loss=1)
        print(f"made {fed.step_count}", flush=True)
    print(f"digest {fed.info()['digest']}", flush=True)
