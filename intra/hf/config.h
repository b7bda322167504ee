// SPDX-License-Identifier: Apache-2.0
// config.json of a Hugging Face folder, and the transformer that it describes.
//
// Supported are `llama` (SmolLM too), `mistral` and `qwen2`. A file that asks for something that
// this transformer lacks is refused: rotary scaling other than linear or llama3, other activations,
// biases elsewhere, experts, quantised weights, attention that is not causal. The message names the
// key, its value, and what would be needed. A missing key has the default of its class. The keys:
// keys.h.
#ifndef INTRA_HF_CONFIG_H
#define INTRA_HF_CONFIG_H
#include "intra/model/model.h"

#include <jansson.h>

enum { INTRA_HF_JSON_MAX = 1 << 20 }; // bytes of a config file

enum intra_hf_arch { INTRA_HF_LLAMA, INTRA_HF_MISTRAL, INTRA_HF_QWEN2 };

struct intra_hf_config {
    enum intra_hf_arch arch;
    // max_seq: max_position_embeddings, or the sliding window if that is shorter, because attention
    // up to there is plain; at most what intra_model_config_check() allows.
    struct intra_model_config model;
    int32_t max_positions; // max_position_embeddings
    int32_t window;        // of sliding attention; 0: none
    int32_t bos, eos;      // token ids, -1: none; the first of several eos
};

// NEB_ERR_FORMAT: not JSON, or a value of the wrong type or size. NEB_ERR_UNSUPPORTED: another kind
// of model. `file` is the name in messages.
NEB_MUST_CHECK enum neb_status intra_hf_config_parse(const char *text, size_t len, const char *file,
                                                     struct intra_hf_config *out);
// Reads DIR/config.json.
NEB_MUST_CHECK enum neb_status intra_hf_config_read(const char *dir, struct intra_hf_config *out);
// Describes the model for transformers. Returns a new reference; NULL: out of memory. dtype:
// "float32" or "bfloat16".
json_t *intra_hf_config_json(const struct intra_hf_config *c, const char *dtype);
// Makes a description of one of our models: qwen2 if it has QKV bias, else llama.
// NEB_ERR_UNSUPPORTED: it is not a causal language model.
NEB_MUST_CHECK enum neb_status intra_hf_config_of_model(const struct intra_model_config *m,
                                                        struct intra_hf_config *out);
// NEB_ERR_INVALID if the two are different models; the log has the key and both values. Their
// longest sequences may differ.
NEB_MUST_CHECK enum neb_status intra_hf_config_same(const struct intra_hf_config *c,
                                                    const struct intra_model_config *m,
                                                    const char *file);

#endif
