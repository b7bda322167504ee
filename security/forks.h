// SPDX-License-Identifier: Apache-2.0
// Forks of the member list that were proven here: of each the two digests of the first version at which the two lists are known to differ,
// theirs and ours, in DIR/forked, written before anything stops for it. Every later list of either branch has its own in its history. Which
// of the two is right is for an operator to say, who does it by what the agent finds in members.neb and seen when it is started again: from
// then on the other branch proves nothing new, and whoever still holds a list of it cannot stop jobs by sending it.
//
//     "nebfork1" | 0 to SEC_FORKS_MAX times: digest 32       oldest first
//
// Threads: one user at a time; processes of one home take turns (federation.c holds the lock).
#ifndef SEC_FORKS_H
#define SEC_FORKS_H
#include "security/memberlist.h"

enum { SEC_FORKS_MAX = 32 }; // digests, of 16 forks; then the oldest go

struct sec_forks {
    uint32_t n;
    uint8_t digest[SEC_FORKS_MAX][NEB_SHA256_BYTES];
};

// A signed list with its digest. list NULL: of it no more is known than version and digest.
struct sec_branch {
    const struct sec_memberlist *list;
    uint64_t version;
    const uint8_t *digest;
};

// None without a file. NEB_ERR_FORMAT, NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status sec_forks_load(const char *dir, struct sec_forks *out);
// The same of a file's bytes; what: named in the log. NEB_ERR_FORMAT: damaged, and *out has none.
NEB_MUST_CHECK enum neb_status sec_forks_parse(const uint8_t *p, size_t n, const char *what,
                                               struct sec_forks *out);
// Keeps that `theirs` does not follow from `ours`, nor the other way round. What is in the file already is not written again.
NEB_MUST_CHECK enum neb_status sec_forks_keep(const char *dir, const struct sec_branch *theirs,
                                              const struct sec_branch *ours);
// Whether `theirs` is of a branch among these that is not ours.
bool sec_forks_know(const struct sec_forks *f, const struct sec_branch *theirs,
                    const struct sec_branch *ours);

#endif
