// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) by OpenSSL, for chunks, blobs, checkpoints and corpora.
#ifndef NEB_SHA256_H
#define NEB_SHA256_H
#include "agent/base/status.h"

#include <stddef.h>
#include <stdint.h>

#define NEB_SHA256_BYTES 32

struct neb_sha256; // one running hash
NEB_MUST_CHECK enum neb_status neb_sha256_create(struct neb_sha256 **out);
void neb_sha256_destroy(struct neb_sha256 **h);
// Counts large inputs as progress (moved.h).
void neb_sha256_add(struct neb_sha256 *h, const void *p, size_t n);
// Writes the digest and resets the hash for its next use.
void neb_sha256_finish(struct neb_sha256 *h, uint8_t out[NEB_SHA256_BYTES]);
// The digest of one piece of memory.
void neb_sha256(const void *p, size_t n, uint8_t out[NEB_SHA256_BYTES]);

#endif
