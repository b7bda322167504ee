#include "agent/base/sha256.h"

#include <openssl/evp.h>
#include <stdlib.h>

struct neb_sha256 {
    EVP_MD_CTX *ctx;
};

enum neb_status neb_sha256_create(struct neb_sha256 **out) {
    struct neb_sha256 *h = calloc(1, sizeof *h);
    if (h)
        h->ctx = EVP_MD_CTX_new();
    if (!h || !h->ctx || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
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
    NEB_ASSERT(EVP_DigestUpdate(h->ctx, p, n) == 1);
}

void neb_sha256_finish(struct neb_sha256 *h, uint8_t out[NEB_SHA256_BYTES]) {
    NEB_ASSERT(EVP_DigestFinal_ex(h->ctx, out, NULL) == 1);
    NEB_ASSERT(EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) == 1);
}

void neb_sha256(const void *p, size_t n, uint8_t out[NEB_SHA256_BYTES]) {
    NEB_ASSERT(EVP_Digest(p, n, out, NULL, EVP_sha256(), NULL) == 1);
}
