#include "security/seal_stream.h"

#include "security/identity.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define EXTRA  crypto_secretstream_xchacha20poly1305_ABYTES
static const char magic[] = "nebseal1";

struct sec_stream_writer { // in locked memory
    crypto_secretstream_xchacha20poly1305_state state;
    sec_stream_put *put;
    void *user;
    uint8_t front[SEC_STREAM_FRONT];
    bool begun, ended;
    size_t fill;
    uint8_t chunk[SEC_STREAM_CHUNK];
    uint8_t sealed[SEC_STREAM_CHUNK + EXTRA];
};

// ---- keys -----------------------------------------------------------------------------------------------------

static enum neb_status new_key(enum sec_key_kind kind, struct sec_seal_key **out) {
    NEB_TRY(sec_init());
    struct sec_seal_key *k = sodium_malloc(sizeof *k);
    if (!k)
        return neb_fail(NEB_ERR_NOMEM, "seal key: no locked memory (ulimit -l)");
    sodium_memzero(k, sizeof *k);
    k->kind = kind;
    *out = k;
    return NEB_OK;
}

enum neb_status sec_seal_key_load(const char *path, bool make, struct sec_seal_key **out) {
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    char credential[4096];
    struct sec_seal_key *k = NULL;
    size_t n = 0;
    NEB_TRY(new_key(SEC_KEY_FILE, &k));
    enum neb_status st = NEB_ERR_NOT_FOUND;
    if (credentials &&
        snprintf(credential, sizeof credential, "%s/nebula-seal", credentials) < (int)sizeof credential)
        st = sec_secret_read(credential, k->bytes, sizeof k->bytes, &n);
    if (st == NEB_ERR_NOT_FOUND)
        st = sec_secret_read(path, k->bytes, sizeof k->bytes, &n);
    if (st == NEB_ERR_NOT_FOUND && make) {
        n = sizeof k->bytes;
        randombytes_buf(k->bytes, n);
        st = sec_secret_write(path, k->bytes, n);
    } else if (st == NEB_ERR_NOT_FOUND) {
        st = neb_fail(st, "%s: no seal key there: bring it back from its backup", path);
    }
    if (st == NEB_OK && n != sizeof k->bytes)
        st = neb_fail(NEB_ERR_FORMAT, "%s: a seal key has %d bytes, this has %zu", path,
                      SEC_SEAL_KEY_BYTES, n);
    if (st != NEB_OK)
        sec_seal_key_destroy(&k);
    *out = k;
    return st;
}

enum neb_status sec_seal_key_passphrase(const char *text, const uint8_t salt[SEC_SEAL_SALT_BYTES],
                                        struct sec_seal_key **out) {
    struct sec_seal_key *k = NULL;
    if (strlen(text) < 8)
        return neb_fail(NEB_ERR_INVALID, "a passphrase has at least 8 characters");
    NEB_TRY(new_key(SEC_KEY_PASSPHRASE, &k));
    if (salt)
        memcpy(k->salt, salt, sizeof k->salt);
    else
        randombytes_buf(k->salt, sizeof k->salt);
    if (crypto_pwhash(k->bytes, sizeof k->bytes, text, strlen(text), k->salt,
                      crypto_pwhash_OPSLIMIT_INTERACTIVE, crypto_pwhash_MEMLIMIT_INTERACTIVE,
                      crypto_pwhash_ALG_ARGON2ID13) != 0) {
        sec_seal_key_destroy(&k);
        return neb_fail(NEB_ERR_NOMEM, "passphrase: 64 MiB are needed to stretch it");
    }
    *out = k;
    return NEB_OK;
}

void sec_seal_key_destroy(struct sec_seal_key **k) {
    if (!k || !*k)
        return;
    sodium_free(*k); // wipes
    *k = NULL;
}

// ---- sealing --------------------------------------------------------------------------------------------------

