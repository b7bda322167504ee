// SPDX-License-Identifier: Apache-2.0
// Frames of soft labels (softlabel.h).
#include "compress/softlabel.h"

#include <math.h>
#include <stdlib.h>

enum { VERSION = 1, GAP_MAX = 255, GAPS_A_NAT = 16 };
enum { TAIL_STEPS = 8, TAIL_ZERO = 128 };

enum neb_status cmp_soft_create(struct cmp_soft **out) {
    *out = calloc(1, sizeof **out);
    if (*out && cmp_parts_open(&(*out)->parts))
        return NEB_OK;
    cmp_soft_destroy(out);
    return neb_fail(NEB_ERR_NOMEM, "out of memory for soft labels");
}

void cmp_soft_destroy(struct cmp_soft **sp) {
    if (!*sp)
        return;
    cmp_parts_close(&(*sp)->parts);
    free(*sp);
    *sp = NULL;
}

static int bits_of(int32_t vocab) {
    int bits = 1;
    while (bits < 31 && (1 << bits) < vocab)
        bits++;
    return bits;
}
static int planes_of(int32_t vocab) { return (bits_of(vocab) + 7) / 8; }
static size_t packed_ids(uint64_t n, int32_t vocab) {
    return (size_t)((n * (uint64_t)bits_of(vocab) + 7) / 8);
}

// ---- encoding

static void pack_ids(struct neb_buf *out, const int32_t *ids, size_t n, int bits) {
    uint64_t word = 0;
    int have = 0;
    for (size_t i = 0; i < n; i++) {
        word |= (uint64_t)(uint32_t)ids[i] << have;
        for (have += bits; have >= 8; have -= 8, word >>= 8)
            neb_buf_u8(out, (uint8_t)word);
    }
    if (have)
        neb_buf_u8(out, (uint8_t)word);
}

static enum neb_status put_ids(struct cmp_soft *s, const struct cmp_soft_head *h,
                               const int32_t *ids, struct neb_buf *out) {
    size_t k = (size_t)h->k;
    neb_buf_clear(&s->parts.plane);
    neb_buf_clear(&s->parts.packed);
    pack_ids(&s->parts.packed, ids, h->rows * k, bits_of(h->vocab));
    for (size_t rank = 0; rank < k; rank++)
        for (int plane = 0; plane < planes_of(h->vocab); plane++)
            for (size_t i = 0; i < h->rows; i++)
                neb_buf_u8(&s->parts.plane, (uint8_t)(ids[i * k + rank] >> (8 * plane)));
    return cmp_part_put(&s->parts, &s->parts.packed, out);
}

static int gap_steps(float first, float logp) {
    double steps = nearbyint(((double)first - (double)logp) * GAPS_A_NAT);
    return steps < CMP_SOFT_K_MAX * GAP_MAX ? (int)steps : CMP_SOFT_K_MAX * GAP_MAX;
}

// Rank by rank. Each gap begins at the sum of the quantised gaps before it, so that errors do not
// add up.
static enum neb_status put_gaps(struct cmp_soft *s, const struct cmp_soft_head *h,
                                const float *logp, struct neb_buf *out) {
    size_t k = (size_t)h->k;
    neb_buf_clear(&s->parts.plane);
    uint8_t *p = neb_buf_grow(&s->parts.plane, h->rows * (k - 1));
    for (size_t i = 0; p && i < h->rows; i++)
        for (size_t rank = 1, at = 0; rank < k; rank++) {
            int want = gap_steps(logp[i * k], logp[i * k + rank]) - (int)at;
            int gap = want < 0 ? 0 : want > GAP_MAX ? GAP_MAX : want;
            p[(rank - 1) * h->rows + i] = (uint8_t)gap;
            at += (size_t)gap;
        }
    return cmp_part_put(&s->parts, &s->parts.plane, out);
}

static enum neb_status put_tails(struct cmp_soft *s, const struct cmp_soft_head *h,
                                 const float *tail, struct neb_buf *out) {
    neb_buf_clear(&s->parts.plane);
    for (uint32_t i = 0; i < h->rows; i++) {
        double t = (double)tail[i], odds = log(t / (1 - t)) * TAIL_STEPS; // infinite at 0 and 1
        double code = odds < -TAIL_ZERO       ? 0
                      : odds >= TAIL_ZERO - 1 ? 2 * TAIL_ZERO - 1
                                              : nearbyint(odds) + TAIL_ZERO;
        neb_buf_u8(&s->parts.plane, (uint8_t)code);
    }
    return cmp_part_put(&s->parts, &s->parts.plane, out);
}

static bool head_good(const struct cmp_soft_head *h) {
    return h->k >= CMP_SOFT_K_MIN && h->k <= CMP_SOFT_K_MAX && h->rows <= CMP_SOFT_ROWS_MAX &&
           h->vocab >= 2 && h->vocab <= 1 << 24 && h->k <= h->vocab && h->temperature > 0 &&
           h->temperature <= 100; // false for a NaN
}

static bool twice(const int32_t *ids, int32_t k) {
    for (int32_t a = 1; a < k; a++)
        for (int32_t b = 0; b < a; b++)
            if (ids[a] == ids[b])
                return true;
    return false;
}

