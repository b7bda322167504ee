// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a build. Only they and tests include this.
//
//     build.c         the sequence: two readings, and the vocabulary between them
//     build_place.c   the folder
//     build_read.c    sources as documents in order, the same in both readings
//     build_input.c   files as lines of UTF-8; pipes
//     build_ids.c     files of token ids
//     build_walk.c    folders, each file once
//     build_fault.c   bad text: named, counted, left out or refused
//     build_chunk.c   chunks of documents, worked on by all threads
//     build_notes.c   what the first reading leaves for the second
//     build_sample.c  the lines that the vocabulary is trained on
//     build_shards.c  tokens to shards
//     build_stream.c  a shard of a corpus that streams, made again from its place in a source
//
// Text is freed with its chunk. A build holds the text and tokens of one chunk (or of one document,
// if that is longer), a shard of each split, the sample, and the names in a folder. Each document
// adds 2 bits. While its source is read, it adds about 8 bytes in a hash table (11 to 21 with free
// slots, 32 while the table grows).
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
struct intra_input;

// Size of a chunk: documents; bytes for each thread, so that long documents keep all threads busy;
// smallest and largest number of bytes.
enum {
    BUILD_CHUNK_DOCS = 16384,
    BUILD_CHUNK_THREAD_BYTES = 16 << 20,
    BUILD_CHUNK_BYTES_MIN = 32 << 20,
    BUILD_CHUNK_BYTES_MAX = 1 << 30
};

enum build_fault {
    BUILD_GOOD,
    BUILD_DESCRIBED, // the document's text in the chunk is the description of the fault
    BUILD_BYTES,     // not UTF-8, or a NUL, at bad_at
    BUILD_NO_TEXT    // jsonl: no text in the field, or not JSON
};

struct doc {
    size_t at, given;   // the source's text: offset in the chunk's text, and length
    size_t target_at;   // offset of the translation there; 0: not parallel text
    size_t file_at;     // offset of the file's name there
    size_t line;        // number of its first line in the file
    uint64_t offset;    // in bytes, in the file
    bool named;         // name_hash is of a name; else of the text
    bool open;          // ids: the document goes on, so no EOS follows
    uint64_t file_no;   // number of its file in the source
    uint64_t number;    // of the documents of the source that are not empty
    uint64_t name_hash; // decides the split
    // set by `prepare` and `encode`, on all threads
    enum neb_status st;
    enum build_fault fault;
    size_t bad_at;  // offset of the first bad byte in the text
    json_t *parsed; // owned; jsonl: holds the text; NULL: none
    char *text;     // without blanks at its end, or u32 ids; not owned
    size_t len;     // 0: no document
    char *target;   // NULL: not parallel text
    uint64_t text_hash, target_hash;
    uint8_t verdict;
    uint8_t *tokens; // owned; in the corpus's width, EOS at the end
    size_t n;
};

struct chunk {
    struct neb_buf text; // texts and targets, each with a NUL after it
    struct doc *docs;    // (BUILD_CHUNK_DOCS)
    size_t n, bytes_max;
    size_t file_at; // offset of the current file's name in `text`
    bool has_file;
};

struct build_input { // a file that is read by lines
    struct intra_input *f;
    struct intra_charset *charset;
    struct neb_buf raw, text; // raw: as read; text: UTF-8, returned up to `at`
    size_t at, scanned;       // scanned: no line ends between at and here
    size_t line;
    // of text.p[at]: in the file, or in the converted text if the file is converted
    uint64_t offset;
    bool begun, end;
};
struct build_input_line {
    char *p; // valid until the next line; NULL: end of the file
    size_t len, number;
    uint64_t offset;
    bool ended; // a "\n" (not in len) ended it; the last line may have none
};

struct build_notes {
    // hashes of the documents of the current source; open addressing, 0: free
    uint64_t *seen;
    size_t n_seen, cap_seen;
    bool seen_zero;
    // of each document that is not empty, in order: its split or BUILD_DUPLICATE, four per byte
    uint8_t *verdicts;
    uint64_t n_docs, cap_docs;
    uint64_t *chunks; // (n_chunks) hashes of their content
    size_t n_chunks, cap_chunks;
    uint64_t docs_end[INTRA_SOURCES_MAX];   // number of documents up to the end of each source
    uint64_t text_bytes[INTRA_SOURCES_MAX]; // of documents that are encoded
    uint64_t duplicates;                    // in the current source
    // position of the second reading
    uint64_t doc;
    size_t chunk;
};
enum { BUILD_DUPLICATE = INTRA_SPLITS };
_Static_assert(BUILD_DUPLICATE < 4, "two bits");

