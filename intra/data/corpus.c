// SPDX-License-Identifier: Apache-2.0
// Reads a corpus, and draws windows from it.
#include "agent/base/fs.h"
#include "agent/base/moved.h"
#include "agent/base/plain.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data/data.h"
#include "intra/data/stream.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"

#include <endian.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SHARD_HEADER_BYTES = 64 };
static const char shard_magic[8] = "NEBSHRD";

struct shard {
    struct neb_map map;
    const uint8_t *tokens; // little-endian
    uint64_t n, first;     // first: tokens of the split before this shard
    uint8_t sha256[INTRA_SHA_BYTES];
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
    int32_t vocab, width, n; // width: bytes per token
    uint8_t digest[INTRA_SHA_BYTES];
    size_t n_shards; // of all sources
    int32_t shuffle; // above 0: the training shards stream
    struct stream_feed *feed;
    struct corpus_fault { // behind a pointer, since reading does not change the corpus
        enum neb_status st;
    } * fault;
    struct source sources[INTRA_SOURCES_MAX];
};

static const char rebuild[] = "rebuild the corpus with nebula data build";

// Only a hint to the kernel, so errors are ignored.
static void advise(const uint8_t *p, size_t len, int how) {
    (void)!madvise((void *)(uintptr_t)p, len, how);
}

// Logs progress, because a large corpus takes hours to read.
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

static enum neb_status map_shard(const struct intra_corpus *c, struct shard *s, const char *path,
                                 uint64_t tokens, const char *sha_hex, bool verify) {
    char magic[8];
    uint8_t got[INTRA_SHA_BYTES];
    if (!neb_fs_exists(path))
        return neb_fail(NEB_ERR_NOT_FOUND, "%s does not exist, but corpus.json lists it; %s", path,
                        rebuild);
    NEB_TRY(neb_map_open(path, &s->map));
    // Access is random. Without this, the kernel reads up to megabytes more around each window and
    // header.
    advise(s->map.p, s->map.len, MADV_RANDOM);
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
        return neb_fail(NEB_ERR_CORRUPT,
                        "%s has %zu bytes instead of %" PRIu64 "; it may be cut short; %s", path,
                        s->map.len, SHARD_HEADER_BYTES + n * width, rebuild);
    if (!neb_unhex(sha_hex, s->sha256, sizeof s->sha256))
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: %s has no valid digest", c->dir, path);
    if (verify) {
        advise(s->map.p, s->map.len, MADV_SEQUENTIAL);
        NEB_TRY(digest(path, s->map.p + SHARD_HEADER_BYTES, s->map.len - SHARD_HEADER_BYTES, got));
        if (memcmp(got, s->sha256, sizeof got))
            return neb_fail(NEB_ERR_CORRUPT, "%s: digest does not match corpus.json; %s", path,
                            rebuild);
        advise(s->map.p, s->map.len, MADV_RANDOM);
    }
    s->tokens = s->map.p + SHARD_HEADER_BYTES;
    s->n = n;
    return NEB_OK;
}

static enum neb_status open_shard(struct intra_corpus *c, struct shard *s, const char *file,
                                  uint64_t tokens, const char *sha_hex, bool verify) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, c->dir, file));
    return map_shard(c, s, path, tokens, sha_hex, verify);
}

// The shard is made when it is needed.
static enum neb_status announce_shard(const struct intra_corpus *c, struct shard *s,
                                      const char *file, uint64_t tokens, const char *sha_hex) {
    struct stream_shard as = {.file = file, .tokens = tokens};
    if (!neb_unhex(sha_hex, s->sha256, sizeof s->sha256))
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: %s has no valid digest", c->dir, file);
    memcpy(as.sha256, s->sha256, sizeof as.sha256);
    s->n = tokens;
    return stream_feed_add(c->feed, c->n - 1, &as);
}

