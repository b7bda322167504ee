// SPDX-License-Identifier: Apache-2.0
#include "security/seal_key.h"

#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/locked.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char wrapped_magic[8] = {'n', 'e', 'b', 'k', 'e', 'y', 'p', '1'};
enum {
    WRAPPED_BYTES = 8 + SEC_SEAL_SALT_BYTES + SEC_SEAL_KEY_BYTES + SEC_SEAL_EXTRA,
    FILE_MAX = WRAPPED_BYTES,
};

struct sec_seal_key { // in locked memory
    uint8_t id[SEC_SEAL_ID_BYTES];
    uint8_t context[SEC_SEAL_CONTEXT_BYTES];
    uint8_t bytes[SEC_SEAL_KEY_BYTES];
    bool site;
};

static void *locked(size_t n) {
    void *p = sec_locked_alloc(n);
    if (p)
        sodium_memzero(p, n);
    return p;
}

static enum neb_status new_key(struct sec_seal_key **out) {
    NEB_TRY(sec_seal_init());
    *out = locked(sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a seal key");
}

// The public id is a keyed hash of a constant, so it reveals nothing about the key.
static void name_it(struct sec_seal_key *k) {
    static const char what[] = "nebula seal key id";
    uint8_t hash[crypto_generichash_BYTES];
    k->site = true;
    crypto_generichash(hash, sizeof hash, (const uint8_t *)what, sizeof what - 1, k->bytes,
                       sizeof k->bytes);
    memcpy(k->id, hash, sizeof k->id);
}

// ---- key files ----------------------------------------------------------------------------------

static enum neb_status stretch(const char *passphrase, const uint8_t salt[SEC_SEAL_SALT_BYTES],
                               uint8_t out[SEC_SEAL_KEY_BYTES]) {
    if (crypto_pwhash(out, SEC_SEAL_KEY_BYTES, passphrase, strlen(passphrase), salt,
                      crypto_pwhash_OPSLIMIT_MODERATE, crypto_pwhash_MEMLIMIT_MODERATE,
                      crypto_pwhash_ALG_ARGON2ID13) != 0)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: 256 MiB are needed for the passphrase");
    return NEB_OK;
}

enum neb_status sec_seal_key_make(const char *path, const char *passphrase,
                                  struct sec_seal_key **out) {
    struct sec_seal_key *k = NULL;
    uint8_t wrapped[WRAPPED_BYTES], *by = NULL;
    if (passphrase && strlen(passphrase) < SEC_SEAL_PASSPHRASE_MIN)
        return neb_fail(NEB_ERR_INVALID, "a passphrase must have at least %d characters",
                        SEC_SEAL_PASSPHRASE_MIN);
    if (neb_fs_exists(path))
        return neb_fail(
            NEB_ERR_EXISTS,
            "%s exists, and a seal key is never replaced, because what it sealed would be lost",
            path);
    NEB_TRY(new_key(&k));
    randombytes_buf(k->bytes, sizeof k->bytes);
    name_it(k);
    enum neb_status st = NEB_OK;
    if (!passphrase) {
        st = sec_secret_write(path, k->bytes, sizeof k->bytes);
    } else if (!(by = locked(SEC_SEAL_KEY_BYTES))) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for a seal key");
    } else {
        memcpy(wrapped, wrapped_magic, 8);
        randombytes_buf(wrapped + 8, SEC_SEAL_SALT_BYTES);
        st = stretch(passphrase, wrapped + 8, by);
        if (st == NEB_OK) {
            sec_seal(by, k->bytes, sizeof k->bytes, wrapped + 8 + SEC_SEAL_SALT_BYTES);
            st = sec_secret_write(path, wrapped, sizeof wrapped);
        }
    }
    sodium_free(by);
    if (st != NEB_OK)
        sec_seal_key_destroy(&k);
    *out = k;
    return st;
}

// Working memory to open a key that is under a passphrase.
struct unwrap {
    char passphrase[SEC_SEAL_PASSPHRASE_MAX];
    uint8_t by[SEC_SEAL_KEY_BYTES];
};

