// SPDX-License-Identifier: Apache-2.0
// Special tokens of a SentencePiece vocabulary, which a Hugging Face folder lists beside it.
#ifndef INTRA_HF_TOKENIZER_H
#define INTRA_HF_TOKENIZER_H
#include "agent/base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct intra_hf_special { // ids, -1: none; and their pieces, cut at 63 bytes
    int32_t vocab, bos, eos, unk, pad;
    char bos_text[64], eos_text[64], unk_text[64];
};
// NEB_ERR_FORMAT: not a SentencePiece model. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_hf_special_ids(const char *tokenizer_model,
                                                    struct intra_hf_special *out);

#ifdef __cplusplus
}
#endif
#endif
