// SPDX-License-Identifier: Apache-2.0
// The bytes of a snapshot's header. In a file of its own, because libnebula reads snapshots too.
// Their SHA-256 is the snapshot's id, so each state must have exactly one encoding.
#include "inter/service/snapshot.h"

#include <string.h>

static const uint8_t magic[8] = "NEBSNAP2";

void inter_snapshot_put(struct neb_buf *b, const struct inter_snapshot *s) {
    neb_buf_add(b, magic, sizeof magic);
    neb_buf_add(b, s->job, sizeof s->job);
    neb_buf_u64(b, s->elements);
    neb_buf_u32(b, s->fragments);
    for (uint32_t f = 0; f < s->fragments; f++) {
        const struct inter_snapshot_part *p = &s->parts[f];
        neb_buf_u32(b, p->round);
        neb_buf_u32(b, p->version);
        neb_buf_u64(b, p->digest[0]);
        neb_buf_u64(b, p->digest[1]);
        if (p->round)
            inter_record_put(b, &p->last);
    }
}

bool inter_snapshot_get(struct neb_rd *r, struct inter_snapshot *s) {
    uint8_t m[sizeof magic];
    neb_rd_copy(r, m, sizeof m);
    neb_rd_copy(r, s->job, sizeof s->job);
    s->elements = neb_rd_u64(r);
    s->fragments = neb_rd_u32(r);
    if (r->bad || memcmp(m, magic, sizeof m) || s->fragments < 1 ||
        s->fragments > INTER_FRAGMENTS_MAX || s->elements > UINT64_MAX / 64)
        return false;
    for (uint32_t f = 0; f < s->fragments; f++) {
        struct inter_snapshot_part *p = &s->parts[f];
        p->round = neb_rd_u32(r);
        p->version = neb_rd_u32(r);
        p->digest[0] = neb_rd_u64(r);
        p->digest[1] = neb_rd_u64(r);
        if (p->round &&
            (!inter_record_get(r, &p->last) || p->last.fragment != f ||
             p->last.round != p->round - 1 || memcmp(p->last.job, s->job, sizeof s->job)))
            return false;
    }
    return !r->bad;
}
