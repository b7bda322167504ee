// SPDX-License-Identifier: Apache-2.0
// The files of a vocabulary. A folder (a corpus, a checkpoint, one of Hugging Face) has
//
//     tokenizer.model                                 SentencePiece; where it is there, the others are not looked at
//     tokenizer.json, tokenizer_config.json           byte-level BPE (bpe.h), and which tokens begin and end documents
//
// None of them is followed out of its folder (folder.h); a file that somebody names is, as it is
// theirs to name.
#ifndef INTRA_TOKENIZER_FILES_H
#define INTRA_TOKENIZER_FILES_H
#include "agent/base/sha256.h"
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INTRA_TOKENIZER_MODEL  "tokenizer.model"
#define INTRA_TOKENIZER_JSON   "tokenizer.json"
#define INTRA_TOKENIZER_CONFIG "tokenizer_config.json"

// The vocabulary of a folder, or the one that it should have: tokenizer.model, where it has none.
// As intra_folder_file.
NEB_MUST_CHECK enum neb_status intra_tokenizer_in(const char *dir, char *out, size_t cap);
// The same of what somebody names: a folder, or the file itself.
NEB_MUST_CHECK enum neb_status intra_tokenizer_resolve(const char *path, char *out, size_t cap);
// By its name, or by its first byte, which no SentencePiece model has. Of a pipe, which can be read
// once, the name decides.
bool intra_tokenizer_is_json(const char *file);
// tokenizer_config.json beside a tokenizer.json, whether it is there or not. As intra_folder_file.
NEB_MUST_CHECK enum neb_status intra_tokenizer_config(const char *file, char *out, size_t cap);
// With what belongs to it, under the names above. As neb_fs_copy.
NEB_MUST_CHECK enum neb_status intra_tokenizer_copy(const char *file, const char *dir);
// Ids mean the same where it is equal: SHA-256 of tokenizer.model; of tokenizer.json and the ids of
// BOS and EOS. As intra_bpe_open, as neb_map_open.
NEB_MUST_CHECK enum neb_status intra_tokenizer_digest(const char *file,
                                                      uint8_t out[NEB_SHA256_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
