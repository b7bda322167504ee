// SPDX-License-Identifier: Apache-2.0
// Writes documents as tokens, in shards: DIR/SOURCE/{train,valid,test}-00000.bin.
#include "agent/base/log.h"
#include "intra/data/build_state.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHARD_TOKENS = 64 << 20,
    STREAM_TOKENS = 4 << 20,
    SHARD_HEADER_BYTES = 64,
};
static const char shard_magic[8] = "NEBSHRD";

static const char *const split_names[INTRA_SPLITS] = {"train", "valid", "test"};

static uint64_t shard_tokens(const struct build *b) {
    return b->spec->shard_tokens ? (uint64_t)b->spec->shard_tokens
           : b->spec->shuffle    ? STREAM_TOKENS
                                 : SHARD_TOKENS;
}

enum neb_status build_write_shard(const char *path, const struct shard_out *o, int32_t width,
                                  const uint8_t *sha) {
    struct neb_buf head = {0};
    struct neb_fs_writer *w = NULL;
    neb_buf_add(&head, shard_magic, sizeof shard_magic);
    neb_buf_u32(&head, 1);
    neb_buf_u32(&head, (uint32_t)width);
    neb_buf_u64(&head, o->n);
    neb_buf_add(&head, sha, INTRA_SHA_BYTES);
    neb_buf_u64(&head, 0);
    NEB_ASSERT(head.oom || head.len == SHARD_HEADER_BYTES);
    enum neb_status st = neb_buf_check(&head);
    if (st == NEB_OK)
        st = neb_fs_writer_open(path, 0644, &w);
    if (st == NEB_OK)
        st = neb_fs_writer_add(w, head.p, head.len);
    if (st == NEB_OK)
        st = neb_fs_writer_add(w, o->tokens.p, o->tokens.len);
    if (st == NEB_OK)
        st = neb_fs_writer_commit(w);
    neb_fs_writer_destroy(&w);
    neb_buf_free(&head);
    return st;
}

static enum neb_status too_many(const struct build *b, uint64_t about) {
    return neb_fail(NEB_ERR_LIMIT,
                    "corpus %s would have about %llu shards of %llu tokens, but at most %d are "
                    "allowed; split it into several corpora",
                    b->spec->name, (unsigned long long)about, (unsigned long long)shard_tokens(b),
                    INTRA_SHARDS_MAX);
}

// Estimates the number of shards from the first one on, so that a build fails early and not after
// days.
static enum neb_status check_limit(const struct build *b) {
    double left = (double)(b->notes.text_bytes[b->source] - b->text_made);
    for (int32_t s = b->source + 1; s < b->spec->n_sources; s++)
        left += (double)b->notes.text_bytes[s];
    double tokens = left * (double)b->tokens_made / (double)(b->text_made ? b->text_made : 1),
           about = (double)b->shards + tokens / (double)shard_tokens(b);
    // with a margin: the tokens of later text may be longer
    bool certain = about > 1.25 * INTRA_SHARDS_MAX;
    return certain || b->shards > INTRA_SHARDS_MAX ? too_many(b, (uint64_t)about) : NEB_OK;
}

static enum neb_status flush_shard(struct build *b, int split) {
    struct shard_out *o = &b->out[split];
    char file[160], path[NEB_PATH_MAX], hex[65];
    uint8_t sha[INTRA_SHA_BYTES];
    if (!o->n)
        return NEB_OK;
    b->shards++;
    NEB_TRY(check_limit(b));
    snprintf(file, sizeof file, "%s/%s-%05d.bin", b->spec->sources[b->source].name,
             split_names[split], o->shards++);
    NEB_TRY(neb_path(path, sizeof path, b->dir, file));
    neb_sha256(o->tokens.p, o->tokens.len, sha);
    neb_hex(sha, sizeof sha, hex);
    if (split != INTRA_TRAIN || !b->spec->shuffle)
        NEB_TRY(build_write_shard(path, o, b->width, sha));
    else
        json_array_append_new(
            o->places, json_pack("[I,I,I,I,I]", (json_int_t)o->begins.doc,
                                 (json_int_t)o->begins.file_no, (json_int_t)o->begins.file_doc,
                                 (json_int_t)o->begins.line, (json_int_t)o->begins.offset));
    json_array_append_new(o->list,
                          json_pack("{s:s,s:I,s:I,s:s}", "file", file, "tokens", (json_int_t)o->n,
                                    "text_bytes", (json_int_t)o->text_bytes, "sha256", hex));
    neb_buf_clear(&o->tokens);
    o->n = o->text_bytes = 0;
    return NEB_OK;
}

// Appends BOS and the target to the ids of a pair's source.
static enum neb_status encode_target(const struct intra_tokenizer *t, const struct doc *d,
                                     int32_t **ids, size_t *n) {
    int32_t *more = NULL, bos = intra_tokenizer_bos(t);
    size_t n_more = 0;
    if (bos < 0 || bos == intra_tokenizer_eos(t))
        return neb_fail(
            NEB_ERR_INVALID,
            "parallel text needs a vocabulary with a BOS piece that differs from its EOS piece");
    NEB_TRY(intra_tokenizer_encode(t, d->target, strlen(d->target), &more, &n_more));
    int32_t *all = realloc(*ids, (*n + n_more + 2) * sizeof *all); // room for an EOS
    if (all) {
        *ids = all;
        all[*n] = bos;
        memcpy(all + *n + 1, more, n_more * sizeof *more);
        *n += n_more + 1;
    }
    free(more);
    return all ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory tokenizing");
}

