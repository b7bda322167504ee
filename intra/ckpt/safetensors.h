// SPDX-License-Identifier: Apache-2.0
// Safetensors: the files that Hugging Face folders keep weights in (https://github.com/huggingface/safetensors, format).
//
//     ┌────────┬───────────────────────────────┬──────────┬──────────┬───┐
//     │ u64 LE │ JSON header, n bytes          │ tensor   │ tensor   │ … │   offsets count from the end of the header
//     │   n    │ {name: {dtype, shape, [b,e]}} │ [b, e)   │ [b, e)   │   │
//     └────────┴───────────────────────────────┴──────────┴──────────┴───┘
//
// A folder holds one file, model.safetensors, or shards that model.safetensors.index.json names tensor by tensor.
//
// Files come from strangers: a file that opens has been checked whole (sizes, shapes, offsets: tensors lie in the file, side
// by side, without overlap and without holes), so that reading a tensor cannot fail but for its type. Whatever is wrong is
// reported with file, tensor and remedy. Values are not looked at.
#ifndef INTRA_SAFETENSORS_H
#define INTRA_SAFETENSORS_H
#include "agent/base/fs.h"

enum {
    INTRA_ST_HEADER_MAX = 16 << 20, // bytes; JSON in memory is some 20 times its text
    INTRA_ST_TENSORS_MAX = 65536,   // of a file, and of a folder
    INTRA_ST_NAME_MAX = 255,        // bytes
    INTRA_ST_RANK_MAX = 8,
    INTRA_ST_SHARDS_MAX = 4096,
};

// Known by size; only the first three can be read, the first and third written.
enum intra_st_dtype {
    INTRA_ST_F32,
    INTRA_ST_F16,
    INTRA_ST_BF16,
    INTRA_ST_F64,
    INTRA_ST_I64,
    INTRA_ST_U64,
    INTRA_ST_I32,
    INTRA_ST_U32,
    INTRA_ST_I16,
    INTRA_ST_U16,
    INTRA_ST_I8,
    INTRA_ST_U8,
    INTRA_ST_BOOL,
    INTRA_ST_F8_E4M3,
    INTRA_ST_F8_E5M2,
};
const char *intra_st_dtype_name(enum intra_st_dtype t); // "BF16"
size_t intra_st_dtype_bytes(enum intra_st_dtype t);

struct intra_st_tensor {
    char name[INTRA_ST_NAME_MAX + 1];
    enum intra_st_dtype dtype;
    int32_t rank;
    uint64_t shape[INTRA_ST_RANK_MAX];
    uint64_t elements, bytes;
    uint64_t at;   // in the file
    int32_t shard; // of a folder; 0 in a single file
};

// ---- reading --------------------------------------------------------------------------------------------------

struct intra_st; // one file or the shards of a folder, mapped
// PATH is a file. NEB_ERR_FORMAT: malformed; NEB_ERR_LIMIT: above a limit of this header.
NEB_MUST_CHECK enum neb_status intra_st_open(const char *path, struct intra_st **out);
// DIR/STEM.safetensors, or the shards of DIR/STEM.safetensors.index.json ("model" is the usual stem), all of them files of DIR
// (folder.h). A shard's name in the index must be a plain file name; every tensor of the index must be in its shard, and none in
// two of them. What a shard holds and the index does not name is there too.
NEB_MUST_CHECK enum neb_status intra_st_open_dir(const char *dir, const char *stem,
                                                 struct intra_st **out);
void intra_st_close(struct intra_st **s);
int32_t intra_st_count(const struct intra_st *s);
const struct intra_st_tensor *intra_st_at(const struct intra_st *s, int32_t i);          // by name
const struct intra_st_tensor *intra_st_find(const struct intra_st *s, const char *name); // or NULL
// File that a tensor is in, for messages.
const char *intra_st_file(const struct intra_st *s, const struct intra_st_tensor *t);
// Elements [first, first + n) as fp32 into dst. NEB_ERR_UNSUPPORTED when the type is not F32, F16 or BF16. The range lies in
// the tensor (asserted).
NEB_MUST_CHECK enum neb_status intra_st_read(const struct intra_st *s,
                                             const struct intra_st_tensor *t, uint64_t first,
                                             uint64_t n, float *dst);
// Its bytes as they lie in the file: little-endian, row by row, perhaps not aligned. Until close.
const void *intra_st_data(const struct intra_st *s, const struct intra_st_tensor *t);
// Gives the pages of a tensor back to the system: large folders are passed through tensor by tensor.
void intra_st_drop(const struct intra_st *s, const struct intra_st_tensor *t);

// ---- writing --------------------------------------------------------------------------------------------------

struct intra_st_spec { // what is to be written: names are unique, at most INTRA_ST_NAME_MAX bytes
    const char *name;
    int32_t rank;
    uint64_t shape[2];
};
struct intra_st_writer;
// The header comes first in the file, so all tensors are announced here, and then written in this order. dtype: F32 or BF16.
// Into DIR/STEM.safetensors, or, when the tensors are more than shard_bytes (0: no limit), into shards of at most that size
// (a larger tensor has one of its own) and an index.
NEB_MUST_CHECK enum neb_status intra_st_writer_create(const char *dir, const char *stem,
                                                      const struct intra_st_spec *specs, int32_t n,
                                                      enum intra_st_dtype dtype,
                                                      uint64_t shard_bytes,
                                                      struct intra_st_writer **out);
// The next n elements: of the first tensor, then of the second, and so on; a call stays within one tensor (asserted).
// BF16: rounded to nearest, ties to even; numbers above its range become infinite, NaN stays NaN.
NEB_MUST_CHECK enum neb_status intra_st_writer_add(struct intra_st_writer *w, const float *src,
                                                   uint64_t n);
// After the last element: writes the index. Each file appears under its name once it is whole and on disk.
NEB_MUST_CHECK enum neb_status intra_st_writer_commit(struct intra_st_writer *w);
int32_t intra_st_writer_shards(const struct intra_st_writer *w);
// Without commit: the file in progress is removed; shards before it stay (the caller writes into a folder of its own).
void intra_st_writer_destroy(struct intra_st_writer **w);

#endif