static enum neb_status open_split(struct intra_corpus *c, struct split *p, const json_t *list,
                                  bool verify) {
    bool streams = c->shuffle && p == &c->sources[c->n - 1].splits[INTRA_TRAIN];
    size_t i;
    json_t *item;
    if (!json_is_array(list))
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: a split is not a list of shards", c->dir);
    c->n_shards += json_array_size(list);
    if (c->n_shards > INTRA_SHARDS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s/corpus.json: more than %d shards", c->dir,
                        INTRA_SHARDS_MAX);
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
        NEB_TRY(streams ? announce_shard(c, &p->shards[i], file, (uint64_t)tokens, sha)
                        : open_shard(c, &p->shards[i], file, (uint64_t)tokens, sha, verify));
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
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: vocab %d is not valid", c->dir, c->vocab);
    c->width = c->vocab <= 65536 ? 2 : 4;
    json_int_t shuffle = json_integer_value(json_object_get(root, "shuffle"));
    if (shuffle < 0 || shuffle > INTRA_SHARDS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "%s/corpus.json: shuffle is not valid", c->dir);
    c->shuffle = (int32_t)shuffle;
    if (shuffle)
        NEB_TRY(stream_feed_create(c->dir, c->width, &c->feed));
    if (!(c->fault = calloc(1, sizeof *c->fault)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", c->dir);
    json_array_foreach(sources, i, item) {
        struct source *s = &c->sources[c->n++];
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || strlen(name) >= sizeof s->name)
            return neb_fail(
                NEB_ERR_FORMAT,
                "%s/corpus.json: source %zu has no name, or a name of more than %d bytes", c->dir,
                i, INTRA_SOURCE_NAME_MAX);
        if (!*name || !neb_is_plain(name))
            return neb_fail(
                NEB_ERR_FORMAT,
                "%s/corpus.json: the name of source %zu is empty or holds a control character",
                c->dir, i);
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

enum neb_status intra_corpus_tokenizer_digest(const struct intra_corpus *c,
                                              uint8_t out[INTRA_SHA_BYTES]) {
    char path[NEB_PATH_MAX];
    NEB_TRY(intra_tokenizer_in(c->dir, path, sizeof path));
    return intra_tokenizer_digest(path, out);
}

enum neb_status intra_corpus_check_tokenizer(const struct intra_corpus *c) {
    char path[NEB_PATH_MAX];
    struct intra_tokenizer *t = NULL;
    NEB_TRY(intra_tokenizer_in(c->dir, path, sizeof path));
    if (!neb_fs_exists(path))
        return neb_fail(
            NEB_ERR_NOT_FOUND,
            "%s is missing: without it the model's output cannot be turned into text; %s", path,
            rebuild);
    NEB_TRY(intra_tokenizer_open(path, &t));
    int32_t pieces = intra_tokenizer_vocab(t);
    intra_tokenizer_close(&t);
    return pieces == c->vocab
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "%s has %d pieces, but corpus.json says %d; %s", path,
                          pieces, c->vocab, rebuild);
}

void intra_corpus_close(struct intra_corpus **cp) {
    struct intra_corpus *c = *cp;
    if (!c)
        return;
    stream_feed_destroy(&c->feed);
    free(c->fault);
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

bool intra_corpus_streams(const struct intra_corpus *c) { return c->shuffle > 0; }
enum neb_status intra_corpus_failed(const struct intra_corpus *c) { return c->fault->st; }
int32_t intra_corpus_vocab(const struct intra_corpus *c) { return c->vocab; }
const char *intra_corpus_dir(const struct intra_corpus *c) { return c->dir; }
void intra_corpus_digest(const struct intra_corpus *c, uint8_t out[INTRA_SHA_BYTES]) {
    memcpy(out, c->digest, INTRA_SHA_BYTES);
}
enum neb_status intra_corpus_text_digest(const struct intra_corpus *c, const int32_t *sources,
                                         int32_t n, uint8_t out[INTRA_SHA_BYTES]) {
    struct neb_sha256 *sha = NULL;
    NEB_TRY(neb_sha256_create(&sha));
    for (int32_t i = 0; i < n; i++) {
        const struct source *s = &c->sources[sources[i]];
        const struct split *train = &s->splits[INTRA_TRAIN];
        neb_sha256_add(sha, s->name, strlen(s->name) + 1);
        for (size_t k = 0; k < train->n_shards; k++)
            neb_sha256_add(sha, train->shards[k].sha256, INTRA_SHA_BYTES);
    }
    neb_sha256_finish(sha, out);
    neb_sha256_destroy(&sha);
    return NEB_OK;
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

// The shard of token `at`: the last one that begins at or before it.
static size_t shard_of(const struct split *p, uint64_t at) {
    size_t low = 0, high = p->n_shards;
    NEB_ASSERT(at < p->tokens);
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p->shards[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// An id outside the vocabulary (from a damaged shard that was not verified) becomes 0, so that no
// index is out of range. Two loops with memcpy, because compilers vectorize these.
static void widen(const uint8_t *from, int32_t width, uint32_t vocab, size_t n, int32_t *out) {
    if (width == 2) {
        for (size_t i = 0; i < n; i++) {
            uint16_t v;
            memcpy(&v, from + 2 * i, sizeof v);
            v = le16toh(v);
            out[i] = v < vocab ? v : 0;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, from + 4 * i, sizeof v);
        v = le32toh(v);
        out[i] = v < vocab ? (int32_t)v : 0;
    }
}

// Makes a shard that streams, if need be. False: it cannot be made.
static bool fetch(const struct intra_corpus *c, int32_t source, size_t k, struct shard *s) {
    char path[NEB_PATH_MAX], hex[65];
    if (c->fault->st != NEB_OK)
        return false;
    neb_hex(s->sha256, sizeof s->sha256, hex);
    for (int tries = 0;; tries++) {
        c->fault->st = stream_feed_get(c->feed, source, k, path, sizeof path);
        if (c->fault->st != NEB_OK)
            return false;
        c->fault->st = map_shard(c, s, path, s->n, hex, false);
        if (c->fault->st == NEB_OK || tries)
            return c->fault->st == NEB_OK;
        neb_map_close(&s->map); // another process has removed it, or it is damaged
        (void)unlink(path);
    }
}

// Unmaps the training shards of a source but for `keep` (n).
static void forget(const struct intra_corpus *c, int32_t source, const size_t *keep, size_t n) {
    const struct split *p = &c->sources[source].splits[INTRA_TRAIN];
    for (size_t k = 0; k < p->n_shards; k++) {
        bool kept = !p->shards[k].tokens;
        for (size_t i = 0; i < n && !kept; i++)
            kept = keep[i] == k;
        if (kept)
            continue;
        neb_map_close(&p->shards[k].map);
        p->shards[k].tokens = NULL;
    }
}

void intra_corpus_copy(const struct intra_corpus *c, int32_t source, enum intra_split split,
                       uint64_t at, size_t n, int32_t *ids) {
    const struct split *p = &c->sources[source].splits[split];
    NEB_ASSERT(n <= p->tokens && at <= p->tokens - n);
    for (size_t k = n ? shard_of(p, at) : 0; n; k++) {
        const struct shard *s = &p->shards[k];
        uint64_t skip = at - s->first, left = s->n - skip;
        size_t run = left < n ? (size_t)left : n;
        if (!s->tokens && !fetch(c, source, k, &p->shards[k]))
            memset(ids, 0, run * sizeof *ids);
        else
            widen(s->tokens + skip * (uint64_t)c->width, c->width, (uint32_t)c->vocab, run, ids);
        ids += run, at += run, n -= run;
    }
}

void intra_corpus_prefetch(const struct intra_corpus *c, int32_t source, enum intra_split split,
                           uint64_t at, uint64_t n) {
    const struct split *p = &c->sources[source].splits[split];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    NEB_ASSERT(n <= p->tokens && at <= p->tokens - n);
    for (size_t k = n ? shard_of(p, at) : 0; n; k++) {
        const struct shard *s = &p->shards[k];
        uint64_t skip = at - s->first, left = s->n - skip, run = left < n ? left : n;
        const uint8_t *from = s->tokens ? s->tokens + skip * (uint64_t)c->width : NULL;
        size_t before = (uintptr_t)from % page;
        if (run && from)
            advise(from - before, before + (size_t)run * (size_t)c->width, MADV_WILLNEED);
        at += run, n -= run;
    }
}

static uint64_t shard_windows(const struct shard *s, int32_t seq_len) {
    return s->n ? (s->n - 1) / (uint64_t)seq_len : 0;
}

uint64_t intra_corpus_windows(const struct intra_corpus *c, int32_t source, enum intra_split split,
                              int32_t seq_len) {
    const struct split *p = &c->sources[source].splits[split];
    uint64_t n = p->tokens, windows = 0;
    if (c->shuffle && split == INTRA_TRAIN) { // no window crosses the end of a shard
        for (size_t k = 0; k < p->n_shards; k++)
            windows += shard_windows(&p->shards[k], seq_len);
        return windows;
    }
    return n > 0 ? (n - 1) / (uint64_t)seq_len : 0;
}

static void copy_window(const struct intra_corpus *c, int32_t source, enum intra_split split,
                        int32_t seq_len, uint64_t at, int32_t *tokens, int32_t *targets) {
    size_t n = (size_t)seq_len;
    intra_corpus_copy(c, source, split, at, n, tokens);
    memcpy(targets, tokens + 1, (n - 1) * sizeof *targets);
    intra_corpus_copy(c, source, split, at + n, 1, targets + n - 1);
}

void intra_corpus_window(const struct intra_corpus *c, int32_t source, enum intra_split split,
                         int32_t seq_len, uint64_t k, int32_t *tokens, int32_t *targets) {
    copy_window(c, source, split, seq_len, k * (uint64_t)seq_len, tokens, targets);
}

// ---- sampler ------------------------------------------------------------------------------------

struct stream { // one source
    int32_t source;
    double weight;
    struct intra_share share;
    uint64_t windows, own; // windows of the source; own: this cluster's windows per epoch
    uint64_t begin;        // first position of each epoch, among the own windows
    uint64_t taken;
    struct order *order; // of a corpus that streams; owned, but shared by copies of a sampler
};

// The order of the shards in an epoch.
struct order {
    uint64_t epoch, group; // that were entered; group: shards [group x shuffle, …)
    bool entered;
    uint64_t of;       // epoch of the arrays below; UINT64_MAX: none
    size_t *shards;    // (n_shards)
    uint64_t *windows; // (n_shards + 1) windows before each of them
};

struct intra_sampler {
    const struct intra_corpus *corpus; // borrowed
    struct intra_sampler_config c;
    int32_t n;
    struct stream streams[INTRA_SOURCES_MAX];
    double total_weight;
    uint64_t draws;
    // the smallest hash that selects stream i or a later one
    uint64_t begins[INTRA_SOURCES_MAX];
    bool peeks; // a copy that looks ahead
};

enum { WORD_BITS = 53 }; // bits of the hash that selects a source

// A permutation of [0, n) without a table: a four-round Feistel network over an even number of
// bits, repeated until the value is below n. That takes a few rounds, because the domain is below
// 4n.
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

// The hash that selects the source of draw k is word_of(base_of(s) + k). It has WORD_BITS bits.
static uint64_t base_of(const struct intra_sampler *s) {
    return neb_mix64(s->c.seed * 0x9e3779b97f4a7c15ull + (uint64_t)s->c.cluster + 1);
}
static uint64_t word_of(uint64_t at) { return neb_mix64(at) >> (64 - WORD_BITS); }

// The stream that a hash selects, by weight.
static int32_t stream_of(const struct intra_sampler *s, uint64_t word) {
    double u = (double)word * 0x1p-53 * s->total_weight;
    int32_t pick = 0;
    while (pick + 1 < s->n && u >= s->streams[pick].weight)
        u -= s->streams[pick++].weight;
    return pick;
}

// stream_of is monotone in the hash, because each of its roundings is. So the first hash of each
// stream is found once, and a skipped draw needs one hash and integer comparisons only.
static void find_begins(struct intra_sampler *s) {
    // unused streams, from n on, begin at the upper end
    for (int32_t i = 1; i < INTRA_SOURCES_MAX; i++) {
        uint64_t low = s->begins[i - 1], high = 1ull << WORD_BITS;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (stream_of(s, middle) >= i)
                high = middle;
            else
                low = middle + 1;
        }
        s->begins[i] = low;
    }
}

// ---- the order of a corpus that streams ---------------------------------------------------------

static struct order *order_create(const struct intra_corpus *c, int32_t source) {
    size_t n = c->sources[source].splits[INTRA_TRAIN].n_shards;
    struct order *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->of = UINT64_MAX;
    o->shards = calloc(n + 1, sizeof *o->shards);
    o->windows = calloc(n + 1, sizeof *o->windows);
    if (o->shards && o->windows)
        return o;
    free(o->shards);
    free(o->windows);
    free(o);
    return NULL;
}

static uint64_t order_key(const struct intra_sampler *s, int32_t source, uint64_t epoch) {
    return neb_mix64(s->c.seed ^ neb_mix64((uint64_t)source + 1) ^ neb_mix64(epoch << 20 | 0x5eed));
}

static void order_fill(const struct intra_sampler *s, const struct stream *t, uint64_t epoch) {
    const struct split *p = &s->corpus->sources[t->source].splits[INTRA_TRAIN];
    struct order *o = t->order;
    if (o->of == epoch)
        return;
    o->of = epoch;
    for (size_t j = 0; j < p->n_shards; j++) {
        o->shards[j] = (size_t)permute(j, p->n_shards, order_key(s, t->source, epoch));
        o->windows[j + 1] = o->windows[j] + shard_windows(&p->shards[o->shards[j]], s->c.seq_len);
    }
}

// The last of the n ascending numbers that is at most x.
static size_t last_at_most(const uint64_t *p, size_t n, uint64_t x) {
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The shards of this group are needed now, those of the next one are made meanwhile.
static void enter(const struct intra_sampler *s, const struct stream *t, uint64_t epoch,
                  uint64_t group) {
    size_t n = s->corpus->sources[t->source].splits[INTRA_TRAIN].n_shards,
           size = (size_t)s->corpus->shuffle, at = (size_t)group * size,
           end = at + 2 * size < n ? at + 2 * size : n;
    struct order *o = t->order;
    if (s->peeks || (o->entered && o->epoch == epoch && o->group == group))
        return;
    o->entered = true;
    o->epoch = epoch;
    o->group = group;
    stream_feed_want(s->corpus->feed, s, t->source, o->shards + at, end - at);
    forget(s->corpus, t->source, o->shards + at, end - at);
}

// The token at which the window at this position of the epoch begins.
static uint64_t place(const struct intra_sampler *s, const struct stream *t, uint64_t epoch,
                      uint64_t position) {
    const struct split *p = &s->corpus->sources[t->source].splits[INTRA_TRAIN];
    struct order *o = t->order;
    size_t size = (size_t)s->corpus->shuffle;
    order_fill(s, t, epoch);
    uint64_t group = last_at_most(o->windows, p->n_shards, position) / size;
    size_t from = (size_t)group * size, to = from + size < p->n_shards ? from + size : p->n_shards;
    uint64_t before = o->windows[from], n = o->windows[to] - before;
    enter(s, t, epoch, group);
    uint64_t q = before + permute(position - before, n,
                                  order_key(s, t->source, epoch) ^ neb_mix64(group + 1));
    size_t j = from + last_at_most(o->windows + from, to - from, q);
    return p->shards[o->shards[j]].first + (q - o->windows[j]) * (uint64_t)s->c.seq_len;
}

enum neb_status intra_sampler_create(const struct intra_corpus *c,
                                     const struct intra_sampler_config *cfg,
                                     struct intra_sampler **out) {
    NEB_ASSERT(cfg->n_sources <= INTRA_SOURCES_MAX);
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
        t->share = cfg->shares[i].n ? cfg->shares[i] : (struct intra_share){.n = 1};
        NEB_ASSERT(t->share.index >= 0 && t->share.index < t->share.n);
        t->own = (t->windows + (uint64_t)(t->share.n - 1 - t->share.index)) / (uint64_t)t->share.n;
        t->begin = t->share.parts ? t->own * (uint64_t)t->share.part / (uint64_t)t->share.parts : 0;
        t->weight = cfg->n_sources ? (double)cfg->weights[i] : (double)t->windows;
        if (t->own == 0 || (c->shuffle && !(t->order = order_create(c, t->source)))) {
            enum neb_status st = neb_fail(
                NEB_ERR_INVALID, "source %s of %s has too few tokens for windows of %d tokens",
                c->sources[t->source].name, c->dir, cfg->seq_len);
            intra_sampler_destroy(&s);
            return st;
        }
        s->total_weight += t->weight;
    }
    find_begins(s);
    *out = s;
    return NEB_OK;
}

void intra_sampler_destroy(struct intra_sampler **p) {
    struct intra_sampler *s = *p;
    *p = NULL;
    for (int32_t i = 0; s && i < s->n; i++) {
        struct order *o = s->streams[i].order;
        if (!o)
            continue;
        stream_feed_want(s->corpus->feed, s, s->streams[i].source, NULL, 0);
        free(o->shards);
        free(o->windows);
        free(o);
    }
    free(s);
}

// The next draw: returns the token at which its window begins, and its source.
static uint64_t take(struct intra_sampler *s, int32_t *source) {
    struct stream *t = &s->streams[stream_of(s, word_of(base_of(s) + s->draws++))];
    uint64_t epoch = t->taken / t->own, k = (t->taken + t->begin) % t->own,
             position = k * (uint64_t)t->share.n + (uint64_t)t->share.index;
    t->taken++;
    // The permutation is the same on all clusters: it depends on seed, source and epoch only.
    uint64_t key =
        neb_mix64(s->c.seed ^ neb_mix64((uint64_t)t->source + 1) ^ neb_mix64(epoch << 20 | 0xfeed));
    *source = t->source;
    return t->order ? place(s, t, epoch, position)
                    : permute(position, t->windows, key) * (uint64_t)s->c.seq_len;
}

void intra_sampler_next(struct intra_sampler *s, int32_t *tokens, int32_t *targets) {
    int32_t source;
    uint64_t at = take(s, &source);
    copy_window(s->corpus, source, INTRA_TRAIN, s->c.seq_len, at, tokens, targets);
}

void intra_sampler_prefetch(const struct intra_sampler *s, int32_t n) {
    struct intra_sampler later = *s;
    later.peeks = true;
    int32_t source;
    for (int32_t i = 0; i < n; i++) {
        uint64_t at = take(&later, &source);
        intra_corpus_prefetch(s->corpus, source, INTRA_TRAIN, at, (uint64_t)s->c.seq_len + 1);
    }
}

void intra_sampler_skip(struct intra_sampler *s, uint64_t n) {
    if (s->n == 1) {
        s->streams[0].taken += n;
        s->draws += n;
        return;
    }
    int32_t top = 1;
    while (2 * top < s->n)
        top *= 2;
    uint64_t base = base_of(s) + s->draws;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t word = word_of(base + k);
        int32_t pick = 0;
        // branchless, because the outcome is not predictable
        for (int32_t step = top; step; step >>= 1)
            pick += step & -(int32_t)(word >= s->begins[pick + step]);
        s->streams[pick].taken++;
    }
    s->draws += n;
}
_Static_assert((INTRA_SOURCES_MAX & (INTRA_SOURCES_MAX - 1)) == 0, "a bisection stays within");

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
