// SPDX-License-Identifier: Apache-2.0
// The index of a Megatron data set (NAME.idx), which says where the token ids of each document lie
// in NAME.bin. All numbers are little-endian:
//
//     "MMIDIDX\0\0" | version 1, u64 | type of ids, u8 | sequences n, u64 | documents d + 1, u64
//     | lengths, i32 (n) | byte offsets in NAME.bin, i64 (n) | first sequences, i64 (d + 1) | ...
//
// Source: megatron/core/datasets/indexed_dataset.py of Megatron-LM.
#ifndef INTRA_MEGATRON_H
#define INTRA_MEGATRON_H
#include "agent/base/bytes.h"

struct intra_megatron {
    const uint8_t *lengths, *offsets, *firsts; // into the index
    uint64_t sequences, documents;
    uint32_t width; // bytes per id
    uint64_t bin_bytes;
};
// p: the index of n bytes, which must outlive *out. bin_bytes: size of NAME.bin. NEB_ERR_FORMAT
// (logged, with `path`): not such an index, or one that does not fit NAME.bin.
NEB_MUST_CHECK enum neb_status intra_megatron_open(const uint8_t *p, size_t n, uint64_t bin_bytes,
                                                   const char *path, struct intra_megatron *out);
// The sequences [*first, *end) of document k.
void intra_megatron_document(const struct intra_megatron *m, uint64_t k, uint64_t *first,
                             uint64_t *end);
// The bytes of a sequence in NAME.bin.
void intra_megatron_sequence(const struct intra_megatron *m, uint64_t k, uint64_t *at, size_t *n);

#endif
