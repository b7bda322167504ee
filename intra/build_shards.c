// Documents, encoded with all threads and written into shards: DIR/SOURCE/{train,valid,test}-00000.bin.
#include "agent/base/log.h"
#include "intra/build_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    BATCH_DOCS = 512,
    SHARD_TOKENS = 64 << 20,
    SHARD_HEADER_BYTES = 64,
};
static const char shard_magic[8] = "NEBSHRD";

static const char *const split_names[INTRA_SPLITS] = {"train", "valid", "test"};

struct shard_out { // one split of one source
    struct neb_buf tokens;
    uint64_t n, text_bytes;
    int32_t shards;
    json_t *list;
};

static enum neb_status flush_shard(struct build *b, const char *source, const char *split,
                                   struct shard_out *o, int width) {
    char file[160], path[NEB_PATH_MAX], hex[65];
    uint8_t sha[INTRA_SHA_BYTES];
    struct neb_buf whole = {0};
    if (!o->n)
        return NEB_OK;
    snprintf(file, sizeof file, "%s/%s-%05d.bin", source, split, o->shards++);
    NEB_TRY(neb_path(path, sizeof path, b->dir, file));
    neb_sha256(o->tokens.p, o->tokens.len, sha);
    neb_hex(sha, sizeof sha, hex);
    neb_buf_add(&whole, shard_magic, sizeof shard_magic);
    neb_buf_u32(&whole, 1);
    neb_buf_u32(&whole, (uint32_t)width);
    neb_buf_u64(&whole, o->n);
    neb_buf_add(&whole, sha, sizeof sha);
    neb_buf_u64(&whole, 0);
    NEB_ASSERT(whole.oom || whole.len == SHARD_HEADER_BYTES);
    neb_buf_add(&whole, o->tokens.p, o->tokens.len);
    enum neb_status st = neb_buf_check(&whole);
    if (st == NEB_OK)
        st = neb_fs_write(path, whole.p, whole.len, 0644);
    neb_buf_free(&whole);
    json_array_append_new(o->list,
                          json_pack("{s:s,s:I,s:I,s:s}", "file", file, "tokens", (json_int_t)o->n,
                                    "text_bytes", (json_int_t)o->text_bytes, "sha256", hex));
    neb_buf_clear(&o->tokens);
    o->n = o->text_bytes = 0;
    return st;
}

struct encode_job {
    struct build *b;
    struct doc *docs;
    enum neb_status *st;
};

// A pair's target goes behind its source and a BOS.
static enum neb_status encode_target(const struct intra_tokenizer *t, struct doc *d) {
    int32_t *ids = NULL, bos = intra_tokenizer_bos(t);
    size_t n = 0;
    if (bos < 0)
        return neb_fail(NEB_ERR_INVALID, "parallel text needs a vocabulary with a BOS piece");
    NEB_TRY(intra_tokenizer_encode(t, d->target, strlen(d->target), &ids, &n));
    int32_t *all = realloc(d->ids, (d->n + n + 1) * sizeof *all);
    if (all) {
        d->ids = all;
        all[d->n] = bos;
        memcpy(all + d->n + 1, ids, n * sizeof *ids);
        d->n += n + 1;
    }
    free(ids);
    return all ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory tokenizing");
}

static void encode_doc(void *arg, size_t i) {
    struct encode_job *j = arg;
    struct doc *d = &j->docs[i];
    j->st[i] = intra_tokenizer_encode(j->b->tokenizer, d->text, d->len, &d->ids, &d->n);
    if (j->st[i] == NEB_OK && d->target)
        j->st[i] = encode_target(j->b->tokenizer, d);
}

static int split_of(const struct intra_build_spec *s, uint64_t hash) {
    int32_t at = (int32_t)(hash % 1000);
    return at < s->holdout_per_mille                       ? INTRA_VALID
           : at < s->holdout_per_mille + s->test_per_mille ? INTRA_TEST
                                                           : INTRA_TRAIN;
}

// Appends a document to the shard of its split, which it may fill, and frees it.
static enum neb_status put_doc(struct build *b, struct doc *d, const char *name,
                               struct shard_out *out, int width) {
    int held = split_of(b->spec, d->name_hash);
    struct shard_out *o = &out[held];
    int32_t eos = intra_tokenizer_eos(b->tokenizer);
    for (size_t k = 0; k <= d->n; k++) {
        uint32_t id = (uint32_t)(k < d->n ? d->ids[k] : eos);
        if (width == 2)
            neb_buf_u16(&o->tokens, (uint16_t)id);
        else
            neb_buf_u32(&o->tokens, id);
    }
    o->n += d->n + 1;
    o->text_bytes += d->len;
    NEB_TRY(neb_buf_check(&o->tokens));
    return o->n >= SHARD_TOKENS ? flush_shard(b, name, split_names[held], o, width) : NEB_OK;
}

static void clear_doc(struct doc *d) {
    free(d->ids);
    free(d->text);
    free(d->target);
    d->ids = NULL;
    d->text = d->target = NULL;
}

// The documents of one source, which begin at *at.
static enum neb_status encode_source(struct build *b, struct kern_pool *pool, int32_t source,
                                     size_t *at, struct shard_out *out, int width) {
    enum neb_status st = NEB_OK, batch[BATCH_DOCS];
    const char *name = b->spec->sources[source].name;
    while (st == NEB_OK && *at < b->docs.n && b->docs.p[*at].source == source) {
        size_t n = 0;
        while (n < BATCH_DOCS && *at + n < b->docs.n && b->docs.p[*at + n].source == source)
            n++;
        struct encode_job job = {b, b->docs.p + *at, batch};
        kern_pool_run(pool, n, encode_doc, &job);
        for (size_t i = 0; i < n && st == NEB_OK; i++) {
            struct doc *d = &b->docs.p[*at + i];
            st = batch[i] == NEB_OK ? put_doc(b, d, name, out, width) : batch[i];
            clear_doc(d);
        }
        *at += n;
        b->progress(b->user, "encoding", *at, b->docs.n);
    }
    for (int k = 0; k < INTRA_SPLITS; k++) {
        if (st == NEB_OK)
            st = flush_shard(b, name, split_names[k], &out[k], width);
        neb_buf_free(&out[k].tokens);
    }
    return st;
}

enum neb_status build_encode_all(struct build *b, struct kern_pool *pool, json_t *sources,
                                 int width) {
    size_t at = 0; // documents are ordered by source
    for (int32_t s = 0; s < b->spec->n_sources; s++) {
        const char *name = b->spec->sources[s].name;
        char dir[NEB_PATH_MAX];
        NEB_TRY(neb_path(dir, sizeof dir, b->dir, name));
        NEB_TRY(neb_fs_mkdirs(dir, 0755));
        struct shard_out out[INTRA_SPLITS] = {
            {.list = json_array()}, {.list = json_array()}, {.list = json_array()}};
        enum neb_status st = encode_source(b, pool, s, &at, out, width);
        json_t *o = json_pack("{s:s,s:o,s:o}", "name", name, "train", out[INTRA_TRAIN].list,
                              "valid", out[INTRA_VALID].list);
        if (b->spec->test_per_mille) // left out otherwise: corpora stay what they were
            json_object_set(o, "test", out[INTRA_TEST].list);
        json_decref(out[INTRA_TEST].list);
        json_array_append_new(sources, o);
        NEB_TRY(st);
    }
    return NEB_OK;
}
