// SPDX-License-Identifier: Apache-2.0
// Makes one training shard again: reads the source from the file on in which the shard begins, and
// encodes the documents of the shard.
#include "intra/data/build_state.h"

#include <stdlib.h>
#include <string.h>

static void no_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

// NEB_ERR_AGAIN (not logged): the shard is complete, and reading can end.
static enum neb_status take_chunk(struct build *b) {
    const struct build_piece *p = b->piece;
    struct shard_out *o = &b->out[INTRA_TRAIN];
    for (size_t i = 0; i < b->chunk.n; i++) {
        struct doc *d = &b->chunk.docs[i];
        if (!d->len)
            continue;
        d->number = b->at.doc++;
        uint64_t at = p->first + d->number;
        bool mine = d->number >= p->from.doc && d->number < p->until &&
                    (p->verdicts[at / 4] >> at % 4 * 2 & 3) == INTRA_TRAIN;
        d->verdict = mine ? INTRA_TRAIN : BUILD_DUPLICATE;
    }
    build_encode_docs(b);
    for (size_t i = 0; i < b->chunk.n; i++) {
        const struct doc *d = &b->chunk.docs[i];
        NEB_TRY(d->st);
        if (d->tokens) {
            neb_buf_add(&o->tokens, d->tokens, d->n * (size_t)b->width);
            o->n += d->n;
        }
    }
    NEB_TRY(neb_buf_check(&o->tokens));
    return b->at.doc >= p->until || o->n > p->tokens ? NEB_ERR_AGAIN : NEB_OK;
}

static enum neb_status make(struct build *b, const char *path) {
    const struct build_piece *p = b->piece;
    const struct shard_out *o = &b->out[INTRA_TRAIN];
    uint8_t sha[INTRA_SHA_BYTES];
    enum neb_status st = build_read_source(b, 0);
    if (st != NEB_OK && st != NEB_ERR_AGAIN)
        return st;
    neb_sha256(o->tokens.p, o->tokens.len, sha);
    if (o->n != p->tokens || memcmp(sha, p->sha256, sizeof sha) != 0)
        return neb_fail(NEB_ERR_STATE,
                        "source %s: %s has changed since the corpus was built: document %llu and "
                        "the ones after it give other tokens; build the corpus again",
                        b->spec->sources[0].name, b->spec->sources[0].path,
                        (unsigned long long)p->from.doc);
    return build_write_shard(path, o, b->width, sha);
}

enum neb_status build_stream_shard(const struct intra_source_spec *s, struct intra_tokenizer *t,
                                   const struct build_piece *piece, int32_t threads,
                                   const char *path) {
    struct intra_build_spec *spec = calloc(1, sizeof *spec);
    struct build *b = calloc(1, sizeof *b);
    enum neb_status st = spec && b ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a shard");
    if (st == NEB_OK) {
        spec->n_sources = 1;
        spec->sources[0] = *s;
        b->spec = spec;
        b->again = true;
        b->tokenizer = t;
        b->given_vocab = intra_tokenizer_vocab(t);
        b->given_eos = intra_tokenizer_eos(t);
        b->width = b->given_vocab <= 65536 ? 2 : 4;
        b->progress = no_progress;
        b->take_chunk = take_chunk;
        b->piece = piece;
        b->skip_files = piece->from.file_no ? piece->from.file_no - 1 : 0; // they count from 1
        b->at.doc = piece->from.file_doc;
        st = kern_pool_create(threads, &b->pool);
    }
    if (st == NEB_OK)
        st = build_chunk_create(b);
    if (st == NEB_OK)
        st = make(b, path);
    if (b && b->pool) {
        build_chunk_destroy(b);
        build_input_free(b);
        neb_buf_free(&b->out[INTRA_TRAIN].tokens);
        kern_pool_destroy(&b->pool);
    }
    free(b);
    free(spec);
    return st;
}

// ---- stream.json --------------------------------------------------------------------------------

// A source as stream.json has it, without its shards. NULL: a path is not UTF-8, or out of memory.
static json_t *describe(const struct intra_source_spec *s) {
    return json_pack("{s:s,s:i,s:s,s:s,s:s,s:i,s:s,s:f}", "name", s->name, "format", (int)s->format,
                     "path", s->path, "field", s->field, "member", s->member, "column", s->column,
                     "encoding", s->encoding, "max_bad_share", s->max_bad_share);
}

bool build_stream_same(const struct build *b, const char *dir) {
    char path[NEB_PATH_MAX];
    if (neb_path(path, sizeof path, dir, "stream.json") != NEB_OK)
        return false;
    json_t *root = json_load_file(path, 0, NULL), *list = json_object_get(root, "sources");
    bool same = json_array_size(list) == (size_t)b->spec->n_sources;
    for (int32_t i = 0; same && i < b->spec->n_sources; i++) {
        json_t *was = json_array_get(list, (size_t)i), *is = describe(&b->spec->sources[i]), *value;
        const char *key;
        same = is != NULL;
        json_object_foreach(is, key, value) same =
            same && json_equal(json_object_get(was, key), value);
        json_decref(is);
    }
    json_decref(root);
    return same;
}

enum neb_status build_stream_write(const struct build *b) {
    char path[NEB_PATH_MAX];
    json_t *sources = json_array();
    bool whole = true;
    for (int32_t i = 0; i < b->spec->n_sources; i++) {
        uint64_t first = i ? b->notes.docs_end[i - 1] : 0;
        json_t *o = describe(&b->spec->sources[i]);
        json_object_set_new(o, "first", json_integer((json_int_t)first));
        json_object_set_new(o, "docs", json_integer((json_int_t)(b->notes.docs_end[i] - first)));
        json_object_set(o, "shards", json_array_get(b->places, (size_t)i));
        whole &= !json_array_append_new(sources, o);
    }
    json_t *root = json_pack("{s:i,s:o}", "version", 1, "sources", sources);
    char *text = whole ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    enum neb_status st = text ? neb_path(path, sizeof path, b->dir, "stream.json")
                              : neb_fail(NEB_ERR_NOMEM, "out of memory writing stream.json: a path "
                                                        "of a source may not be UTF-8");
    if (st == NEB_OK)
        st = neb_fs_write(path, text, strlen(text), 0644);
    free(text);
    if (st == NEB_OK)
        st = neb_path(path, sizeof path, b->dir, "verdicts.bin");
    return st == NEB_OK ? neb_fs_write(path, b->notes.verdicts, (b->notes.n_docs + 3) / 4, 0644)
                        : st;
}
