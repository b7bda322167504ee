// SPDX-License-Identifier: Apache-2.0
// The keys of config.json, for each class of transformers that can be imported: what its default
// is, which keys are used, which say nothing about the forward pass, and which would change it in a
// way that is not done here.
//
// The defaults are those of transformers 5 (configuration_llama.py, configuration_mistral.py,
// configuration_qwen2.py).
#ifndef INTRA_HF_KEYS_H
#define INTRA_HF_KEYS_H
#include "intra/hf/config.h"

struct intra_hf_class {
    const char *type, *architecture; // model_type, architectures[0]
    int32_t vocab, d_model, d_ff, n_layers, n_heads;
    int32_t n_kv_heads; // 0: as many as heads
    int32_t max_positions;
    int32_t window;   // sliding_window; 0: the class has none
    int32_t bos, eos; // -1: none
};
// By enum intra_hf_arch, ended by one without a type.
extern const struct intra_hf_class intra_hf_classes[];

// Refuses by name what would change the mathematics and is not done (NEB_ERR_UNSUPPORTED), and
// warns by name of what the class does not know. Values of keys that are used are not looked at.
NEB_MUST_CHECK enum neb_status intra_hf_keys_check(const json_t *root, const char *file,
                                                   enum intra_hf_arch arch);
// Warns of the keys of an object that `known` (sorted or not, ended by NULL) does not have, all in
// one line; `within`: the name of the object in its file, or "".
void intra_hf_keys_warn(const json_t *object, const char *file, const char *within,
                        const char *const *known);
// "FILE: KEY: VALUE cannot be imported: NEEDED", as NEB_ERR_UNSUPPORTED. v NULL: there is none.
enum neb_status intra_hf_refuse(const char *file, const char *key, const json_t *v,
                                const char *needed);

#endif
