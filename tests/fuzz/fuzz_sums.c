// SPDX-License-Identifier: Apache-2.0
// Messages of other members in a masked sum with a known record. All signatures count as good, so
// that the code after the check is reached: accepted seeds are those that the masked updates name.
// Input: steps. The low two bits of a byte: the sender. Next bit: its true message with one byte
// changed (u16 where, u8 xor); else the input's own message (u16 little-endian length, bytes).
#include "agent/base/sha256.h"
#include "inter/round/sums.h"
#include "tests/fuzz/trusting.h"
#include "tests/sum_mask.h"
#include "tests/testing.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMBERS = 4, COUNT = 8, FRAGMENT = 1, ROUND = 4 };

static struct sec_sum *sums[MEMBERS];
static struct neb_buf masked[MEMBERS], said[MEMBERS];
static struct inter_record record;
static const uint8_t job[INTER_ID_BYTES] = {7};

static void on_send(void *user, uint8_t member, const void *p, size_t n) {
    struct neb_buf *keep = user;
    NEB_ASSERT(member < MEMBERS && n <= INTER_SUMS_MESSAGE_MAX);
    if (keep && !keep->len)
        neb_buf_add(keep, p, n);
}
static enum neb_status on_keep(void *user, const struct inter_record *r) {
    (void)user, (void)r;
    return NEB_OK;
}
static void on_ready(void *user, uint32_t fragment, uint32_t round, const void *p, size_t n) {
    (void)user, (void)p;
    NEB_ASSERT(fragment == FRAGMENT && round == ROUND && n <= INTER_SUMS_MESSAGE_MAX);
}
static void on_look_up(void *user, uint8_t member, uint32_t fragment, uint32_t round) {
    (void)user, (void)fragment, (void)round;
    NEB_ASSERT(member < MEMBERS);
}

static struct inter_sums *open_member(uint8_t self, struct neb_buf *keep) {
    struct inter_sums *s = NULL;
    struct inter_sums_blob blobs[MEMBERS];
    struct inter_sums_config c = {.n = MEMBERS,
                                  .self = self,
                                  .peers = {0, 1, 2, 3},
                                  .crypto = &trusting,
                                  .sum = sums[self],
                                  .ops = {keep, on_send, on_keep, on_ready, on_look_up}};
    memcpy(c.job, job, sizeof job);
    for (int k = 0; k < MEMBERS; k++)
        blobs[k] = (struct inter_sums_blob){masked[k].p, masked[k].len};
    NEB_ASSERT(inter_sums_create(&c, &s) == NEB_OK);
    NEB_ASSERT(inter_sums_commit(s, NEB_S, &record, blobs, NULL, 0) == NEB_OK);
    return s;
}

static void begin(void) {
    static uint8_t secrets[MEMBERS][32], publics[MEMBERS][32];
    testing_key_pairs(MEMBERS, secrets, publics);
    record = (struct inter_record){.round = ROUND, .fragment = FRAGMENT, .term = 1, .n = MEMBERS};
    memcpy(record.job, job, sizeof job);
    for (uint8_t k = 0; k < MEMBERS; k++) {
        uint8_t keys[MEMBERS][SEC_SUM_KEY_BYTES] = {{0}};
        int16_t values[COUNT];
        for (int j = 0; j < MEMBERS; j++)
            if (j != k)
                NEB_ASSERT(sec_sum_pair_key(secrets[k], publics[k], publics[j], job, keys[j]) ==
                           NEB_OK);
        for (int i = 0; i < COUNT; i++)
            values[i] = (int16_t)(100 * k + i);
        NEB_ASSERT(sec_sum_create(MEMBERS, k, (const uint8_t(*)[SEC_SUM_KEY_BYTES])keys,
                                  &sums[k]) == NEB_OK);
        NEB_ASSERT(sum_mask(sums[k], FRAGMENT, ROUND, values, COUNT, &masked[k]) == NEB_OK);
        record.entries[k] = (struct inter_entry){
            .tokens = 512, .member = k, .bytes = (uint32_t)masked[k].len, .clip = 1};
        neb_sha256(masked[k].p, masked[k].len, record.entries[k].sha256);
    }
    for (uint8_t k = 0; k < MEMBERS; k++) {
        struct inter_sums *s = open_member(k, &said[k]);
        NEB_ASSERT(said[k].len);
        inter_sums_destroy(&s);
    }
}

// A readable sum is the true sum.
static void check_sum(const struct inter_sums *s) {
    struct sec_sum_seeds seeds;
    struct sec_sum_head h;
    const uint8_t *bodies[NEB_MEMBERS_MAX] = {0};
    int16_t sum[COUNT];
    if (!inter_sums_seeds(s, FRAGMENT, ROUND, &seeds))
        return;
    for (int k = 0; k < MEMBERS; k++)
        NEB_ASSERT(sec_sum_open(masked[k].p, masked[k].len, &h, &bodies[k]) == NEB_OK);
    NEB_ASSERT(sec_sum_unmask(&seeds, bodies, 0, COUNT, sum) == NEB_OK);
    for (int i = 0; i < COUNT; i++)
        NEB_ASSERT(sum[i] == 100 * (0 + 1 + 2 + 3) + MEMBERS * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t changed[INTER_SUMS_MESSAGE_MAX];
    if (!sums[0])
        begin();
    struct inter_sums *s = open_member(0, NULL);
    struct neb_rd r = neb_rd_make(data, size);
    neb_ns now = NEB_S;
    for (int i = 0; i < 64 && neb_rd_left(&r) >= 4; i++, now += 300 * NEB_MS) {
        uint8_t how = neb_rd_u8(&r), from = how % MEMBERS;
        uint16_t n = neb_rd_u16(&r);
        if (how & 4) {
            memcpy(changed, said[from].p, said[from].len);
            changed[n % said[from].len] ^= neb_rd_u8(&r);
            inter_sums_message(s, now, from, changed, said[from].len);
        } else {
            size_t len = n < neb_rd_left(&r) ? n : neb_rd_left(&r);
            inter_sums_message(s, now, from, neb_rd_view(&r, len), len);
        }
        inter_sums_tick(s, now);
        check_sum(s);
    }
    inter_sums_destroy(&s);
    return 0;
}
