// Signed member lists. What is accepted is canonical: its bytes come out again as they went in; and
// inserting, dropping and comparing members keep to the limits.
#include "security/memberlist.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_memberlist l, less;
    struct sec_memberlist_change d;
    struct sec_members m;
    struct neb_buf b = {0};
    uint8_t ca[SEC_KEY_BYTES] = {1};
    NEB_ASSERT(sec_memberlist_verify(data, size, ca, &l) != NEB_OK); // nobody signs for this key
    if (sec_memberlist_parse(data, size, &l) != NEB_OK)
        return 0;
    NEB_ASSERT(sec_memberlist_format(&l, &b) == NEB_OK);
    NEB_ASSERT(b.len == size && !memcmp(b.p, data, size));
    neb_buf_free(&b);
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
