// SPDX-License-Identifier: Apache-2.0
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "intra/ckpt/checkpoint.h"
#include "security/seal_stream.h"
#include "security/vault.h"

#include <stdlib.h>
#include <string.h>

enum { REPEATS = 3, SECTION = 1 << 20 };

struct bench { // of one run
    bool json;
    size_t n;             // bytes
    uint8_t *data, *copy; // (n)
    char dir[NEB_PATH_MAX], file[NEB_PATH_MAX];
};

static double rate(const struct bench *b, neb_ns took) {
    return (double)b->n / neb_seconds(took) / 1e9;
}

static enum neb_status swallow(void *user, const void *p, size_t n) {
    (void)p;
    *(size_t *)user += n;
    return NEB_OK;
}

static enum neb_status stream(const struct bench *b, const struct sec_seal_key *k) {
    static const uint8_t none[SEC_SEAL_CONTEXT_BYTES];
    neb_ns best = INT64_MAX, ceiling = INT64_MAX;
    for (int i = 0; i < REPEATS; i++) {
        struct sec_stream_writer *w = NULL;
        size_t sealed = 0;
        neb_ns start = neb_now();
        memcpy(b->copy, b->data, b->n);
        neb_ns mid = neb_now();
        NEB_TRY(sec_stream_create(k, none, swallow, &sealed, &w));
        enum neb_status st = sec_stream_add(w, b->data, b->n);
        if (st == NEB_OK)
            st = sec_stream_end(w);
        sec_stream_destroy(&w);
        NEB_TRY(st);
        neb_ns end = neb_now();
        ceiling = mid - start < ceiling ? mid - start : ceiling;
        best = end - mid < best ? end - mid : best;
    }
    bench_line(b->json, "seal", "stream, in memory", rate(b, best), "GB/s", rate(b, ceiling),
               "memcpy");
    return NEB_OK;
}

static enum neb_status write_once(const struct bench *b, const struct neb_vault *v, neb_ns *took) {
    struct intra_ckpt_writer *w = NULL;
    char name[32];
    neb_ns start = neb_now();
    NEB_TRY(intra_ckpt_create_in(v, b->file, &w));
    enum neb_status st = NEB_OK;
    for (size_t at = 0; at < b->n && st == NEB_OK; at += SECTION * sizeof(float)) {
        size_t bytes = b->n - at < SECTION * sizeof(float) ? b->n - at : SECTION * sizeof(float);
        snprintf(name, sizeof name, "part.%zu", at / sizeof(float) / SECTION);
        st = intra_ckpt_add(w, name, INTRA_F32, bytes / sizeof(float), 1, b->data + at);
    }
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    *took = neb_now() - start;
    return st;
}

static enum neb_status read_once(const struct bench *b, const struct neb_vault *v, neb_ns *took) {
    struct intra_ckpt *c = NULL;
    char name[32];
    neb_ns start = neb_now();
    NEB_TRY(intra_ckpt_open_in(v, b->file, true, &c));
    enum neb_status st = NEB_OK;
    for (size_t at = 0; at < b->n && st == NEB_OK; at += SECTION * sizeof(float)) {
        size_t bytes = b->n - at < SECTION * sizeof(float) ? b->n - at : SECTION * sizeof(float);
        snprintf(name, sizeof name, "part.%zu", at / sizeof(float) / SECTION);
        st = intra_ckpt_read(c, name, INTRA_F32, bytes / sizeof(float), 1, b->copy + at);
    }
    intra_ckpt_close(&c);
    *took = neb_now() - start;
    if (st == NEB_OK && memcmp(b->copy, b->data, b->n) != 0)
        st = neb_fail(NEB_ERR_CORRUPT, "%s: the data read differs from the data written", b->file);
    return st;
}

static enum neb_status files(const struct bench *b, const struct neb_vault *v) {
    neb_ns best[2][2] = {{INT64_MAX, INT64_MAX}, {INT64_MAX, INT64_MAX}}; // [sealed][write, read]
    for (int i = 0; i < REPEATS; i++)
        for (int sealed = 0; sealed < 2; sealed++) {
            neb_ns took[2];
            NEB_TRY(write_once(b, sealed ? v : NULL, &took[0]));
            NEB_TRY(read_once(b, sealed ? v : NULL, &took[1]));
            for (int k = 0; k < 2; k++)
                best[sealed][k] = took[k] < best[sealed][k] ? took[k] : best[sealed][k];
        }
    bench_line(b->json, "seal", "checkpoint write, in clear", rate(b, best[0][0]), "GB/s", 0, NULL);
    bench_line(b->json, "seal", "checkpoint write, sealed", rate(b, best[1][0]), "GB/s",
               rate(b, best[0][0]), "write in clear");
    bench_line(b->json, "seal", "checkpoint read, in clear", rate(b, best[0][1]), "GB/s", 0, NULL);
    bench_line(b->json, "seal", "checkpoint read, sealed", rate(b, best[1][1]), "GB/s",
               rate(b, best[0][1]), "read in clear");
    return NEB_OK;
}

static enum neb_status measure(struct bench *b) {
    struct sec_seal_key *k = NULL;
    struct sec_vault *v = NULL;
    enum neb_status st = NEB_OK;
    struct neb_rng rng = neb_rng_make(1, 0);
    for (size_t i = 0; i < b->n; i += sizeof(float)) {
        float x = neb_rng_normal(&rng);
        memcpy(b->data + i, &x, sizeof x);
    }
    char key[NEB_PATH_MAX];
    NEB_TRY(bench_folder(NULL, b->dir));
    NEB_TRY_GOTO(neb_path(b->file, sizeof b->file, b->dir, "bench.ckpt"), out);
    NEB_TRY_GOTO(neb_path(key, sizeof key, b->dir, "seal.key"), out);
    NEB_TRY_GOTO(sec_seal_key_make(key, NULL, &k), out);
    NEB_TRY_GOTO(stream(b, k), out);
    NEB_TRY_GOTO(sec_vault_create_take(&k, NULL, &v), out);
    st = files(b, sec_vault_of(v));
out:
    sec_vault_destroy(&v);
    sec_seal_key_destroy(&k);
    bench_folder_remove(b->dir);
    return st;
}

enum neb_status bench_seal(bool json, size_t params) {
    struct bench b = {.json = json, .n = (params ? params : BENCH_SEAL_PARAMS) * sizeof(float)};
    b.data = malloc(b.n);
    b.copy = malloc(b.n);
    enum neb_status st =
        b.data && b.copy
            ? measure(&b)
            : neb_fail(NEB_ERR_NOMEM, "bench seal: out of memory for two arrays of %zu bytes", b.n);
    free(b.data);
    free(b.copy);
    return st;
}
