// SPDX-License-Identifier: Apache-2.0
// Finds the pairs of a corpus, plans the batches of an epoch, and draws them.
#include "intra/data/pairs.h"
#include "agent/base/array.h"
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "kernels/kern.h"

#include <stdlib.h>
#include <string.h>

enum { INDEX_TOKENS = 4096, AHEAD_TOKENS = 1 << 20 }; // tokens indexed at a time; tokens read ahead

struct pair {
    uint64_t at; // position of its first token in the split
    int32_t n, prefix, source;
};

struct planned { // one batch of an epoch
    uint32_t first, n;
    uint64_t key;
};

struct item {
    uint64_t key;
    uint32_t pair;
    int32_t bucket;
};

struct intra_pairs {
    const struct intra_corpus *corpus; // borrowed
    enum intra_split split;
    struct intra_pairs_config c;
    int32_t bos, eos;
    struct pair *pairs;
    size_t n, cap;
    uint64_t skipped;
    struct item *order;      // (n) of the planned epoch
    struct planned *batches; // (n_batches) of the planned epoch
    uint64_t n_batches, epoch;
    bool planned;
};

static const int32_t buckets[] = {16,  24,  32,  48,  64,  96,   128,
                                  192, 256, 384, 512, 768, 1024, INT32_MAX};

static int32_t bucket_of(const struct pair *p) {
    int32_t i = 0;
    while (p->n - 1 > buckets[i])
        i++;
    return i;
}

static enum neb_status special_ids(struct intra_pairs *p) {
    char path[NEB_PATH_MAX];
    struct intra_tokenizer *t = NULL;
    NEB_TRY(intra_tokenizer_in(intra_corpus_dir(p->corpus), path, sizeof path));
    NEB_TRY(intra_tokenizer_open(path, &t));
    p->bos = intra_tokenizer_bos(t);
    p->eos = intra_tokenizer_eos(t);
    intra_tokenizer_close(&t);
    return p->bos >= 0 && p->eos >= 0 && p->bos != p->eos
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID, "%s has no BOS, no EOS, or the same token for both",
                          path);
}

static enum neb_status add(struct intra_pairs *p, const struct pair *x) {
    if (x->n - 1 > p->c.seq_len) {
        p->skipped++;
        return NEB_OK;
    }
    struct pair *more = neb_array_more(p->pairs, p->n, &p->cap, 4096, sizeof *more);
    if (!more)
        return neb_fail(NEB_ERR_NOMEM, "out of memory after %zu pairs", p->n);
    p->pairs = more;
    p->pairs[p->n++] = *x;
    return NEB_OK;
}

static enum neb_status index_source(struct intra_pairs *p, int32_t source) {
    uint64_t total = intra_corpus_tokens(p->corpus, source, p->split);
    struct pair x = {.source = source};
    int32_t ids[INDEX_TOKENS];
    uint64_t documents = 0;
    for (uint64_t i = 0; i < total; i++) {
        if (p->c.documents && documents >= p->c.documents && p->n)
            return NEB_OK;
        if (i % AHEAD_TOKENS == 0)
            intra_corpus_prefetch(p->corpus, source, p->split, i,
                                  total - i < 2 * AHEAD_TOKENS ? total - i : 2 * AHEAD_TOKENS);
        if (i % INDEX_TOKENS == 0)
            intra_corpus_copy(p->corpus, source, p->split, i,
                              total - i < INDEX_TOKENS ? (size_t)(total - i) : INDEX_TOKENS, ids);
        int32_t id = ids[i % INDEX_TOKENS];
        if (x.n++ == 0)
            x.at = i;
        if (id == p->bos && !x.prefix)
            x.prefix = x.n;
        if (x.n == INT32_MAX - 1)
            return neb_fail(NEB_ERR_FORMAT, "%s: a document has no end",
                            intra_corpus_dir(p->corpus));
        if (id != p->eos)
            continue;
        documents++;
        if (!x.prefix && p->c.may_be_empty) {
            x = (struct pair){.source = source};
            continue;
        }
        if (!x.prefix)
            return neb_fail(NEB_ERR_INVALID,
                            "source %s of %s is not parallel text: token %llu ends a document "
                            "without a separator",
                            intra_corpus_source_name(p->corpus, source),
                            intra_corpus_dir(p->corpus), (unsigned long long)i);
        NEB_TRY(add(p, &x));
        x = (struct pair){.source = source};
    }
    return NEB_OK;
}

static enum neb_status index_all(struct intra_pairs *p) {
    int32_t n = p->c.n_sources ? p->c.n_sources : intra_corpus_sources(p->corpus);
    for (int32_t i = 0; i < n; i++)
        NEB_TRY(index_source(p, p->c.n_sources ? p->c.sources[i] : i));
    return (p->n || p->c.may_be_empty) && p->n < UINT32_MAX
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID,
                          "%s holds no pairs of at most %d tokens in this split (%llu are longer)",
                          intra_corpus_dir(p->corpus), p->c.seq_len,
                          (unsigned long long)p->skipped);
}

