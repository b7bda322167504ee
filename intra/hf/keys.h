// SPDX-License-Identifier: Apache-2.0
// The keys of config.json for each class of transformers that can be imported: defaults, keys that
// are used, keys without effect on the forward pass, and keys that would change it in a way that is
// not supported.
//
// The defaults are those of transformers 5 (configuration_llama.py, configuration_mistral.py,
// configuration_qwen2.py).
#ifndef INTRA_HF_KEYS_H
#define INTRA_HF_KEYS_H
#include "intra/hf/config.h"

struct intra_hf_class {
    const char *type, *architecture; // model_type, architectures[0]
    int32_t vocab, d_model, d_ff, n_layers, n_heads;
    int32_t n_kv_heads; // 0: as many as n_heads
    int32_t max_positions;
    int32_t window;   // sliding_window; 0: the class has none
    int32_t bos, eos; // -1: none
};
// Indexed by enum intra_hf_arch; the last one has no type.
extern const struct intra_hf_class intra_hf_classes[];

// NEB_ERR_UNSUPPORTED, with the key's name, for a key that changes the mathematics in an
// unsupported way. Warns of keys that the class does not know. Values of used keys are not checked
// here.
NEB_MUST_CHECK enum neb_status intra_hf_keys_check(const json_t *root, const char *file,
                                                   enum intra_hf_arch arch);
// Warns in one line of the keys of an object that `known` (in any order, NULL at the end) lacks.
// `within`: the name of the object in its file, or "".
void intra_hf_keys_warn(const json_t *object, const char *file, const char *within,
                        const char *const *known);
// Logs "FILE: KEY: VALUE cannot be imported: NEEDED" and returns NEB_ERR_UNSUPPORTED. v NULL: no
// value.
enum neb_status intra_hf_refuse(const char *file, const char *key, const json_t *v,
                                const char *needed);

#endif
