// SPDX-License-Identifier: Apache-2.0
#include "security/memberlist.h"

#include <sodium.h>
#include <string.h>

static const char magic[8] = "nebml2";
enum {
    HEAD_MAX = 8 + SEC_FEDERATION_BYTES + 8 + 8 + 1 + SEC_MEMBERLIST_HISTORY * NEB_SHA256_BYTES +
               1 + 2 + SEC_NAME_MAX - 1 + 1,
    ENTRY_MAX = 2 + SEC_NAME_MAX - 1 + 2 + SEC_ENDPOINT_MAX - 1 + 2 * SEC_KEY_BYTES + 1 + 1 + 4,
};
_Static_assert(HEAD_MAX + SEC_MEMBERS_MAX * ENTRY_MAX + SEC_SIGN_BYTES == 14077 &&
                   14077 <= SEC_MEMBERLIST_MAX,
               "every list fits");

static const char *const role_names[] = {"data", "witness"};
static const char *const why_names[] = {"init", "join", "revoke", "rotate", "promote", "move"};

const char *sec_role_name(enum sec_role r) { return role_names[r]; }
const char *sec_list_why_name(enum sec_list_why w) { return why_names[w]; }

bool sec_role_parse(const char *text, enum sec_role *out) {
    for (int i = 0; i < 2; i++)
        if (!strcmp(text, role_names[i])) {
            *out = (enum sec_role)i;
            return true;
        }
    return false;
}

void sec_federation_of_ca(const uint8_t ca_key[SEC_KEY_BYTES], uint8_t out[SEC_FEDERATION_BYTES]) {
    static const char tag[] = "nebula federation ca v1";
    uint8_t all[sizeof tag + SEC_KEY_BYTES], h[NEB_SHA256_BYTES];
    memcpy(all, tag, sizeof tag);
    memcpy(all + sizeof tag, ca_key, SEC_KEY_BYTES);
    neb_sha256(all, sizeof all, h);
    memcpy(out, h, SEC_FEDERATION_BYTES);
}

void sec_memberlist_digest(const uint8_t *p, size_t len, uint8_t out[NEB_SHA256_BYTES]) {
    neb_sha256(p, len, out);
}

// ---- rules for every list -----------------------------------------------------------------------

static bool entry_valid(const struct sec_listed *e) {
    return sec_name_valid(e->m.pub.name) &&
           (!e->m.endpoint[0] || sec_endpoint_valid(e->m.endpoint)) &&
           (unsigned)e->m.connect <= SEC_CONNECT_IN && (unsigned)e->role <= SEC_ROLE_WITNESS &&
           !(e->caps & ~(uint32_t)SEC_CAP_ALL);
}

static bool clash(const struct sec_listed *a, const struct sec_listed *b) {
    return !strcmp(a->m.pub.name, b->m.pub.name) ||
           !memcmp(a->m.pub.curve, b->m.pub.curve, SEC_KEY_BYTES) ||
           !memcmp(a->m.pub.sign, b->m.pub.sign, SEC_KEY_BYTES);
}

// The history has at least the previous version, and none before the first.
static bool history_valid(const struct sec_memberlist *l) {
    if (l->n_history > SEC_MEMBERLIST_HISTORY || l->n_history > l->version - 1 ||
        (l->version > 1 && !l->n_history))
        return false;
    for (uint32_t i = 0; i < l->n_history; i++)
        if (sodium_is_zero(l->history[i], sizeof l->history[i]))
            return false;
    return true;
}

static bool list_valid(const struct sec_memberlist *l) {
    if (!l->version || l->issued < 0 || l->n > SEC_MEMBERS_MAX ||
        (unsigned)l->why >= SEC_LIST_WHYS || !sec_name_valid(l->subject) || !history_valid(l))
        return false;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!entry_valid(&l->e[i]) ||
            (i && memcmp(l->e[i - 1].m.pub.sign, l->e[i].m.pub.sign, SEC_KEY_BYTES) >= 0))
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (clash(&l->e[k], &l->e[i]))
                return false;
    }
    return true;
}

// ---- bytes -------------------------------------------------------------------------------------

static void format_history(const struct sec_memberlist *l, struct neb_buf *out) {
    neb_buf_u8(out, (uint8_t)l->n_history);
    neb_buf_add(out, l->history, l->n_history * sizeof l->history[0]);
}

