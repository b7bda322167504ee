// SPDX-License-Identifier: Apache-2.0
#include "intra/data/data.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SOURCES = 4,
    SHARDS = 64, // of a source
    SHARD_TOKENS = 256 << 10,
    VOCAB = 32000,
    WINDOW = 1024,
    BATCH = 64,
    TIMES = 5,
    SKIPPED = 1 << 22,
};

struct bench {
    bool json;
    char dir[NEB_PATH_MAX];
    struct intra_corpus *c;
    struct intra_sampler *s;
    int32_t *tokens, *targets, *copy; // (BATCH, WINDOW)
};

static void shard_name(char *out, size_t cap, int k) {
    snprintf(out, cap, "s%d/train-%05d.bin", k / SHARDS, k % SHARDS);
}

static enum neb_status write_shard(const struct bench *b, int k, struct neb_buf *bytes) {
    static const uint8_t none[INTRA_SHA_BYTES];
    char name[64], path[NEB_PATH_MAX];
    neb_buf_clear(bytes);
    neb_buf_add(bytes, "NEBSHRD", 8);
    neb_buf_u32(bytes, 1);
    neb_buf_u32(bytes, 2);
    neb_buf_u64(bytes, SHARD_TOKENS);
    neb_buf_add(bytes, none, sizeof none);
    neb_buf_u64(bytes, 0);
    for (uint64_t i = 0; i < SHARD_TOKENS; i++)
        neb_buf_u16(bytes, (uint16_t)(neb_mix64((uint64_t)k * SHARD_TOKENS + i) % VOCAB));
    NEB_TRY(neb_buf_check(bytes));
    shard_name(name, sizeof name, k);
    NEB_TRY(neb_path(path, sizeof path, b->dir, name));
    return neb_fs_write(path, bytes->p, bytes->len, 0600);
}

static void list_shard(struct neb_buf *text, int k) {
    char name[64], entry[256];
    shard_name(name, sizeof name, k);
    int n =
        snprintf(entry, sizeof entry, "%s{\"file\": \"%s\", \"tokens\": %d, \"sha256\": \"%064d\"}",
                 k % SHARDS ? "," : "", name, SHARD_TOKENS, 0);
    neb_buf_add(text, entry, (size_t)n);
}

