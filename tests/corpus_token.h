// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_CORPUS_TOKEN_H
#define TESTS_CORPUS_TOKEN_H
#include "intra/data/data.h"

// The token at this place of a split.
static inline int32_t corpus_token(const struct intra_corpus *c, int32_t source,
                                   enum intra_split split, uint64_t at) {
    int32_t id;
    intra_corpus_copy(c, source, split, at, 1, &id);
    return id;
}

#endif
