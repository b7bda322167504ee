// SPDX-License-Identifier: Apache-2.0
// Maps tensor names as other programs write them to names of the model. It removes, in any order
// and number:
//
//     module.                       DistributedDataParallel, in front
//     _orig_mod.                    torch.compile, in front or before a part
//     _fsdp_wrapped_module.         FSDP, likewise
//     _checkpoint_wrapped_module.   activation checkpoints, likewise
//     base_model.model.             PEFT, in front
//     .default                      PEFT's name of an adapter, behind lora_A and lora_B
//
// It puts "model." in front if only that is missing (a base model that was saved without its head).
#ifndef INTRA_HF_NAMES_H
#define INTRA_HF_NAMES_H
#include "intra/ckpt/safetensors.h"
#include "intra/model/model.h"

struct intra_hf_named {
    char name[INTRA_ST_NAME_MAX + sizeof "model."]; // the name in the model
    const struct intra_st_tensor *t;                // borrowed
};
struct intra_hf_names {
    struct intra_hf_named *p; // (n) sorted by name
    int32_t n;
};

// s NULL: no tensors. NEB_ERR_FORMAT: two tensors get the same name.
NEB_MUST_CHECK enum neb_status intra_hf_names_make(const struct intra_st *s,
                                                   const struct intra_model *m,
                                                   struct intra_hf_names *out);
void intra_hf_names_free(struct intra_hf_names *names);
// NULL: no such tensor.
const struct intra_st_tensor *intra_hf_names_find(const struct intra_hf_names *names,
                                                  const char *name);

#endif
