// SPDX-License-Identifier: Apache-2.0
// Sums that nobody can take apart. Each member sends its integers masked, and only the sum over all
// of them can be read.
//
//     masked_i = q_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)          mod 2^16
//
//     K_ij   from the X25519 secret that i and j share, for one job: only i and j know it
//     s_ij = H(K_ij, pair, sum)                          hides q_i from all but j
//     b_i  = XOR over j of H(K_ij, share, sum, i, nonce_i)   hides q_i when s_ij must be revealed
//
// nonce_i is a keyed hash of q_i. The same integers give the same bytes, so a worker that computes
// an update again sends the same bytes. Other integers never get the same b_i.
//
// Let S be the set of members whose masked integers count. Once S is agreed for good, each member
// reveals for this S only: its b_i; its share of every other b_j, in case a member is now silent;
// and s_id for a member d that is not in S. With these
//
//     Σ_S masked_i − Σ_S PRG(b_i) − Σ_S ±PRG(s_id) = Σ_S q_i                     exactly
//
// No member may have both b and all s revealed, so a sum has one S. The caller ensures that
// (inter/round/sums.h: the record of a ledger). A masked update carries a hash of every seed behind
// it, so a false reveal is found before anything is summed. With two members in S, each would learn
// the other's integers. So S has at least three: of three members none may be missing, of four or
// more one. Nobody checks one member's integers. But a sum is refused if its members cannot add up
// to it.
//
// Not hidden: the number of members, the time, and the sum. Whoever has the long-term key of i and
// kept the masked bytes reads q_i. All n − 1 others together can compute q_i: it is the sum less
// their own integers.
//
// Source: Bonawitz et al. 2017 (double masking). Shares that each pair can compute replace its
// secret sharing, which allows one loss.
//
// Threads: a sec_sum is read-only after create. Keys lie in locked memory and are wiped.
#ifndef SEC_SECURE_SUM_H
#define SEC_SECURE_SUM_H
#include "agent/base/bytes.h"
#include "security/members.h"

enum {
    SEC_SUM_KEY_BYTES = 32,
    SEC_SUM_SEED_BYTES = 32,
    SEC_SUM_JOB_BYTES = 32,
    // Integers of one update; as many as fit the largest blob.
    SEC_SUM_COUNT_MAX = 1 << 29,
    SEC_SUM_NOBODY = 255,
};

// K_ij; both sides compute the same. NEB_ERR_INVALID: the other member's key is not valid.
NEB_MUST_CHECK enum neb_status sec_sum_pair_key(const uint8_t secret[SEC_KEY_BYTES],
                                                const uint8_t own[SEC_KEY_BYTES],
                                                const uint8_t other[SEC_KEY_BYTES],
                                                const uint8_t job[SEC_SUM_JOB_BYTES],
                                                uint8_t out[SEC_SUM_KEY_BYTES]);

// A key that only this member knows, for one job: the source of its noise. It stands at this
// member's own index among the keys of the pairs.
void sec_sum_own_key(const uint8_t secret[SEC_KEY_BYTES], const uint8_t job[SEC_SUM_JOB_BYTES],
                     uint8_t out[SEC_SUM_KEY_BYTES]);

struct sec_sum; // a member's side of one job
// keys: [n], K with each other member, and the own key at `self`. NEB_ERR_INVALID: n is not 3..16,
// or self is not below n.
NEB_MUST_CHECK enum neb_status sec_sum_create(uint8_t n, uint8_t self,
                                              const uint8_t keys[][SEC_SUM_KEY_BYTES],
                                              struct sec_sum **out);
void sec_sum_destroy(struct sec_sum **s);
uint8_t sec_sum_self(const struct sec_sum *s);
bool sec_sum_has_own_key(const struct sec_sum *s);

// Largest magnitude of one member's integers. n of them fit half of the range. A false mask gives a
// result spread over all of the range, so about every second integer shows it.
int32_t sec_sum_limit(uint8_t n);
// How many of n members a sum must hold at least.
static inline uint8_t sec_sum_least(uint8_t n) { return n < 4 ? n : (uint8_t)(n - 1); }
// Fixed point on the announced scale: round(x / scale), clipped to the limit (NaN: 0). x, out:
// [count].
void sec_sum_quantise(const float *x, size_t count, float scale, uint8_t n, int16_t *out);

// A masked update:
//     "NBS1" | n u8 | member u8 | 0 u16 | fragment u32 | round u32 | count u32 | nonce 32
//     | hash of b 32 | hash of s_ij 32, by j; zeros at member | count integers u16
struct sec_sum_head {
    uint8_t n, member;
    uint32_t fragment, round, count;
    uint8_t nonce[SEC_SUM_SEED_BYTES], own[SEC_SUM_SEED_BYTES],
        pair[NEB_MEMBERS_MAX][SEC_SUM_SEED_BYTES];
};
// NEB_ERR_FORMAT: not exactly one masked update. *body: its integers, 2 bytes each; borrowed.
NEB_MUST_CHECK enum neb_status sec_sum_open(const uint8_t *p, size_t len, struct sec_sum_head *out,
                                            const uint8_t **body);
