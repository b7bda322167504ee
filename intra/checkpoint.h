// Checkpoint container: one file of named sections, each with its SHA-256.
//
//     ┌──────────────────────────────┬─────────┬─────────┬─────┬────────────────────┬──────────────────────┐
//     │ magic, version               │ section │ section │  …  │ index: name, kind, │ magic … index at/len │
//     │ (64 bytes)                   │ (64-byte aligned)       │ shape, at, SHA-256 │ + SHA-256 over both  │
//     └──────────────────────────────┴─────────┴─────────┴─────┴────────────────────┴──────────────────────┘
//
// Written aside and renamed (agent/base/fs.h), so a file that exists is whole; digests find what rots later. A folder
// holds generations step-000000000120.ckpt; the newest that verifies is used.
#ifndef INTRA_CHECKPOINT_H
#define INTRA_CHECKPOINT_H
#include "agent/base/bytes.h"
#include "agent/base/fs.h"

enum intra_dtype { INTRA_BYTES = 0, INTRA_F32 = 1, INTRA_U32 = 2, INTRA_U64 = 3 };
enum { INTRA_CKPT_NAME_MAX = 127, INTRA_CKPT_SECTIONS_MAX = 65536 };

struct intra_ckpt_writer;
NEB_MUST_CHECK enum neb_status intra_ckpt_create(const char *path, struct intra_ckpt_writer **out);
// A writer that writes nothing: sections go to sink, whose first failure stays; commit says only whether there was one.
typedef enum neb_status intra_ckpt_sink(void *user, const char *name, enum intra_dtype dtype,
                                        uint64_t rows, uint64_t cols, const void *data,
                                        uint64_t bytes);
NEB_MUST_CHECK enum neb_status intra_ckpt_create_sink(intra_ckpt_sink *sink, void *user,
                                                      struct intra_ckpt_writer **out);
// rows x cols elements of the dtype; for bytes rows is the length and cols 1. Names are unique. After a failure every
// further add and commit fails too.
NEB_MUST_CHECK enum neb_status intra_ckpt_add(struct intra_ckpt_writer *w, const char *name,
                                              enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                                              const void *data);
uint64_t intra_ckpt_bytes(const struct intra_ckpt_writer *w); // of the sections so far
NEB_MUST_CHECK enum neb_status intra_ckpt_commit(struct intra_ckpt_writer *w);
void intra_ckpt_writer_destroy(
    struct intra_ckpt_writer **w); // without commit: nothing is left behind

struct intra_ckpt_section {
    char name[INTRA_CKPT_NAME_MAX + 1];
    enum intra_dtype dtype;
    uint64_t rows, cols, at, bytes;
    uint8_t sha256[32];
};
struct intra_ckpt; // an open, mapped checkpoint
// Opens, checks header and index; verify: every section's digest as well. NEB_ERR_CORRUPT names file, section, offset.
NEB_MUST_CHECK enum neb_status intra_ckpt_open(const char *path, bool verify,
                                               struct intra_ckpt **out);
void intra_ckpt_close(struct intra_ckpt **c);
const struct intra_ckpt_section *intra_ckpt_find(const struct intra_ckpt *c,
                                                 const char *name); // NULL: none
const void *intra_ckpt_data(const struct intra_ckpt *c,
                            const struct intra_ckpt_section *s); // until close
const char *intra_ckpt_path(const struct intra_ckpt *c);
// Copies a section of exactly this dtype and size into dst. NEB_ERR_NOT_FOUND / NEB_ERR_FORMAT say what differs.
NEB_MUST_CHECK enum neb_status intra_ckpt_read(const struct intra_ckpt *c, const char *name,
                                               enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                                               void *dst);

// Path of the checkpoint of a step in a folder.
NEB_MUST_CHECK enum neb_status intra_ckpt_step_path(const char *dir, int64_t step, char *out,
                                                    size_t cap);
// Opens the newest checkpoint of a folder that verifies; damaged ones are reported and passed over. NEB_ERR_NOT_FOUND
// (not logged) when there is none; NEB_ERR_IO when the folder cannot be read; else the failure of the oldest one tried.
NEB_MUST_CHECK enum neb_status intra_ckpt_open_latest(const char *dir, struct intra_ckpt **out);
// Removes all but the newest `keep` generations, and what a killed writer left (*.tmp). Only the folder's one writer calls
// this, with no checkpoint being written.
NEB_MUST_CHECK enum neb_status intra_ckpt_prune(const char *dir, int keep);

#endif
