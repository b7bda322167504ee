// SPDX-License-Identifier: Apache-2.0
// Updates of other members are cut into pieces for the owners of a mesh, and joined again. The
// shapes that an update declares are read too. The joined pieces hold the same units under the same
// numbers. They are equal byte for byte if the numbers ascend. Input: an update.
#include "agent/base/status.h"
#include "compress/frame.h"
#include "compress/update.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { UNITS = 8, OWNERS = 3 };
static const int32_t owner[UNITS] = {0, 1, 2, 0, 0, 2, 1, 0};

static bool ascends(const uint8_t *p, size_t len, uint32_t units) {
    struct neb_rd r = neb_rd_make(p, len);
    uint32_t last = 0;
    (void)neb_rd_view(&r, 8); // magic, units
    for (uint32_t i = 0; i < units; i++) {
        struct cmp_unit_shape s;
        if (cmp_unit_get(&r, &s) != NEB_OK || (i && s.unit <= last))
            return false;
        last = s.unit;
        for (int k = 0; k < 2; k++) { // counts, frame
            uint32_t n = neb_rd_u16(&r);
            (void)neb_rd_view(&r, n == CMP_LENGTH_LONG ? neb_rd_u32(&r) : n);
        }
    }
    return neb_rd_done(&r);
}

static uint32_t units_of(const struct neb_buf *b) {
    struct neb_rd r = neb_rd_make(b->p, b->len);
    (void)neb_rd_u32(&r);
    return neb_rd_u32(&r);
}

static void cut_and_join(const uint8_t *p, size_t len) {
    struct cmp_update_piece pieces[OWNERS + 1];
    struct neb_buf cuts[OWNERS] = {{0}}, joined = {0};
    enum neb_status st = NEB_OK;
    uint32_t units = 0;
    for (int32_t k = 0; k < OWNERS; k++) {
        enum neb_status of = cmp_update_cut(p, len, owner, UNITS, k, &cuts[k]);
        NEB_ASSERT(of == NEB_OK || of == NEB_ERR_FORMAT);
        NEB_ASSERT(k == 0 || of == st); // the verdict does not depend on the owner
        st = of;
        units += st == NEB_OK ? units_of(&cuts[k]) : 0;
        pieces[k] = (struct cmp_update_piece){cuts[k].p, cuts[k].len};
    }
    if (st == NEB_OK) {
        NEB_ASSERT(cmp_update_join(pieces, OWNERS, &joined) == NEB_OK);
        NEB_ASSERT(joined.len == len && units_of(&joined) == units);
        NEB_ASSERT(!ascends(p, len, units) || !memcmp(joined.p, p, len));
        neb_buf_clear(&joined);
    }
    // the pieces, with one that its owner made
    pieces[st == NEB_OK ? OWNERS : 0] = (struct cmp_update_piece){p, len};
    (void)!cmp_update_join(pieces, st == NEB_OK ? OWNERS + 1 : 1, &joined);
    neb_buf_free(&joined);
    for (int k = 0; k < OWNERS; k++)
        neb_buf_free(&cuts[k]);
}

static void shapes(const uint8_t *p, size_t len) {
    struct cmp_unit_shape all[UNITS], first[1];
    struct cmp_update_unit views[UNITS];
    uint32_t n, again;
    if (cmp_update_shapes(p, len, all, UNITS, &n) != NEB_OK)
        return;
    NEB_ASSERT(cmp_update_shapes(p, len, first, 1, &again) == NEB_OK && n == again);
    if (n > UNITS)
        return;
    NEB_ASSERT(!n || (first[0].unit == all[0].unit && first[0].rows == all[0].rows));
    NEB_ASSERT(cmp_update_open(p, len, all, n, views) == NEB_OK); // with the declared shapes
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cut_and_join(data, size);
    shapes(data, size);
    return 0;
}
