// SPDX-License-Identifier: Apache-2.0
// The checkpoint container: one file of named sections, each with its SHA-256.
//
//     ┌────────────────┬─────────┬─────────┬─────┬────────────────────┬──────────────────────┐
//     │ magic, version │ section │ section │  …  │ index: name, type, │ magic … index at/len │
//     │ (64 bytes)     │ (64-byte aligned)       │ shape, at, SHA-256 │ + SHA-256 over both  │
//     └────────────────┴─────────────────────────┴────────────────────┴──────────────────────┘
//
// It is written aside and renamed (agent/base/fs.h), so a file that exists is complete. The digests
// find later damage. A folder holds generations step-000000000120.ckpt; the newest that verifies is
// used.
//
// With a vault (agent/base/vault.h) the whole file is sealed. It is then read section by section,
// and only what is read is ever in clear.
#ifndef INTRA_CHECKPOINT_H
#define INTRA_CHECKPOINT_H
#include "agent/base/bytes.h"
#include "agent/base/file.h"

#define INTRA_CKPT_MAGIC "NEBCKPT" // its first eight bytes; the last one is 0
enum intra_dtype { INTRA_BYTES = 0, INTRA_F32 = 1, INTRA_U32 = 2, INTRA_U64 = 3 };
enum { INTRA_CKPT_NAME_MAX = 127, INTRA_CKPT_SECTIONS_MAX = 1 << 23 }; // sections of one file

struct intra_ckpt_writer;
// Writes PATH.tmp until commit. create, add and commit return NEB_ERR_IO or NEB_ERR_NOSPC when
// writing fails (neb_fs_writer).
NEB_MUST_CHECK enum neb_status intra_ckpt_create(const char *path, struct intra_ckpt_writer **out);
// Makes a writer without a file: it passes the sections to sink. commit returns the first failure
// of sink. seals: the copy in the sink will be sealed, so the parts of other ranks must be sealed
// too (checkpoint_parts.h).
typedef enum neb_status intra_ckpt_sink(void *user, const char *name, enum intra_dtype dtype,
                                        uint64_t rows, uint64_t cols, const void *data,
                                        uint64_t bytes);
NEB_MUST_CHECK enum neb_status intra_ckpt_create_sink(intra_ckpt_sink *sink, void *user, bool seals,
                                                      struct intra_ckpt_writer **out);
// vault NULL: in clear, as intra_ckpt_create.
NEB_MUST_CHECK enum neb_status intra_ckpt_create_in(const struct neb_vault *vault, const char *path,
                                                    struct intra_ckpt_writer **out);
// Adds a section of rows x cols elements of the dtype. For bytes, rows is the length and cols is 1.
// Names are unique (asserted at commit, for a file). After a failure every further add and commit
// fails too.
NEB_MUST_CHECK enum neb_status intra_ckpt_add(struct intra_ckpt_writer *w, const char *name,
                                              enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                                              const void *data);
// The same in pieces, for data that is nowhere in memory as a whole: begin, then put until all
// bytes are there (asserted). Not for a writer with a sink.
NEB_MUST_CHECK enum neb_status intra_ckpt_begin(struct intra_ckpt_writer *w, const char *name,
                                                enum intra_dtype dtype, uint64_t rows,
                                                uint64_t cols);
NEB_MUST_CHECK enum neb_status intra_ckpt_put(struct intra_ckpt_writer *w, const void *data,
                                              uint64_t bytes);
// Lets other ranks write parts of this checkpoint beside `path`, its final place
// (checkpoint_parts.h). "": this writer only counts its own sections, and nothing is written. NULL,
// the default: everything is in one file.
void intra_ckpt_split(struct intra_ckpt_writer *w, const char *path);
const char *intra_ckpt_split_path(const struct intra_ckpt_writer *w); // NULL: one file
bool intra_ckpt_is_sink(const struct intra_ckpt_writer *w);
bool intra_ckpt_seals(const struct intra_ckpt_writer *w);
uint64_t intra_ckpt_bytes(const struct intra_ckpt_writer *w); // of the sections so far
// Adds the bytes of sections to *written (borrowed) as they go into the file. Another thread may
// read it.
void intra_ckpt_watch(struct intra_ckpt_writer *w, _Atomic uint64_t *written);
// A file with parts first waits for the parts.
NEB_MUST_CHECK enum neb_status intra_ckpt_commit(struct intra_ckpt_writer *w);
// Without commit it leaves nothing behind.
void intra_ckpt_writer_destroy(struct intra_ckpt_writer **w);