struct build_sample {
    bool wanted;
    struct neb_rng rng;
    double share;   // lines wanted from each source
    uint64_t lines; // of the current source
    struct build_line {
        double number; // random; the line stays if it is below share / lines
        size_t at, len;
    } * p;
    size_t n, cap, first, prune_at; // first: first line of the current source
    struct neb_buf text;
};

// Where a shard begins: a document, its file, the first document of that file, and its first line
// and offset there, from which a file that is read by lines can be read on (line 0: it cannot).
struct build_place {
    uint64_t doc, file_no, file_doc, line, offset;
};

struct shard_out { // one split of one source
    struct neb_buf tokens;
    uint64_t n, text_bytes;
    int32_t shards;
    json_t *list;
    struct build_place begins; // the shard that is being filled
    json_t *places;            // of a corpus that streams: of its training shards
};

struct build {
    const struct intra_build_spec *spec;
    struct kern_pool *pool;
    struct neb_sha256 *inputs; // digest of the spec and of all text
    // A given vocabulary: its file, its intra_tokenizer_digest, its bytes, and those of the
    // tokenizer_config.json in the same folder.
    char vocabulary_file[NEB_PATH_MAX];
    uint8_t vocabulary_sha[INTRA_SHA_BYTES];
    int32_t given_vocab, given_eos; // of a given vocabulary, if a source has ids
    struct neb_buf vocabulary, vocabulary_config;
    intra_build_progress *progress;
    void *user;
    char dir[NEB_PATH_MAX]; // DIR.nebula-building
    int lock;               // on dir; -1: none
    struct chunk chunk;
    struct build_notes notes;
    struct build_sample sample;
    // reading
    enum neb_status (*take_chunk)(struct build *b); // notes or encodes b->chunk
    bool again;                                     // this is the second reading
    int32_t source;                                 // index of the current source
    const char *file;                               // the current file; NULL: none
    struct build_input input;
    // of the source: lines, documents or entries; bad ones; files that are left out
    uint64_t units, bad, passed_over;
    uint64_t done, total;           // bytes
    FILE *pipes[INTRA_SOURCES_MAX]; // data of pipes, in unnamed files; NULL: not a pipe
    // the second reading: shards
    struct intra_tokenizer *tokenizer;
    int32_t width; // bytes per token
    struct shard_out out[INTRA_SPLITS];
    uint64_t tokens_made, text_made; // of the current source
    int64_t shards;                  // of all sources
    struct build_place at;           // of the document that is taken
    json_t *places;                  // of a corpus that streams: shard_out.places by source
    // making one shard of a corpus that streams; see build_stream.c
    uint64_t file_no, skip_files; // file_no: of the file that is read next
    const struct build_piece *piece;
};

// dir: where the corpus will be, as an absolute path without links. Sets b->dir and b->lock. An
// error removes nothing. NEB_ERR_AGAIN (logged): another process builds there. NEB_ERR_EXISTS
// (logged): the folder holds a source or other files that are not part of a corpus, or it is or
// contains the working folder.
NEB_MUST_CHECK enum neb_status build_place(struct build *b, const char *given,
                                           char dir[NEB_PATH_MAX]);
// Checks that a corpus may replace this folder: it is absent, empty, or a corpus and nothing else.
// NEB_ERR_EXISTS (logged).
NEB_MUST_CHECK enum neb_status build_place_check(const char *dir);

// build_fault.c
// Counts and names a document that cannot be read. NEB_ERR_FORMAT (logged): the source allows none.
NEB_MUST_CHECK enum neb_status build_fault_count(struct build *b, const struct doc *d);
NEB_MUST_CHECK enum neb_status build_fault_source_end(struct build *b);
// Checks the first bytes of a file. False: the file is not text, or the bytes are a byte order mark
// of another encoding; `why` tells which. *skip: length of a UTF-8 byte order mark, or 0.
bool build_fault_head(const struct build *b, const uint8_t *p, size_t n, size_t *skip,
                      char why[256]);
// A converter for a file of this source that begins with `head`; NULL: UTF-8, none needed.
// NEB_ERR_FORMAT (logged).
NEB_MUST_CHECK enum neb_status build_fault_charset(const struct build *b, const uint8_t *head,
                                                   size_t n, struct intra_charset **out);