enum neb_status intra_pairs_create(const struct intra_corpus *corpus, enum intra_split split,
                                   const struct intra_pairs_config *c, struct intra_pairs **out) {
    enum neb_status st = NEB_OK;
    NEB_ASSERT(c->tokens >= c->seq_len);
    struct intra_pairs *p = calloc(1, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening pairs");
    p->corpus = corpus;
    p->split = split;
    p->c = *c;
    NEB_TRY_GOTO(special_ids(p), out);
    NEB_TRY_GOTO(index_all(p), out);
    // plus one, because calloc of 0 bytes may give NULL
    p->order = calloc(p->n + 1, sizeof *p->order);
    p->batches = calloc(p->n + 1, sizeof *p->batches);
    if (!p->order || !p->batches)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for %zu pairs", p->n);
out:
    if (st != NEB_OK)
        intra_pairs_destroy(&p);
    *out = p;
    return st;
}

void intra_pairs_destroy(struct intra_pairs **pp) {
    struct intra_pairs *p = *pp;
    if (!p)
        return;
    free(p->pairs);
    free(p->order);
    free(p->batches);
    free(p);
    *pp = NULL;
}

static int by_bucket(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->bucket != y->bucket)
        return x->bucket < y->bucket ? -1 : 1;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->pair < y->pair ? -1 : 1;
}
static int by_key(const void *a, const void *b) {
    const struct planned *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->first < y->first ? -1 : 1;
}

static uint32_t fits(const struct intra_pairs *p, int32_t bucket) {
    int32_t T = buckets[bucket] < p->c.seq_len ? buckets[bucket] : p->c.seq_len;
    return (uint32_t)(p->c.tokens / (T > INTRA_PAIRS_SEQ_MIN ? T : INTRA_PAIRS_SEQ_MIN));
}

// Shuffles the pairs within a length and the batches within the epoch. The number of batches is the
// same in every epoch.
static void plan(struct intra_pairs *p, uint64_t epoch) {
    uint64_t base = neb_mix64(p->c.seed * 0x9e3779b97f4a7c15ull + epoch);
    for (uint32_t i = 0; i < p->n; i++)
        p->order[i] = (struct item){neb_mix64(base + i), i, bucket_of(&p->pairs[i])};
    qsort(p->order, p->n, sizeof *p->order, by_bucket);
    p->n_batches = 0;
    for (uint32_t i = 0; i < p->n;) {
        uint32_t n = 1, most = fits(p, p->order[i].bucket);
        while (n < most && i + n < p->n && p->order[i + n].bucket == p->order[i].bucket)
            n++;
        p->batches[p->n_batches++] = (struct planned){i, n, neb_mix64(base ^ (i + 0x5bd1e995ull))};
        i += n;
    }
    qsort(p->batches, p->n_batches, sizeof *p->batches, by_key);
    p->epoch = epoch;
    p->planned = true;
}

uint64_t intra_pairs_count(const struct intra_pairs *p) { return p->n; }
uint64_t intra_pairs_skipped(const struct intra_pairs *p) { return p->skipped; }
int32_t intra_pairs_eos(const struct intra_pairs *p) { return p->eos; }
uint64_t intra_pairs_batches(const struct intra_pairs *p) {
    if (!p->planned)
        plan((struct intra_pairs *)(uintptr_t)p, 0);
    return p->n_batches;
}

int32_t intra_pairs_get(const struct intra_pairs *p, uint64_t i, int32_t *ids, int32_t *prefix,
                        int32_t *source) {
    const struct pair *x = &p->pairs[i];
    intra_corpus_copy(p->corpus, x->source, p->split, x->at, (size_t)x->n, ids);
    *prefix = x->prefix;
    if (source)
        *source = x->source;
    return x->n;
}

enum neb_status intra_pairs_draw(struct intra_pairs *p, uint64_t k, struct intra_pair_batch *out) {
    uint64_t per = intra_pairs_batches(p);
    NEB_ASSERT(per);
    if (p->epoch != k / per)
        plan(p, k / per);
    const struct planned *b = &p->batches[k % per];
    out->B = (int32_t)b->n;
    out->T = 0;
    out->n_targets = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        int32_t n = p->pairs[p->order[b->first + i].pair].n - 1;
        out->T = n > out->T ? n : out->T;
    }
    int32_t *ids = malloc(sizeof *ids * (size_t)(p->c.seq_len + 1));
    if (!ids)
        return neb_fail(NEB_ERR_NOMEM, "out of memory drawing pairs");
    for (uint32_t i = 0; i < b->n; i++) {
        int32_t *x = out->tokens + (size_t)i * (size_t)out->T,
                *y = out->targets + (size_t)i * (size_t)out->T;
        int32_t n = intra_pairs_get(p, p->order[b->first + i].pair, ids, &out->prefix[i], NULL);
        for (int32_t t = 0; t < out->T; t++) {
            bool wanted = t >= out->prefix[i] - 1 && t < n - 1;
            x[t] = t < n - 1 ? ids[t] : p->eos;
            y[t] = wanted ? ids[t + 1] : KERN_IGNORE;
            out->n_targets += wanted;
        }
    }
    free(ids);
    return NEB_OK;
}

enum neb_status intra_pair_batch_create(const struct intra_pairs_config *c,
                                        struct intra_pair_batch *out) {
    *out = (struct intra_pair_batch){0};
    out->tokens = calloc((size_t)c->tokens, sizeof *out->tokens);
    out->targets = calloc((size_t)c->tokens, sizeof *out->targets);
    out->prefix = calloc((size_t)c->tokens / INTRA_PAIRS_SEQ_MIN + 1, sizeof *out->prefix);
    if (out->tokens && out->targets && out->prefix)
        return NEB_OK;
    intra_pair_batch_free(out);
    return neb_fail(NEB_ERR_NOMEM, "out of memory for a batch of %d tokens", c->tokens);
}

void intra_pair_batch_free(struct intra_pair_batch *b) {
    free(b->tokens);
    free(b->targets);
    free(b->prefix);
    *b = (struct intra_pair_batch){0};
}
