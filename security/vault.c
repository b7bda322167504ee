// SPDX-License-Identifier: Apache-2.0
#include "security/vault.h"

#include "agent/base/file.h"
#include "agent/base/moved.h"
#include "security/locked.h"
#include "security/seal_chunks.h"
#include "security/seal_stream.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/mman.h>

struct sec_vault {
    struct neb_vault vault;
    const struct sec_seal_key *key;
    struct sec_seal_key *owned;
    uint8_t context[SEC_SEAL_CONTEXT_BYTES];
};

struct reader { // has stream or chunks, not both
    struct sec_stream_reader *stream;
    struct sec_chunks *chunks;
    const uint8_t *sealed;
    uint64_t have; // 1 + the chunk in `clear`; 0: none
    uint8_t clear[];
};

// ---- writing ------------------------------------------------------------------------------------

static enum neb_status begin(void *ctx, neb_vault_put *put, void *user, void **writer) {
    const struct sec_vault *v = ctx;
    struct sec_stream_writer *w = NULL;
    NEB_TRY(sec_stream_create(v->key, v->context, put, user, &w));
    *writer = w;
    return NEB_OK;
}
static enum neb_status add(void *writer, const void *p, size_t n) {
    return sec_stream_add(writer, p, n);
}
static enum neb_status end(void *writer) { return sec_stream_end(writer); }
static void drop(void *writer) {
    struct sec_stream_writer *w = writer;
    sec_stream_destroy(&w);
}

// ---- reading ------------------------------------------------------------------------------------

static void close_reader(void *reader) {
    struct reader *r = reader;
    sec_stream_close(&r->stream);
    sec_chunks_destroy(&r->chunks);
    sodium_free(r);
}

static enum neb_status unseal_chunk(struct reader *r, uint64_t i, const char *path) {
    r->have = 0;
    if (sec_chunks_unseal(r->chunks, i, r->sealed + sec_chunks_at(r->chunks, i), r->clear) !=
        NEB_OK)
        return neb_fail(NEB_ERR_CORRUPT,
                        "%s: sealed chunk %" PRIu64 " was changed, or is from another file", path,
                        i);
    r->have = i + 1;
    return NEB_OK;
}

static enum neb_status open_chunks(const struct sec_vault *v, const char *path, const uint8_t *p,
                                   size_t len, struct reader **out, uint64_t *clear) {
    struct sec_chunks *c = NULL;
    struct reader *r = NULL;
    if (len < SEC_CHUNKS_FRONT)
        return neb_fail(NEB_ERR_CORRUPT, "%s: it ends within its front", path);
    NEB_TRY(sec_chunks_open(v->key, path, p, &c));
    uint64_t n = sec_chunks_total(c) / sec_chunks_bytes(c) +
                 (sec_chunks_total(c) % sec_chunks_bytes(c) != 0);
    enum neb_status st = NEB_OK;
    if (n > len || sec_chunks_at(c, n) != len)
        st = neb_fail(NEB_ERR_CORRUPT, "%s: it has %zu bytes, but its front gives another size",
                      path, len);
    else if (!(r = sec_locked_alloc((sizeof *r + sec_chunks_bytes(c) + 15) & ~(size_t)15)))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    if (st != NEB_OK) {
        sec_chunks_destroy(&c);
        return st;
    }
    *r = (struct reader){.chunks = c, .sealed = p};
    struct neb_moving m = {.what = "opening", .path = path, .total = len};
    for (uint64_t i = 0; i < n && st == NEB_OK; i++) {
        st = unseal_chunk(r, i, path);
        neb_moving_add(&m, sec_chunks_bytes(c));
    }
    if (st != NEB_OK) {
        close_reader(r);
        return st;
    }
    *clear = sec_chunks_total(c);
    *out = r;
    return NEB_OK;
}