// Bytes of a masked update of `count` integers among n members.
size_t sec_sum_bytes(uint8_t n, size_t count);
// Masks q in two steps, with room for noise in between. The head is made from the integers without
// noise. NEB_ERR_INVALID: count is 0 or too large, or an integer is beyond the limit. The second
// step takes any integers, modulo 2^16. It replaces out.
NEB_MUST_CHECK enum neb_status sec_sum_begin(const struct sec_sum *s, uint32_t fragment,
                                             uint32_t round, const int16_t *q, size_t count,
                                             struct sec_sum_head *h);
NEB_MUST_CHECK enum neb_status sec_sum_finish(const struct sec_sum *s, const struct sec_sum_head *h,
                                              const int16_t *q, struct neb_buf *out);
// q ± integers [at, at + count) of the noise (noise.h) of this member's own update. The same
// integers in the same round get the same noise, and nobody else can compute it. There must be an
// own key.
void sec_sum_noise(const struct sec_sum *s, const struct sec_sum_head *h, uint32_t variance,
                   size_t at, size_t count, bool minus, int16_t *q);
// Checks another member's hash of the mask that it shares with this one. NEB_ERR_DENIED: it is
// another mask.
NEB_MUST_CHECK enum neb_status sec_sum_agrees(const struct sec_sum *s,
                                              const struct sec_sum_head *h);
// The integers [at, at + count) of this member's own update, without masks.
void sec_sum_take_off(const struct sec_sum *s, const struct sec_sum_head *h, const uint8_t *body,
                      size_t at, size_t count, int16_t *out);

// What one member reveals:
//     set u16 | member u8 | n u8 | b 32 | s with the missing one 32
//     | its shares of the others' b, n x 32
// Zeros where there is nothing to reveal. A member that is not in the set reveals neither b nor s.
struct sec_sum_reveal {
    struct member_set set;
    uint8_t member, n;
    uint8_t own[SEC_SUM_SEED_BYTES], pair[SEC_SUM_SEED_BYTES],
        shares[NEB_MEMBERS_MAX][SEC_SUM_SEED_BYTES];
};
// heads: by member, valid for those in the set. The caller ensures that no other set is ever given
// for this fragment and round. NEB_ERR_DENIED: the set is too small for n, or a head is not its
// member's.
NEB_MUST_CHECK enum neb_status sec_sum_reveal(const struct sec_sum *s, struct member_set set,
                                              const struct sec_sum_head *heads,
                                              struct sec_sum_reveal *out);
void sec_sum_reveal_put(struct neb_buf *out, const struct sec_sum_reveal *r);
NEB_MUST_CHECK bool sec_sum_reveal_get(struct neb_rd *in, struct sec_sum_reveal *out);
// True if the member's own seeds in r have the hashes that its masked update announced.
bool sec_sum_reveal_fits(const struct sec_sum_reveal *r, const struct sec_sum_head *heads);

struct sec_sum_seeds { // all that is needed to read a sum
    uint8_t n;
    struct member_set set;
    uint8_t own[NEB_MEMBERS_MAX][SEC_SUM_SEED_BYTES], pair[NEB_MEMBERS_MAX][SEC_SUM_SEED_BYTES];
};
// n u8 | set u16 | b, n x 32 | s with the missing one, n x 32
enum { SEC_SUM_SEEDS_MAX = 1 + sizeof(neb_member_bits) + 2 * NEB_MEMBERS_MAX * SEC_SUM_SEED_BYTES };
void sec_sum_seeds_put(struct neb_buf *out, const struct sec_sum_seeds *x);
NEB_MUST_CHECK bool sec_sum_seeds_get(const uint8_t *p, size_t len, struct sec_sum_seeds *out);
// reveals: by member, valid for those in `have`; they passed sec_sum_reveal_fits.
// NEB_ERR_AGAIN (not logged): more are needed. NEB_ERR_DENIED: shares do not give an announced
// seed. NEB_ERR_FORMAT: the set is too small.
NEB_MUST_CHECK enum neb_status sec_sum_gather(uint8_t n, struct member_set set,
                                              const struct sec_sum_head *heads,
                                              const struct sec_sum_reveal *reveals,
                                              struct member_set have, struct sec_sum_seeds *out);
// Integers [at, at + count) of the sum. bodies: by member, read for members of the set.
// NEB_ERR_DENIED: its members cannot give this sum. NEB_ERR_FORMAT: the set is too small.
NEB_MUST_CHECK enum neb_status sec_sum_unmask(const struct sec_sum_seeds *seeds,
                                              const uint8_t *const *bodies, size_t at, size_t count,
                                              int16_t *sum);

#endif
