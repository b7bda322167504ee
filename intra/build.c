// Building a corpus: documents -> vocabulary -> shards. Everything is written into DIR.building and renamed at the end.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data.h"
#include "intra/po.h"
#include "intra/tokenizer.h"
#include "kernels/pool.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    DOC_BYTES_MAX = 64 << 20,
    BATCH_DOCS = 512,
    SHARD_TOKENS = 64 << 20,
    SHARD_HEADER_BYTES = 64,
    LINE_BYTES_MAX = 4000
};
static const char shard_magic[8] = "NEBSHRD";

struct doc {
    char *text; // owned
    size_t len;
    uint64_t name_hash; // decides the split
    int32_t source;
    char *target; // owned; of parallel text, else NULL
    int32_t *ids; // owned, after encoding
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
    char dir[NEB_PATH_MAX]; // DIR.building
};

static uint64_t hash_bytes(const void *p, size_t n) {
    uint8_t sha[INTRA_SHA_BYTES];
    neb_sha256(p, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

static enum neb_status add_doc(struct build *b, int32_t source, const char *text, size_t len,
                               uint64_t name_hash) {
    while (len && (text[len - 1] == '\n' || text[len - 1] == ' '))
        len--;
    if (!len)
        return NEB_OK;
    if (b->docs.n == b->docs.cap) {
        size_t cap = b->docs.cap ? 2 * b->docs.cap : 1024;
        struct doc *p = realloc(b->docs.p, cap * sizeof *p);
        if (!p)
            return neb_fail(NEB_ERR_NOMEM, "out of memory after %zu documents", b->docs.n);
        b->docs.p = p;
        b->docs.cap = cap;
    }
    char *copy = malloc(len + 1);
    if (!copy)
        return neb_fail(NEB_ERR_NOMEM, "out of memory after %zu documents", b->docs.n);
    memcpy(copy, text, len);
    copy[len] = 0;
    neb_sha256_add(b->inputs, text, len);
    b->docs.p[b->docs.n++] =
        (struct doc){.text = copy, .len = len, .source = source, .name_hash = name_hash};
    return NEB_OK;
}

// A pair, cleaned: split by its message, so that it is held out in all languages and directions or in none.
static enum neb_status add_pair(struct build *b, int32_t source, const char *message,
                                const char *translation) {
    const struct intra_source_spec *s = &b->spec->sources[source];
    const char *from = s->reverse ? translation : message, *to = s->reverse ? message : translation;
    size_t tag = strlen(s->tag), n = strlen(from), before = b->docs.n;
    char *text = malloc(tag + n + 1), *target = strdup(to);
    enum neb_status st = text && target ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
    if (st == NEB_OK) {
        memcpy(text, s->tag, tag);
        memcpy(text + tag, from, n + 1);
        st = add_doc(b, source, text, tag + n, hash_bytes(message, strlen(message)));
    }
    free(text);
    if (st != NEB_OK || b->docs.n == before) {
        free(target);
        return st;
    }
    neb_sha256_add(b->inputs, target, strlen(target) + 1);
    b->docs.p[before].target = target;
    return NEB_OK;
}

struct po_target {
    struct build *b;
    int32_t source;
};
static enum neb_status on_po_pair(void *user, const char *message, const char *translation) {
    struct po_target *t = user;
    return add_pair(t->b, t->source, message, translation);
}

static enum neb_status read_po(struct build *b, int32_t source, const char *path) {
    struct neb_buf f = {0};
    struct po_target t = {b, source};
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    if (st == NEB_OK)
        st = intra_po_read((const char *)f.p, f.len, path, on_po_pair, &t);
    neb_buf_free(&f);
    return st;
}

static enum neb_status read_file(struct build *b, int32_t source, const char *path,
                                 bool one_document) {
    struct neb_buf f = {0};
    if (b->spec->sources[source].format == INTRA_PO)
        return read_po(b, source, path);
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    if (st == NEB_OK && one_document) {
        const char *base = strrchr(path, '/');
        base =
            base
                ? base + 1
                : path; // translations of a page carry the same name: they fall into the same split
        st = add_doc(b, source, (const char *)f.p, f.len, hash_bytes(base, strlen(base)));
    }
    for (size_t at = 0;
         st == NEB_OK && !one_document && at < f.len;) { // blank lines separate documents
        const char *p = (const char *)f.p + at, *end = memmem(p, f.len - at, "\n\n", 2);
        size_t len = end ? (size_t)(end - p) : f.len - at;
        st = add_doc(b, source, p, len, hash_bytes(p, len));
        at += len + 2;
    }
    neb_buf_free(&f);
    return st;
}

static enum neb_status read_folder(struct build *b, int32_t source, const char *dir) {
    struct dirent **names = NULL;
    enum neb_status st = NEB_OK;
    int n = scandir(dir, &names, NULL, alphasort); // sorted: the same corpus on every machine
    if (n < 0)
        return neb_fail_errno("cannot read folder %s", dir);
    for (int i = 0; i < n; i++) {
        char path[NEB_PATH_MAX];
        struct stat info;
        if (st == NEB_OK && names[i]->d_name[0] != '.') {
            st = neb_path(path, sizeof path, dir, names[i]->d_name);
            if (st == NEB_OK && stat(path, &info) != 0)
                st = neb_fail_errno("cannot stat %s", path);
            else if (st == NEB_OK && S_ISDIR(info.st_mode))
                st = read_folder(b, source, path);
            else if (st == NEB_OK && S_ISREG(info.st_mode))
                st = read_file(b, source, path, true);
        }
        free(names[i]);
    }
    free(names);
    return st;
}

static char *column(char *line, int32_t n) { // NULL: there are fewer
    for (; n > 0 && line; n--) {
        line = strchr(line, '\t');
        line = line ? line + 1 : NULL;
    }
    return line;
}

static enum neb_status read_tsv_pair(struct build *b, int32_t source,
                                     const struct intra_source_spec *s, char *line, size_t number) {
    char *from = column(line, s->column), *to = column(line, s->target_column);
    if (!from || !to)
        return neb_fail(NEB_ERR_FORMAT, "%s:%zu: fewer than %d columns", s->path, number,
                        (s->column > s->target_column ? s->column : s->target_column) + 1);
    from[strcspn(from, "\t")] = 0;
    to[strcspn(to, "\t")] = 0;
    return intra_po_clean(from, to) ? add_pair(b, source, from, to) : NEB_OK;
}

static enum neb_status read_lines(struct build *b, int32_t source,
                                  const struct intra_source_spec *s) {
    enum neb_status st = NEB_OK;
    char *line = NULL;
    size_t cap = 0, number = 0;
    FILE *f = fopen(s->path, "r");
    if (!f)
        return neb_fail_errno("cannot open %s", s->path);
    for (ssize_t len; st == NEB_OK && (len = getline(&line, &cap, f)) > 0;) {
        number++;
        if (line[len - 1] == '\n')
            line[--len] = 0;
        if (!len)
            continue;
        if (s->format == INTRA_JSONL) {
            json_t *o = json_loadb(line, (size_t)len, 0, NULL);
            const json_t *v = json_object_get(o, s->field);
            if (!json_is_string(v))
                st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: no text in field \"%s\"", s->path, number,
                              s->field);
            else
                st = add_doc(b, source, json_string_value(v), json_string_length(v),
                             hash_bytes(json_string_value(v), json_string_length(v)));
            json_decref(o);
            continue;
        }
        char *at = column(line, s->column);
        if (s->parallel) {
            st = read_tsv_pair(b, source, s, line, number);
            continue;
        }
        if (!at)
            st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: fewer than %d columns", s->path, number,
                          s->column + 1);
        else
            st = add_doc(b, source, at, strcspn(at, "\t"), hash_bytes(at, strcspn(at, "\t")));
    }
    free(line);
    fclose(f);
    return st;
}

