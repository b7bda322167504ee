// SPDX-License-Identifier: Apache-2.0
#include "agent/base/sha256.h"
#include "agent/base/moved.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>

struct neb_sha256 {
    EVP_MD_CTX *ctx;
};

// Fetched once: EVP_sha256() makes OpenSSL fetch it for each digest, which takes longer than a
// short digest itself.
static const EVP_MD *found;
static void find(void) {
    found = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!found)
        found = EVP_sha256();
}
static const EVP_MD *sha256(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find);
    return found;
}

enum neb_status neb_sha256_create(struct neb_sha256 **out) {
    struct neb_sha256 *h = calloc(1, sizeof *h);
    if (h)
        h->ctx = EVP_MD_CTX_new();
    if (!h || !h->ctx || EVP_DigestInit_ex(h->ctx, sha256(), NULL) != 1) {
        neb_sha256_destroy(&h);
        return neb_fail(NEB_ERR_NOMEM, "cannot create a SHA-256 context");
    }
    *out = h;
    return NEB_OK;
}

void neb_sha256_destroy(struct neb_sha256 **h) {
    if (*h) {
        EVP_MD_CTX_free((*h)->ctx);
        free(*h);
    }
    *h = NULL;
}

void neb_sha256_add(struct neb_sha256 *h, const void *p, size_t n) {
    const uint8_t *at = p;
    for (; n > NEB_MOVED_PIECE; at += NEB_MOVED_PIECE, n -= NEB_MOVED_PIECE) {
        NEB_ASSERT(EVP_DigestUpdate(h->ctx, at, NEB_MOVED_PIECE) == 1);
        neb_moved_add(NEB_MOVED_PIECE);
    }
    NEB_ASSERT(EVP_DigestUpdate(h->ctx, at, n) == 1);
}

void neb_sha256_finish(struct neb_sha256 *h, uint8_t out[NEB_SHA256_BYTES]) {
    NEB_ASSERT(EVP_DigestFinal_ex(h->ctx, out, NULL) == 1);
    NEB_ASSERT(EVP_DigestInit_ex(h->ctx, sha256(), NULL) == 1);
}

void neb_sha256(const void *p, size_t n, uint8_t out[NEB_SHA256_BYTES]) {
    struct neb_sha256 *h = NULL;
    if (n <= NEB_MOVED_PIECE || neb_sha256_create(&h) != NEB_OK) {
        NEB_ASSERT(EVP_Digest(p, n, out, NULL, sha256(), NULL) == 1);
        return;
    }
    neb_sha256_add(h, p, n); // large: in pieces that are counted as progress
    neb_sha256_finish(h, out);
    neb_sha256_destroy(&h);
}
