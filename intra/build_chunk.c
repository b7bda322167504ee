// Documents in chunks. Reading is one thread's; what costs (JSON, hashes, tokens) is all threads' work on a whole chunk; and then its
// documents are gone through in order. Where chunks end depends on sources and threads alone: the second reading has the
// same ones.
#include "intra/build_state.h"
#include "intra/json.h"

#include <stdlib.h>
#include <string.h>

uint64_t build_hash(const void *p, size_t n) {
    uint8_t sha[INTRA_SHA_BYTES];
    neb_sha256(p, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

enum neb_status build_chunk_create(struct build *b) {
    json_object_seed(0); // before several threads ask for it
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
    neb_buf_clear(&c->text);
}

void build_chunk_destroy(struct build *b) {
    clear(&b->chunk);
    free(b->chunk.docs);
    neb_buf_free(&b->chunk.text);
    b->chunk.docs = NULL;
}

// A NUL in the text is a blank by now: vocabularies have no piece for it, and text that comes back would end there.
static void parse(const struct build *b, struct doc *d) {
    json_t *o = intra_json_line(d->text, d->len, NULL),
           *v = json_object_get(o, b->spec->sources[b->source].field);
    if (json_is_string(v)) {
        d->parsed = json_incref(v);
        d->text = (char *)(uintptr_t)json_string_value(v); // ours alone
        d->len = json_string_length(v);
    } else {
        d->st = NEB_ERR_FORMAT;
        d->len = 0;
    }
    json_decref(o);
}

static void prepare(void *arg, size_t i) {
    const struct build *b = arg;
    struct doc *d = &b->chunk.docs[i];
    d->text = (char *)b->chunk.text.p + d->at;
    d->len = d->given;
    d->target = d->target_at ? (char *)b->chunk.text.p + d->target_at : NULL;
    if (b->spec->sources[b->source].format == INTRA_JSONL)
        parse(b, d);
    size_t all = d->len;
    while (d->len && (d->text[d->len - 1] == '\n' || d->text[d->len - 1] == ' '))
        d->len--;
    if (!d->len)
        return;
    if (!d->named)
        d->name_hash = build_hash(d->text, all);
    d->text[d->len] = 0;
    d->text_hash = d->named || d->len < all ? build_hash(d->text, d->len) : d->name_hash;
    d->target_hash = d->target ? build_hash(d->target, strlen(d->target)) : 0;
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

enum neb_status build_add(struct build *b, const struct build_text *t) {
    struct chunk *c = &b->chunk;
    struct doc d = {.at = c->text.len, .line = t->line, .named = t->name != NULL};
    if (t->name)
        d.name_hash = build_hash(t->name, strlen(t->name));
    if (t->tag)
        neb_buf_add(&c->text, t->tag, strlen(t->tag));
    neb_buf_add(&c->text, t->text, t->len);
    d.given = c->text.len - d.at;
    neb_buf_u8(&c->text, 0);
    if (t->target) {
        d.target_at = c->text.len;
        neb_buf_add(&c->text, t->target, strlen(t->target) + 1);
    }
    NEB_TRY(neb_buf_check(&c->text));
    c->docs[c->n++] = d;
    return c->n == BUILD_CHUNK_DOCS || c->text.len >= c->bytes_max ? build_flush(b) : NEB_OK;
}