static enum neb_status read_sources(struct build *b) {
    for (int32_t i = 0; i < b->spec->n_sources; i++) {
        const struct intra_source_spec *s = &b->spec->sources[i];
        struct stat info;
        size_t before = b->docs.n;
        neb_sha256_add(b->inputs, s->name, strlen(s->name) + 1);
        b->progress(b->user, "reading", (uint64_t)i, (uint64_t)b->spec->n_sources);
        if (stat(s->path, &info) != 0)
            return neb_fail_errno("source %s: cannot read %s", s->name, s->path);
        if (s->format == INTRA_JSONL || s->format == INTRA_TSV)
            NEB_TRY(read_lines(b, i, s));
        else if (S_ISDIR(info.st_mode))
            NEB_TRY(read_folder(b, i, s->path));
        else
            NEB_TRY(read_file(b, i, s->path, false));
        if (b->docs.n == before)
            return neb_fail(NEB_ERR_INVALID, "source %s: %s holds no documents", s->name, s->path);
    }
    return NEB_OK;
}

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
        h[i][0] = hash_bytes(b->docs.p[i].text, b->docs.p[i].len) +
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

// ---- shards ---------------------------------------------------------------------------------------------------

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
static enum neb_status put_doc(struct build *b, struct doc *d, const char *name, struct shard_out *out, int width) {
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
static enum neb_status encode_source(struct build *b, struct kern_pool *pool, int32_t source, size_t *at,
                                     struct shard_out *out, int width) {
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

static enum neb_status encode_all(struct build *b, struct kern_pool *pool, json_t *sources,
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

// ---- the whole ------------------------------------------------------------------------------------------------

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
    enum neb_status st = encode_all(b, pool, sources, vocab <= 65536 ? 2 : 4);
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

enum neb_status intra_corpus_build(const struct intra_build_spec *spec, const char *dir,
                                   intra_build_progress *progress, void *user, bool *skipped) {
    enum neb_status st = NEB_OK;
    struct build b = {.spec = spec, .progress = progress, .user = user};
    struct kern_pool *pool = NULL;
    uint8_t sha[INTRA_SHA_BYTES];
    char hex[65];
    *skipped = false;
    if (snprintf(b.dir, sizeof b.dir, "%s.building", dir) >= (int)sizeof b.dir)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", dir);
    NEB_TRY_GOTO(neb_sha256_create(&b.inputs), out);
    hash_spec(&b);
    NEB_TRY_GOTO(read_sources(&b), out);
    neb_sha256_finish(b.inputs, sha);
    neb_hex(sha, sizeof sha, hex);
    if (already_built(dir, hex)) {
        *skipped = true;
        goto out;
    }
    NEB_TRY_GOTO(neb_fs_remove_tree(b.dir), out);
    NEB_TRY_GOTO(neb_fs_mkdirs(b.dir, 0755), out);
    NEB_TRY_GOTO(drop_duplicates(&b), out);
    NEB_TRY_GOTO(make_tokenizer(&b), out);
    NEB_TRY_GOTO(kern_pool_create(spec->threads, &pool), out);
    NEB_TRY_GOTO(write_corpus(&b, pool, hex), out);
    NEB_TRY_GOTO(neb_fs_remove_tree(dir), out);
    if (rename(b.dir, dir) != 0)
        st = neb_fail_errno("cannot rename %s to %s", b.dir, dir);
out:
    for (size_t i = 0; i < b.docs.n; i++) {
        free(b.docs.p[i].text);
        free(b.docs.p[i].target);
        free(b.docs.p[i].ids);
    }
    free(b.docs.p);
    intra_tokenizer_close(&b.tokenizer);
    kern_pool_destroy(&pool);
    neb_sha256_destroy(&b.inputs);
    return st;
}
