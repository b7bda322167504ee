// SPDX-License-Identifier: Apache-2.0
// Signing keys of members that a newer list holds no more, or under other keys: what they signed while they were members stands, and whoever
// lacks it yet (the open round of a job, commits of while it was away, an old ledger) must be able to check it. In DIR/former.json, written
// when a list takes effect, before it does. Nobody is let in by them: connections are the list's alone.
//
//     {"format": 1, "former": [{"name": "rome", "sign": hex, "until": 7}]}      until: the first version without it; oldest first
//
// "rotated": true stands there as well where that version gave the same member another key. It is missing also where the step from the
// list before leaves open that the name was somebody else's meanwhile.
//
// Threads: one user at a time.
#ifndef SEC_FORMER_H
#define SEC_FORMER_H
#include "security/memberlist.h"

enum { SEC_FORMER_MAX = 256, SEC_FORMER_OF_ONE = 8 }; // then the oldest go, of all or of a name

struct sec_former {
    char name[SEC_NAME_MAX];
    uint8_t sign[SEC_KEY_BYTES];
    uint64_t until;
    bool rotated;
};

// Every key of `before` that `after` does not hold under its name. NEB_ERR_FORMAT: the file is damaged; and those of writing.
NEB_MUST_CHECK enum neb_status sec_former_keep(const char *dir, const struct sec_memberlist *before,
                                               const struct sec_memberlist *after);
// out: (SEC_FORMER_MAX), all of the file; none without one. NEB_ERR_FORMAT, NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status sec_former_load(const char *dir, struct sec_former *out, size_t *n);
// Whether somebody had this signing key and was taken off the list, or has others since: as far as the file goes back.
NEB_MUST_CHECK enum neb_status sec_former_holds(const char *dir, const uint8_t sign[SEC_KEY_BYTES],
                                                bool *out);
// The newest of a name; NULL: none.
const struct sec_former *sec_former_find(const struct sec_former *all, size_t n, const char *name);
// What sec_former_load makes of a file's text; what: its name, for errors.
NEB_MUST_CHECK enum neb_status sec_former_parse(const char *text, size_t len, const char *what,
                                                struct sec_former *out, size_t *n);

#endif