enum neb_status sec_memberlist_format(const struct sec_memberlist *l, struct neb_buf *out) {
    if (!list_valid(l))
        return neb_fail(NEB_ERR_INVALID, "member list: a field is out of range");
    neb_buf_clear(out);
    neb_buf_add(out, magic, sizeof magic);
    neb_buf_add(out, l->federation, sizeof l->federation);
    neb_buf_u64(out, l->version);
    neb_buf_u64(out, (uint64_t)l->issued);
    format_history(l, out);
    neb_buf_u8(out, (uint8_t)l->why);
    neb_buf_str(out, l->subject);
    neb_buf_u8(out, (uint8_t)l->n);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct sec_listed *e = &l->e[i];
        neb_buf_str(out, e->m.pub.name);
        neb_buf_str(out, e->m.endpoint);
        neb_buf_add(out, e->m.pub.curve, SEC_KEY_BYTES);
        neb_buf_add(out, e->m.pub.sign, SEC_KEY_BYTES);
        neb_buf_u8(out, (uint8_t)e->role);
        neb_buf_u8(out, (uint8_t)e->m.connect);
        neb_buf_u32(out, e->caps);
    }
    neb_buf_add(out, l->signature, sizeof l->signature);
    return neb_buf_check(out);
}

static void read_history(struct neb_rd *r, struct sec_memberlist *l) {
    l->n_history = neb_rd_u8(r);
    for (uint32_t i = 0; i < l->n_history; i++)
        neb_rd_copy(r, l->history[i], sizeof l->history[i]);
}

static void read_entry(struct neb_rd *r, struct sec_listed *e) {
    neb_rd_str(r, e->m.pub.name, sizeof e->m.pub.name);
    neb_rd_str(r, e->m.endpoint, sizeof e->m.endpoint);
    neb_rd_copy(r, e->m.pub.curve, SEC_KEY_BYTES);
    neb_rd_copy(r, e->m.pub.sign, SEC_KEY_BYTES);
    e->role = (enum sec_role)neb_rd_u8(r);
    e->m.connect = (enum sec_connect)neb_rd_u8(r);
    e->caps = neb_rd_u32(r);
}

enum neb_status sec_memberlist_parse(const uint8_t *p, size_t len, struct sec_memberlist *out) {
    struct sec_memberlist l = {.version = 0};
    struct neb_rd r = neb_rd_make(p, len);
    char front[sizeof magic];
    neb_rd_copy(&r, front, sizeof front);
    if (len > SEC_MEMBERLIST_MAX || r.bad || memcmp(front, magic, sizeof front) != 0)
        return neb_fail(NEB_ERR_FORMAT, "member list: this is not a member list");
    neb_rd_copy(&r, l.federation, sizeof l.federation);
    l.version = neb_rd_u64(&r);
    l.issued = (int64_t)neb_rd_u64(&r);
    read_history(&r, &l);
    l.why = (enum sec_list_why)neb_rd_u8(&r);
    neb_rd_str(&r, l.subject, sizeof l.subject);
    l.n = neb_rd_u8(&r);
    for (uint32_t i = 0; i < l.n && i < SEC_MEMBERS_MAX; i++)
        read_entry(&r, &l.e[i]);
    neb_rd_copy(&r, l.signature, sizeof l.signature);
    if (!neb_rd_done(&r) || !list_valid(&l))
        return neb_fail(NEB_ERR_FORMAT, "member list: damaged or not in canonical form");
    *out = l;
    return NEB_OK;
}

enum neb_status sec_memberlist_verify(const uint8_t *p, size_t len,
                                      const uint8_t ca_key[SEC_KEY_BYTES],
                                      struct sec_memberlist *out) {
    struct sec_memberlist l;
    uint8_t fed[SEC_FEDERATION_BYTES];
    NEB_TRY(sec_memberlist_parse(p, len, &l));
    sec_federation_of_ca(ca_key, fed);
    if (memcmp(fed, l.federation, sizeof fed) != 0)
        return neb_fail(NEB_ERR_DENIED, "member list: it belongs to another federation");
    if (sec_verify(ca_key, SEC_CONTEXT_MEMBERLIST, p, len - SEC_SIGN_BYTES, l.signature) != NEB_OK)
        return neb_fail(NEB_ERR_DENIED, "member list version %llu: not signed by the CA",
                        (unsigned long long)l.version);
    *out = l;
    return NEB_OK;
}

