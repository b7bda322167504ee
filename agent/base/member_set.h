// SPDX-License-Identifier: Apache-2.0
// A set of members (clusters) of a job, as a value of a few bytes.
//
// Members are numbers from 0 to NEB_MEMBERS_MAX - 1. The set is a struct, so that the compiler
// refuses a set where a number is expected, and a bit operation on a set.
//
// NEB_MEMBERS_MAX is the one limit: the width of a set, the arrays by member and the checks of
// received data follow from it. A larger limit also makes a set wider on the wire and on disk, so
// it needs a new protocol number.
#ifndef NEB_MEMBER_SET_H
#define NEB_MEMBER_SET_H
#include "agent/base/bytes.h"

#define NEB_MEMBERS_MAX 16

#if NEB_MEMBERS_MAX <= 16
typedef uint16_t neb_member_bits;
#elif NEB_MEMBERS_MAX <= 32
typedef uint32_t neb_member_bits;
#else
typedef uint64_t neb_member_bits;
#endif
_Static_assert(NEB_MEMBERS_MAX <= 64, "a set is one integer");

struct member_set {
    neb_member_bits bits; // bit m: member m is in the set; for this header only
};

static inline struct member_set mset_from_bits(uint64_t bits) {
    return (struct member_set){(neb_member_bits)bits};
}
static inline uint64_t mset_bits(struct member_set s) { return s.bits; }
static inline struct member_set mset_none(void) { return mset_from_bits(0); }
// the member m alone; no member if m is negative or beyond the limit
static inline struct member_set mset_of(int m) {
    return mset_from_bits(m >= 0 && m < NEB_MEMBERS_MAX ? UINT64_C(1) << m : 0);
}
// the members 0 … n - 1
static inline struct member_set mset_first(int n) {
    return mset_from_bits(n > 0 ? UINT64_MAX >> (64 - (n < NEB_MEMBERS_MAX ? n : NEB_MEMBERS_MAX))
                                : 0);
}

static inline struct member_set mset_union(struct member_set a, struct member_set b) {
    return mset_from_bits(a.bits | (uint64_t)b.bits);
}
static inline struct member_set mset_common(struct member_set a, struct member_set b) {
    return mset_from_bits(a.bits & (uint64_t)b.bits);
}
// the members of a that are not in b
static inline struct member_set mset_minus(struct member_set a, struct member_set b) {
    return mset_from_bits(a.bits & ~(uint64_t)b.bits);
}
static inline struct member_set mset_with(struct member_set s, int m) {
    return mset_union(s, mset_of(m));
}
static inline struct member_set mset_without(struct member_set s, int m) {
    return mset_minus(s, mset_of(m));
}

static inline bool mset_has(struct member_set s, int m) {
    return m >= 0 && m < NEB_MEMBERS_MAX && (uint64_t)s.bits >> m & 1;
}
static inline void mset_add(struct member_set *s, int m) { *s = mset_with(*s, m); }
static inline void mset_remove(struct member_set *s, int m) { *s = mset_without(*s, m); }
static inline void mset_assign(struct member_set *s, int m, bool in) {
    *s = in ? mset_with(*s, m) : mset_without(*s, m);
}

static inline bool mset_empty(struct member_set s) { return !s.bits; }
static inline bool mset_equal(struct member_set a, struct member_set b) { return a.bits == b.bits; }
static inline bool mset_meets(struct member_set a, struct member_set b) {
    return !mset_empty(mset_common(a, b));
}
static inline bool mset_within(struct member_set a, struct member_set b) { // b has all members of a
    return mset_empty(mset_minus(a, b));
}
static inline int mset_count(struct member_set s) { return __builtin_popcountll(s.bits); }
// True if more than half of the members of `of` are in `s`.
static inline bool mset_majority(struct member_set s, struct member_set of) {
    return 2 * mset_count(mset_common(s, of)) > mset_count(of);
}

// Moves *m to the lowest member of the set that is not below *m. False: there is none. The loop
// over a set is: for (uint8_t m = 0; mset_next(s, &m); m++)
static inline bool mset_next(struct member_set s, uint8_t *m) {
    while (*m < NEB_MEMBERS_MAX && !mset_has(s, *m))
        ++*m;
    return *m < NEB_MEMBERS_MAX;
}
static inline uint8_t mset_lowest(struct member_set s) { // NEB_MEMBERS_MAX if it is empty
    uint8_t m = 0;
    return mset_next(s, &m) ? m : NEB_MEMBERS_MAX;
}

// On the wire and on disk a set is a little-endian integer of its own width.
static inline void mset_write(struct neb_buf *b, struct member_set s) {
#if NEB_MEMBERS_MAX <= 16
    neb_buf_u16(b, s.bits);
#elif NEB_MEMBERS_MAX <= 32
    neb_buf_u32(b, s.bits);
#else
    neb_buf_u64(b, s.bits);
#endif
}
static inline struct member_set mset_read(struct neb_rd *r) {
#if NEB_MEMBERS_MAX <= 16
    return mset_from_bits(neb_rd_u16(r));
#elif NEB_MEMBERS_MAX <= 32
    return mset_from_bits(neb_rd_u32(r));
#else
    return mset_from_bits(neb_rd_u64(r));
#endif
}

#endif
