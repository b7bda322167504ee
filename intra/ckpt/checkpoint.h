// SPDX-License-Identifier: Apache-2.0
// Checkpoint container: one file of named sections, each with its SHA-256.
//
//     ┌──────────────────────────────┬─────────┬─────────┬─────┬────────────────────┬──────────────────────┐
//     │ magic, version               │ section │ section │  …  │ index: name, kind, │ magic … index at/len │
//     │ (64 bytes)                   │ (64-byte aligned)       │ shape, at, SHA-256 │ + SHA-256 over both  │
//     └──────────────────────────────┴─────────┴─────────┴─────┴────────────────────┴──────────────────────┘
//
// Written aside and renamed (agent/base/fs.h), so a file that exists is whole; digests find what rots later. A folder
// holds generations step-000000000120.ckpt; the newest that verifies is used.
//
// With a vault (agent/base/vault.h) the whole file is sealed; it is read section by section, and what is not read is never in clear.
#ifndef INTRA_CHECKPOINT_H
#define INTRA_CHECKPOINT_H
#include "agent/base/bytes.h"
#include "agent/base/file.h"

#define INTRA_CKPT_MAGIC "NEBCKPT" // its first eight bytes, the last one 0
enum intra_dtype { INTRA_BYTES = 0, INTRA_F32 = 1, INTRA_U32 = 2, INTRA_U64 = 3 };
enum { INTRA_CKPT_NAME_MAX = 127, INTRA_CKPT_SECTIONS_MAX = 65536 };

struct intra_ckpt_writer;
// PATH.tmp until commit. NEB_ERR_IO, NEB_ERR_NOSPC as of neb_fs_writer, here and from add and commit.
NEB_MUST_CHECK enum neb_status intra_ckpt_create(const char *path, struct intra_ckpt_writer **out);
// A writer that writes nothing: sections go to sink, whose first failure stays; commit says only whether there was one. seals: what it is given
// will be sealed, and so are the parts of other ranks (checkpoint_parts.h).
typedef enum neb_status intra_ckpt_sink(void *user, const char *name, enum intra_dtype dtype,
                                        uint64_t rows, uint64_t cols, const void *data,
                                        uint64_t bytes);
NEB_MUST_CHECK enum neb_status intra_ckpt_create_sink(intra_ckpt_sink *sink, void *user, bool seals,
                                                      struct intra_ckpt_writer **out);
// vault NULL: in clear, as above.
NEB_MUST_CHECK enum neb_status intra_ckpt_create_in(const struct neb_vault *vault, const char *path,
                                                    struct intra_ckpt_writer **out);
// rows x cols elements of the dtype; for bytes rows is the length and cols 1. Names are unique. After a failure every
// further add and commit fails too.
NEB_MUST_CHECK enum neb_status intra_ckpt_add(struct intra_ckpt_writer *w, const char *name,
                                              enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                                              const void *data);
// Other ranks may write parts of this checkpoint beside `path`, where it will be (checkpoint_parts.h); "": only its own
// sections are counted, and nobody writes. NULL, as at first: everything is in one file.
void intra_ckpt_split(struct intra_ckpt_writer *w, const char *path);
const char *intra_ckpt_split_path(const struct intra_ckpt_writer *w); // NULL: one file
bool intra_ckpt_is_sink(const struct intra_ckpt_writer *w);
bool intra_ckpt_seals(const struct intra_ckpt_writer *w);
uint64_t intra_ckpt_bytes(const struct intra_ckpt_writer *w); // of the sections so far
// Bytes of sections are added to *written as they go into the file, which another thread may look at; borrowed.
void intra_ckpt_watch(struct intra_ckpt_writer *w, _Atomic uint64_t *written);
// A file with parts waits for them first.
NEB_MUST_CHECK enum neb_status intra_ckpt_commit(struct intra_ckpt_writer *w);
// without commit: nothing is left behind
void intra_ckpt_writer_destroy(struct intra_ckpt_writer **w);