static enum neb_status unwrap(const char *path, const uint8_t wrapped[WRAPPED_BYTES],
                              sec_passphrase_ask *ask, void *user, struct sec_seal_key *k) {
    if (!ask)
        return neb_fail(NEB_ERR_DENIED, "%s needs a passphrase, and there is nobody to ask for it",
                        path);
    struct unwrap *u = locked(sizeof *u);
    if (!u)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a seal key");
    enum neb_status st = ask(user, path, u->passphrase, sizeof u->passphrase);
    if (st == NEB_OK)
        st = stretch(u->passphrase, wrapped + 8, u->by);
    if (st == NEB_OK && sec_unseal(u->by, wrapped + 8 + SEC_SEAL_SALT_BYTES,
                                   SEC_SEAL_KEY_BYTES + SEC_SEAL_EXTRA, k->bytes) != NEB_OK)
        st = neb_fail(NEB_ERR_DENIED, "%s: the passphrase is wrong, or the file was changed", path);
    sodium_free(u);
    return st;
}

static enum neb_status parse(const char *path, const uint8_t *p, size_t n, sec_passphrase_ask *ask,
                             void *user, struct sec_seal_key *k) {
    if (n == WRAPPED_BYTES && !memcmp(p, wrapped_magic, 8))
        return unwrap(path, p, ask, user, k);
    if (n != sizeof k->bytes)
        return neb_fail(
            NEB_ERR_FORMAT,
            "%s: a seal key has %d bytes, but this file has %zu: restore it from its backup", path,
            SEC_SEAL_KEY_BYTES, n);
    memcpy(k->bytes, p, n);
    return NEB_OK;
}

enum neb_status sec_seal_key_load(const char *path, sec_passphrase_ask *ask, void *user,
                                  struct sec_seal_key **out) {
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    char credential[4096];
    struct sec_seal_key *k = NULL;
    size_t n = 0;
    *out = NULL;
    if (!path) {
        if (!credentials || snprintf(credential, sizeof credential, "%s/nebula-seal",
                                     credentials) >= (int)sizeof credential)
            return NEB_ERR_NOT_FOUND;
        path = credential;
    }
    NEB_TRY(new_key(&k));
    uint8_t *file = locked(FILE_MAX);
    enum neb_status st = file ? sec_secret_read(path, file, FILE_MAX, &n)
                              : neb_fail(NEB_ERR_NOMEM, "out of memory for a seal key");
    if (st == NEB_ERR_NOT_FOUND && path != credential)
        st = neb_fail(st,
                      "%s: there is no seal key here: restore it from its backup (nebula seal init "
                      "makes the first one)",
                      path);
    if (st == NEB_OK)
        st = parse(path, file, n, ask, user, k);
    if (st == NEB_OK)
        name_it(k);
    else
        sec_seal_key_destroy(&k);
    sodium_free(file);
    *out = k;
    return st;
}

void sec_seal_key_destroy(struct sec_seal_key **k) {
    if (!k)
        return;
    sodium_free(*k); // wipes
    *k = NULL;
}

// ---- keys of jobs -------------------------------------------------------------------------------

const uint8_t *sec_seal_key_id(const struct sec_seal_key *k) { return k->id; }
const uint8_t *sec_seal_key_context(const struct sec_seal_key *k) { return k->context; }

enum neb_status sec_seal_key_of(const struct sec_seal_key *k,
                                const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                uint8_t out[SEC_SEAL_KEY_BYTES]) {
    static const char what[16] = "nebula seal job";
    uint8_t text[sizeof what + SEC_SEAL_CONTEXT_BYTES];
    if (!k->site) {
        if (memcmp(context, k->context, SEC_SEAL_CONTEXT_BYTES) != 0)
            return NEB_ERR_DENIED;
        memcpy(out, k->bytes, SEC_SEAL_KEY_BYTES);
        return NEB_OK;
    }
    memcpy(text, what, sizeof what);
    memcpy(text + sizeof what, context, SEC_SEAL_CONTEXT_BYTES);
    crypto_generichash(out, SEC_SEAL_KEY_BYTES, text, sizeof text, k->bytes, sizeof k->bytes);
    return NEB_OK;
}

enum neb_status sec_seal_key_derive(const struct sec_seal_key *site,
                                    const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                    struct sec_seal_key **out) {
    struct sec_seal_key *k = NULL;
    NEB_TRY(new_key(&k));
    memcpy(k->id, site->id, sizeof k->id);
    memcpy(k->context, context, sizeof k->context);
    enum neb_status st = sec_seal_key_of(site, context, k->bytes);
    if (st != NEB_OK)
        sec_seal_key_destroy(&k);
    *out = k;
    return st;
}