// ---- contents ----------------------------------------------------------------------------------

const uint8_t *sec_memberlist_former(const struct sec_memberlist *l, uint64_t version) {
    bool reaches = version < l->version && l->version - version <= l->n_history;
    return reaches ? l->history[l->version - version - 1] : NULL;
}

void sec_memberlist_succeed(struct sec_memberlist *l, const uint8_t digest[NEB_SHA256_BYTES]) {
    if (l->version) {
        if (l->n_history < SEC_MEMBERLIST_HISTORY)
            l->n_history++;
        memmove(l->history[1], l->history[0], (l->n_history - 1) * sizeof l->history[0]);
        memcpy(l->history[0], digest, sizeof l->history[0]);
    }
    l->version++;
}

int sec_memberlist_find(const struct sec_memberlist *l, const char *name) {
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(l->e[i].m.pub.name, name))
            return (int)i;
    return -1;
}

enum neb_status sec_memberlist_insert(struct sec_memberlist *l, const struct sec_listed *e) {
    if (!entry_valid(e))
        return neb_fail(NEB_ERR_INVALID, "member '%s': endpoint or role is out of range",
                        e->m.pub.name);
    for (uint32_t i = 0; i < l->n; i++)
        if (clash(&l->e[i], e))
            return neb_fail(NEB_ERR_EXISTS,
                            "member '%s': its name or one of its keys belongs to '%s'",
                            e->m.pub.name, l->e[i].m.pub.name);
    if (l->n == SEC_MEMBERS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "member list: it cannot have more than %d members",
                        SEC_MEMBERS_MAX);
    uint32_t i = l->n++;
    for (; i > 0 && memcmp(l->e[i - 1].m.pub.sign, e->m.pub.sign, SEC_KEY_BYTES) > 0; i--)
        l->e[i] = l->e[i - 1];
    l->e[i] = *e;
    return NEB_OK;
}

void sec_memberlist_drop(struct sec_memberlist *l, uint32_t i) {
    NEB_ASSERT(i < l->n);
    memmove(&l->e[i], &l->e[i + 1], (l->n - i - 1) * sizeof l->e[0]);
    memset(&l->e[--l->n], 0, sizeof l->e[0]);
}

uint32_t sec_memberlist_voters(const struct sec_memberlist *l) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        n += !!(l->e[i].caps & SEC_CAP_VOTER);
    return n;
}

void sec_memberlist_members(const struct sec_memberlist *l, struct sec_members *out) {
    *out = (struct sec_members){.version = l->version, .n = l->n};
    memcpy(out->federation, l->federation, sizeof out->federation);
    for (uint32_t i = 0; i < l->n; i++)
        out->m[i] = l->e[i].m;
}

static bool same_keys(const struct sec_public *a, const struct sec_public *b) {
    return !strcmp(a->name, b->name) && !memcmp(a->curve, b->curve, SEC_KEY_BYTES) &&
           !memcmp(a->sign, b->sign, SEC_KEY_BYTES);
}

static const struct sec_listed *partner(const struct sec_memberlist *l,
                                        const struct sec_public *p) {
    for (uint32_t i = 0; i < l->n; i++)
        if (same_keys(&l->e[i].m.pub, p))
            return &l->e[i];
    return NULL;
}

void sec_memberlist_diff(const struct sec_memberlist *a, const struct sec_memberlist *b,
                         struct sec_memberlist_change *out) {
    *out = (struct sec_memberlist_change){0};
    for (uint32_t i = 0; i < a->n; i++) {
        const struct sec_listed *x = &a->e[i], *y = partner(b, &x->m.pub);
        if (!y) {
            out->removed++;
            out->was_removed[i] = true;
        } else if (strcmp(x->m.endpoint, y->m.endpoint) != 0 || x->m.connect != y->m.connect ||
                   x->role != y->role || x->caps != y->caps) {
            out->renewed++;
        }
    }
    for (uint32_t i = 0; i < b->n; i++)
        out->added += !partner(a, &b->e[i].m.pub);
}
