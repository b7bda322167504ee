// SPDX-License-Identifier: Apache-2.0
// The files of a vocabulary. A folder (a corpus, a checkpoint, a Hugging Face model) holds
//
//     tokenizer.model                           SentencePiece; if it exists, it alone counts
//     tokenizer.json, tokenizer_config.json     byte-level BPE (bpe.h); BOS and EOS
//
// A link in a folder must not lead out of it (folder.h). A file that the user names may be
// anywhere.
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

// out: path of the folder's vocabulary. If there is none: the path of tokenizer.model. Errors as
// intra_folder_file.
NEB_MUST_CHECK enum neb_status intra_tokenizer_in(const char *dir, char *out, size_t cap);
// The same for a path that the user names: a folder, or the file itself.
NEB_MUST_CHECK enum neb_status intra_tokenizer_resolve(const char *path, char *out, size_t cap);
// Decides by the name, or by the first byte: no SentencePiece model begins with "{". Of a pipe,
// which can be read only once, only the name counts.
bool intra_tokenizer_is_json(const char *file);
// out: path of tokenizer_config.json in the folder of a tokenizer.json; the file need not exist.
// Errors as intra_folder_file.
NEB_MUST_CHECK enum neb_status intra_tokenizer_config(const char *file, char *out, size_t cap);
// Copies a vocabulary with its tokenizer_config.json, under the names above. Errors as neb_fs_copy.
NEB_MUST_CHECK enum neb_status intra_tokenizer_copy(const char *file, const char *dir);
// Equal digests: ids mean the same. SHA-256 of tokenizer.model, or of tokenizer.json and the ids of
// BOS and EOS. Errors as intra_bpe_open and neb_map_open.
NEB_MUST_CHECK enum neb_status intra_tokenizer_digest(const char *file,
                                                      uint8_t out[NEB_SHA256_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
