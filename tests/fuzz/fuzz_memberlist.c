// SPDX-License-Identifier: Apache-2.0
// Signed member lists. An accepted list is canonical: it is written back to the same bytes.
// Inserting, dropping and comparing members keep the limits, and so do the histories of the next
// versions.
#include "security/memberlist.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Makes the next version of the list with these bytes.
static void histories(struct sec_memberlist *l, const uint8_t *p, size_t len) {
    uint8_t digest[NEB_SHA256_BYTES];
    struct sec_memberlist again;
    struct neb_buf b = {0};
    uint64_t was = l->version;
    NEB_ASSERT(!sec_memberlist_former(l, was) && !sec_memberlist_former(l, 0));
    NEB_ASSERT(was == 1 || sec_memberlist_former(l, was - 1) == l->history[0]);
    NEB_ASSERT(!sec_memberlist_former(l, was - l->n_history - 1));
    if (was == UINT64_MAX)
        return;
    sec_memberlist_digest(p, len, digest);
    sec_memberlist_succeed(l, digest);
    NEB_ASSERT(l->version == was + 1 &&
               !memcmp(sec_memberlist_former(l, was), digest, sizeof digest));
    NEB_ASSERT(sec_memberlist_format(l, &b) == NEB_OK && b.len <= SEC_MEMBERLIST_MAX);
    NEB_ASSERT(sec_memberlist_parse(b.p, b.len, &again) == NEB_OK);
    NEB_ASSERT(again.n_history == l->n_history);
    NEB_ASSERT(!memcmp(again.history, l->history, l->n_history * sizeof digest));
    neb_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_memberlist l, less;
    struct sec_memberlist_change d;
    struct sec_members m;
    struct neb_buf b = {0};
    uint8_t ca[SEC_KEY_BYTES] = {1};
    // no signature for this key exists
    NEB_ASSERT(sec_memberlist_verify(data, size, ca, &l) != NEB_OK);
    if (sec_memberlist_parse(data, size, &l) != NEB_OK)
        return 0;
    NEB_ASSERT(sec_memberlist_format(&l, &b) == NEB_OK);
    NEB_ASSERT(b.len == size && !memcmp(b.p, data, size));
    neb_buf_free(&b);
    less = l;
    histories(&less, data, size);
    sec_memberlist_members(&l, &m);
    NEB_ASSERT(m.n == l.n && l.n <= SEC_MEMBERS_MAX);
    if (!l.n)
        return 0;
    less = l;
    sec_memberlist_drop(&less, l.n / 2);
    sec_memberlist_diff(&l, &less, &d);
    NEB_ASSERT(d.removed == 1 && d.added == 0 && d.was_removed[l.n / 2]);
    NEB_ASSERT(sec_memberlist_insert(&less, &l.e[l.n / 2]) == NEB_OK);
    NEB_ASSERT(!memcmp(&less.e[l.n / 2].m.pub, &l.e[l.n / 2].m.pub, sizeof l.e[0].m.pub));
    NEB_ASSERT(sec_memberlist_insert(&less, &l.e[0]) != NEB_OK);
    return 0;
}