// Packs n ids in place into little-endian words of `width` bytes, at most 4.
static void pack(int32_t *ids, size_t n, int32_t width) {
    uint8_t *to = (uint8_t *)ids;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        uint16_t narrow = htole16((uint16_t)id);
        uint32_t wide = htole32(id);
        if (width == 2)
            memcpy(to + 2 * i, &narrow, sizeof narrow);
        else
            memcpy(to + 4 * i, &wide, sizeof wide);
    }
}

// Ids of the source, taken as they are.
static enum neb_status copy_ids(const struct doc *d, int32_t **ids, size_t *n) {
    *n = d->len / 4;
    *ids = malloc(d->len + 4); // room for an EOS
    for (size_t i = 0; *ids && i < *n; i++) {
        uint32_t id;
        memcpy(&id, d->text + 4 * i, sizeof id);
        (*ids)[i] = (int32_t)id;
    }
    return *ids ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory copying tokens");
}

static void encode(void *arg, size_t i) {
    struct build *b = arg;
    struct doc *d = &b->chunk.docs[i];
    int32_t *ids = NULL;
    size_t n = 0;
    if (!d->len || d->verdict == BUILD_DUPLICATE)
        return;
    d->st = build_is_ids(b) ? copy_ids(d, &ids, &n)
                            : intra_tokenizer_encode(b->tokenizer, d->text, d->len, &ids, &n);
    if (d->st == NEB_OK && d->target)
        d->st = encode_target(b->tokenizer, d, &ids, &n);
    if (d->st != NEB_OK) {
        free(ids);
        return;
    }
    if (!d->open)
        ids[n++] = intra_tokenizer_eos(b->tokenizer);
    pack(ids, n, b->width);
    d->tokens = (uint8_t *)ids;
    d->n = n;
}

void build_encode_docs(struct build *b) { kern_pool_run(b->pool, b->chunk.n, encode, b); }

// Appends a document to the shard of its split, and writes the shard when it is full.
static enum neb_status put_doc(struct build *b, const struct doc *d) {
    struct shard_out *o = &b->out[d->verdict];
    if (!o->n)
        o->begins = b->at;
    neb_buf_add(&o->tokens, d->tokens, d->n * (size_t)b->width);
    o->n += d->n;
    o->text_bytes += build_is_ids(b) ? 0 : d->len;
    b->tokens_made += d->n;
    b->text_made += d->len;
    NEB_TRY(neb_buf_check(&o->tokens));
    return o->n >= shard_tokens(b) ? flush_shard(b, d->verdict) : NEB_OK;
}

static enum neb_status encode_chunk(struct build *b) {
    NEB_TRY(build_recall_chunk(b));
    build_encode_docs(b);
    for (size_t i = 0; i < b->chunk.n; i++) {
        struct doc *d = &b->chunk.docs[i];
        NEB_TRY(d->st);
        if (d->len && (d->file_no != b->at.file_no || !d->number))
            b->at = (struct build_place){.file_no = d->file_no, .file_doc = d->number};
        if (d->len) {
            b->at.doc = d->number;
            b->at.line = d->line;
            b->at.offset = d->offset;
        }
        if (d->tokens)
            NEB_TRY(put_doc(b, d));
    }
    return NEB_OK;
}

static enum neb_status encode_source(struct build *b, int32_t source) {
    char dir[NEB_PATH_MAX];
    NEB_TRY(neb_path(dir, sizeof dir, b->dir, b->spec->sources[source].name));
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    b->tokens_made = b->text_made = 0;
    NEB_TRY(build_read_source(b, source));
    NEB_TRY(build_recall_source_end(b));
    for (int k = 0; k < INTRA_SPLITS; k++)
        NEB_TRY(flush_shard(b, k));
    return NEB_OK;
}

enum neb_status build_encode_all(struct build *b, json_t *sources) {
    b->take_chunk = encode_chunk;
    b->again = true;
    b->total = b->done;
    b->done = 0;
    for (int32_t s = 0; s < b->spec->n_sources; s++) {
        for (int k = 0; k < INTRA_SPLITS; k++)
            b->out[k] = (struct shard_out){.list = json_array()};
        b->out[INTRA_TRAIN].places = b->spec->shuffle ? json_array() : NULL;
        enum neb_status st = encode_source(b, s);
        json_t *o = json_pack("{s:s,s:o,s:o}", "name", b->spec->sources[s].name, "train",
                              b->out[INTRA_TRAIN].list, "valid", b->out[INTRA_VALID].list);
        if (b->spec->test_per_mille) // else absent, so that the digests of older corpora stay
            json_object_set(o, "test", b->out[INTRA_TEST].list);
        json_decref(b->out[INTRA_TEST].list);
        json_array_append_new(sources, o);
        if (b->places)
            json_array_append_new(b->places, b->out[INTRA_TRAIN].places);
        for (int k = 0; k < INTRA_SPLITS; k++)
            neb_buf_free(&b->out[k].tokens);
        NEB_TRY(st);
    }
    return NEB_OK;
}
