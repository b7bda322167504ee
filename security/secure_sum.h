// Sums that nobody can take apart: each member sends its integers masked, and only the sum over all of them can be read.
//
//     masked_i = q_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)          mod 2^32
//
// s_ij comes from the X25519 secret that i and j share (both long-term keys), the round and the attempt; b_i is random
// and i's own. Once the set S of those whose masked integers arrived is agreed, each of S reveals b_i and, where a member d
// dropped out, s_id: with them
//
//     Σ_S masked_i − Σ_S PRG(b_i) − Σ_S ±PRG(s_id) = Σ_S q_i                     exactly
//
// What one member reveals in an attempt is for one S only. So a member of S never becomes one that dropped out, whose
// masked integers would then lie open; and once an attempt is abandoned, nothing of it is revealed any more.
// With fewer than three in S each would learn the other's: three members may lose none, four and more one. All members hold
// the sum; quantities of a single member are never checked (no numeric gate in this profile), but a sum beyond what its members
// can add up to is refused, which is what a false reveal gives all but surely.
//
// Source: Bonawitz et al. 2017 (double masking), without its secret sharing: a second loss abandons the attempt.
// Threads: one user at a time. Seeds lie in locked memory and are wiped.
#ifndef SEC_SECURE_SUM_H
#define SEC_SECURE_SUM_H
#include "agent/base/bytes.h"
#include "security/members.h"

enum {
    SEC_SUM_SEED_BYTES = 32,
    SEC_SUM_ROUND_BYTES = 64, // federation, job, round, fragment: whatever names the sum
    SEC_SUM_REVEAL_BYTES = 4 + 2 + 1 + 1 + 2 * SEC_SUM_SEED_BYTES,
    SEC_SUM_NOBODY = 255,
};

struct sec_sum_config {
    uint8_t n, self;                                // members 3..16, and which of them this is
    uint8_t round[SEC_SUM_ROUND_BYTES];             // the same bytes at all members, never used twice
    const uint8_t *secret;                          // this member's CURVE secret key, used during create
    uint8_t publics[SEC_MEMBERS_MAX][SEC_KEY_BYTES]; // CURVE keys, by member
};

struct sec_sum_reveal { // | attempt u32 | set u16 | member u8 | missing u8 | own seed 32 | seed with the missing one 32 |
    uint32_t attempt;
    uint16_t set;
    uint8_t member, missing; // SEC_SUM_NOBODY: none
    uint8_t own[SEC_SUM_SEED_BYTES], pair[SEC_SUM_SEED_BYTES];
};

struct sec_sum;
// NEB_ERR_INVALID: members out of range, or a key that is not one.
NEB_MUST_CHECK enum neb_status sec_sum_create(const struct sec_sum_config *c, struct sec_sum **out);
void sec_sum_destroy(struct sec_sum **s);
// A new attempt, from 1 on; what came before is abandoned for good. NEB_ERR_STATE: not above the last.
NEB_MUST_CHECK enum neb_status sec_sum_begin(struct sec_sum *s, uint32_t attempt);
// Largest magnitude of one member's integers: n of them fit into half of the range, so that a false reveal, whose result is
// spread over all of it, shows in every second integer.
int32_t sec_sum_limit(uint8_t n);
// Fixed point on the announced scale: round(x / scale), NaN and what is beyond the limit at the limit's nearest end (NaN: 0).
void sec_sum_quantise(const float *x, size_t count, float scale, uint8_t n, int32_t *out);
// Once an attempt: the same mask over two inputs would show their difference. NEB_ERR_STATE: twice, or before begin;
// NEB_ERR_INVALID: an integer beyond the limit.
NEB_MUST_CHECK enum neb_status sec_sum_mask(struct sec_sum *s, const int32_t *q, size_t count,
                                            uint32_t *out);
// What this member reveals for the set (bit per member). NEB_ERR_DENIED: the set is too small, lacks this member, or another
// one was answered in this attempt.
NEB_MUST_CHECK enum neb_status sec_sum_reveal(struct sec_sum *s, uint16_t set,
                                              struct sec_sum_reveal *out);
void sec_sum_reveal_put(struct neb_buf *out, const struct sec_sum_reveal *r);
NEB_MUST_CHECK bool sec_sum_reveal_get(const uint8_t *p, size_t len, struct sec_sum_reveal *out);
// masked, reveals: by member, read where the set has a bit. NEB_ERR_FORMAT: reveals of another set, attempt or member;
// NEB_ERR_DENIED: a sum that its members cannot give.
NEB_MUST_CHECK enum neb_status sec_sum_unmask(uint8_t n, uint32_t attempt, uint16_t set,
                                              const uint32_t *const *masked,
                                              const struct sec_sum_reveal *reveals, size_t count,
                                              int32_t *sum);

#endif
