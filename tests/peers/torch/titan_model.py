# SPDX-License-Identifier: Apache-2.0
"""torchtitan's Llama 3, sharded by torchtitan's own functions, on processors. Its attention
and its Trainer need an accelerator. The Trainer here has only what nebula.torchtitan.federate uses,
and its steps are functions of name, index and step."""
import types

import models
import torch
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import parallel_dims
from torchtitan.models.llama3 import model_registry, parallelize_llama

SEQ, BATCH = 32, 4
parallel_dims.device_type = "cpu"


def make(ranks):
    spec = model_registry("debugmodel", attn_backend="flex")
    model = spec.model.build()
    parallelism = ParallelismConfig(spmd_backend="partial_dtensor")
    dims = parallel_dims.ParallelDims.from_config(parallelism, ranks)
    if ranks > 1:
        training = TrainingConfig(mixed_precision_param="float32", mixed_precision_reduce="float32")
        parallelize_llama(model, parallel_dims=dims, training=training,
                          parallelism=parallelism, compile_config=CompileConfig(),
                          ac_config=None, dump_folder="")
    model.init_states(buffer_device=torch.device("cpu"))
    return model, dims


class Trainer:
    def __init__(self, ranks, cluster):
        model, self.parallel_dims = make(ranks)
        self.model_parts, self._cluster, self.step = [model], cluster, 0
        optimizer = torch.optim.SGD(model.parameters(), lr=3e-3)
        self.lr_schedulers = types.SimpleNamespace(
            schedulers=[torch.optim.lr_scheduler.ConstantLR(optimizer, 1)])
        self.config = types.SimpleNamespace(training=TrainingConfig(
            local_batch_size=BATCH, seq_len=SEQ))

    def should_continue_training(self):
        raise AssertionError("federate() decides this")

    def train_step(self, data):
        models.fixed_step(self.model_parts[0], self._cluster, self.step)
        self.step += 1

    def train(self):
        while self.should_continue_training():
            self.train_step(None)

    def close(self):
        pass
