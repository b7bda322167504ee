// SPDX-License-Identifier: Apache-2.0
// Safetensors: the format in which Hugging Face folders keep weights
// (https://github.com/huggingface/safetensors).
//
//     ┌────────┬───────────────────────────────┬──────────┬──────────┬───┐
//     │ u64 LE │ JSON header, n bytes          │ tensor   │ tensor   │ … │
//     │   n    │ {name: {dtype, shape, [b,e]}} │ [b, e)   │ [b, e)   │   │
//     └────────┴───────────────────────────────┴──────────┴──────────┴───┘
//
// Offsets count from the end of the header. A folder holds one file, model.safetensors, or shards
// that model.safetensors.index.json lists for each tensor.
//
// Files come from untrusted sources. Opening a file checks sizes, shapes and offsets: the tensors
// lie in the file side by side, without overlaps or gaps. After that, reading a tensor can fail
// only because of its type. Errors name file, tensor and remedy. Values are not checked.
#ifndef INTRA_SAFETENSORS_H
#define INTRA_SAFETENSORS_H
#include "agent/base/fs.h"

enum {
    INTRA_ST_HEADER_MAX = 16 << 20, // bytes; parsed JSON takes some 20 times that memory
    INTRA_ST_TENSORS_MAX = 65536,   // in a file, and in a folder
    INTRA_ST_NAME_MAX = 255,        // bytes
    INTRA_ST_RANK_MAX = 8,
    INTRA_ST_SHARDS_MAX = 4096,
};

// All have a known size. F32, F16 and BF16 can be read, F32 and BF16 written.
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

// ---- reading ------------------------------------------------------------------------------------

struct intra_st; // a file, or the shards of a folder, mapped
// PATH is a file. NEB_ERR_FORMAT: malformed. NEB_ERR_LIMIT: above a limit of this header.
NEB_MUST_CHECK enum neb_status intra_st_open(const char *path, struct intra_st **out);
// Opens DIR/STEM.safetensors, or the shards of DIR/STEM.safetensors.index.json ("model" is the
// usual stem). All must be files of DIR (intra/read/folder.h). The index must name shards by plain
// file names; each of its tensors must be in its shard, and in no other. Tensors of a shard that
// the index does not name are included.
NEB_MUST_CHECK enum neb_status intra_st_open_dir(const char *dir, const char *stem,
                                                 struct intra_st **out);
void intra_st_close(struct intra_st **s);
int32_t intra_st_count(const struct intra_st *s);
const struct intra_st_tensor *intra_st_at(const struct intra_st *s, int32_t i); // sorted by name
const struct intra_st_tensor *intra_st_find(const struct intra_st *s, const char *name); // or NULL
// The file that holds a tensor, for messages.
const char *intra_st_file(const struct intra_st *s, const struct intra_st_tensor *t);
// Copies elements [first, first + n) as fp32 into dst. NEB_ERR_UNSUPPORTED: the type is not F32,
// F16 or BF16. The range lies in the tensor (asserted).
NEB_MUST_CHECK enum neb_status intra_st_read(const struct intra_st *s,
                                             const struct intra_st_tensor *t, uint64_t first,
                                             uint64_t n, float *dst);
// The bytes in the file: little-endian, row by row, perhaps not aligned. Valid until close.
const void *intra_st_data(const struct intra_st *s, const struct intra_st_tensor *t);
// Gives the pages of a tensor back to the system, for passes through large folders.
void intra_st_drop(const struct intra_st *s, const struct intra_st_tensor *t);

// ---- writing ------------------------------------------------------------------------------------

struct intra_st_spec { // a tensor to write; names are unique and at most INTRA_ST_NAME_MAX bytes
    const char *name;
    int32_t rank;
    uint64_t shape[2];
};
struct intra_st_writer;
// The header comes first in the file, so all tensors are listed here and then written in this
// order. dtype: F32 or BF16. Writes DIR/STEM.safetensors or, if the tensors are larger than
// shard_bytes (0: no limit), an index and shards of at most that size (a larger tensor gets its own
// shard).
NEB_MUST_CHECK enum neb_status intra_st_writer_create(const char *dir, const char *stem,
                                                      const struct intra_st_spec *specs, int32_t n,
                                                      enum intra_st_dtype dtype,
                                                      uint64_t shard_bytes,
                                                      struct intra_st_writer **out);
// Adds the next n elements: of the first tensor, then of the second, and so on; a call stays within
// one tensor (asserted). BF16 rounds to nearest, ties to even. Numbers above its range become
// infinite, NaN stays NaN.
NEB_MUST_CHECK enum neb_status intra_st_writer_add(struct intra_st_writer *w, const float *src,
                                                   uint64_t n);
// After the last element: writes the index. Each file gets its name when it is complete and on
// disk.
NEB_MUST_CHECK enum neb_status intra_st_writer_commit(struct intra_st_writer *w);
int32_t intra_st_writer_shards(const struct intra_st_writer *w);
// Without commit: removes the file in progress. Shards before it stay, because the caller writes
// into a folder of its own.
void intra_st_writer_destroy(struct intra_st_writer **w);

#endif
