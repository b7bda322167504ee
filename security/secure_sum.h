// SPDX-License-Identifier: Apache-2.0
// Sums that nobody can take apart: each member sends its integers masked, and only the sum over all of them can be read.
//
//     masked_i = q_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)          mod 2^16
//
//     K_ij   of the X25519 secret that i and j share, for one job: known to i and j only
//     s_ij = H(K_ij, pair, sum)                                   hides i from all but j
//     b_i  = XOR over j of H(K_ij, share, sum, i, nonce_i)        hides i where s_ij had to be revealed
//
// nonce_i is a keyed hash of q_i: the same integers give the same bytes (a worker that computes again sends again what it had sent),
// others never meet the same b_i. Once the set S of those whose masked integers count is agreed for good, each member reveals, for
// this S only: its b_i; its share of everybody else's, so that a member may fall silent after S was agreed; and where a member d
// is not in S, s_id. With them
//
//     Σ_S masked_i − Σ_S PRG(b_i) − Σ_S ±PRG(s_id) = Σ_S q_i                     exactly
//
// Of no member both b and all s are revealed: one S a sum, which is the caller's to keep (inter/round/sums.h: the record of a ledger).
// A masked update carries a hash of every seed behind it, so a false reveal is seen and dropped before anything is summed.
// With fewer than three in S each would learn the other's: three members may lose none, four and more one. All hold the sum;
// a single member's integers are never checked (no numeric gate), but a sum beyond what its members can add up to is refused.
//
// Not hidden: how many there are, when, and their sum; and q_i from whoever gets i's own long-term key and kept the masked bytes.
// All n − 1 others together learn the difference, as of any sum.
//
// Source: Bonawitz et al. 2017 (double masking). Its secret sharing is replaced by shares that each pair can compute, which bears one
// loss. Threads: a sec_sum is read-only after create. Keys lie in locked memory and are wiped.
#ifndef SEC_SECURE_SUM_H
#define SEC_SECURE_SUM_H
#include "agent/base/bytes.h"
#include "security/members.h"

enum {
    SEC_SUM_KEY_BYTES = 32,
    SEC_SUM_SEED_BYTES = 32,
    SEC_SUM_JOB_BYTES = 32,
    // integers of one update: their bytes are those of the largest blob
    SEC_SUM_COUNT_MAX = 1 << 29,
    SEC_SUM_NOBODY = 255,
};

// K_ij: the same for both. NEB_ERR_INVALID: the other's key is none.
NEB_MUST_CHECK enum neb_status sec_sum_pair_key(const uint8_t secret[SEC_KEY_BYTES],
                                                const uint8_t own[SEC_KEY_BYTES],
                                                const uint8_t other[SEC_KEY_BYTES],
                                                const uint8_t job[SEC_SUM_JOB_BYTES],
                                                uint8_t out[SEC_SUM_KEY_BYTES]);

// What this member alone knows, for one job: what its noise is drawn from. It stands in its own place among the keys of the pairs.
void sec_sum_own_key(const uint8_t secret[SEC_KEY_BYTES], const uint8_t job[SEC_SUM_JOB_BYTES],
                     uint8_t out[SEC_SUM_KEY_BYTES]);

struct sec_sum; // a member's side of one job
// keys: K with each other member, and the own key in the place of self. NEB_ERR_INVALID: members out of 3..16.
NEB_MUST_CHECK enum neb_status sec_sum_create(uint8_t n, uint8_t self,
                                              const uint8_t keys[][SEC_SUM_KEY_BYTES],
                                              struct sec_sum **out);
void sec_sum_destroy(struct sec_sum **s);
uint8_t sec_sum_self(const struct sec_sum *s);
bool sec_sum_has_own_key(const struct sec_sum *s);

// Largest magnitude of one member's integers: n of them fit into half of the range, so that a false mask, whose result is
// spread over all of it, shows in every second integer.
int32_t sec_sum_limit(uint8_t n);
// How many of n members a sum must hold at least.
static inline uint8_t sec_sum_least(uint8_t n) { return n < 4 ? n : (uint8_t)(n - 1); }
// Fixed point on the announced scale: round(x / scale), what is beyond the limit at the limit's nearest end (NaN: 0).
void sec_sum_quantise(const float *x, size_t count, float scale, uint8_t n, int16_t *out);

// A masked update: | "NBS1" | n u8 | member u8 | 0 u16 | fragment u32 | round u32 | count u32 | nonce 32 | hash of b 32 |
// hash of s_ij 32, by j; zero at member | count integers u16 |
struct sec_sum_head {
    uint8_t n, member;
    uint32_t fragment, round, count;
    uint8_t nonce[SEC_SUM_SEED_BYTES], own[SEC_SUM_SEED_BYTES],
        pair[SEC_MEMBERS_MAX][SEC_SUM_SEED_BYTES];
};
// NEB_ERR_FORMAT: not exactly one. *body: its integers, 2 bytes each.
NEB_MUST_CHECK enum neb_status sec_sum_open(const uint8_t *p, size_t len, struct sec_sum_head *out,
                                            const uint8_t **body);