enum neb_status sec_stream_create(const struct sec_seal_key *k, sec_stream_put *put, void *user,
                                  struct sec_stream_writer **out) {
    struct sec_stream_writer *w = sodium_malloc(sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "sealing: no locked memory (ulimit -l)");
    sodium_memzero(w, sizeof *w);
    w->put = put;
    w->user = user;
    memcpy(w->front, magic, 8);
    w->front[8] = (uint8_t)k->kind;
    memcpy(w->front + 16, k->salt, sizeof k->salt);
    crypto_secretstream_xchacha20poly1305_init_push(&w->state, w->front + SEC_STREAM_FRONT - HEADER,
                                                    k->bytes);
    enum neb_status st = put(user, w->front, sizeof w->front);
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

// A full chunk waits for the byte after it: the last one must be known as such.
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
    return flush(w, crypto_secretstream_xchacha20poly1305_TAG_FINAL);
}

void sec_stream_destroy(struct sec_stream_writer **w) {
    if (!w || !*w)
        return;
    sodium_free(*w);
    *w = NULL;
}

// ---- opening --------------------------------------------------------------------------------------------------

enum neb_status sec_stream_front(const uint8_t *p, size_t len, enum sec_key_kind *kind,
                                 uint8_t salt[SEC_SEAL_SALT_BYTES]) {
    if (len < SEC_STREAM_FRONT + EXTRA || memcmp(p, magic, 8) != 0 || p[8] > SEC_KEY_PASSPHRASE ||
        !sodium_is_zero(p + 9, 7))
        return neb_fail(NEB_ERR_FORMAT, "not sealed, or cut");
    *kind = (enum sec_key_kind)p[8];
    memcpy(salt, p + 16, SEC_SEAL_SALT_BYTES);
    return NEB_OK;
}

static bool pull(crypto_secretstream_xchacha20poly1305_state *s, const uint8_t *p, size_t len,
                 uint8_t *clear, struct neb_buf *out) {
    const uint8_t *front = p;
    for (size_t at = SEC_STREAM_FRONT; at < len;) {
        size_t n = len - at < SEC_STREAM_CHUNK + EXTRA ? len - at : SEC_STREAM_CHUNK + EXTRA;
        unsigned long long got = 0;
        unsigned char tag = 0;
        bool first = at == SEC_STREAM_FRONT;
        if (crypto_secretstream_xchacha20poly1305_pull(s, clear, &got, &tag, p + at, n,
                                                       first ? front : NULL,
                                                       first ? SEC_STREAM_FRONT : 0) != 0)
            return false;
        neb_buf_add(out, clear, (size_t)got);
        at += n;
        bool last = tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL;
        if (last != (at == len)) // cut, or something was put behind it
            return false;
    }
    return true;
}

enum neb_status sec_stream_open(const struct sec_seal_key *k, const uint8_t *p, size_t len,
                                struct neb_buf *out) {
    crypto_secretstream_xchacha20poly1305_state s;
    enum sec_key_kind kind;
    uint8_t salt[SEC_SEAL_SALT_BYTES];
    neb_buf_clear(out);
    NEB_TRY(sec_init());
    NEB_TRY(sec_stream_front(p, len, &kind, salt));
    uint8_t *clear = sodium_malloc(SEC_STREAM_CHUNK);
    if (!clear)
        return neb_fail(NEB_ERR_NOMEM, "opening what is sealed: no locked memory (ulimit -l)");
    bool ok = crypto_secretstream_xchacha20poly1305_init_pull(
                  &s, p + SEC_STREAM_FRONT - HEADER, k->bytes) == 0 &&
              pull(&s, p, len, clear, out);
    sodium_free(clear);
    sodium_memzero(&s, sizeof s);
    if (ok)
        return neb_buf_check(out);
    if (out->p)
        sodium_memzero(out->p, out->len);
    neb_buf_clear(out);
    return NEB_ERR_DENIED;
}