static enum neb_status write_corpus(const struct bench *b) {
    struct neb_buf text = {0}, bytes = {0};
    char line[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    int n = snprintf(line, sizeof line, "{\"version\": 1, \"vocab\": %d, \"sources\": [", VOCAB);
    neb_buf_add(&text, line, (size_t)n);
    for (int s = 0; s < SOURCES && st == NEB_OK; s++) {
        char folder[NEB_PATH_MAX];
        n = snprintf(line, sizeof line, "%s{\"name\": \"s%d\", \"valid\": [], \"train\": [",
                     s ? "," : "", s);
        neb_buf_add(&text, line, (size_t)n);
        snprintf(line, sizeof line, "s%d", s);
        st = neb_path(folder, sizeof folder, b->dir, line);
        if (st == NEB_OK)
            st = neb_fs_mkdirs(folder, 0700);
        for (int k = s * SHARDS; k < (s + 1) * SHARDS && st == NEB_OK; k++) {
            list_shard(&text, k);
            st = write_shard(b, k, &bytes);
        }
        neb_buf_add(&text, "]}", 2);
    }
    neb_buf_add(&text, "]}", 2);
    if (st == NEB_OK)
        st = neb_buf_check(&text);
    if (st == NEB_OK)
        st = neb_path(line, sizeof line, b->dir, "corpus.json");
    if (st == NEB_OK)
        st = neb_fs_write(line, text.p, text.len, 0600);
    neb_buf_free(&text);
    neb_buf_free(&bytes);
    return st;
}

// Opens the corpus. cold: first asks the system to drop its cached pages.
static enum neb_status open_corpus(struct bench *b, bool cold) {
    struct intra_sampler_config cfg = {.seed = 1, .seq_len = WINDOW};
    intra_sampler_destroy(&b->s);
    intra_corpus_close(&b->c);
    for (int k = 0; cold && k < SOURCES * SHARDS; k++) {
        char name[64], path[NEB_PATH_MAX];
        shard_name(name, sizeof name, k);
        NEB_TRY(neb_path(path, sizeof path, b->dir, name));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return neb_fail_errno("cannot open %s", path);
        (void)!posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    NEB_TRY(intra_corpus_open(b->dir, false, &b->c));
    return intra_sampler_create(b->c, &cfg, &b->s);
}

static double draw_batch(struct bench *b) { // seconds
    neb_ns start = neb_now();
    for (size_t i = 0; i < BATCH; i++)
        intra_sampler_next(b->s, b->tokens + i * WINDOW, b->targets + i * WINDOW);
    return neb_seconds(neb_now() - start);
}

static enum neb_status in_memory(struct bench *b) {
    const double bytes = 2.0 * BATCH * WINDOW * sizeof(int32_t);
    double best = 1, ceiling = 1, ask = 1;
    NEB_TRY(open_corpus(b, false));
    for (int i = 0; i < 2 * SOURCES * SHARDS * SHARD_TOKENS / (BATCH * WINDOW); i++) {
        double took = draw_batch(b); // the first epoch reads what is not in memory
        neb_ns start = neb_now();
        intra_sampler_prefetch(b->s, BATCH);
        neb_ns mid = neb_now();
        memcpy(b->copy, b->tokens, (size_t)bytes / 2);
        __asm__ volatile(""
                         :
                         : "r"(b->copy)
                         : "memory"); // the compiler must not drop a copy that nobody reads
        double copied = 2 * neb_seconds(neb_now() - mid), asked = neb_seconds(mid - start) / BATCH;
        best = took < best ? took : best;
        ask = asked < ask ? asked : ask;
        ceiling = copied < ceiling ? copied : ceiling;
    }
    struct bench_field window = {"ns_a_window", 1e9 * best / BATCH};
    bench_line_with(b->json, "data", "windows in memory", bytes / best / 1e9, "GB/s",
                    bytes / ceiling / 1e9, "memcpy t1", &window, 1);
    bench_line(b->json, "data", "a window asked for ahead", 1e6 * ask, "us", 0, "");
    return NEB_OK;
}

static enum neb_status from_disk(struct bench *b) {
    double at_once[TIMES], ahead[TIMES];
    NEB_TRY(open_corpus(b, true));
    for (int i = 0; i < TIMES; i++) { // in turn, so that a busy disk slows both
        at_once[i] = draw_batch(b) / BATCH;
        intra_sampler_prefetch(b->s, BATCH);
        neb_sleep(50 * NEB_MS); // a training step
        ahead[i] = draw_batch(b) / BATCH;
    }
    bench_line(b->json, "data", "a window from the disk", 1e6 * bench_median(at_once, TIMES), "us",
               0, "");
    bench_line(b->json, "data", "a window from the disk, asked for 50 ms ahead",
               1e6 * bench_median(ahead, TIMES), "us", 0, "");
    return NEB_OK;
}

static enum neb_status measure(struct bench *b) {
    NEB_TRY(write_corpus(b));
    NEB_TRY(from_disk(b));
    NEB_TRY(in_memory(b));
    double skip[TIMES];
    for (int i = 0; i < TIMES; i++) {
        neb_ns start = neb_now();
        intra_sampler_skip(b->s, SKIPPED);
        skip[i] = neb_seconds(neb_now() - start) / SKIPPED;
    }
    bench_line(b->json, "data", "draws of four sources, passed over",
               1e-6 / bench_median(skip, TIMES), "M/s", 0, "");
    return NEB_OK;
}

static enum neb_status set_up(struct bench *b, const char *dir) {
    const size_t n = (size_t)BATCH * WINDOW;
    NEB_TRY(bench_folder(dir, b->dir));
    b->tokens = calloc(n, sizeof *b->tokens);
    b->targets = calloc(n, sizeof *b->targets);
    b->copy = calloc(n, sizeof *b->copy);
    return b->tokens && b->targets && b->copy
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "bench data: out of memory for %zu tokens", 3 * n);
}

enum neb_status bench_data(bool json, const char *dir) {
    struct bench b = {.json = json};
    enum neb_status st = set_up(&b, dir);
    if (st == NEB_OK)
        st = measure(&b);
    intra_sampler_destroy(&b.s);
    intra_corpus_close(&b.c);
    free(b.tokens);
    free(b.targets);
    free(b.copy);
    bench_folder_remove(b.dir);
    return st;
}
