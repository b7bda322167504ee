// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.h"
#include "agent/base/rng.h"
#include "security/identity.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

void testing_drop(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level, (void)text;
}

void testing_source(const char *file, char out[NEB_PATH_MAX]) {
    NEB_ASSERT(neb_path(out, NEB_PATH_MAX, TESTING_SOURCE_DIR, file) == NEB_OK);
}

void testing_key_pairs(size_t n, uint8_t (*secret)[32], uint8_t (*public)[32]) {
    NEB_ASSERT(sec_init() == NEB_OK);
    for (size_t k = 0; k < n; k++) {
        randombytes_buf(secret[k], sizeof secret[k]);
        crypto_scalarmult_base(public[k], secret[k]);
    }
}

struct intra_trainer_config testing_small_trainer(struct intra_trainable what) {
    return (struct intra_trainer_config){
        .model = {.vocab = 5,
                  .d_model = 4,
                  .n_layers = 1,
                  .n_heads = 2,
                  .n_kv_heads = 1,
                  .head_dim = 2,
                  .d_ff = 3,
                  .max_seq = 4,
                  .rope_theta = 100,
                  .norm_eps = 1e-5f,
                  .tied = true,
                  .qkv_bias = true},
        .trainable = what,
        .batch = 1,
        .seq_len = 4,
        .accumulate = 1,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = 0.01f},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f}};
}

double testing_unit(const char *prefix, const char *name, size_t k) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *prefix; prefix++)
        h = (h ^ (uint8_t)*prefix) * 0x100000001b3ull;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
    return (double)(neb_mix64(h + k) >> 40) * 0x1p-23 - 1;
}

void testing_set_params(struct intra_model *m) {
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        double base = strstr(t->name, "norm.weight") ? 1 : 0;
        for (size_t k = 0; k < intra_tensor_size(t); k++)
            intra_param(m, t)[k] = (float)(base + 0.5 * testing_unit("", t->name, k));
    }
}