struct intra_ckpt_section {
    char name[INTRA_CKPT_NAME_MAX + 1];
    enum intra_dtype dtype;
    uint64_t rows, cols, at, bytes;
    uint8_t sha256[32];
    uint32_t part; // which file of the checkpoint; 0: the first
};
struct intra_ckpt; // an open, mapped checkpoint
// Opens a checkpoint and checks header and index; verify: also the digest of every section.
// NEB_ERR_CORRUPT: damaged; the log names file, section and offset. A sealed file is authenticated
// as a whole when it is opened, so its digests are not checked again.
NEB_MUST_CHECK enum neb_status intra_ckpt_open(const char *path, bool verify,
                                               struct intra_ckpt **out);
NEB_MUST_CHECK enum neb_status intra_ckpt_open_in(const struct neb_vault *vault, const char *path,
                                                  bool verify, struct intra_ckpt **out);
// Opens the file alone, without its parts and unverified, to read what it says about its parts.
NEB_MUST_CHECK enum neb_status intra_ckpt_open_index(const struct neb_vault *vault,
                                                     const char *path, struct intra_ckpt **out);
void intra_ckpt_close(struct intra_ckpt **c);
// NULL: no such section.
const struct intra_ckpt_section *intra_ckpt_find(const struct intra_ckpt *c, const char *name);
// A whole section, valid until close. In a sealed file it is a copy that stays in memory, so use it
// for small sections. NULL: the copy could not be made (logged; never in clear).
const void *intra_ckpt_data(const struct intra_ckpt *c, const struct intra_ckpt_section *s);
bool intra_ckpt_sealed(const struct intra_ckpt *c);
// Reads bytes [at, at + n) of a section, sealed or not.
NEB_MUST_CHECK enum neb_status intra_ckpt_range(const struct intra_ckpt *c,
                                                const struct intra_ckpt_section *s, uint64_t at,
                                                void *dst, size_t n);
const char *intra_ckpt_path(const struct intra_ckpt *c);
// Copies a section of exactly this dtype and shape into dst. NEB_ERR_NOT_FOUND, NEB_ERR_FORMAT: the
// log says what differs.
NEB_MUST_CHECK enum neb_status intra_ckpt_read(const struct intra_ckpt *c, const char *name,
                                               enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                                               void *dst);

// The path of a step's checkpoint in a folder. NEB_ERR_LIMIT: it does not fit.
NEB_MUST_CHECK enum neb_status intra_ckpt_step_path(const char *dir, int64_t step, char *out,
                                                    size_t cap);
// Opens the newest checkpoint of a folder that verifies, for readers. Damaged ones are logged and
// skipped. vault: opens sealed ones; may be NULL. NEB_ERR_NOT_FOUND (not logged): there is none.
// NEB_ERR_IO: the folder cannot be read. Otherwise the failure of the oldest one tried, or
// NEB_ERR_CORRUPT if one of its files is missing.
NEB_MUST_CHECK enum neb_status intra_ckpt_open_latest_in(const struct neb_vault *vault,
                                                         const char *dir, struct intra_ckpt **out);
// The same for the writer that continues from the checkpoint. Damaged checkpoints count as missing.
// They are renamed to PATH.damaged, so that intra_ckpt_prune does not keep them as the newest ones
// but removes them. NEB_ERR_NOT_FOUND also if all are damaged. Other errors: the folder holds a
// checkpoint that cannot be used (another key, another version, a disk error).
NEB_MUST_CHECK enum neb_status intra_ckpt_take_latest_in(const struct neb_vault *vault,
                                                         const char *dir, struct intra_ckpt **out);
// *out: the folder has a checkpoint, complete or not. NEB_ERR_IO: the folder exists and cannot be
// read.
NEB_MUST_CHECK enum neb_status intra_ckpt_any(const char *dir, bool *out);
// Removes all but the newest `keep` generations, and what a killed writer left (*.tmp). Only the
// folder's one writer may call this, while it writes no checkpoint. vault: for sealed checkpoints;
// NULL: parts that a sealed file may need are kept.
NEB_MUST_CHECK enum neb_status intra_ckpt_prune(const struct neb_vault *vault, const char *dir,
                                                int keep);

#endif
