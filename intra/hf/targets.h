// SPDX-License-Identifier: Apache-2.0
// Which linear layers of a model an adapter_config.json names: target_modules and what narrows it,
// matched against the names of all modules as PEFT does it (peft/tuners/tuners_utils.py), and the
// rank and alpha of each.
#ifndef INTRA_HF_TARGETS_H
#define INTRA_HF_TARGETS_H
#include "intra/model/model.h"

#include <jansson.h>

// Fills lora_targets, lora_rank and lora_alpha of *out. Here adapters are on the same linear layers
// of every block, with one rank and one scale: NEB_ERR_UNSUPPORTED (by name) where the file says
// otherwise. NEB_ERR_FORMAT: a value of the wrong type or size, or an expression that cannot be
// read.
NEB_MUST_CHECK enum neb_status intra_hf_targets_read(const json_t *config, const char *file,
                                                     int32_t n_layers, struct intra_trainable *out);
// In the order of the bits of enum intra_lora_target.
extern const char *const intra_hf_linear[INTRA_LORA_SLOTS];

#endif
