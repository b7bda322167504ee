// SPDX-License-Identifier: Apache-2.0
// Loads a SentencePiece model that somebody else may have made: for tokenizer.cc and hf_tokenizer.cc alone.
//
// The library takes a model's tables of characters ("precompiled_charsmap", of the normalizer and of the denormalizer) as they are, and
// reads wherever they point: a hostile one ends the process, or has it read other memory. So they are looked at before. A table is
//
//     u32 bytes of the trie | units u32, a double array (darts-clone) | texts, each with its NUL
//
// Every key begins at unit 0. A unit that is no value has its children at its own index xor an offset, xor a byte; its value, if it has one, is in
// the first of these, and is where a text begins. Nothing else of a model is followed without the library looking.
#ifndef INTRA_TOKENIZER_LOAD_H
#define INTRA_TOKENIZER_LOAD_H
#include "agent/base/status.h"

#include <sentencepiece_processor.h>

// NEB_ERR_FORMAT: missing, or no SentencePiece model; NEB_ERR_NOMEM. No exception leaves it.
NEB_MUST_CHECK enum neb_status intra_tokenizer_load(const char *path,
                                                    sentencepiece::SentencePieceProcessor *out);

#endif