struct intra_ckpt_section {
    char name[INTRA_CKPT_NAME_MAX + 1];
    enum intra_dtype dtype;
    uint64_t rows, cols, at, bytes;
    uint8_t sha256[32];
    uint32_t part; // which of the checkpoint's files; 0: the first
};
struct intra_ckpt; // an open, mapped checkpoint
// Opens, checks header and index; verify: every section's digest as well. NEB_ERR_CORRUPT names file, section, offset.
// A sealed file is authenticated whole, which says more than the digests, so those are not looked at again.
NEB_MUST_CHECK enum neb_status intra_ckpt_open(const char *path, bool verify,
                                               struct intra_ckpt **out);
NEB_MUST_CHECK enum neb_status intra_ckpt_open_in(const struct neb_vault *vault, const char *path,
                                                  bool verify, struct intra_ckpt **out);
// The file alone, without its parts and unverified: what it says of them.
NEB_MUST_CHECK enum neb_status intra_ckpt_open_index(const struct neb_vault *vault,
                                                     const char *path, struct intra_ckpt **out);
void intra_ckpt_close(struct intra_ckpt **c);
// NULL: none
const struct intra_ckpt_section *intra_ckpt_find(const struct intra_ckpt *c, const char *name);
// A whole section, until close. Of a sealed file it is a copy that stays in memory: for small ones. NULL: that copy could not be made
// (logged; never in clear).
const void *intra_ckpt_data(const struct intra_ckpt *c, const struct intra_ckpt_section *s);
bool intra_ckpt_sealed(const struct intra_ckpt *c);
// Bytes [at, at + n) of a section, sealed or not.
NEB_MUST_CHECK enum neb_status intra_ckpt_range(const struct intra_ckpt *c,
                                                const struct intra_ckpt_section *s, uint64_t at,
                                                void *dst, size_t n);
const char *intra_ckpt_path(const struct intra_ckpt *c);
// Copies a section of exactly this dtype and size into dst. NEB_ERR_NOT_FOUND / NEB_ERR_FORMAT say what differs.
NEB_MUST_CHECK enum neb_status intra_ckpt_read(const struct intra_ckpt *c, const char *name,
                                               enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                                               void *dst);

// Path of the checkpoint of a step in a folder. NEB_ERR_LIMIT: it does not fit.
NEB_MUST_CHECK enum neb_status intra_ckpt_step_path(const char *dir, int64_t step, char *out,
                                                    size_t cap);
// Opens the newest checkpoint of a folder that verifies; damaged ones are reported and passed over. NEB_ERR_NOT_FOUND
// (not logged) when there is none; NEB_ERR_IO when the folder cannot be read; else the failure of the oldest one tried, NEB_ERR_CORRUPT
// where a file of it is missing.
// vault: opens sealed ones too; may be NULL.
// This for who only reads.
NEB_MUST_CHECK enum neb_status intra_ckpt_open_latest_in(const struct neb_vault *vault,
                                                         const char *dir, struct intra_ckpt **out);
// The same for who goes on from it and writes the next ones: damaged ones are as missing, and put
// aside (PATH.damaged), so that they do not count as the newest ones when intra_ckpt_prune keeps
// some, which removes them. NEB_ERR_NOT_FOUND also where all were damaged; another failure where
// one is left that cannot be used (another key, another version, an error of the disk).
NEB_MUST_CHECK enum neb_status intra_ckpt_take_latest_in(const struct neb_vault *vault,
                                                         const char *dir, struct intra_ckpt **out);
// Whether a folder has a checkpoint, be it whole or not. NEB_ERR_IO: the folder is there and cannot be read.
NEB_MUST_CHECK enum neb_status intra_ckpt_any(const char *dir, bool *out);
// Removes all but the newest `keep` generations, and what a killed writer left (*.tmp). Only the folder's one writer calls
// this, with no checkpoint being written. vault: of sealed ones; NULL: what they may need is left alone.
NEB_MUST_CHECK enum neb_status intra_ckpt_prune(const struct neb_vault *vault, const char *dir,
                                                int keep);

#endif