void sec_seal_key_hand(const struct sec_seal_key *job, uint8_t out[SEC_SEAL_HANDED_BYTES]) {
    NEB_ASSERT(!job->site);
    memcpy(out, job->id, SEC_SEAL_ID_BYTES);
    memcpy(out + SEC_SEAL_ID_BYTES, job->context, SEC_SEAL_CONTEXT_BYTES);
    memcpy(out + SEC_SEAL_ID_BYTES + SEC_SEAL_CONTEXT_BYTES, job->bytes, SEC_SEAL_KEY_BYTES);
}

enum neb_status sec_seal_key_take(const uint8_t in[SEC_SEAL_HANDED_BYTES],
                                  struct sec_seal_key **out) {
    struct sec_seal_key *k = NULL;
    NEB_TRY(new_key(&k));
    memcpy(k->id, in, SEC_SEAL_ID_BYTES);
    memcpy(k->context, in + SEC_SEAL_ID_BYTES, SEC_SEAL_CONTEXT_BYTES);
    memcpy(k->bytes, in + SEC_SEAL_ID_BYTES + SEC_SEAL_CONTEXT_BYTES, SEC_SEAL_KEY_BYTES);
    *out = k;
    return NEB_OK;
}

// ---- to the other ranks of a worker -------------------------------------------------------------

struct sec_hand {
    uint8_t secret_half[crypto_box_SECRETKEYBYTES], public_half[crypto_box_PUBLICKEYBYTES];
    uint8_t handed[SEC_SEAL_HANDED_BYTES]; // scratch
};
_Static_assert(crypto_box_PUBLICKEYBYTES == SEC_HAND_PUBLIC_BYTES, "libsodium's box");
_Static_assert(SEC_SEAL_HANDED_BYTES + crypto_box_SEALBYTES == SEC_HAND_BOX_BYTES,
               "libsodium's sealed box");

static enum neb_status room(struct sec_hand **out) {
    NEB_TRY(sec_seal_init());
    // sec_locked_alloc puts the end of the block at the end of a page. The rounded size keeps the
    // start aligned.
    struct sec_hand *h = *out = sec_locked_alloc((sizeof *h + 15) & ~(size_t)15);
    if (!h)
        return neb_fail(NEB_ERR_NOMEM, "out of memory handing the job's key to another rank");
    sodium_memzero(h, sizeof *h);
    return NEB_OK;
}

enum neb_status sec_hand_begin(struct sec_hand **out, uint8_t public_half[SEC_HAND_PUBLIC_BYTES]) {
    NEB_TRY(room(out));
    crypto_box_keypair((*out)->public_half, (*out)->secret_half);
    memcpy(public_half, (*out)->public_half, SEC_HAND_PUBLIC_BYTES);
    return NEB_OK;
}

void sec_hand_destroy(struct sec_hand **h) {
    sodium_free(*h); // wipes
    *h = NULL;
}

enum neb_status sec_hand_give(const struct sec_seal_key *job,
                              const uint8_t public_half[SEC_HAND_PUBLIC_BYTES],
                              uint8_t box[SEC_HAND_BOX_BYTES]) {
    struct sec_hand *h = NULL;
    NEB_TRY(room(&h));
    sec_seal_key_hand(job, h->handed);
    int rc = crypto_box_seal(box, h->handed, sizeof h->handed, public_half);
    sec_hand_destroy(&h);
    return rc == 0 ? NEB_OK
                   : neb_fail(NEB_ERR_DENIED,
                              "another rank asked for the job's key with an invalid public key");
}

enum neb_status sec_hand_take(const struct sec_hand *h, const uint8_t box[SEC_HAND_BOX_BYTES],
                              struct sec_seal_key **out) {
    struct sec_hand *scratch = NULL;
    *out = NULL;
    NEB_TRY(room(&scratch));
    enum neb_status st =
        crypto_box_seal_open(scratch->handed, box, SEC_HAND_BOX_BYTES, h->public_half,
                             h->secret_half) == 0
            ? sec_seal_key_take(scratch->handed, out)
            : neb_fail(NEB_ERR_DENIED,
                       "the job's key was changed in flight from rank 0, or is for another rank");
    sec_hand_destroy(&scratch);
    return st;
}
