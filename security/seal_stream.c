// SPDX-License-Identifier: Apache-2.0
#include "security/seal_stream.h"

#include "agent/base/moved.h"
#include "agent/base/vault.h"
#include "security/locked.h"

#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#define HEADER crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define EXTRA  crypto_secretstream_xchacha20poly1305_ABYTES
#define FINAL  crypto_secretstream_xchacha20poly1305_TAG_FINAL

enum {
    ID_AT = 8,
    CONTEXT_AT = ID_AT + SEC_SEAL_ID_BYTES,
    HEADER_AT = CONTEXT_AT + SEC_SEAL_CONTEXT_BYTES,
    SEALED_CHUNK = SEC_STREAM_CHUNK + 17,
    STRIDE = 16, // chunks from one kept state to the next
};
static const char magic[] = NEB_SEALED_MAGIC "1";
_Static_assert(EXTRA == 17 && HEADER == 24, "libsodium's secretstream");

typedef crypto_secretstream_xchacha20poly1305_state stream_state;

struct sec_stream_writer { // in locked memory
    stream_state state;
    sec_stream_put *put;
    void *user;
    uint8_t front[SEC_STREAM_FRONT];
    bool begun, ended;
    size_t fill;
    uint8_t chunk[SEC_STREAM_CHUNK];
    uint8_t sealed[SEALED_CHUNK];
};

// ---- sealing ------------------------------------------------------------------------------------

