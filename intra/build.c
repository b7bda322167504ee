// Building a corpus: documents -> vocabulary -> shards. Everything is written into DIR.nebula-building, which takes
// the place of DIR at the end.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/build_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 4000 }; // of the vocabulary's sample

// Exact duplicates within a source are dropped: the first stays.
static int by_hash(const void *a, const void *b) {
    uint64_t x = ((const uint64_t *)a)[0], y = ((const uint64_t *)b)[0],
             i = ((const uint64_t *)a)[1], j = ((const uint64_t *)b)[1];
    return x != y ? (x < y ? -1 : 1) : i < j ? -1 : i > j;
}

static enum neb_status drop_duplicates(struct build *b) {
    uint64_t(*h)[2] = malloc((b->docs.n + 1) * sizeof *h);
    if (!h)
        return neb_fail(NEB_ERR_NOMEM, "out of memory comparing %zu documents", b->docs.n);
    for (size_t i = 0; i < b->docs.n; i++) {
        h[i][0] = build_hash(b->docs.p[i].text, b->docs.p[i].len) +
                  neb_mix64((uint64_t)b->docs.p[i].source);
        h[i][1] = i;
    }
    qsort(h, b->docs.n, sizeof *h, by_hash);
    for (size_t i = 1; i < b->docs.n; i++)
        if (h[i][0] == h[i - 1][0]) {
            struct doc *d = &b->docs.p[h[i][1]];
            free(d->text);
            free(d->target);
            d->text = d->target = NULL;
        }
    free(h);
    size_t n = 0;
    for (size_t i = 0; i < b->docs.n; i++)
        if (b->docs.p[i].text)
            b->docs.p[n++] = b->docs.p[i];
    b->docs.n = n;
    return NEB_OK;
}

static void sample_lines(struct neb_rng *rng, double keep, const char *text, FILE *f) {
    for (const char *p = text; p;) {
        const char *end = strchr(p, '\n');
        size_t len = end ? (size_t)(end - p) : strlen(p);
        if (len > 0 && len < LINE_BYTES_MAX && neb_rng_unit(rng) < keep) {
            fwrite(p, 1, len, f);
            fputc('\n', f);
        }
        p = end ? end + 1 : NULL;
    }
}

// A seeded sample of lines from all documents, equally often from each source.
static enum neb_status write_sample(struct build *b, const char *path) {
    struct neb_rng rng = neb_rng_make(b->spec->seed, 17);
    FILE *f = fopen(path, "w");
    if (!f)
        return neb_fail_errno("cannot write %s", path);
    size_t lines[INTRA_SOURCES_MAX] = {0};
    for (size_t i = 0; i < b->docs.n; i++) {
        const struct doc *d = &b->docs.p[i];
        for (const char *p = d->text; p; p = (p = strchr(p, '\n')) ? p + 1 : NULL)
            lines[d->source]++;
        lines[d->source] += d->target != NULL;
    }
    for (size_t i = 0; i < b->docs.n; i++) {
        const struct doc *d = &b->docs.p[i];
        double keep = (double)b->spec->train_lines / b->spec->n_sources / (double)lines[d->source];
        sample_lines(&rng, keep, d->text, f);
        sample_lines(&rng, keep, d->target, f);
    }
    return fclose(f) == 0 ? NEB_OK : neb_fail_errno("cannot write %s", path);
}

static enum neb_status make_tokenizer(struct build *b) {
    char model[NEB_PATH_MAX], prefix[NEB_PATH_MAX], sample[NEB_PATH_MAX];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    struct neb_buf copy = {0};
    const struct intra_build_spec *s = b->spec;
    NEB_TRY(neb_path(model, sizeof model, b->dir, "tokenizer.model"));
    if (s->tokenizer[0]) {
        NEB_TRY(neb_fs_read(s->tokenizer, 64 << 20, &copy));
        enum neb_status st = neb_fs_write(model, copy.p, copy.len, 0644);
        neb_buf_free(&copy);
        NEB_TRY(st);
        return intra_tokenizer_open(model, &b->tokenizer);
    }
    b->progress(b->user, "training the vocabulary", 0, 1);
    NEB_TRY(neb_path(prefix, sizeof prefix, b->dir, "tokenizer"));
    NEB_TRY(neb_path(sample, sizeof sample, b->dir, "sample.txt"));
    NEB_TRY(write_sample(b, sample));
    char symbols[INTRA_SOURCES_MAX * 17 + 1] = "";
    for (int32_t i = 0; i < s->n_sources; i++) {
        size_t at = strlen(symbols);
        bool known = false;
        for (int32_t k = 0; k < i; k++)
            known = known || !strcmp(s->sources[k].tag, s->sources[i].tag);
        if (s->sources[i].tag[0] && !known)
            snprintf(symbols + at, sizeof symbols - at, ",%s", s->sources[i].tag);
    }
    struct intra_tokenizer_train t = {.vocab = s->vocab,
                                      .type = s->type,
                                      .character_coverage = s->character_coverage,
                                      .byte_fallback = s->byte_fallback,
                                      .threads = s->threads         ? s->threads
                                                 : processors < 128 ? (int32_t)processors
                                                                    : 128,
                                      .symbols = symbols};
    NEB_TRY(intra_tokenizer_train(sample, prefix, &t));
    NEB_TRY(neb_fs_remove(sample));
    return intra_tokenizer_open(model, &b->tokenizer);
}

