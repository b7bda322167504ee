// SPDX-License-Identifier: Apache-2.0
// Loads a SentencePiece model that somebody else may have made. Only tokenizer.cc and the tokenizer
// import of intra/hf use this.
//
// The library trusts a model's character tables ("precompiled_charsmap" of the normalizer and the
// denormalizer) and reads wherever they point, so a hostile table ends the process or reads other
// memory. This loader checks the tables first. A table is
//
//     u32 bytes of the trie | units u32, a double array (darts-clone) | texts, each with its NUL
//
// Every key begins at unit 0. The children of a unit are at its own index xor an offset xor a byte.
// A unit that has a value stores it in the first of these places; the value is the offset of a
// text. The library itself checks all other parts of a model.
#ifndef INTRA_TOKENIZER_LOAD_H
#define INTRA_TOKENIZER_LOAD_H
#include "agent/base/status.h"

#include <sentencepiece_processor.h>

// NEB_ERR_FORMAT: missing, or not a SentencePiece model; NEB_ERR_NOMEM. It throws no exception.
NEB_MUST_CHECK enum neb_status intra_tokenizer_load(const char *path,
                                                    sentencepiece::SentencePieceProcessor *out);

#endif