// out is replaced. NEB_ERR_INVALID: an integer beyond the limit.
NEB_MUST_CHECK enum neb_status sec_sum_mask(const struct sec_sum *s, uint32_t fragment,
                                            uint32_t round, const int16_t *q, size_t count,
                                            struct neb_buf *out);
// The same in two steps, for noise in between: the head is of the integers without it; the second step takes any integers, modulo 2^16.
NEB_MUST_CHECK enum neb_status sec_sum_begin(const struct sec_sum *s, uint32_t fragment,
                                             uint32_t round, const int16_t *q, size_t count,
                                             struct sec_sum_head *h);
NEB_MUST_CHECK enum neb_status sec_sum_finish(const struct sec_sum *s, const struct sec_sum_head *h,
                                              const int16_t *q, struct neb_buf *out);
// q ± integers [at, at + count) of the noise (noise.h) of an update of this member's own, which is the same for the same integers in the
// same round, and which nobody else can tell. There must be an own key.
void sec_sum_noise(const struct sec_sum *s, const struct sec_sum_head *h, uint32_t variance,
                   size_t at, size_t count, bool minus, int16_t *q);
// What another member's update says of the mask that it shares with this one: NEB_ERR_DENIED where it is another one.
NEB_MUST_CHECK enum neb_status sec_sum_agrees(const struct sec_sum *s,
                                              const struct sec_sum_head *h);
// The integers [at, at + count) of an update of this member's own.
void sec_sum_take_off(const struct sec_sum *s, const struct sec_sum_head *h, const uint8_t *body,
                      size_t at, size_t count, int16_t *out);

// What one member reveals: | set u16 | member u8 | n u8 | b 32 | s with the missing one 32 | its shares of the others' b, n x 32 |.
// Zeros where there is nothing to reveal: who is not in the set has neither b nor s.
struct sec_sum_reveal {
    uint16_t set;
    uint8_t member, n;
    uint8_t own[SEC_SUM_SEED_BYTES], pair[SEC_SUM_SEED_BYTES],
        shares[SEC_MEMBERS_MAX][SEC_SUM_SEED_BYTES];
};
// heads: by member, of those in the set. The caller answers for it that no other set is ever given for this fragment and round.
// NEB_ERR_DENIED: the set is too small for n.
NEB_MUST_CHECK enum neb_status sec_sum_reveal(const struct sec_sum *s, uint16_t set,
                                              const struct sec_sum_head *heads,
                                              struct sec_sum_reveal *out);
void sec_sum_reveal_put(struct neb_buf *out, const struct sec_sum_reveal *r);
NEB_MUST_CHECK bool sec_sum_reveal_get(struct neb_rd *in, struct sec_sum_reveal *out);
// Whether what it reveals of its own seeds is what its masked update announced.
bool sec_sum_reveal_fits(const struct sec_sum_reveal *r, const struct sec_sum_head *heads);

struct sec_sum_seeds { // all that is needed to read a sum
    uint8_t n;
    uint16_t set;
    uint8_t own[SEC_MEMBERS_MAX][SEC_SUM_SEED_BYTES], pair[SEC_MEMBERS_MAX][SEC_SUM_SEED_BYTES];
};
// | n u8 | set u16 | b, n x 32 | s with the missing one, n x 32 |
enum { SEC_SUM_SEEDS_MAX = 3 + 2 * SEC_MEMBERS_MAX * SEC_SUM_SEED_BYTES };
void sec_sum_seeds_put(struct neb_buf *out, const struct sec_sum_seeds *x);
NEB_MUST_CHECK bool sec_sum_seeds_get(const uint8_t *p, size_t len, struct sec_sum_seeds *out);
// reveals: by member, those with a bit in `have`, which fit. NEB_ERR_AGAIN (not logged): more are needed. NEB_ERR_DENIED: shares that do
// not make up what was announced.
NEB_MUST_CHECK enum neb_status sec_sum_gather(uint8_t n, uint16_t set,
                                              const struct sec_sum_head *heads,
                                              const struct sec_sum_reveal *reveals, uint16_t have,
                                              struct sec_sum_seeds *out);
// Integers [at, at + count) of the sum. bodies: by member, read where the set has a bit. NEB_ERR_DENIED: a sum that its members
// cannot give. NEB_ERR_FORMAT: a set that is too small.
NEB_MUST_CHECK enum neb_status sec_sum_unmask(const struct sec_sum_seeds *seeds,
                                              const uint8_t *const *bodies, size_t at, size_t count,
                                              int16_t *sum);

#endif
