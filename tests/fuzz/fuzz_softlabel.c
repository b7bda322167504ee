// SPDX-License-Identifier: Apache-2.0
// Soft labels from a hostile peer. The decoder returns OK or NEB_ERR_FORMAT and writes nothing
// outside its output. Accepted labels are sorted, sum to one, name each token once, and can be
// encoded again.
#include "compress/softlabel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 4096 };

static void require(bool good) {
    if (!good)
        abort();
}

static void check(const struct cmp_soft_head *h, const int32_t *ids, const float *logp,
                  const float *tail) {
    for (size_t i = 0; i < h->rows; i++) {
        double sum = (double)tail[i];
        for (int32_t j = 0; j < h->k; j++) {
            size_t at = i * (size_t)h->k + (size_t)j;
            require(ids[at] >= 0 && ids[at] < h->vocab && isfinite(logp[at]));
            require(!j || logp[at] <= logp[at - 1]);
            sum += exp((double)logp[at]);
        }
        require(fabs(sum - 1) < 1e-4);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cmp_soft *s;
    struct neb_rd r = neb_rd_make(data, size), head = r;
    if (!s)
        require(cmp_soft_create(&s) == NEB_OK);
    (void)neb_rd_view(&head, 2); // version, k
    uint64_t rows = neb_rd_varint(&head), vocab = neb_rd_varint(&head);
    if (head.bad || rows > ROWS_MAX || vocab > INT32_MAX)
        return 0;
    // the expected size
    struct cmp_soft_head h = {.rows = (uint32_t)rows, .vocab = (int32_t)vocab};
    size_t n = rows * CMP_SOFT_K_MAX;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    float *logp = malloc((n + 1) * sizeof *logp), *tail = malloc((h.rows + 1) * sizeof *tail);
    require(ids && logp && tail);
    ids[n] = 0x5ca1ab1e;
    logp[n] = tail[h.rows] = 42;
    enum neb_status st = cmp_soft_decode(s, &r, &h, ids, logp, tail);
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    require(ids[n] == 0x5ca1ab1e && logp[n] == 42 && tail[h.rows] == 42);
    if (st == NEB_OK) {
        struct neb_buf again = {0};
        check(&h, ids, logp, tail);
        require(cmp_soft_encode(s, &h, ids, logp, tail, &again) == NEB_OK);
        neb_buf_free(&again);
    }
    free(ids);
    free(logp);
    free(tail);
    return 0;
}
