// SPDX-License-Identifier: Apache-2.0
// The signed member list: who belongs to a federation, as its CA says.
//
//     "nebml2" 2 zero bytes | federation 16 | version u64 | issued u64 (seconds since 1970)
//     | h u8 | h times: digest 32 (of version - 1, version - 2, ...) | why u8 | subject str
//     | n u8 | n times: name str, endpoint str, curve 32, sign 32, role u8, connect u8, caps u32
//     | signature 64 (Ed25519ph by the CA, context SEC_CONTEXT_MEMBERLIST, over all before it)
//
// str: u16 length and bytes. Integers are little-endian. Canonical: members ascend by signing key,
// no name and no key twice, every field in range, nothing after the signature. So a list has one
// digest, SHA-256 of all its bytes. Two lists with one version and two digests are a fork.
//
// The digests are the list's history. A site with an earlier version sees whether this list follows
// from it, even if it missed up to SEC_MEMBERLIST_HISTORY versions. A new version drops a digest
// only when the history is full. federation.h has the rules.
//
// Threads: plain values.
#ifndef SEC_MEMBERLIST_H
#define SEC_MEMBERLIST_H
#include "agent/base/bytes.h"
#include "agent/base/sha256.h"
#include "security/members.h"
#include "security/sign.h"

#define SEC_CONTEXT_MEMBERLIST "nebula member list v1"

enum {
    SEC_MEMBERLIST_MAX = 16 * 1024, // bytes; the largest possible list has 14,077
    SEC_MEMBERLIST_HISTORY = 255,   // digests
};

enum sec_role {
    SEC_ROLE_DATA,    // trains
    SEC_ROLE_WITNESS, // only votes
};

enum sec_capability {
    SEC_CAP_VOTER = 1u << 0, // counts in majorities
    SEC_CAP_ALL = SEC_CAP_VOTER,
};

enum sec_list_why { // what this version changed about `subject`
    SEC_LIST_INIT,
    SEC_LIST_JOIN,
    SEC_LIST_REVOKE,
    SEC_LIST_ROTATE,
    SEC_LIST_PROMOTE, // the subject, a lost voter of two, no longer votes
    SEC_LIST_MOVE,    // the subject has another address
    SEC_LIST_WHYS,
};

struct sec_listed {
    struct sec_member m;
    enum sec_role role;
    uint32_t caps; // of sec_capability
};

struct sec_memberlist {
    uint8_t federation[SEC_FEDERATION_BYTES];
    uint64_t version; // 1 or more
    int64_t issued;
    uint32_t n_history;
    uint8_t history[SEC_MEMBERLIST_HISTORY][NEB_SHA256_BYTES]; // the previous version first
    enum sec_list_why why;
    char subject[SEC_NAME_MAX];
    uint32_t n;
    struct sec_listed e[SEC_MEMBERS_MAX]; // by m.pub.sign, ascending
    uint8_t signature[SEC_SIGN_BYTES];
};

// The federation id of a CA: SHA-256("nebula federation ca v1" || its public key), first 16 bytes.
void sec_federation_of_ca(const uint8_t ca_key[SEC_KEY_BYTES], uint8_t out[SEC_FEDERATION_BYTES]);

// Canonical bytes, with the signature in the struct. Replaces out. NEB_ERR_INVALID: a field is out
// of range.
NEB_MUST_CHECK enum neb_status sec_memberlist_format(const struct sec_memberlist *l,
                                                     struct neb_buf *out);
// Strict: NEB_ERR_FORMAT. Does not check the signature.
NEB_MUST_CHECK enum neb_status sec_memberlist_parse(const uint8_t *p, size_t len,
                                                    struct sec_memberlist *out);
// Parses, then checks the federation and the CA's signature: NEB_ERR_DENIED.
NEB_MUST_CHECK enum neb_status sec_memberlist_verify(const uint8_t *p, size_t len,
                                                     const uint8_t ca_key[SEC_KEY_BYTES],
                                                     struct sec_memberlist *out);
void sec_memberlist_digest(const uint8_t *p, size_t len, uint8_t out[NEB_SHA256_BYTES]);

// Digest of an earlier version; NULL: the history does not reach back to it.
const uint8_t *sec_memberlist_former(const struct sec_memberlist *l, uint64_t version);
// Makes the list its own next version. digest: of the present version; unused for version 0.
void sec_memberlist_succeed(struct sec_memberlist *l, const uint8_t digest[NEB_SHA256_BYTES]);

// Puts a member in its place. NEB_ERR_EXISTS: its name or a key belongs to another. NEB_ERR_LIMIT:
// the list is full. NEB_ERR_INVALID: a field is out of range.
NEB_MUST_CHECK enum neb_status sec_memberlist_insert(struct sec_memberlist *l,
                                                     const struct sec_listed *e);
void sec_memberlist_drop(struct sec_memberlist *l, uint32_t i);
// Index, or -1.
int sec_memberlist_find(const struct sec_memberlist *l, const char *name);
uint32_t sec_memberlist_voters(const struct sec_memberlist *l);
// The trust list for links and ZAP.
void sec_memberlist_members(const struct sec_memberlist *l, struct sec_members *out);

// What changed from a to b. An entry with other keys counts as removed and added.
struct sec_memberlist_change {
    uint32_t added, removed, renewed;  // renewed: same keys, other endpoint, role or capability
    bool was_removed[SEC_MEMBERS_MAX]; // by index in a
};
void sec_memberlist_diff(const struct sec_memberlist *a, const struct sec_memberlist *b,
                         struct sec_memberlist_change *out);

const char *sec_role_name(enum sec_role r);
NEB_MUST_CHECK bool sec_role_parse(const char *text, enum sec_role *out);
const char *sec_list_why_name(enum sec_list_why w);

#endif
