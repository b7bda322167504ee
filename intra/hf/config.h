// SPDX-License-Identifier: Apache-2.0
// config.json of a Hugging Face folder, and the transformer that it describes.
//
// Known are `llama` (SmolLM is one), `mistral` and `qwen2`. A file that asks for something that
// this transformer does not do (rotary positions scaled otherwise than linear or llama3, other
// activations, biases elsewhere, experts, quantised weights, attention that is not causal) is
// refused: the message names the key, its value, and what would be needed. A key that is left out
// has its class's default. Which keys there are: hf_keys.h.
#ifndef INTRA_HF_CONFIG_H
#define INTRA_HF_CONFIG_H
#include "intra/model/model.h"

#include <jansson.h>

enum { INTRA_HF_JSON_MAX = 1 << 20 }; // bytes of a config file

enum intra_hf_arch { INTRA_HF_LLAMA, INTRA_HF_MISTRAL, INTRA_HF_QWEN2 };

struct intra_hf_config {
    enum intra_hf_arch arch;
    // max_seq: max_position_embeddings, or the window if that is shorter: up to there attention is
    // plain; at most what intra_model_config_check() allows
    struct intra_model_config model;
    int32_t max_positions; // max_position_embeddings
    int32_t window;        // of sliding attention, 0: none
    int32_t bos, eos;      // token ids, -1: none; of several eos the first
};

// NEB_ERR_FORMAT: not JSON, or a value of the wrong type or size; NEB_ERR_UNSUPPORTED: another
// model. `file` is for messages.
NEB_MUST_CHECK enum neb_status intra_hf_config_parse(const char *text, size_t len, const char *file,
                                                     struct intra_hf_config *out);
// DIR/config.json.
NEB_MUST_CHECK enum neb_status intra_hf_config_read(const char *dir, struct intra_hf_config *out);
// Describes the model for transformers (new reference; NULL: out of memory). dtype: "float32" or
// "bfloat16".
json_t *intra_hf_config_json(const struct intra_hf_config *c, const char *dtype);
// A description for a model of ours: qwen2 with QKV bias, else llama. NEB_ERR_UNSUPPORTED: no
// causal language model.
NEB_MUST_CHECK enum neb_status intra_hf_config_of_model(const struct intra_model_config *m,
                                                        struct intra_hf_config *out);
// NEB_ERR_INVALID, with key and both values, when the two are not the same model (their longest
// sequences may differ).
NEB_MUST_CHECK enum neb_status intra_hf_config_same(const struct intra_hf_config *c,
                                                    const struct intra_model_config *m,
                                                    const char *file);

#endif
