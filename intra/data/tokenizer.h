// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back, with SentencePiece or byte-level BPE (bpe.h). SentencePiece also trains
// new vocabularies.
#ifndef INTRA_TOKENIZER_H
#define INTRA_TOKENIZER_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct intra_tokenizer; // threads: any number may call on one instance
// Opens a tokenizer.json (see intra_tokenizer_is_json; errors as intra_bpe_open) or a SentencePiece
// model. NEB_ERR_FORMAT: the model is missing or not valid; NEB_ERR_NOMEM, here and below.
NEB_MUST_CHECK enum neb_status intra_tokenizer_open(const char *path, struct intra_tokenizer **out);
void intra_tokenizer_close(struct intra_tokenizer **t);
int32_t intra_tokenizer_vocab(const struct intra_tokenizer *t);
int32_t intra_tokenizer_bos(const struct intra_tokenizer *t); // -1: none
int32_t intra_tokenizer_eos(const struct intra_tokenizer *t);
// *ids: token ids of UTF-8 text, malloc'ed, with room for one more than *n. Invalid UTF-8 counts as
// U+FFFD.
NEB_MUST_CHECK enum neb_status intra_tokenizer_encode(const struct intra_tokenizer *t,
                                                      const char *text, size_t len, int32_t **ids,
                                                      size_t *n);
// *text: text of n ids, malloc'ed and NUL-terminated. Ids outside the vocabulary give no text.
NEB_MUST_CHECK enum neb_status intra_tokenizer_decode(const struct intra_tokenizer *t,
                                                      const int32_t *ids, size_t n, char **text);

// True if `list`, the content of a PREFIX.vocab, has the pieces of this model and their scores,
// which are written with six digits. Byte-level BPE: always false.
bool intra_tokenizer_is_listed(const struct intra_tokenizer *t, const char *list, size_t len);

struct intra_tokenizer_train {
    int32_t vocab;
    const char *type; // "unigram" or "bpe"
    double character_coverage;
    bool byte_fallback;
    int32_t threads;
    const char *symbols; // extra pieces, each after a comma: ",<de>,<fr>"; NULL: none
};
// Trains from a file of lines. Writes PREFIX.model, whose bytes contain both paths, and
// PREFIX.vocab. NEB_ERR_INVALID: SentencePiece cannot make this vocabulary, such as with too few
// lines for so many pieces.
NEB_MUST_CHECK enum neb_status intra_tokenizer_train(const char *lines_path, const char *prefix,
                                                     const struct intra_tokenizer_train *c);

#ifdef __cplusplus
}
#endif
#endif