static void hash_spec(struct build *b) {
    const struct intra_build_spec *s = b->spec;
    char text[512];
    int n = snprintf(text, sizeof text, "v1 %s %llu %d %s %.9g %d %d %d", s->name,
                     (unsigned long long)s->seed, s->vocab, s->type, s->character_coverage,
                     s->byte_fallback, s->train_lines, s->holdout_per_mille);
    neb_sha256_add(b->inputs, text, (size_t)n);
    if (s->test_per_mille)
        neb_sha256_add(b->inputs, &s->test_per_mille, sizeof s->test_per_mille);
    neb_sha256_add(b->inputs, s->tokenizer, strlen(s->tokenizer));
}

static bool already_built(const char *dir, const char *inputs) {
    char path[NEB_PATH_MAX];
    if (neb_path(path, sizeof path, dir, "corpus.json") != NEB_OK || !neb_fs_exists(path))
        return false;
    json_t *root = json_load_file(path, 0, NULL);
    const char *was = json_string_value(json_object_get(root, "inputs"));
    bool same = was && !strcmp(was, inputs);
    json_decref(root);
    return same;
}

static enum neb_status write_corpus(struct build *b, struct kern_pool *pool, const char *inputs) {
    char path[NEB_PATH_MAX];
    json_t *sources = json_array();
    int32_t vocab = intra_tokenizer_vocab(b->tokenizer);
    enum neb_status st = build_encode_all(b, pool, sources, vocab <= 65536 ? 2 : 4);
    json_t *root = json_pack("{s:i,s:s,s:i,s:s,s:o}", "version", 1, "name", b->spec->name, "vocab",
                             vocab, "inputs", inputs, "sources", sources);
    char *text = json_dumps(root, JSON_INDENT(1));
    if (st == NEB_OK)
        st = text ? neb_path(path, sizeof path, b->dir, "corpus.json")
                  : neb_fail(NEB_ERR_NOMEM, "out of memory writing corpus.json");
    if (st == NEB_OK)
        st = neb_fs_write(path, text, strlen(text), 0644);
    free(text);
    json_decref(root);
    return st;
}

// The corpus, whole, in b->dir.
static enum neb_status build_aside(struct build *b, const char *inputs) {
    struct kern_pool *pool = NULL;
    NEB_TRY(neb_fs_remove_tree(b->dir));
    NEB_TRY(neb_fs_mkdirs(b->dir, 0755));
    NEB_TRY(drop_duplicates(b));
    NEB_TRY(make_tokenizer(b));
    NEB_TRY(kern_pool_create(b->spec->threads, &pool));
    enum neb_status st = write_corpus(b, pool, inputs);
    kern_pool_destroy(&pool);
    return st;
}

enum neb_status intra_corpus_build(const struct intra_build_spec *spec, const char *out_dir,
                                   intra_build_progress *progress, void *user, bool *skipped) {
    enum neb_status st = NEB_OK;
    struct build b = {.spec = spec, .progress = progress, .user = user};
    uint8_t sha[INTRA_SHA_BYTES];
    char hex[65], dir[NEB_PATH_MAX];
    *skipped = false;
    NEB_TRY(build_place(&b, out_dir, dir));
    NEB_TRY_GOTO(neb_sha256_create(&b.inputs), out);
    hash_spec(&b);
    NEB_TRY_GOTO(build_read_sources(&b), out);
    neb_sha256_finish(b.inputs, sha);
    neb_hex(sha, sizeof sha, hex);
    if (already_built(dir, hex)) {
        *skipped = true;
        goto out;
    }
    NEB_TRY_GOTO(build_place_free(dir), out);
    if ((st = build_aside(&b, hex)) != NEB_OK ||
        (st = build_place_free(dir)) != NEB_OK) { // somebody may have put something there meanwhile
        (void)!neb_fs_remove_tree(b.dir);
        goto out;
    }
    st = neb_fs_replace_dir(b.dir, dir);
out:
    for (size_t i = 0; i < b.docs.n; i++) {
        free(b.docs.p[i].text);
        free(b.docs.p[i].target);
        free(b.docs.p[i].ids);
    }
    free(b.docs.p);
    intra_tokenizer_close(&b.tokenizer);
    neb_sha256_destroy(&b.inputs);
    return st;
}
