// SPDX-License-Identifier: Apache-2.0
// The trust list: who belongs to the federation. HOME/members.json:
//
//     {"format": 1, "federation": "<32 hex>", "version": 3,
//      "members": [{"id": "nebid1:...", "endpoint": "host:7443", "connect": "auto"}, ...]}
//
// The list holds this member itself too and is ordered by signing key, so that every site gives a
// member the same index. The parser refuses unknown keys, duplicate keys, names or identities, and
// values out of range.
//
// Federation id without a hub: SHA-256("nebula federation v1" and, in list order, both public keys
// of every member), first 16 bytes: each side computes the same once it has added the same peers,
// and messages of one set of members never pass for another's. A CA-signed list (enrolment) carries
// its own federation id; it will fill the same struct from a signed file in place of
// sec_members_load.
#ifndef SEC_MEMBERS_H
#define SEC_MEMBERS_H
#include "security/identity.h"

enum { SEC_MEMBERS_MAX = 16, SEC_FEDERATION_BYTES = 16, SEC_ENDPOINT_MAX = 256 };

enum sec_connect {
    SEC_CONNECT_AUTO, // dial when there is an endpoint, accept as well
    SEC_CONNECT_OUT,  // only dial
    SEC_CONNECT_IN,   // only accept
};

struct sec_member {
    struct sec_public pub;
    char endpoint[SEC_ENDPOINT_MAX]; // "host:port"; empty: not known, it dials us
    enum sec_connect connect;
};

// A plain value: copy it. n 0 is a list that admits nobody.
struct sec_members {
    uint8_t federation[SEC_FEDERATION_BYTES];
    uint64_t version; // rises with every change; 0 only for the empty list
    uint32_t n;
    struct sec_member m[SEC_MEMBERS_MAX]; // by pub.sign, ascending
};

// Reads path. at_least: NEB_ERR_DENIED when the file's version is lower (a roll-back). A missing
// file gives NEB_ERR_NOT_FOUND, not logged.
NEB_MUST_CHECK enum neb_status sec_members_load(const char *path, uint64_t at_least,
                                                struct sec_members *out);
NEB_MUST_CHECK enum neb_status sec_members_parse(const char *text, size_t len, const char *what,
                                                 struct sec_members *out);
// Atomic and durable, 0600. NEB_ERR_DENIED when path holds this version or a newer one.
NEB_MUST_CHECK enum neb_status sec_members_save(const char *path, const struct sec_members *m);

// Adds or (same identity) renews; raises the version and recomputes the federation id.
// NEB_ERR_EXISTS: name or key belongs to another member; NEB_ERR_LIMIT: the list is full.
NEB_MUST_CHECK enum neb_status sec_members_add(struct sec_members *m, const struct sec_member *add);
// NEB_ERR_NOT_FOUND
NEB_MUST_CHECK enum neb_status sec_members_remove(struct sec_members *m, const char *name);

// or NULL
const struct sec_member *sec_members_by_name(const struct sec_members *m, const char *name);
const struct sec_member *sec_members_by_curve(const struct sec_members *m,
                                              const uint8_t curve[SEC_KEY_BYTES]); // or NULL
bool sec_endpoint_valid(const char *endpoint); // host:port, [v6]:port; port 1..65535

#endif
