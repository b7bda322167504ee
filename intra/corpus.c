// Reading a corpus, and drawing windows from it.
#include "agent/base/fs.h"
#include "agent/base/moved.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data.h"
#include "intra/tokenizer.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { SHARD_HEADER_BYTES = 64, SHARDS_MAX = 4096 };
static const char shard_magic[8] = "NEBSHRD";

struct shard {
    struct neb_map map;
    const uint8_t *tokens; // little-endian
    uint64_t n, first;     // first: tokens of the split before this shard
};

struct split {
    struct shard *shards;
    size_t n_shards;
    uint64_t tokens;
};

struct source {
    char name[INTRA_SOURCE_NAME_MAX + 1];
    struct split splits[INTRA_SPLITS];
};

struct intra_corpus {
    char dir[NEB_PATH_MAX];
    int32_t vocab, width, n; // width: bytes of a token
    uint8_t digest[INTRA_SHA_BYTES];
    struct source sources[INTRA_SOURCES_MAX];
};

static const char rebuild[] = "rebuild the corpus with nebula data build";

// Says how far it is: a large corpus takes hours to read.
static enum neb_status digest(const char *path, const uint8_t *p, size_t n,
                              uint8_t out[INTRA_SHA_BYTES]) {
    struct neb_moving m = {.what = "verifying", .path = path, .total = n};
    struct neb_sha256 *sha = NULL;
    NEB_TRY(neb_sha256_create(&sha));
    while (n) {
        size_t piece = n < NEB_MOVED_PIECE ? n : NEB_MOVED_PIECE;
        neb_sha256_add(sha, p, piece);
        neb_moving_add(&m, piece);
        p += piece;
        n -= piece;
    }
    neb_sha256_finish(sha, out);
    neb_sha256_destroy(&sha);
    return NEB_OK;
}

static enum neb_status open_shard(struct intra_corpus *c, struct shard *s, const char *file,
                                  uint64_t tokens, const char *sha_hex, bool verify) {
    char path[NEB_PATH_MAX], magic[8];
    uint8_t sha[INTRA_SHA_BYTES], got[INTRA_SHA_BYTES];
    NEB_TRY(neb_path(path, sizeof path, c->dir, file));
    if (!neb_fs_exists(path))
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s: corpus.json lists it, but there is no such file; %s", path, rebuild);
    NEB_TRY(neb_map_open(path, &s->map));
    struct neb_rd r = neb_rd_make(s->map.p, s->map.len);
    neb_rd_copy(&r, magic, sizeof magic);
    uint32_t version = neb_rd_u32(&r), width = neb_rd_u32(&r);
    uint64_t n = neb_rd_u64(&r);
    if (r.bad || memcmp(magic, shard_magic, sizeof magic) || version != 1 ||
        width != (uint32_t)c->width || n != tokens)
        return neb_fail(NEB_ERR_FORMAT,
                        "%s: not the shard of %" PRIu64 " tokens that corpus.json lists; %s", path,
                        tokens, rebuild);
    if (n > (UINT64_MAX >> 4) || s->map.len != SHARD_HEADER_BYTES + n * width)
        return neb_fail(NEB_ERR_CORRUPT, "%s: %zu bytes where %" PRIu64 " belong: cut short? %s",
                        path, s->map.len, SHARD_HEADER_BYTES + n * width, rebuild);
    if (!neb_unhex(sha_hex, sha, sizeof sha))
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: %s has no valid digest", c->dir, file);
    if (verify) {
        NEB_TRY(digest(path, s->map.p + SHARD_HEADER_BYTES, s->map.len - SHARD_HEADER_BYTES, got));
        if (memcmp(got, sha, sizeof sha))
            return neb_fail(NEB_ERR_CORRUPT, "%s: digest does not match corpus.json; %s", path,
                            rebuild);
    }
    s->tokens = s->map.p + SHARD_HEADER_BYTES;
    s->n = n;
    return NEB_OK;
}