// build_input.c
// Copies the data of a pipe into an unnamed file, which both readings then read.
NEB_MUST_CHECK enum neb_status build_input_spool(struct build *b, const char *path);
// A file of the source, or the copy of its pipe.
NEB_MUST_CHECK enum neb_status build_input_file(struct build *b, const char *path,
                                                struct intra_input **out);
NEB_MUST_CHECK enum neb_status build_input_open(struct build *b, const char *path);
NEB_MUST_CHECK enum neb_status build_input_line(struct build *b, struct build_input_line *l);
void build_input_close(struct build *b);
void build_input_free(struct build *b); // frees its buffers

// build_ids.c
bool build_is_ids(const struct build *b); // the current source holds ids, not text
NEB_MUST_CHECK enum neb_status build_read_ids(struct build *b, const char *path);

// build_stream.c
struct build_piece {
    struct build_place from;
    uint64_t until;          // the document after it
    const uint8_t *verdicts; // of the whole corpus, 4 per byte
    uint64_t first;          // verdict of the source's first document
    uint64_t tokens;
    uint8_t sha256[INTRA_SHA_BYTES];
};
// Makes a training shard of source s again, in the file `path`. b's vocabulary is borrowed.
// NEB_ERR_STATE (logged): the source has changed. Errors as intra_corpus_build().
NEB_MUST_CHECK enum neb_status build_stream_shard(const struct intra_source_spec *s,
                                                  struct intra_tokenizer *t,
                                                  const struct build_piece *piece, int32_t threads,
                                                  const char *path);
// True if the stream.json in dir reads these sources at these paths. The same text may have moved.
bool build_stream_same(const struct build *b, const char *dir);
// Writes DIR/stream.json and DIR/verdicts.bin.
NEB_MUST_CHECK enum neb_status build_stream_write(const struct build *b);

// build_walk.c
typedef enum neb_status build_visit(struct build *b, const char *path, const struct stat *info);
// Visits every regular file below a folder, in the order of names. A file or folder that several
// links lead to is visited once. quiet: errors are not logged.
NEB_MUST_CHECK enum neb_status build_walk(struct build *b, const char *dir, bool quiet,
                                          build_visit *visit);

// build_read.c
// Sets b->total to the bytes of all sources, as far as they are known.
void build_measure(struct build *b);
// Gives each document of source i to build_add, then flushes the last chunk.
NEB_MUST_CHECK enum neb_status build_read_source(struct build *b, int32_t i);

// build_chunk.c
NEB_MUST_CHECK enum neb_status build_chunk_create(struct build *b);
void build_chunk_destroy(struct build *b);
bool build_is_json(const struct build *b); // the text of a document is a value in JSON
struct build_text {
    // tag: put before the text, or NULL; target: the translation, or NULL
    const char *tag, *text, *target;
    size_t len, line;
    uint64_t offset;
    const char *name;  // decides the split; NULL: the text decides
    bool open;         // ids: no EOS follows
    const char *fault; // what is wrong, instead of text; NULL: nothing
};
// Copies a document into the chunk. A full chunk is prepared and goes to take_chunk.
NEB_MUST_CHECK enum neb_status build_add(struct build *b, const struct build_text *t);
// handles the last chunk, which may not be full
NEB_MUST_CHECK enum neb_status build_flush(struct build *b);

// build_notes.c
NEB_MUST_CHECK enum neb_status build_note_chunk(struct build *b);
NEB_MUST_CHECK enum neb_status build_note_source_end(struct build *b);
// Sets the verdicts of the chunk's documents. NEB_ERR_STATE (logged): the text has changed since
// the first reading.
NEB_MUST_CHECK enum neb_status build_recall_chunk(struct build *b);
NEB_MUST_CHECK enum neb_status build_recall_source_end(struct build *b);
void build_notes_free(struct build_notes *n);

// build_sample.c
void build_sample_start(struct build *b);
NEB_MUST_CHECK enum neb_status build_sample_doc(struct build_sample *s, const struct doc *d);
void build_sample_source_end(struct build_sample *s);
// Writes the sample to path, and frees it.
NEB_MUST_CHECK enum neb_status build_sample_write(struct build_sample *s, const char *path);
void build_sample_free(struct build_sample *s);

// build_shards.c
void build_encode_docs(struct build *b); // of the chunk, on all threads
NEB_MUST_CHECK enum neb_status build_write_shard(const char *path, const struct shard_out *o,
                                                 int32_t width, const uint8_t *sha);
// Reads all sources again, writes their shards, and appends one object per source to `sources`.
NEB_MUST_CHECK enum neb_status build_encode_all(struct build *b, json_t *sources);

#endif
