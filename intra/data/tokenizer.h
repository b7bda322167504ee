// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back: SentencePiece behind a C interface, or byte-level BPE (bpe.h). Vocabularies are trained by SentencePiece's own trainer.
#ifndef INTRA_TOKENIZER_H
#define INTRA_TOKENIZER_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct intra_tokenizer; // calls on one instance are safe from several threads
// A tokenizer.json (intra_tokenizer_is_json), with errors as of intra_bpe_open; else a SentencePiece model.
// NEB_ERR_FORMAT: missing, or none. NEB_ERR_NOMEM, here and below.
NEB_MUST_CHECK enum neb_status intra_tokenizer_open(const char *path, struct intra_tokenizer **out);
void intra_tokenizer_close(struct intra_tokenizer **t);
int32_t intra_tokenizer_vocab(const struct intra_tokenizer *t);
int32_t intra_tokenizer_bos(const struct intra_tokenizer *t); // -1: none
int32_t intra_tokenizer_eos(const struct intra_tokenizer *t);
// Token ids of UTF-8 text into *ids (malloc'ed, *n of them, and room for one more). What is no UTF-8 is read as U+FFFD.
NEB_MUST_CHECK enum neb_status intra_tokenizer_encode(const struct intra_tokenizer *t,
                                                      const char *text, size_t len, int32_t **ids,
                                                      size_t *n);
// Text of n ids into *text (malloc'ed, NUL-terminated). Ids that are no piece have none.
NEB_MUST_CHECK enum neb_status intra_tokenizer_decode(const struct intra_tokenizer *t,
                                                      const int32_t *ids, size_t n, char **text);

// Whether a list, the text of PREFIX.vocab below, has the pieces of this model and their scores, which it gives to six digits.
bool intra_tokenizer_is_listed(const struct intra_tokenizer *t, const char *list, size_t len);

struct intra_tokenizer_train {
    int32_t vocab;
    const char *type; // "unigram" or "bpe"
    double character_coverage;
    bool byte_fallback;
    int32_t threads;
    const char *symbols; // pieces of their own, each after a comma: ",<de>,<fr>"; NULL: none
};
// Trains from a file of lines; writes PREFIX.model, whose bytes hold both paths, and PREFIX.vocab. NEB_ERR_INVALID: SentencePiece cannot make
// such a vocabulary of this text (too few lines for that many pieces).
NEB_MUST_CHECK enum neb_status intra_tokenizer_train(const char *lines_path, const char *prefix,
                                                     const struct intra_tokenizer_train *c);

#ifdef __cplusplus
}
#endif
#endif