static enum neb_status open_split(struct intra_corpus *c, struct split *p, const json_t *list,
                                  bool verify) {
    size_t i;
    json_t *item;
    if (!json_is_array(list) || json_array_size(list) > SHARDS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: a split is not a list of shards", c->dir);
    if (!(p->shards = calloc(json_array_size(list) + 1, sizeof *p->shards)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", c->dir);
    json_array_foreach(list, i, item) {
        const char *file = json_string_value(json_object_get(item, "file")),
                   *sha = json_string_value(json_object_get(item, "sha256"));
        json_int_t tokens = json_integer_value(json_object_get(item, "tokens"));
        if (!file || !sha || tokens < 0 || strstr(file, ".."))
            return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: malformed shard entry", c->dir);
        p->n_shards++;
        p->shards[i].first = p->tokens;
        NEB_TRY(open_shard(c, &p->shards[i], file, (uint64_t)tokens, sha, verify));
        p->tokens += (uint64_t)tokens;
    }
    return NEB_OK;
}

static enum neb_status open_corpus(struct intra_corpus *c, const json_t *root, bool verify) {
    json_t *sources = json_object_get(root, "sources"), *item;
    size_t i;
    if (json_integer_value(json_object_get(root, "version")) != 1 || !json_is_array(sources) ||
        json_array_size(sources) > INTRA_SOURCES_MAX)
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: not a corpus of version 1", c->dir);
    c->vocab = (int32_t)json_integer_value(json_object_get(root, "vocab"));
    if (c->vocab < 2 || c->vocab > 1 << 24)
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: vocab %d", c->dir, c->vocab);
    c->width = c->vocab <= 65536 ? 2 : 4;
    json_array_foreach(sources, i, item) {
        struct source *s = &c->sources[c->n++];
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || strlen(name) >= sizeof s->name)
            return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: a source without a name", c->dir);
        memcpy(s->name, name, strlen(name) + 1);
        NEB_TRY(open_split(c, &s->splits[INTRA_TRAIN], json_object_get(item, "train"), verify));
        NEB_TRY(open_split(c, &s->splits[INTRA_VALID], json_object_get(item, "valid"), verify));
        if (json_object_get(item, "test"))
            NEB_TRY(open_split(c, &s->splits[INTRA_TEST], json_object_get(item, "test"), verify));
    }
    return NEB_OK;
}

enum neb_status intra_corpus_open(const char *dir, bool verify, struct intra_corpus **out) {
    enum neb_status st = NEB_OK;
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    json_t *root = NULL;
    struct intra_corpus *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", dir);
    snprintf(c->dir, sizeof c->dir, "%s", dir);
    NEB_TRY_GOTO(neb_path(path, sizeof path, dir, "corpus.json"), out);
    if (!neb_fs_exists(path)) {
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "no corpus in %s (corpus.json is missing); make one with nebula data build "
                      "SPEC.yaml --out %s",
                      dir, dir);
        goto out;
    }
    NEB_TRY_GOTO(neb_fs_read(path, 16 << 20, &text), out);
    neb_sha256(text.p, text.len, c->digest);
    root = json_loadb((const char *)text.p, text.len, JSON_REJECT_DUPLICATES, NULL);
    st = json_is_object(root) ? open_corpus(c, root, verify)
                              : neb_fail(NEB_ERR_FORMAT, "%s is not valid JSON; %s", path, rebuild);
out:
    json_decref(root);
    neb_buf_free(&text);
    if (st != NEB_OK)
        intra_corpus_close(&c);
    *out = c;
    return st;
}

enum neb_status intra_corpus_check_tokenizer(const struct intra_corpus *c) {
    char path[NEB_PATH_MAX];
    struct intra_tokenizer *t = NULL;
    NEB_TRY(neb_path(path, sizeof path, c->dir, "tokenizer.model"));
    if (!neb_fs_exists(path))
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s is missing: nobody could read what the model says; %s", path, rebuild);
    NEB_TRY(intra_tokenizer_open(path, &t));
    int32_t pieces = intra_tokenizer_vocab(t);
    intra_tokenizer_close(&t);
    return pieces == c->vocab
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "%s has %d pieces, where corpus.json says %d; %s", path,
                          pieces, c->vocab, rebuild);
}

