// SPDX-License-Identifier: Apache-2.0
// Forks of the member list that this site has proof of, in DIR/forked. A fork is kept as two
// digests, theirs and ours, of the first version at which the two lists are known to differ. Later
// lists of a branch carry its digest in their history. The file is written before any job stops.
//
// An operator decides which branch is right: the one in members.neb and seen when the agent starts
// again. From then on lists of the other branch prove nothing new, so nobody can stop jobs by
// sending them.
//
//     "nebfork1" | 0 to SEC_FORKS_MAX times: digest 32       oldest first
//
// Threads: one user at a time. Processes of one home take turns (federation.c holds the lock).
#ifndef SEC_FORKS_H
#define SEC_FORKS_H
#include "security/memberlist.h"

enum { SEC_FORKS_MAX = 32 }; // digests of 16 forks; a new fork then replaces the oldest

struct sec_forks {
    uint32_t n;
    uint8_t digest[SEC_FORKS_MAX][NEB_SHA256_BYTES];
};

// A signed list and its digest. list NULL: only version and digest are known.
struct sec_branch {
    const struct sec_memberlist *list;
    uint64_t version;
    const uint8_t *digest;
};

// Without a file: no forks. NEB_ERR_FORMAT: damaged. NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status sec_forks_load(const char *dir, struct sec_forks *out);
// Parses the bytes of the file. what: its name in the log. NEB_ERR_FORMAT: damaged; *out is empty.
NEB_MUST_CHECK enum neb_status sec_forks_parse(const uint8_t *p, size_t n, const char *what,
                                               struct sec_forks *out);
// Records that neither of the two lists follows from the other. A known fork is not written again.
NEB_MUST_CHECK enum neb_status sec_forks_keep(const char *dir, const struct sec_branch *theirs,
                                              const struct sec_branch *ours);
// True if `theirs` is on a branch of f that is not ours.
bool sec_forks_know(const struct sec_forks *f, const struct sec_branch *theirs,
                    const struct sec_branch *ours);

#endif
