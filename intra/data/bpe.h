// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: the tokenizer.json of GPT-2, Llama 3, Qwen2, SmolLM2 and their like, with the ids that Hugging Face tokenizers gives.
//
//     text ─► UTF-8 ─► NFC ─► pieces ─► bytes ─► pairs merged, lowest rank first ─► ids
//            (U+FFFD   (if    (regular                                bpe.c
//             for what  asked  expressions,
//             is none)  for)   digits)
//             bpe_text.c       bpe_split.c            the file: bpe_load.c
//                 added tokens: bpe_added.c
//
// Equal are they for all characters up to Unicode 14 (letters and digits that are newer are what the system's PCRE2 takes them for), and NFC for all
// texts but those in which marks that came with Unicode 10 or later are out of order: tokenizers' tables end before.
//
// What the file says of text around it (post_processor, truncation, padding) is not done. Its
// special tokens are ordinary text in text: as with SentencePiece, and as tokenizers has it with
// encode_special_tokens. Added tokens that are not special get their ids, by their own flags. A
// token is decoded as it is written, also where its letters are the alphabet of bytes. Sources:
// Sennrich et al., arXiv 1508.07909; Radford et al., GPT-2 (bytes as characters).
#ifndef INTRA_BPE_H
#define INTRA_BPE_H
#include "agent/base/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct intra_bpe; // calls on one instance are safe from several threads
// BOS and EOS are what tokenizer_config.json beside it names. NEB_ERR_FORMAT: either is malformed; NEB_ERR_UNSUPPORTED: another kind of
// tokenizer, which the message names; NEB_ERR_NOT_FOUND, NEB_ERR_LIMIT (a file of over 64 MiB, ids from 4,194,304 on), NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_bpe_open(const char *path, struct intra_bpe **out);
void intra_bpe_close(struct intra_bpe **b);
int32_t intra_bpe_vocab(const struct intra_bpe *b); // the largest id, of added tokens too, and one
int32_t intra_bpe_bos(const struct intra_bpe *b);   // -1: none
int32_t intra_bpe_eos(const struct intra_bpe *b);
// As intra_tokenizer_encode and _decode. NEB_ERR_LIMIT: a word of 2 GiB, or a text that the file's expressions do not come to an end with.
NEB_MUST_CHECK enum neb_status intra_bpe_encode(const struct intra_bpe *b, const char *text,
                                                size_t len, int32_t **ids, size_t *n);
NEB_MUST_CHECK enum neb_status intra_bpe_decode(const struct intra_bpe *b, const int32_t *ids,
                                                size_t n, char **text);

#ifdef __cplusplus
}
#endif
#endif