void intra_corpus_close(struct intra_corpus **cp) {
    struct intra_corpus *c = *cp;
    if (!c)
        return;
    for (int32_t i = 0; i < c->n; i++)
        for (int k = 0; k < INTRA_SPLITS; k++) {
            struct split *p = &c->sources[i].splits[k];
            for (size_t j = 0; j < p->n_shards; j++)
                neb_map_close(&p->shards[j].map);
            free(p->shards);
        }
    free(c);
    *cp = NULL;
}

int32_t intra_corpus_vocab(const struct intra_corpus *c) { return c->vocab; }
const char *intra_corpus_dir(const struct intra_corpus *c) { return c->dir; }
void intra_corpus_digest(const struct intra_corpus *c, uint8_t out[INTRA_SHA_BYTES]) {
    memcpy(out, c->digest, INTRA_SHA_BYTES);
}
int32_t intra_corpus_sources(const struct intra_corpus *c) { return c->n; }
const char *intra_corpus_source_name(const struct intra_corpus *c, int32_t i) {
    return c->sources[i].name;
}
uint64_t intra_corpus_tokens(const struct intra_corpus *c, int32_t i, enum intra_split s) {
    return c->sources[i].splits[s].tokens;
}

int32_t intra_corpus_find(const struct intra_corpus *c, const char *name) {
    for (int32_t i = 0; i < c->n; i++)
        if (!strcmp(c->sources[i].name, name))
            return i;
    return -1;
}

// One token; ids outside the vocabulary (a damaged shard that was not verified) become 0 rather than an index out of range.
static int32_t token_at(const struct intra_corpus *c, const struct split *p, uint64_t at) {
    size_t k = 0;
    while (k + 1 < p->n_shards && at >= p->shards[k + 1].first)
        k++;
    const uint8_t *b = p->shards[k].tokens + (at - p->shards[k].first) * (uint64_t)c->width;
    uint32_t v = c->width == 2 ? (uint32_t)b[0] | (uint32_t)b[1] << 8
                               : (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                                     (uint32_t)b[3] << 24;
    return v < (uint32_t)c->vocab ? (int32_t)v : 0;
}

int32_t intra_corpus_token(const struct intra_corpus *c, int32_t source, enum intra_split split,
                           uint64_t at) {
    return token_at(c, &c->sources[source].splits[split], at);
}

uint64_t intra_corpus_windows(const struct intra_corpus *c, int32_t source, enum intra_split split,
                              int32_t seq_len) {
    uint64_t n = c->sources[source].splits[split].tokens;
    return n > 0 ? (n - 1) / (uint64_t)seq_len : 0;
}

void intra_corpus_window(const struct intra_corpus *c, int32_t source, enum intra_split split,
                         int32_t seq_len, uint64_t k, int32_t *tokens, int32_t *targets) {
    const struct split *p = &c->sources[source].splits[split];
    uint64_t at = k * (uint64_t)seq_len;
    int32_t next = token_at(c, p, at);
    for (int32_t i = 0; i < seq_len; i++) {
        tokens[i] = next;
        next = token_at(c, p, at + (uint64_t)i + 1);
        targets[i] = next;
    }
}

// ---- sampler --------------------------------------------------------------------------------------------------

struct stream { // one source
    int32_t source;
    double weight;
    uint64_t windows, own; // of the source; of this cluster an epoch
    uint64_t taken;
};

struct intra_sampler {
    const struct intra_corpus *corpus; // borrowed
    struct intra_sampler_config c;
    int32_t n;
    struct stream streams[INTRA_SOURCES_MAX];
    double total_weight;
    uint64_t draws;
};

// A permutation of [0, n) without a table: a four-round Feistel network over the next even number of bits, walked until
// the value falls inside (at most a few steps, since the domain is below 4n).
static uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
    int half = 1;
    while (half < 32 && 1ull << (2 * half) < n)
        half++;
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t l = i >> half, r = i & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t t = l ^ (neb_mix64(r + key + round * 0x9e3779b97f4a7c15ull) & mask);
            l = r;
            r = t;
        }
        i = l << half | r;
    } while (i >= n);
    return i;
}