static enum neb_status check_rows(const struct cmp_soft_head *h, const int32_t *ids,
                                  const float *logp, const float *tail) {
    for (uint32_t i = 0; i < h->rows; i++) {
        const int32_t *id = ids + (size_t)i * (size_t)h->k;
        const float *p = logp + (size_t)i * (size_t)h->k;
        bool good = tail[i] >= 0 && tail[i] <= 1 && !twice(id, h->k);
        for (int32_t j = 0; j < h->k; j++)
            good = good && id[j] >= 0 && id[j] < h->vocab && isfinite(p[j]) && p[j] < 1e-3f &&
                   (!j || p[j] <= p[j - 1]);
        if (!good)
            return neb_fail(NEB_ERR_INVALID,
                            "soft label %u is unsorted, out of range or not a number; has the "
                            "teacher's training diverged?",
                            i);
    }
    return NEB_OK;
}

enum neb_status cmp_soft_encode(struct cmp_soft *s, const struct cmp_soft_head *h,
                                const int32_t *ids, const float *logp, const float *tail,
                                struct neb_buf *out) {
    if (!head_good(h))
        return neb_fail(NEB_ERR_INVALID,
                        "soft labels: k %d, %u rows, vocabulary %d or temperature %g out of range",
                        h->k, h->rows, h->vocab, (double)h->temperature);
    NEB_TRY(check_rows(h, ids, logp, tail));
    neb_buf_u8(out, VERSION);
    neb_buf_u8(out, (uint8_t)h->k);
    neb_buf_varint(out, h->rows);
    neb_buf_varint(out, (uint64_t)h->vocab);
    neb_buf_f32(out, h->temperature);
    NEB_TRY(put_ids(s, h, ids, out));
    NEB_TRY(put_gaps(s, h, logp, out));
    return put_tails(s, h, tail, out);
}

// ---- decoding

static enum neb_status get_head(struct neb_rd *r, struct cmp_soft_head *h) {
    uint8_t version = neb_rd_u8(r);
    h->k = neb_rd_u8(r);
    uint64_t rows = neb_rd_varint(r), vocab = neb_rd_varint(r);
    h->temperature = neb_rd_f32(r);
    h->rows = rows <= CMP_SOFT_ROWS_MAX ? (uint32_t)rows : UINT32_MAX;
    h->vocab = vocab <= 1 << 24 ? (int32_t)vocab : -1;
    if (r->bad || version != VERSION || !head_good(h))
        return neb_fail(NEB_ERR_FORMAT,
                        "soft labels: invalid header: version %u, k %d, %llu rows, vocabulary "
                        "%llu, temperature %g",
                        version, h->k, (unsigned long long)rows, (unsigned long long)vocab,
                        (double)h->temperature);
    return NEB_OK;
}

static enum neb_status get_part(struct cmp_soft *s, struct neb_rd *r, size_t raw, size_t packed,
                                bool *zstd) {
    return cmp_part_get(&s->parts, r, "soft labels: a part", (struct cmp_part_sizes){raw, raw},
                        (struct cmp_part_sizes){packed, packed}, zstd);
}

static void unpack_ids(const uint8_t *p, int32_t *ids, size_t n, int bits) {
    uint64_t word = 0;
    int have = 0;
    for (size_t i = 0; i < n; i++) {
        for (; have < bits; have += 8)
            word |= (uint64_t)*p++ << have;
        ids[i] = (int32_t)(word & ((1ull << bits) - 1));
        word >>= bits;
        have -= bits;
    }
}

static enum neb_status get_ids(struct cmp_soft *s, struct neb_rd *r, const struct cmp_soft_head *h,
                               int32_t *ids) {
    size_t k = (size_t)h->k, n = h->rows * k;
    int planes = planes_of(h->vocab);
    bool zstd;
    NEB_TRY(get_part(s, r, packed_ids(n, h->vocab), n * (size_t)planes, &zstd));
    if (!zstd)
        unpack_ids(s->parts.plane.p, ids, n, bits_of(h->vocab));
    const uint8_t *p = s->parts.plane.p;
    for (size_t rank = 0; zstd && rank < k; rank++)
        for (int plane = 0; plane < planes; plane++)
            for (size_t i = 0; i < h->rows; i++)
                ids[i * k + rank] = (plane ? ids[i * k + rank] : 0) | (int32_t)*p++ << (8 * plane);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= h->vocab)
            return neb_fail(NEB_ERR_FORMAT, "soft labels: token %d is outside the vocabulary of %d",
                            ids[i], h->vocab);
    for (size_t i = 0; i < h->rows; i++)
        if (twice(ids + i * k, h->k))
            return neb_fail(NEB_ERR_FORMAT, "soft labels: row %zu has a token twice", i);
    return NEB_OK;
}

