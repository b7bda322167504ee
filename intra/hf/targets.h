// SPDX-License-Identifier: Apache-2.0
// Finds the linear layers that an adapter_config.json names, with their rank and alpha:
// target_modules and the keys that narrow it are matched against the names of all modules as PEFT
// does it (peft/tuners/tuners_utils.py).
#ifndef INTRA_HF_TARGETS_H
#define INTRA_HF_TARGETS_H
#include "intra/model/model.h"

#include <jansson.h>

// Fills lora_targets, lora_rank and lora_alpha of *out. Our adapters are on the same linear layers
// of every block, with one rank and one scale. NEB_ERR_UNSUPPORTED, by name: the file says
// otherwise. NEB_ERR_FORMAT: a value of the wrong type or size, or an invalid expression.
NEB_MUST_CHECK enum neb_status intra_hf_targets_read(const json_t *config, const char *file,
                                                     int32_t n_layers, struct intra_trainable *out);
// In the order of the bits of enum intra_lora_target.
extern const char *const intra_hf_linear[INTRA_LORA_SLOTS];

#endif
