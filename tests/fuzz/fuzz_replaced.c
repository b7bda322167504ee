// SPDX-License-Identifier: Apache-2.0
// Token frames from a hostile peer: the decoders return OK or NEB_ERR_FORMAT and write nothing
// outside their outputs; accepted tokens are in range, and are the same after encoding and
// decoding. tests/unit/test_replaced.c writes the corpus (WRITE_CORPUS=DIR).
#include "compress/replaced.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MASKED = 200, TEXT = 300, VOCAB = 5000, GUARD = 0x5ca1ab1e };

static void replaced(struct cmp_tokens *t, const uint8_t *p, size_t size) {
    int32_t index[MASKED + 1], ids[MASKED + 1], index2[MASKED], ids2[MASKED];
    struct neb_rd r = neb_rd_make(p, size);
    struct neb_buf b = {0};
    uint32_t n, again;
    index[MASKED] = ids[MASKED] = GUARD;
    enum neb_status st = cmp_replaced_decode(t, &r, MASKED, VOCAB, index, ids, &n);
    NEB_ASSERT(st == NEB_OK || st == NEB_ERR_FORMAT);
    NEB_ASSERT(index[MASKED] == GUARD && ids[MASKED] == GUARD);
    if (st != NEB_OK)
        return;
    struct neb_rd skip = neb_rd_make(p, size);
    NEB_ASSERT(cmp_replaced_skip(&skip, VOCAB) == NEB_OK && skip.off == r.off);
    for (uint32_t i = 0; i < n; i++)
        NEB_ASSERT(ids[i] >= 0 && ids[i] < VOCAB && index[i] < MASKED &&
                   (i ? index[i] > index[i - 1] : index[0] >= 0));
    NEB_ASSERT(cmp_replaced_encode(t, MASKED, index, ids, n, VOCAB, &b) == NEB_OK);
    r = neb_rd_make(b.p, b.len);
    NEB_ASSERT(cmp_replaced_decode(t, &r, MASKED, VOCAB, index2, ids2, &again) == NEB_OK &&
               neb_rd_done(&r) && again == n);
    NEB_ASSERT(!memcmp(index, index2, n * sizeof *index) && !memcmp(ids, ids2, n * sizeof *ids));
    neb_buf_free(&b);
}

static void text(struct cmp_tokens *t, const uint8_t *p, size_t size) {
    int32_t ids[TEXT + 1];
    struct neb_rd r = neb_rd_make(p, size);
    ids[TEXT] = GUARD;
    enum neb_status st = cmp_text_decode(t, &r, VOCAB, ids, TEXT);
    NEB_ASSERT((st == NEB_OK || st == NEB_ERR_FORMAT) && ids[TEXT] == GUARD);
    for (int i = 0; st == NEB_OK && i < TEXT; i++)
        NEB_ASSERT(ids[i] >= 0 && ids[i] < VOCAB);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cmp_tokens *t; // one per process: its buffers are reused on purpose
    if (!t && cmp_tokens_create(&t) != NEB_OK)
        abort();
    replaced(t, data, size);
    text(t, data, size);
    return 0;
}