enum neb_status sec_stream_create(const struct sec_seal_key *k,
                                  const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                  sec_stream_put *put, void *user, struct sec_stream_writer **out) {
    *out = NULL;
    struct sec_stream_writer *w = sec_locked_alloc(sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for sealing");
    sodium_memzero(w, sizeof *w);
    w->put = put;
    w->user = user;
    memcpy(w->front, magic, 8);
    memcpy(w->front + ID_AT, sec_seal_key_id(k), SEC_SEAL_ID_BYTES);
    memcpy(w->front + CONTEXT_AT, context, SEC_SEAL_CONTEXT_BYTES);
    enum neb_status st = sec_seal_key_of(k, context, w->chunk);
    if (st == NEB_OK) {
        crypto_secretstream_xchacha20poly1305_init_push(&w->state, w->front + HEADER_AT, w->chunk);
        sodium_memzero(w->chunk, SEC_SEAL_KEY_BYTES);
        st = put(user, w->front, sizeof w->front);
    }
    if (st != NEB_OK)
        sec_stream_destroy(&w);
    *out = w;
    return st;
}

static enum neb_status flush(struct sec_stream_writer *w, unsigned char tag) {
    unsigned long long n = 0;
    crypto_secretstream_xchacha20poly1305_push(&w->state, w->sealed, &n, w->chunk, w->fill,
                                               w->begun ? NULL : w->front,
                                               w->begun ? 0 : sizeof w->front, tag);
    w->begun = true;
    w->fill = 0;
    return w->put(w->user, w->sealed, (size_t)n);
}

// A full chunk waits for the next byte, because the last chunk needs its own tag.
enum neb_status sec_stream_add(struct sec_stream_writer *w, const void *p, size_t n) {
    const uint8_t *b = p;
    if (w->ended)
        return neb_fail(NEB_ERR_STATE, "sealing: the stream has ended");
    while (n) {
        if (w->fill == SEC_STREAM_CHUNK)
            NEB_TRY(flush(w, crypto_secretstream_xchacha20poly1305_TAG_MESSAGE));
        size_t take = SEC_STREAM_CHUNK - w->fill < n ? SEC_STREAM_CHUNK - w->fill : n;
        memcpy(w->chunk + w->fill, b, take);
        w->fill += take;
        b += take;
        n -= take;
    }
    return NEB_OK;
}

enum neb_status sec_stream_end(struct sec_stream_writer *w) {
    if (w->ended)
        return neb_fail(NEB_ERR_STATE, "sealing: the stream has ended");
    w->ended = true;
    return flush(w, FINAL);
}

void sec_stream_destroy(struct sec_stream_writer **w) {
    if (!w || !*w)
        return;
    sodium_free(*w); // wipes
    *w = NULL;
}

// ---- opening ------------------------------------------------------------------------------------

struct sec_stream_reader { // in locked memory
    const uint8_t *p;
    size_t len;
    uint64_t chunks, clear_len;
    uint64_t next; // the chunk that `state` opens
    bool have;     // chunk next - 1 is in `clear`
    stream_state state;
    uint8_t clear[SEC_STREAM_CHUNK];
    stream_state kept[]; // before every STRIDE-th chunk
};

enum neb_status sec_seal_front_check(const struct sec_seal_key *k, const char *name,
                                     const uint8_t id[SEC_SEAL_ID_BYTES],
                                     const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                     uint8_t key[SEC_SEAL_KEY_BYTES]) {
    char theirs[2 * SEC_SEAL_ID_BYTES + 1], ours[2 * SEC_SEAL_ID_BYTES + 1];
    if (memcmp(id, sec_seal_key_id(k), SEC_SEAL_ID_BYTES) != 0) {
        neb_hex(id, SEC_SEAL_ID_BYTES, theirs);
        neb_hex(sec_seal_key_id(k), SEC_SEAL_ID_BYTES, ours);
        return neb_fail(NEB_ERR_DENIED, "%s is sealed with key %s, but the key given is %s", name,
                        theirs, ours);
    }
    if (sec_seal_key_of(k, context, key) != NEB_OK)
        return neb_fail(NEB_ERR_DENIED, "%s is sealed for another job", name);
    return NEB_OK;
}

static size_t chunk_bytes(const struct sec_stream_reader *r, uint64_t i) {
    size_t at = SEC_STREAM_FRONT + (size_t)i * SEALED_CHUNK;
    return r->len - at < SEALED_CHUNK ? r->len - at : SEALED_CHUNK;
}

// Opens the next chunk into `clear`. False: the bytes are not those that were sealed.
static bool pull(struct sec_stream_reader *r) {
    unsigned long long got = 0;
    unsigned char tag = 0;
    uint64_t i = r->next;
    r->have =
        crypto_secretstream_xchacha20poly1305_pull(
            &r->state, r->clear, &got, &tag, r->p + SEC_STREAM_FRONT + (size_t)i * SEALED_CHUNK,
            chunk_bytes(r, i), i ? NULL : r->p, i ? 0 : SEC_STREAM_FRONT) == 0 &&
        // otherwise the file was cut, or bytes were appended
        (tag == FINAL) == (i + 1 == r->chunks);
    r->next = i + 1;
    return r->have;
}

static enum neb_status damaged(const char *name, uint64_t chunk) {
    return neb_fail(NEB_ERR_CORRUPT,
                    "%s: sealed chunk %" PRIu64 " (at byte %" PRIu64
                    ") was changed, cut or put in another order",
                    name, chunk, SEC_STREAM_FRONT + chunk * SEALED_CHUNK);
}

static enum neb_status open_all(struct sec_stream_reader *r, const struct sec_seal_key *k,
                                const char *name) {
    NEB_TRY(sec_seal_front_check(k, name, r->p + ID_AT, r->p + CONTEXT_AT, r->clear));
    int rc = crypto_secretstream_xchacha20poly1305_init_pull(&r->state, r->p + HEADER_AT, r->clear);
    sodium_memzero(r->clear, SEC_SEAL_KEY_BYTES);
    if (rc != 0)
        return damaged(name, 0);
    struct neb_moving m = {.what = "opening", .path = name, .total = r->len};
    for (uint64_t i = 0; i < r->chunks; i++) {
        if (i % STRIDE == 0)
            r->kept[i / STRIDE] = r->state;
        if (!pull(r))
            return damaged(name, i);
        neb_moving_add(&m, chunk_bytes(r, i));
    }
    return NEB_OK;
}

enum neb_status sec_stream_open(const struct sec_seal_key *k, const char *name, const uint8_t *p,
                                size_t len, struct sec_stream_reader **out) {
    *out = NULL;
    NEB_TRY(sec_seal_init());
    if (len < 8 || memcmp(p, magic, 8) != 0)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a sealed stream", name);
    size_t body = len - SEC_STREAM_FRONT, last = body % SEALED_CHUNK;
    if (len < SEC_STREAM_FRONT + EXTRA || (last && last < EXTRA))
        return damaged(name, len < SEC_STREAM_FRONT + EXTRA ? 0 : body / SEALED_CHUNK);
    uint64_t chunks = (body + SEALED_CHUNK - 1) / SEALED_CHUNK;
    size_t states = (size_t)(chunks / STRIDE + 1) * sizeof(stream_state);
    // sec_locked_alloc puts the end of the block at the end of a page. The rounded size keeps the
    // start aligned.
    size_t bytes = (sizeof(struct sec_stream_reader) + states + 15) & ~(size_t)15;
    struct sec_stream_reader *r = sec_locked_alloc(bytes);
    if (!r)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", name);
    sodium_memzero(r, bytes);
    r->p = p;
    r->len = len;
    r->chunks = chunks;
    r->clear_len = body - chunks * EXTRA;
    enum neb_status st = open_all(r, k, name);
    if (st != NEB_OK)
        sec_stream_close(&r);
    *out = r;
    return st;
}

uint64_t sec_stream_len(const struct sec_stream_reader *r) { return r->clear_len; }

enum neb_status sec_stream_read(struct sec_stream_reader *r, uint64_t at, void *dst, size_t n) {
    uint8_t *out = dst;
    NEB_ASSERT(at <= r->clear_len && n <= r->clear_len - at);
    while (n) {
        uint64_t i = at / SEC_STREAM_CHUNK;
        size_t off = (size_t)(at % SEC_STREAM_CHUNK),
               take = SEC_STREAM_CHUNK - off < n ? SEC_STREAM_CHUNK - off : n;
        if (!r->have || r->next != i + 1) {
            if (i < r->next || i / STRIDE > r->next / STRIDE || !r->have) {
                r->state = r->kept[i / STRIDE];
                r->next = i / STRIDE * STRIDE;
            }
            while (r->next <= i)
                if (!pull(r))
                    return damaged("an open sealed file", r->next - 1);
        }
        memcpy(out, r->clear + off, take);
        out += take;
        at += take;
        n -= take;
    }
    return NEB_OK;
}

void sec_stream_close(struct sec_stream_reader **r) {
    if (!r || !*r)
        return;
    sodium_free(*r); // wipes
    *r = NULL;
}
