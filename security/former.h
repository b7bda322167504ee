// SPDX-License-Identifier: Apache-2.0
// Signing keys of removed members, and previous keys of members, in DIR/former.json. What they
// signed as members stays valid, and a site may have to check it later: in the open round of a job,
// in commits made while it was away, in an old ledger. The file is written before the new list
// takes effect. These keys let nobody in: only keys of the list open a connection.
//
//     {"format": 1, "former": [{"name": "rome", "sign": hex, "until": 7}]}
//
// Oldest first. until: the first version without the key. "rotated": true is added if that version
// gave the same member another key, and this site is sure that the name did not change hands.
//
// Threads: one user at a time.
#ifndef SEC_FORMER_H
#define SEC_FORMER_H
#include "security/memberlist.h"

enum { SEC_FORMER_MAX = 256, SEC_FORMER_OF_ONE = 8 }; // of all, and of one name; then the oldest go

struct sec_former {
    char name[SEC_NAME_MAX];
    uint8_t sign[SEC_KEY_BYTES];
    uint64_t until;
    bool rotated;
};

// Adds each key of `before` that `after` does not hold under the same name. NEB_ERR_FORMAT: the
// file is damaged. Errors of writing.
NEB_MUST_CHECK enum neb_status sec_former_keep(const char *dir, const struct sec_memberlist *before,
                                               const struct sec_memberlist *after);
// Reads the whole file. out: (SEC_FORMER_MAX). Without a file *n is 0. NEB_ERR_FORMAT, NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status sec_former_load(const char *dir, struct sec_former *out, size_t *n);
// *out: true if the file has this signing key, of a removed member or replaced by another.
NEB_MUST_CHECK enum neb_status sec_former_holds(const char *dir, const uint8_t sign[SEC_KEY_BYTES],
                                                bool *out);
// The newest key of a name; NULL: none.
const struct sec_former *sec_former_find(const struct sec_former *all, size_t n, const char *name);
// Parses the text of the file. what: its name, for errors.
NEB_MUST_CHECK enum neb_status sec_former_parse(const char *text, size_t len, const char *what,
                                                struct sec_former *out, size_t *n);

#endif