static enum neb_status get_probabilities(struct cmp_soft *s, struct neb_rd *r,
                                         const struct cmp_soft_head *h, float *logp, float *tail) {
    size_t k = (size_t)h->k, n = h->rows;
    bool zstd;
    NEB_TRY(get_part(s, r, n * (k - 1), n * (k - 1), &zstd));
    for (size_t i = 0; i < n; i++) {
        double at = 0;
        logp[i * k] = 0;
        for (size_t rank = 1; rank < k; rank++) {
            at -= (double)s->parts.plane.p[(rank - 1) * n + i] / GAPS_A_NAT;
            logp[i * k + rank] = (float)at;
        }
    }
    NEB_TRY(get_part(s, r, n, n, &zstd));
    for (size_t i = 0; i < n; i++) {
        double odds = ((double)s->parts.plane.p[i] - TAIL_ZERO) / TAIL_STEPS, sum = 0;
        for (size_t rank = 0; rank < k; rank++)
            sum += exp((double)logp[i * k + rank]);
        double rest = -log1p(exp(odds)) - log(sum); // log((1 - tail) / sum)
        for (size_t rank = 0; rank < k; rank++)
            logp[i * k + rank] = (float)((double)logp[i * k + rank] + rest);
        tail[i] = (float)(1 / (1 + exp(-odds)));
    }
    return NEB_OK;
}

enum neb_status cmp_soft_decode(struct cmp_soft *s, struct neb_rd *r, struct cmp_soft_head *want,
                                int32_t *ids, float *logp, float *tail) {
    struct cmp_soft_head h;
    NEB_TRY(get_head(r, &h));
    if (h.rows != want->rows || h.vocab != want->vocab)
        return neb_fail(NEB_ERR_FORMAT,
                        "soft labels: %u rows, vocabulary %d; expected %u rows, vocabulary %d",
                        h.rows, h.vocab, want->rows, want->vocab);
    NEB_TRY(get_ids(s, r, &h, ids));
    NEB_TRY(get_probabilities(s, r, &h, logp, tail));
    *want = h;
    return NEB_OK;
}

int32_t cmp_soft_k(int32_t k_now, int32_t k_min, int32_t k_max, double bytes_per_row,
                   double rows_per_s, double goodput_bytes_per_s) {
    // share: the part of the link to use; spare: the part of that share which a larger k may use
    const double share = 0.8, spare = 0.75;
    int32_t k = k_now < k_min ? k_min : k_now > k_max ? k_max : k_now;
    if (!(bytes_per_row > 0) || !(rows_per_s > 0) || !(goodput_bytes_per_s > 0))
        return k;
    double per_label = bytes_per_row / k_now, fits = share * goodput_bytes_per_s / rows_per_s;
    while (k > k_min && per_label * k > fits)
        k = k / 2 > k_min ? k / 2 : k_min;
    if (k == k_now && k < k_max) {
        int32_t more = 2 * k < k_max ? 2 * k : k_max;
        k = per_label * more < spare * fits ? more : k;
    }
    return k;
}

// ---- several teachers

struct named {
    double p;
    int32_t id;
};

// Both orders are total, so that every machine adds and names in one order.
static int by_id(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : x->p < y->p ? -1 : x->p > y->p;
}
static int by_p(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    return x->p != y->p ? (x->p < y->p ? 1 : -1) : x->id < y->id ? -1 : x->id > y->id;
}

// Row i of the mixture; sum: of all weights.
static void mix_row(const struct cmp_soft_rows *in, int n, size_t i, double sum, int32_t k,
                    int32_t *ids, float *logp, float *tail) {
    struct named all[CMP_SOFT_TEACHERS_MAX * CMP_SOFT_K_MAX];
    size_t many = 0, apart = 0;
    double rest = 0;
    for (int t = 0; t < n; t++) {
        double w = (double)in[t].weight / sum;
        size_t each = (size_t)in[t].k;
        rest += w * (double)in[t].tail[i];
        for (size_t j = i * each; j < (i + 1) * each; j++)
            all[many++] = (struct named){w * exp((double)in[t].logp[j]), in[t].ids[j]};
    }
    qsort(all, many, sizeof *all, by_id); // no two of one teacher are equal
    for (size_t j = 0; j < many; j++)
        if (apart && all[apart - 1].id == all[j].id)
            all[apart - 1].p += all[j].p;
        else
            all[apart++] = all[j];
    qsort(all, apart, sizeof *all, by_p);
    for (size_t j = 0; j < apart; j++)
        if (j < (size_t)k) {
            ids[j] = all[j].id;
            logp[j] = (float)log(all[j].p);
        } else
            rest += all[j].p;
    *tail = (float)(rest < 1 ? rest : 1);
}

int32_t cmp_soft_mix(const struct cmp_soft_rows *in, int n, uint32_t rows, int32_t *ids,
                     float *logp, float *tail) {
    int32_t k = 0;
    double sum = 0;
    NEB_ASSERT(n > 0 && n <= CMP_SOFT_TEACHERS_MAX);
    for (int t = 0; t < n; t++) {
        k = in[t].k > k ? in[t].k : k;
        sum += (double)in[t].weight;
    }
    for (size_t i = 0; i < rows; i++)
        mix_row(in, n, i, sum, k, ids + i * (size_t)k, logp + i * (size_t)k, tail + i);
    return k;
}
