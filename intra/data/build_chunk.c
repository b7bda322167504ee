// SPDX-License-Identifier: Apache-2.0
// Documents in chunks. One thread reads a chunk, all threads parse, hash and encode it, and then
// its documents are taken in order. Chunk boundaries depend on the sources and the number of
// threads only, so the second reading has the same chunks.
#include "intra/data/build_state.h"
#include "intra/read/charset.h"
#include "intra/read/json.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const void *p, size_t n) {
    uint8_t sha[INTRA_SHA_BYTES];
    neb_sha256(p, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

enum neb_status build_chunk_create(struct build *b) {
    json_object_seed(0); // here, because several threads would do it at once later
    size_t bytes = (size_t)kern_pool_threads(b->pool) * BUILD_CHUNK_THREAD_BYTES;
    b->chunk.bytes_max = bytes < BUILD_CHUNK_BYTES_MIN   ? BUILD_CHUNK_BYTES_MIN
                         : bytes > BUILD_CHUNK_BYTES_MAX ? BUILD_CHUNK_BYTES_MAX
                                                         : bytes;
    b->chunk.docs = calloc(BUILD_CHUNK_DOCS, sizeof *b->chunk.docs);
    return b->chunk.docs ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory building a corpus");
}

static void clear(struct chunk *c) {
    for (size_t i = 0; i < c->n; i++) {
        json_decref(c->docs[i].parsed);
        free(c->docs[i].tokens);
    }
    c->n = 0;
    c->has_file = false;
    neb_buf_clear(&c->text);
}

void build_chunk_destroy(struct build *b) {
    clear(&b->chunk);
    free(b->chunk.docs);
    neb_buf_free(&b->chunk.text);
    b->chunk.docs = NULL;
}

bool build_is_json(const struct build *b) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    return s->format == INTRA_JSONL || s->format == INTRA_PARQUET || s->format == INTRA_ARROW ||
           (s->format == INTRA_TAR && s->field[0]);
}

// intra_json_line turns NUL into a blank: a vocabulary has no piece for NUL, and decoded text would
// end there.
static void parse(const struct build *b, struct doc *d) {
    json_t *o = intra_json_line(d->text, d->len, NULL),
           *v = json_object_get(o, b->spec->sources[b->source].field);
    if (json_is_string(v)) {
        d->parsed = json_incref(v);
        d->text = (char *)(uintptr_t)json_string_value(v); // no other reference exists
        d->len = json_string_length(v);
    } else {
        d->fault = BUILD_NO_TEXT;
        d->len = 0;
    }
    json_decref(o);
}

// Turns "\r\n" into "\n".
static void drop_returns(struct doc *d) {
    size_t to = 0;
    const char *first = memchr(d->text, '\r', d->len);
    if (!first)
        return;
    for (size_t i = to = (size_t)(first - d->text); i < d->len; i++)
        if (d->text[i] != '\r' || i + 1 == d->len || d->text[i + 1] != '\n')
            d->text[to++] = d->text[i];
    d->len = to;
}

static bool check_bytes(struct doc *d) {
    size_t good = intra_utf8_length((const uint8_t *)d->text, d->len);
    if (good == d->len)
        return true;
    d->fault = BUILD_BYTES;
    d->bad_at = good;
    d->len = 0;
    return false;
}

static void prepare(void *arg, size_t i) {
    const struct build *b = arg;
    struct doc *d = &b->chunk.docs[i];
    d->text = (char *)b->chunk.text.p + d->at;
    d->len = d->given;
    d->target = d->target_at ? (char *)b->chunk.text.p + d->target_at : NULL;
    if (build_is_ids(b)) {
        d->name_hash = d->text_hash = hash_of(d->text, d->len);
        return;
    }
    if (d->fault || !check_bytes(d)) {
        d->len = 0;
        return;
    }
    enum intra_format format = b->spec->sources[b->source].format;
    if (build_is_json(b))
        parse(b, d);
    else if (format == INTRA_TEXT || format == INTRA_TAR)
        drop_returns(d);
    size_t all = d->len;
    while (d->len && (d->text[d->len - 1] == '\n' || d->text[d->len - 1] == ' '))
        d->len--;
    if (!d->len)
        return;
    if (!d->named)
        d->name_hash = hash_of(d->text, all);
    d->text[d->len] = 0;
    d->text_hash = d->named || d->len < all ? hash_of(d->text, d->len) : d->name_hash;
    d->target_hash = d->target ? hash_of(d->target, strlen(d->target)) : 0;
}

enum neb_status build_flush(struct build *b) {
    if (b->chunk.n) {
        kern_pool_run(b->pool, b->chunk.n, prepare, b);
        enum neb_status st = b->take_chunk(b);
        clear(&b->chunk);
        NEB_TRY(st);
    }
    b->progress(b->user, b->again ? "encoding" : "reading", b->done,
                b->done < b->total ? b->total : b->done);
    return NEB_OK;
}

static void put(struct neb_buf *text, const char *p, size_t n) {
    neb_buf_add(text, p, n);
    neb_buf_u8(text, 0);
}

enum neb_status build_add(struct build *b, const struct build_text *t) {
    struct chunk *c = &b->chunk;
    if (!c->has_file && b->file) {
        c->file_at = c->text.len;
        c->has_file = true;
        put(&c->text, b->file, strlen(b->file));
    }
    struct doc d = {.at = c->text.len,
                    .line = t->line,
                    .offset = t->offset,
                    .file_at = c->file_at,
                    .open = t->open,
                    .file_no = b->file_no,
                    .named = t->name != NULL};
    if (t->fault) {
        d.fault = BUILD_DESCRIBED;
        put(&c->text, t->fault, strlen(t->fault));
    } else {
        if (t->name)
            d.name_hash = hash_of(t->name, strlen(t->name));
        if (t->tag)
            neb_buf_add(&c->text, t->tag, strlen(t->tag));
        put(&c->text, t->text, t->len);
        d.given = c->text.len - d.at - 1;
    }
    if (t->target) {
        d.target_at = c->text.len;
        put(&c->text, t->target, strlen(t->target));
    }
    NEB_TRY(neb_buf_check(&c->text));
    c->docs[c->n++] = d;
    return c->n == BUILD_CHUNK_DOCS || c->text.len >= c->bytes_max ? build_flush(b) : NEB_OK;
}
