// SPDX-License-Identifier: Apache-2.0
// Signed member lists. An accepted list is canonical: it is written back to the same bytes.
// Inserting, dropping and comparing members keep the limits, and so do the histories of the next
// versions.
#include "security/members.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Makes the next version of the list with these bytes.
static void histories(struct sec_list *l, const uint8_t *p, size_t len) {
    uint8_t digest[NEB_SHA256_BYTES];
    struct sec_list again;
    struct neb_buf b = {0};
    uint64_t was = l->members.version;
    NEB_ASSERT(!sec_list_before(l, was) && !sec_list_before(l, 0));
    NEB_ASSERT(was == 1 || sec_list_before(l, was - 1) == l->history[0]);
    NEB_ASSERT(!sec_list_before(l, was - l->n_history - 1));
    if (was == UINT64_MAX)
        return;
    neb_sha256(p, len, digest);
    sec_list_succeed(l, digest);
    NEB_ASSERT(l->members.version == was + 1 &&
               !memcmp(sec_list_before(l, was), digest, sizeof digest));
    NEB_ASSERT(sec_list_format(l, &b) == NEB_OK && b.len <= SEC_LIST_MAX);
    NEB_ASSERT(sec_list_parse(b.p, b.len, &again) == NEB_OK);
    NEB_ASSERT(again.n_history == l->n_history);
    NEB_ASSERT(!memcmp(again.history, l->history, l->n_history * sizeof digest));
    neb_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_list l, less;
    struct sec_members_change d;
    struct neb_buf b = {0};
    uint8_t ca[SEC_KEY_BYTES] = {1};
    // no signature for this key exists
    NEB_ASSERT(sec_list_verify(data, size, ca, &l) != NEB_OK);
    if (sec_list_parse(data, size, &l) != NEB_OK)
        return 0;
    NEB_ASSERT(sec_list_format(&l, &b) == NEB_OK);
    NEB_ASSERT(b.len == size && !memcmp(b.p, data, size));
    neb_buf_free(&b);
    less = l;
    histories(&less, data, size);
    NEB_ASSERT(l.members.n <= NEB_MEMBERS_MAX);
    if (!l.members.n)
        return 0;
    less = l;
    sec_members_drop(&less.members, l.members.n / 2);
    sec_members_diff(&l.members, &less.members, &d);
    NEB_ASSERT(d.removed == 1 && d.added == 0 && !d.renewed);
    NEB_ASSERT(sec_members_insert(&less.members, &l.members.m[l.members.n / 2]) == NEB_OK);
    NEB_ASSERT(!memcmp(&less.members.m[l.members.n / 2].pub, &l.members.m[l.members.n / 2].pub,
                       sizeof l.members.m[0].pub));
    NEB_ASSERT(sec_members_insert(&less.members, &l.members.m[0]) != NEB_OK);
    return 0;
}