enum neb_status intra_sampler_create(const struct intra_corpus *c,
                                     const struct intra_sampler_config *cfg,
                                     struct intra_sampler **out) {
    NEB_ASSERT(cfg->n >= 1 && cfg->index >= 0 && cfg->index < cfg->n &&
               cfg->n_sources <= INTRA_SOURCES_MAX);
    struct intra_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a sampler");
    s->corpus = c;
    s->c = *cfg;
    s->n = cfg->n_sources ? cfg->n_sources : c->n;
    for (int32_t i = 0; i < s->n; i++) {
        struct stream *t = &s->streams[i];
        t->source = cfg->n_sources ? cfg->sources[i] : i;
        t->windows = intra_corpus_windows(c, t->source, INTRA_TRAIN, cfg->seq_len);
        t->own = (t->windows + (uint64_t)cfg->n - 1 - (uint64_t)cfg->index) / (uint64_t)cfg->n;
        t->weight = cfg->n_sources ? (double)cfg->weights[i] : (double)t->windows;
        if (t->own == 0) {
            enum neb_status st =
                neb_fail(NEB_ERR_INVALID, "source %s of %s has too few tokens for windows of %d",
                         c->sources[t->source].name, c->dir, cfg->seq_len);
            free(s);
            return st;
        }
        s->total_weight += t->weight;
    }
    *out = s;
    return NEB_OK;
}

void intra_sampler_destroy(struct intra_sampler **s) {
    free(*s);
    *s = NULL;
}

void intra_sampler_next(struct intra_sampler *s, int32_t *tokens, int32_t *targets) {
    uint64_t word = neb_mix64(
        neb_mix64(s->c.seed * 0x9e3779b97f4a7c15ull + (uint64_t)s->c.index + 1) + s->draws++);
    double u = (double)(word >> 11) * 0x1p-53 * s->total_weight;
    int32_t pick = 0;
    while (pick + 1 < s->n && u >= s->streams[pick].weight)
        u -= s->streams[pick++].weight;
    struct stream *t = &s->streams[pick];
    uint64_t epoch = t->taken / t->own,
             position = t->taken % t->own * (uint64_t)s->c.n + (uint64_t)s->c.index;
    t->taken++;
    // The permutation is the same on all clusters: it depends on seed, source and epoch only.
    uint64_t key =
        neb_mix64(s->c.seed ^ neb_mix64((uint64_t)t->source + 1) ^ neb_mix64(epoch << 20 | 0xfeed));
    intra_corpus_window(s->corpus, t->source, INTRA_TRAIN, s->c.seq_len,
                        permute(position, t->windows, key), tokens, targets);
}

void intra_sampler_save(const struct intra_sampler *s, uint64_t cursor[INTRA_CURSOR_WORDS]) {
    memset(cursor, 0, sizeof *cursor * INTRA_CURSOR_WORDS);
    cursor[0] = s->draws;
    for (int32_t i = 0; i < s->n; i++)
        cursor[1 + i] = s->streams[i].taken;
}

void intra_sampler_restore(struct intra_sampler *s, const uint64_t cursor[INTRA_CURSOR_WORDS]) {
    s->draws = cursor[0];
    for (int32_t i = 0; i < s->n; i++)
        s->streams[i].taken = cursor[1 + i];
}
