# SPDX-License-Identifier: Apache-2.0
"""Small models of many kinds, and the meshes over which a loop shards them."""
import sys
import zlib

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

VOCAB, SEQ, BATCH = 512, 32, 4
_TEXT = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": SEQ}
_EXPERTS = {"num_experts_per_tok": 2}


def _config(name):
    t = transformers
    return {
        "gpt2": lambda: t.GPT2Config(vocab_size=VOCAB, n_positions=SEQ, n_embd=64, n_layer=2,
                                     n_head=4),
        "vit": lambda: t.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                   intermediate_size=128, image_size=32, patch_size=8,
                                   num_labels=16),
        "qwen3": lambda: t.Qwen3Config(**_TEXT, tie_word_embeddings=True),
        "gemma2": lambda: t.Gemma2Config(**_TEXT),
        "mixtral": lambda: t.MixtralConfig(**_TEXT, **_EXPERTS, num_local_experts=4),
        "qwen3moe": lambda: t.Qwen3MoeConfig(**_TEXT, **_EXPERTS, num_experts=4,
                                             moe_intermediate_size=64),
    }[name]()


NAMES = ("gpt2", "vit", "qwen3", "gemma2", "mixtral", "qwen3moe")


def make(name):
    kind = transformers.AutoModelForImageClassification if name == "vit" else \
        transformers.AutoModelForCausalLM
    return kind.from_config(_config(name))


def batch(name, generator):
    """Arguments of a forward that returns a loss."""
    if name == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=generator),
                "labels": torch.randint(0, 16, (BATCH,), generator=generator)}
    # A text that can be learned: each id follows from the one before.
    ids = torch.randint(0, VOCAB, (BATCH, 1), generator=generator)
    ids = (ids + 7 * torch.arange(SEQ)) % VOCAB
    return {"input_ids": ids, "labels": ids}


MESHES = {"one": 1, "rows": 2, "columns": 2, "hsdp": 4, "tp": 4, "ep": 4}  # ranks of each


def _last_even(p):
    """Cuts columns if they divide evenly: FSDP2 needs this for all dimensions but the first."""
    return Shard(p.ndim - 1) if p.ndim > 1 and p.shape[-1] % 2 == 0 else Shard(0)


def _longer(p, _):
    """Tensor parallelism: the longer dimension of a matrix."""
    return max(range(p.ndim), key=lambda d: p.shape[d]) if p.ndim > 1 else None


def _experts(p, path):
    """Expert parallelism: each rank has some of the experts, and all of the rest."""
    return 0 if ".experts" in path and p.ndim == 3 else None


def _cut(model, mesh, dimension_of):
    for path, module in model.named_modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if isinstance(p, DTensor):
                continue  # tied
            dim = dimension_of(p, path)
            place = Replicate() if dim is None else Shard(dim)
            cut = torch.nn.Parameter(distribute_tensor(p.data, mesh, [place]))
            for other in model.modules():  # keeps ties
                for key, q in list(other.named_parameters(recurse=False)):
                    if q is p:
                        other.register_parameter(key, cut)


def shard(model, mesh):
    """Shards a model in place. tp: each matrix is cut over two ranks along its longer dimension, as
    tensor parallelism does, and then by FSDP2. ep: the same with the experts alone."""
    if mesh == "one":
        return model
    if mesh == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s")))
    elif mesh in ("tp", "ep"):
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", mesh))
        _cut(model, both[mesh], _longer if mesh == "tp" else _experts)
        fully_shard(model, mesh=both["dp"])
    else:
        place = {"shard_placement_fn": _last_even} if mesh == "columns" else {}
        fully_shard(model, mesh=init_device_mesh("cpu", (MESHES[mesh],)), **place)
    return model


def fixed_step(model, cluster, step):
    """Changes each parameter by a function of (cluster, name, index, step) alone."""
    done = set()
    for name, p in model.named_parameters():
        if id(p) in done:
            continue
        done.add(id(p))
        seed = zlib.crc32(f"{cluster}/{name}/{step}".encode())
        change = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) * 1e-3
        if isinstance(p, DTensor):
            change = distribute_tensor(change, p.device_mesh, p.placements, src_data_rank=None)
        with torch.no_grad():
            p.add_(change)


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMES:
        model = make(name)
        loss = model(**batch(name, torch.Generator().manual_seed(1))).loss
        print(name, sum(p.numel() for p in model.parameters()), f"{loss.item():.3f}")
