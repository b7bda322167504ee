// SPDX-License-Identifier: Apache-2.0
// What the files of a build share. But for tests, nobody else includes this.
//
//     build.c         the whole: two readings, the vocabulary between them
//     build_place.c   the folder
//     build_read.c    sources as documents, one after the other, the same both times
//     build_input.c   files as lines of UTF-8
//     build_walk.c    folders, each file once
//     build_fault.c   what cannot be read: said, counted, left out or refused
//     build_chunk.c   chunks of them: parsed, hashed and encoded by all threads, gone through in order
//     build_notes.c   what the first reading leaves for the second
//     build_sample.c  the lines that the vocabulary is trained on
//     build_shards.c  tokens to shards
//
// No text outlives its chunk. A build holds a chunk's text, or one document if that is longer, with its tokens; a shard of each split; the
// sample; the names in a folder; and of every document 2 bits, beside 8 bytes in a hash table while its source is read (11 to 21 with
// what is free in the table, 32 while that grows).
#ifndef INTRA_BUILD_STATE_H
#define INTRA_BUILD_STATE_H
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data/data.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "kernels/pool.h"

#include <jansson.h>
#include <sys/stat.h>

struct intra_charset;

// Of a chunk: documents; bytes of text for each thread, so that long documents occupy them all, too; bytes at least and at most.
enum {
    BUILD_CHUNK_DOCS = 16384,
    BUILD_CHUNK_THREAD_BYTES = 16 << 20,
    BUILD_CHUNK_BYTES_MIN = 32 << 20,
    BUILD_CHUNK_BYTES_MAX = 1 << 30
};

enum build_fault {
    BUILD_GOOD,
    BUILD_DESCRIBED, // by a text in the chunk, in place of the document
    BUILD_BYTES,     // bad_at: no UTF-8 without NUL
    BUILD_NO_TEXT    // jsonl
};

struct doc {
    size_t at, given;   // what the source gave, in the chunk's text, and its length
    size_t target_at;   // of parallel text, in the chunk's text; else 0
    size_t file_at;     // the file's name in the chunk's text
    size_t line;        // of its file
    uint64_t offset;    // in its file
    bool named;         // name_hash is of a name; else of the text
    uint64_t name_hash; // decides the split
    // what all threads make of it
    enum neb_status st;
    enum build_fault fault;
    size_t bad_at;  // in the text
    json_t *parsed; // owned; jsonl: holds the text. NULL: there is none
    char *text;     // without blanks at its end; not owned
    size_t len;     // 0: no document
    char *target;   // NULL: no parallel text
    uint64_t text_hash, target_hash;
    uint8_t verdict;
    uint8_t *tokens; // owned, in the width of the corpus, EOS at the end
    size_t n;
};

struct chunk {
    struct neb_buf text; // texts and targets, each with a NUL behind it
    struct doc *docs;    // (BUILD_CHUNK_DOCS)
    size_t n, bytes_max;
    size_t file_at; // the name of the build's file in text
    bool has_file;
};

struct build_input { // a file that is read by lines
    FILE *f, *aside; // aside: where what comes through a pipe is kept
    struct intra_charset *charset;
    struct neb_buf raw, text; // as it was read; in UTF-8, from `at` on not handed out
    size_t at, scanned;       // scanned: no line ends before
    size_t line;
    uint64_t offset; // of text.p[at] in the file; where it is converted, in its text
    bool begun, end;
};
struct build_input_line {
    char *p; // NULL: there is none any more. Valid until the next one
    size_t len, number;
    uint64_t offset;
    bool ended; // by "\n", which it is without; the file's last line may not be
};

struct build_notes {
    // of the source that is read: hashes of its documents, open addressing, 0 is free
    uint64_t *seen;
    size_t n_seen, cap_seen;
    bool seen_zero;
    // of every document that is not empty, in order: its split, or BUILD_DUPLICATE; four a byte
    uint8_t *verdicts;
    uint64_t n_docs, cap_docs;
    uint64_t *chunks; // (n_chunks) a hash of all that is in it
    size_t n_chunks, cap_chunks;
    uint64_t docs_end[INTRA_SOURCES_MAX];   // documents up to the end of each source
    uint64_t text_bytes[INTRA_SOURCES_MAX]; // that are encoded
    uint64_t duplicates;                    // of the source that is read
    // the second reading
    uint64_t doc;
    size_t chunk;
};
enum { BUILD_DUPLICATE = INTRA_SPLITS };
_Static_assert(BUILD_DUPLICATE < 4, "two bits");

struct build_sample {
    bool wanted;
    struct neb_rng rng;
    double share;   // lines wanted of each source
    uint64_t lines; // of the source that is read
    struct build_line {
        double number; // it stays if this is below share / lines
        size_t at, len;
    } * p;
    size_t n, cap, first, prune_at; // first: of this source
    struct neb_buf text;
};

struct shard_out { // one split of one source
    struct neb_buf tokens;
    uint64_t n, text_bytes;
    int32_t shards;
    json_t *list;
};

