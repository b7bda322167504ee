// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: reads the tokenizer.json of GPT-2, Llama 3, Qwen2, SmolLM2 and similar models,
// and gives the same ids as Hugging Face tokenizers.
//
//     text ─► UTF-8 ─► NFC ─► pieces ─► bytes ─► pairs merged, lowest rank first ─► ids
//            (invalid  (if    (regular                       bpe.c
//             bytes:    asked  expressions,
//             U+FFFD)   for)   digits)
//             bpe_text.c      bpe_split.c          the file: bpe_load.c
//                 added tokens: bpe_added.c
//
// The ids are the same for all characters up to Unicode 14. For newer characters the system's PCRE2
// decides which are letters and digits. NFC differs only where combining marks of Unicode 10 or
// later are out of order, because the tables of tokenizers do not have these marks.
//
// The parts of the file about surrounding text (post_processor, truncation, padding) are ignored.
// Special tokens inside a text are ordinary text, as in SentencePiece and as in tokenizers with
// encode_special_tokens. Other added tokens get their ids, according to their flags. An added token
// that model.vocab lacks decodes to its own spelling, even if it uses the alphabet of bytes.
// Sources: Sennrich et al., arXiv 1508.07909; Radford et al., GPT-2 (bytes as characters).
#ifndef INTRA_BPE_H
#define INTRA_BPE_H
#include "agent/base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct intra_bpe; // threads: any number may call on one instance
// BOS and EOS come from tokenizer_config.json in the same folder. NEB_ERR_FORMAT: one of the files
// is malformed; NEB_ERR_UNSUPPORTED: another kind of tokenizer, named in the message;
// NEB_ERR_NOT_FOUND; NEB_ERR_LIMIT: a file over 64 MiB, or an id of 4,194,304 or more;
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_bpe_open(const char *path, struct intra_bpe **out);
void intra_bpe_close(struct intra_bpe **b);
int32_t intra_bpe_vocab(const struct intra_bpe *b); // largest id, of added tokens too, plus 1
int32_t intra_bpe_bos(const struct intra_bpe *b);   // -1: none
int32_t intra_bpe_eos(const struct intra_bpe *b);
// Like intra_tokenizer_encode and intra_tokenizer_decode. NEB_ERR_LIMIT: a word of 2 GiB, or a text
// on which an expression of the file takes too many steps.
NEB_MUST_CHECK enum neb_status intra_bpe_encode(const struct intra_bpe *b, const char *text,
                                                size_t len, int32_t **ids, size_t *n);
NEB_MUST_CHECK enum neb_status intra_bpe_decode(const struct intra_bpe *b, const int32_t *ids,
                                                size_t n, char **text);

#ifdef __cplusplus
}
#endif
#endif
