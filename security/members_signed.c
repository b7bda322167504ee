// SPDX-License-Identifier: Apache-2.0
#include "security/members.h"

#include <sodium.h>
#include <string.h>

static const char magic[8] = "nebml2";
enum {
    HEAD_MAX = 8 + SEC_FEDERATION_BYTES + 8 + 8 + 1 + SEC_LIST_HISTORY * NEB_SHA256_BYTES + 1 + 2 +
               SEC_NAME_MAX - 1 + 1,
    ENTRY_MAX = 2 + SEC_NAME_MAX - 1 + 2 + SEC_ENDPOINT_MAX - 1 + 2 * SEC_KEY_BYTES + 1 + 1 + 4,
};
_Static_assert(HEAD_MAX + NEB_MEMBERS_MAX * ENTRY_MAX + SEC_SIGN_BYTES <= SEC_LIST_MAX,
               "every list fits");

static const char *const why_names[] = {"init", "join", "revoke", "rotate", "promote", "move"};

const char *sec_list_why_name(enum sec_list_why w) { return why_names[w]; }

void sec_federation_of_ca(const uint8_t ca_key[SEC_KEY_BYTES], uint8_t out[SEC_FEDERATION_BYTES]) {
    static const char tag[] = "nebula federation ca v1";
    uint8_t all[sizeof tag + SEC_KEY_BYTES], h[NEB_SHA256_BYTES];
    memcpy(all, tag, sizeof tag);
    memcpy(all + sizeof tag, ca_key, SEC_KEY_BYTES);
    neb_sha256(all, sizeof all, h);
    memcpy(out, h, SEC_FEDERATION_BYTES);
}

// The history has at least the previous version, and none before the first.
static bool history_valid(const struct sec_list *l) {
    if (l->n_history > SEC_LIST_HISTORY || l->n_history > l->members.version - 1 ||
        (l->members.version > 1 && !l->n_history))
        return false;
    for (uint32_t i = 0; i < l->n_history; i++)
        if (sodium_is_zero(l->history[i], sizeof l->history[i]))
            return false;
    return true;
}

static bool list_valid(const struct sec_list *l) {
    return sec_members_valid(&l->members) && l->issued >= 0 && (unsigned)l->why < SEC_LIST_WHYS &&
           sec_name_valid(l->subject) && history_valid(l);
}

enum neb_status sec_list_format(const struct sec_list *l, struct neb_buf *out) {
    if (!list_valid(l))
        return neb_fail(NEB_ERR_INVALID, "member list: a field is out of range");
    neb_buf_clear(out);
    neb_buf_add(out, magic, sizeof magic);
    neb_buf_add(out, l->members.federation, sizeof l->members.federation);
    neb_buf_u64(out, l->members.version);
    neb_buf_u64(out, (uint64_t)l->issued);
    neb_buf_u8(out, (uint8_t)l->n_history);
    neb_buf_add(out, l->history, l->n_history * sizeof l->history[0]);
    neb_buf_u8(out, (uint8_t)l->why);
    neb_buf_str(out, l->subject);
    neb_buf_u8(out, (uint8_t)l->members.n);
    for (uint32_t i = 0; i < l->members.n; i++) {
        const struct sec_member *m = &l->members.m[i];
        neb_buf_str(out, m->pub.name);
        neb_buf_str(out, m->endpoint);
        neb_buf_add(out, m->pub.curve, SEC_KEY_BYTES);
        neb_buf_add(out, m->pub.sign, SEC_KEY_BYTES);
        neb_buf_u8(out, (uint8_t)m->role);
        neb_buf_u8(out, (uint8_t)m->connect);
        neb_buf_u32(out, m->caps);
    }
    neb_buf_add(out, l->signature, sizeof l->signature);
    return neb_buf_check(out);
}

static void read_member(struct neb_rd *r, struct sec_member *m) {
    neb_rd_str(r, m->pub.name, sizeof m->pub.name);
    neb_rd_str(r, m->endpoint, sizeof m->endpoint);
    neb_rd_copy(r, m->pub.curve, SEC_KEY_BYTES);
    neb_rd_copy(r, m->pub.sign, SEC_KEY_BYTES);
    m->role = (enum sec_role)neb_rd_u8(r);
    m->connect = (enum sec_connect)neb_rd_u8(r);
    m->caps = neb_rd_u32(r);
}

enum neb_status sec_list_parse(const uint8_t *p, size_t len, struct sec_list *out) {
    struct sec_list l = {.issued = 0};
    struct neb_rd r = neb_rd_make(p, len);
    char front[sizeof magic];
    neb_rd_copy(&r, front, sizeof front);
    if (len > SEC_LIST_MAX || r.bad || memcmp(front, magic, sizeof front) != 0)
        return neb_fail(NEB_ERR_FORMAT, "member list: this is not a member list");
    neb_rd_copy(&r, l.members.federation, sizeof l.members.federation);
    l.members.version = neb_rd_u64(&r);
    l.issued = (int64_t)neb_rd_u64(&r);
    l.n_history = neb_rd_u8(&r);
    for (uint32_t i = 0; i < l.n_history; i++)
        neb_rd_copy(&r, l.history[i], sizeof l.history[i]);
    l.why = (enum sec_list_why)neb_rd_u8(&r);
    neb_rd_str(&r, l.subject, sizeof l.subject);
    l.members.n = neb_rd_u8(&r);
    for (uint32_t i = 0; i < l.members.n && i < NEB_MEMBERS_MAX; i++)
        read_member(&r, &l.members.m[i]);
    neb_rd_copy(&r, l.signature, sizeof l.signature);
    if (!neb_rd_done(&r) || !list_valid(&l))
        return neb_fail(NEB_ERR_FORMAT, "member list: damaged or not in canonical form");
    *out = l;
    return NEB_OK;
}

enum neb_status sec_list_verify(const uint8_t *p, size_t len, const uint8_t ca_key[SEC_KEY_BYTES],
                                struct sec_list *out) {
    struct sec_list l;
    uint8_t fed[SEC_FEDERATION_BYTES];
    NEB_TRY(sec_list_parse(p, len, &l));
    sec_federation_of_ca(ca_key, fed);
    if (memcmp(fed, l.members.federation, sizeof fed) != 0)
        return neb_fail(NEB_ERR_DENIED, "member list: it belongs to another federation");
    if (sec_verify(ca_key, SEC_CONTEXT_LIST, p, len - SEC_SIGN_BYTES, l.signature) != NEB_OK)
        return neb_fail(NEB_ERR_DENIED, "member list version %llu: not signed by the CA",
                        (unsigned long long)l.members.version);
    *out = l;
    return NEB_OK;
}

const uint8_t *sec_list_before(const struct sec_list *l, uint64_t version) {
    bool reaches = version < l->members.version && l->members.version - version <= l->n_history;
    return reaches ? l->history[l->members.version - version - 1] : NULL;
}

void sec_list_succeed(struct sec_list *l, const uint8_t digest[NEB_SHA256_BYTES]) {
    if (l->members.version) {
        if (l->n_history < SEC_LIST_HISTORY)
            l->n_history++;
        memmove(l->history[1], l->history[0], (l->n_history - 1) * sizeof l->history[0]);
        memcpy(l->history[0], digest, sizeof l->history[0]);
    }
    l->members.version++;
}