static enum neb_status open_reader(void *ctx, const char *path, const uint8_t *p, size_t len,
                                   void **reader, uint64_t *clear) {
    const struct sec_vault *v = ctx;
    struct reader *r = NULL;
    if (len > NEB_SEALED_MAGIC_BYTES && p[NEB_SEALED_MAGIC_BYTES] == 'c') {
        NEB_TRY(sec_seal_init());
        NEB_TRY(open_chunks(v, path, p, len, &r, clear));
        *reader = r;
        return NEB_OK;
    }
    struct sec_stream_reader *s = NULL;
    NEB_TRY(sec_stream_open(v->key, path, p, len, &s));
    if (!(r = sec_locked_alloc(sizeof *r))) {
        sec_stream_close(&s);
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    }
    *r = (struct reader){.stream = s};
    *clear = sec_stream_len(s);
    *reader = r;
    return NEB_OK;
}

static enum neb_status read_range(void *reader, uint64_t at, void *dst, size_t n) {
    struct reader *r = reader;
    uint8_t *out = dst;
    if (r->stream)
        return sec_stream_read(r->stream, at, dst, n);
    while (n) {
        uint32_t chunk = sec_chunks_bytes(r->chunks);
        uint64_t i = at / chunk;
        size_t off = (size_t)(at % chunk), take = chunk - off < n ? chunk - off : n;
        if (r->have != i + 1)
            NEB_TRY(unseal_chunk(r, i, "an open sealed file"));
        memcpy(out, r->clear + off, take);
        out += take;
        at += take;
        n -= take;
    }
    return NEB_OK;
}

static const struct neb_vault_ops ops = {begin,       add,        end,         drop,
                                         open_reader, read_range, close_reader};

// ---- the vault ----------------------------------------------------------------------------------

enum neb_status sec_vault_create_take(struct sec_seal_key **k,
                                      const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                      struct sec_vault **out) {
    struct sec_vault *v = calloc(1, sizeof *v);
    *out = v;
    if (!v) {
        sec_seal_key_destroy(k);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a vault");
    }
    v->key = v->owned = *k;
    *k = NULL;
    memcpy(v->context, context ? context : sec_seal_key_context(v->key), sizeof v->context);
    v->vault = (struct neb_vault){&ops, v};
    return NEB_OK;
}

void sec_vault_destroy(struct sec_vault **v) {
    if (!*v)
        return;
    sec_seal_key_destroy(&(*v)->owned);
    free(*v);
    *v = NULL;
}

const struct neb_vault *sec_vault_of(const struct sec_vault *v) { return v ? &v->vault : NULL; }
const struct sec_seal_key *sec_vault_key(const struct sec_vault *v) { return v ? v->key : NULL; }

enum neb_status sec_vault_seal_writer(const struct sec_seal_key *key,
                                      const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                      struct neb_fs_writer *w) {
    struct sec_vault v = {.key = key}; // only `begin` uses v, and only before this returns
    v.vault = (struct neb_vault){&ops, &v};
    memcpy(v.context, context, sizeof v.context);
    return neb_fs_writer_seal(w, key ? &v.vault : NULL);
}

enum neb_status sec_vault_map(const struct sec_seal_key *key, const char *path,
                              struct neb_map *out) {
    struct sec_vault v = {.key = key};
    struct neb_file *f = NULL;
    v.vault = (struct neb_vault){&ops, &v};
    *out = (struct neb_map){0};
    NEB_TRY(neb_file_open(path, key ? &v.vault : NULL, &f));
    if (!neb_file_sealed(f)) {
        neb_file_close(&f);
        return neb_map_open(path, out);
    }
    size_t n = (size_t)neb_file_len(f);
    enum neb_status st = NEB_OK;
    if (n) {
        void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) {
            st = neb_fail(NEB_ERR_NOMEM, "out of memory opening %s: %zu bytes", path, n);
        } else {
            madvise(p, n, MADV_DONTDUMP);
            *out = (struct neb_map){p, n};
            st = neb_file_read(f, 0, p, n);
            mprotect(p, n, PROT_READ);
        }
    }
    if (st != NEB_OK)
        neb_map_close(out);
    neb_file_close(&f);
    return st;
}
