// SPDX-License-Identifier: Apache-2.0
// Names of tensors as other programs leave them in a file, and as the model has them:
//
//     module.                       DistributedDataParallel, in front
//     _orig_mod.                    torch.compile, in front or before a part
//     _fsdp_wrapped_module.         FSDP, likewise
//     _checkpoint_wrapped_module.   activation checkpoints, likewise
//     base_model.model.             PEFT, in front
//     .default                      PEFT's name of an adapter, behind lora_A and lora_B
//
// in any order and number; and "model." is put in front where that alone is lacking (a base model
// that was saved without its head).
#ifndef INTRA_HF_NAMES_H
#define INTRA_HF_NAMES_H
#include "intra/ckpt/safetensors.h"
#include "intra/model/model.h"

struct intra_hf_named {
    char name[INTRA_ST_NAME_MAX + sizeof "model."]; // as the model has it
    const struct intra_st_tensor *t;                // borrowed
};
struct intra_hf_names {
    struct intra_hf_named *p; // (n) by name
    int32_t n;
};

// s NULL: there are none. NEB_ERR_FORMAT: two tensors come to the same name.
NEB_MUST_CHECK enum neb_status intra_hf_names_make(const struct intra_st *s,
                                                   const struct intra_model *m,
                                                   struct intra_hf_names *out);
void intra_hf_names_free(struct intra_hf_names *names);
// NULL: there is no such tensor.
const struct intra_st_tensor *intra_hf_names_find(const struct intra_hf_names *names,
                                                  const char *name);

#endif
