// What build.c (vocabulary, the whole), build_place.c (the folder), build_read.c (sources to documents) and build_shards.c (documents to shards) share.
// But for tests, nobody else includes this.
#ifndef INTRA_BUILD_STATE_H
#define INTRA_BUILD_STATE_H
#include "agent/base/fs.h"
#include "agent/base/sha256.h"
#include "intra/data.h"
#include "intra/tokenizer.h"
#include "kernels/pool.h"

#include <jansson.h>

struct doc {
    char *text; // owned
    size_t len;
    uint64_t name_hash; // decides the split
    int32_t source;
    char *target; // owned; of parallel text, else NULL
    int32_t *ids; // (n) owned, after encoding
    size_t n;
};

struct docs {
    struct doc *p;
    size_t n, cap;
};

struct build {
    const struct intra_build_spec *spec;
    struct docs docs;
    struct neb_sha256 *inputs; // digest of everything read
    intra_build_progress *progress;
    void *user;
    struct intra_tokenizer *tokenizer;
    char dir[NEB_PATH_MAX]; // DIR.nebula-building
};

// Where the corpus is to lie, as an absolute path without links; sets b->dir. NEB_ERR_EXISTS (logged): what is there is no corpus, holds
// more than one, a source or the working folder. Nothing was removed.
NEB_MUST_CHECK enum neb_status build_place(struct build *b, const char *given,
                                           char dir[NEB_PATH_MAX]);
// Whether a corpus may take this folder's place: there is none, an empty one, or a corpus and nothing else. NEB_ERR_EXISTS (logged).
NEB_MUST_CHECK enum neb_status build_place_free(const char *dir);

// Appends the documents of all sources to b->docs and what was read to b->inputs.
NEB_MUST_CHECK enum neb_status build_read_sources(struct build *b);
uint64_t build_hash(const void *p, size_t n);
// Encodes b->docs, frees each one's text, writes the shards, and appends one object a source to sources. width: bytes of a token.
NEB_MUST_CHECK enum neb_status build_encode_all(struct build *b, struct kern_pool *pool,
                                                json_t *sources, int width);

#endif
