// SPDX-License-Identifier: Apache-2.0
// The trust list: who belongs to the federation. HOME/members.json:
//
//     {"format": 1, "federation": "<32 hex>", "version": 3,
//      "members": [{"id": "nebid1:...", "endpoint": "host:7443", "connect": "auto"}, ...]}
//
// The list includes this member. It is ordered by signing key, so every site gives a member the
// same index. The parser refuses unknown keys, duplicate keys, names or identities, and values out
// of range.
//
// Without a hub the federation id is SHA-256("nebula federation v1", then in list order both public
// keys of every member), first 16 bytes. Sites that added the same peers compute the same id, and
// messages of one set of members never pass for another's. With a hub, sec_memberlist_members fills
// the same struct from a signed list, which has its own federation id.
#ifndef SEC_MEMBERS_H
#define SEC_MEMBERS_H
#include "agent/base/member_set.h"
#include "security/identity.h"

enum { SEC_MEMBERS_MAX = NEB_MEMBERS_MAX, SEC_FEDERATION_BYTES = 16, SEC_ENDPOINT_MAX = 256 };

enum sec_connect {
    SEC_CONNECT_AUTO, // dial if there is an endpoint, and accept
    SEC_CONNECT_OUT,  // only dial
    SEC_CONNECT_IN,   // only accept
};

struct sec_member {
    struct sec_public pub;
    char endpoint[SEC_ENDPOINT_MAX]; // "host:port"; empty: not known, the member dials us
    enum sec_connect connect;
};

// A plain value: copy it. A list with n 0 admits nobody.
struct sec_members {
    uint8_t federation[SEC_FEDERATION_BYTES];
    uint64_t version; // rises with every change; 0 only for the empty list
    uint32_t n;
    struct sec_member m[SEC_MEMBERS_MAX]; // by pub.sign, ascending
};

// Reads the file at path. NEB_ERR_DENIED: its version is below at_least (a roll-back), or others
// may write it. NEB_ERR_NOT_FOUND (not logged): no file.
NEB_MUST_CHECK enum neb_status sec_members_load(const char *path, uint64_t at_least,
                                                struct sec_members *out);
NEB_MUST_CHECK enum neb_status sec_members_parse(const char *text, size_t len, const char *what,
                                                 struct sec_members *out);
// Atomic and durable, 0600. NEB_ERR_DENIED: path holds this version or a newer one.
NEB_MUST_CHECK enum neb_status sec_members_save(const char *path, const struct sec_members *m);

// Adds a member, or replaces the one with the same identity. Raises the version and recomputes the
// federation id. NEB_ERR_EXISTS: name or key belongs to another member. NEB_ERR_LIMIT: the list is
// full. NEB_ERR_INVALID: name or endpoint is not valid.
NEB_MUST_CHECK enum neb_status sec_members_add(struct sec_members *m, const struct sec_member *add);
// Removes a member. NEB_ERR_NOT_FOUND: no such member.
NEB_MUST_CHECK enum neb_status sec_members_remove(struct sec_members *m, const char *name);

// or NULL
const struct sec_member *sec_members_by_name(const struct sec_members *m, const char *name);
const struct sec_member *sec_members_by_curve(const struct sec_members *m,
                                              const uint8_t curve[SEC_KEY_BYTES]); // or NULL
bool sec_endpoint_valid(const char *endpoint); // host:port or [v6]:port; port 1..65535

#endif