struct build {
    const struct intra_build_spec *spec;
    struct kern_pool *pool;
    struct neb_sha256 *inputs; // digest of everything read
    // of a given vocabulary: its file, what intra_tokenizer_digest makes of it, its bytes and those of the tokenizer_config.json beside it
    char vocabulary_file[NEB_PATH_MAX];
    uint8_t vocabulary_sha[INTRA_SHA_BYTES];
    struct neb_buf vocabulary, vocabulary_config;
    intra_build_progress *progress;
    void *user;
    char dir[NEB_PATH_MAX]; // DIR.nebula-building
    int lock;               // on it; -1: none
    struct chunk chunk;
    struct build_notes notes;
    struct build_sample sample;
    // reading
    enum neb_status (*take_chunk)(struct build *b); // what becomes of one: it is noted, or encoded
    bool again;                                     // for the second time
    int32_t source;                                 // that is read
    const char *file;                               // of it
    struct build_input input;
    uint64_t units, bad,
        compiled; // of the source: lines, documents or entries; that were left out; catalogues
    uint64_t done, total; // bytes
    FILE *pipes
        [INTRA_SOURCES_MAX]; // what came through a pipe, in a file without a name; NULL: no pipe
    // the second reading: shards
    struct intra_tokenizer *tokenizer;
    int32_t width; // bytes of a token
    struct shard_out out[INTRA_SPLITS];
    uint64_t tokens_made, text_made; // of the source
    int64_t shards;                  // of all
};

// Where the corpus is to lie, as an absolute path without links; sets b->dir and b->lock. NEB_ERR_AGAIN (logged): another
// process builds there. NEB_ERR_EXISTS (logged): what is there is no corpus, holds
// more than one, a source or the working folder. Nothing was removed.
NEB_MUST_CHECK enum neb_status build_place(struct build *b, const char *given,
                                           char dir[NEB_PATH_MAX]);
// Whether a corpus may take this folder's place: there is none, an empty one, or a corpus and nothing else. NEB_ERR_EXISTS (logged).
NEB_MUST_CHECK enum neb_status build_place_check(const char *dir);

// build_fault.c Counts a document that cannot be read, and names it. NEB_ERR_FORMAT (logged): the
// source allows for none.
NEB_MUST_CHECK enum neb_status build_fault_count(struct build *b, const struct doc *d);
NEB_MUST_CHECK enum neb_status build_fault_source_end(struct build *b);
// What a file's first bytes forbid: a kind of file that is no text, a byte order mark of another
// encoding. False: `why` says so. skip: bytes of a byte order mark.
bool build_fault_head(const struct build *b, const uint8_t *p, size_t n, size_t *skip,
                      char why[256]);
// The source's encoding for a file that begins so; NULL: UTF-8. NEB_ERR_FORMAT (logged).
NEB_MUST_CHECK enum neb_status build_fault_charset(const struct build *b, const uint8_t *head,
                                                   size_t n, struct intra_charset **out);

// build_input.c
NEB_MUST_CHECK enum neb_status build_input_open(struct build *b, const char *path);
NEB_MUST_CHECK enum neb_status build_input_line(struct build *b, struct build_input_line *l);
void build_input_close(struct build *b);
void build_input_free(struct build *b); // its buffers

// build_walk.c
typedef enum neb_status build_visit(struct build *b, const char *path, const struct stat *info);
// Every regular file below a folder, in the order of names; a folder or file that links lead to
// more than once counts once. quiet: errors are not logged.
NEB_MUST_CHECK enum neb_status build_walk(struct build *b, const char *dir, bool quiet,
                                          build_visit *visit);

// build_read.c
// Bytes of all sources, as far as they can be known, into b->total.
void build_measure(struct build *b);
// Every document of source i to build_add; the last chunk is worked on when it returns.
NEB_MUST_CHECK enum neb_status build_read_source(struct build *b, int32_t i);

// build_chunk.c
NEB_MUST_CHECK enum neb_status build_chunk_create(struct build *b);
void build_chunk_destroy(struct build *b);
uint64_t build_hash(const void *p, size_t n);
struct build_text {
    const char *tag, *text,
        *target; // tag: put before the text, or NULL; target: of a pair, or NULL
    size_t len, line;
    uint64_t offset;
    const char *name;  // what decides the split; NULL: the text
    const char *fault; // what is wrong, in place of all the others; NULL: nothing
};
// Copies it. A chunk that it fills goes to take_chunk.
NEB_MUST_CHECK enum neb_status build_add(struct build *b, const struct build_text *t);
NEB_MUST_CHECK enum neb_status build_flush(struct build *b); // a chunk that is not full

// build_notes.c
NEB_MUST_CHECK enum neb_status build_note_chunk(struct build *b);
NEB_MUST_CHECK enum neb_status build_note_source_end(struct build *b);
// The verdicts of the chunk's documents. NEB_ERR_STATE (logged): it is not what was read the first time.
NEB_MUST_CHECK enum neb_status build_recall_chunk(struct build *b);
NEB_MUST_CHECK enum neb_status build_recall_source_end(struct build *b);
void build_notes_free(struct build_notes *n);

// build_sample.c
void build_sample_start(struct build *b);
NEB_MUST_CHECK enum neb_status build_sample_doc(struct build_sample *s, const struct doc *d);
void build_sample_source_end(struct build_sample *s);
// Writes it to path, and frees it.
NEB_MUST_CHECK enum neb_status build_sample_write(struct build_sample *s, const char *path);
void build_sample_free(struct build_sample *s);

// build_shards.c
// Reads all sources again, writes their shards, and appends one object a source to sources.
NEB_MUST_CHECK enum neb_status build_encode_all(struct build *b, json_t *sources);

#endif
