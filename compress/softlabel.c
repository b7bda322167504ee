// SPDX-License-Identifier: Apache-2.0
// Frames of soft labels (softlabel.h).
#include "compress/softlabel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GAP_MAX = 255, TAIL_STEPS = 8, TAIL_ZERO = 128 };
// Steps of the fall from the first log-probability: fine ones up to NEAR, wide ones behind.
enum { STEPS_A_NAT = 8, NEAR = 2 * STEPS_A_NAT, WIDE = 2 };

enum neb_status cmp_soft_create(struct cmp_soft **out) {
    *out = calloc(1, sizeof **out);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for soft labels");
}

void cmp_soft_destroy(struct cmp_soft **sp) {
    if (!*sp)
        return;
    cmp_rows_free(&(*sp)->rows);
    neb_buf_free(&(*sp)->coded);
    free(*sp);
    *sp = NULL;
}

static int step_at(int fall) { return fall < NEAR ? 1 : WIDE; }

// ---- encoding

// Each gap begins at the sum of the quantised gaps before it, so that errors do not add up.
static void gaps_of(const float *logp, int32_t k, uint8_t *gaps) {
    int at = 0;
    for (int32_t j = 1; j < k; j++) {
        double fall = ((double)logp[0] - (double)logp[j]) * STEPS_A_NAT,
               steps = nearbyint((fall - at) / step_at(at));
        gaps[j] = (uint8_t)(steps < 0 ? 0 : steps < GAP_MAX ? steps : GAP_MAX);
        at += gaps[j] * step_at(at);
    }
}

static uint8_t tail_of(float tail) {
    double t = (double)tail, odds = log(t / (1 - t)) * TAIL_STEPS; // infinite at 0 and 1
    return (uint8_t)(odds < -TAIL_ZERO       ? 0
                     : odds >= TAIL_ZERO - 1 ? 2 * TAIL_ZERO - 1
                                             : nearbyint(odds) + TAIL_ZERO);
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
    neb_buf_u8(out, CMP_SOFT_VERSION);
    neb_buf_u8(out, (uint8_t)h->k);
    neb_buf_varint(out, h->rows);
    neb_buf_varint(out, (uint64_t)h->vocab);
    neb_buf_f32(out, h->temperature);
    neb_buf_clear(&s->coded);
    NEB_TRY(cmp_rows_write(&s->rows, h->k, h->vocab, h->rows, &s->coded));
    for (uint32_t i = 0; i < h->rows; i++) {
        size_t at = (size_t)i * (size_t)h->k;
        int32_t row[CMP_SOFT_K_MAX];
        uint8_t gaps[CMP_SOFT_K_MAX], code = tail_of(tail[i]);
        memcpy(row, ids + at, sizeof *row * (size_t)h->k);
        gaps_of(logp + at, h->k, gaps);
        NEB_ASSERT(cmp_rows_code(&s->rows, i, row, gaps, &code));
    }
    cmp_range_finish(&s->rows.to);
    NEB_TRY(neb_buf_check(&s->coded));
    neb_buf_varint(out, s->coded.len);
    neb_buf_add(out, s->coded.p, s->coded.len);
    return neb_buf_check(out);
}

// ---- decoding

static enum neb_status get_head(struct neb_rd *r, struct cmp_soft_head *h) {
    uint8_t version = neb_rd_u8(r);
    h->k = neb_rd_u8(r);
    uint64_t rows = neb_rd_varint(r), vocab = neb_rd_varint(r);
    h->temperature = neb_rd_f32(r);
    h->rows = rows <= CMP_SOFT_ROWS_MAX ? (uint32_t)rows : UINT32_MAX;
    h->vocab = vocab <= 1 << 24 ? (int32_t)vocab : -1;
    if (r->bad || version != CMP_SOFT_VERSION || !head_good(h))
        return neb_fail(NEB_ERR_FORMAT,
                        "soft labels: invalid header: version %u, k %d, %llu rows, vocabulary "
                        "%llu, temperature %g",
                        version, h->k, (unsigned long long)rows, (unsigned long long)vocab,
                        (double)h->temperature);
    return NEB_OK;
}

static void probabilities(const uint8_t *gaps, uint8_t code, int32_t k, float *logp, float *tail) {
    double odds = ((double)code - TAIL_ZERO) / TAIL_STEPS, sum = 0;
    int at = 0;
    for (int32_t j = 0; j < k; j++) {
        at += j ? gaps[j] * step_at(at) : 0;
        logp[j] = (float)-at / STEPS_A_NAT;
        sum += exp((double)logp[j]);
    }
    double rest = -log1p(exp(odds)) - log(sum); // log((1 - tail) / sum)
    for (int32_t j = 0; j < k; j++)
        logp[j] = (float)((double)logp[j] + rest);
    *tail = (float)(1 / (1 + exp(-odds)));
}

static enum neb_status get_rows(struct cmp_soft *s, struct neb_rd *r, const struct cmp_soft_head *h,
                                int32_t *ids, float *logp, float *tail) {
    uint64_t n = neb_rd_varint(r);
    if (r->bad || n > neb_rd_left(r))
        return neb_fail(NEB_ERR_FORMAT, "soft labels: %llu bytes are cut short",
                        (unsigned long long)n);
    NEB_TRY(cmp_rows_read(&s->rows, h->k, h->vocab, h->rows, neb_rd_view(r, (size_t)n), (size_t)n));
    for (uint32_t i = 0; i < h->rows; i++) {
        size_t at = (size_t)i * (size_t)h->k;
        uint8_t gaps[CMP_SOFT_K_MAX], code;
        if (!cmp_rows_code(&s->rows, i, ids + at, gaps, &code))
            return neb_fail(NEB_ERR_FORMAT,
                            "soft labels: a token of row %u is outside the "
                            "vocabulary of %d",
                            i, h->vocab);
        if (twice(ids + at, h->k))
            return neb_fail(NEB_ERR_FORMAT, "soft labels: row %u has a token twice", i);
        probabilities(gaps, code, h->k, logp + at, tail + i);
    }
    if (!cmp_range_all_read(&s->rows.from))
        return neb_fail(NEB_ERR_FORMAT, "soft labels: bytes are left over");
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
    NEB_TRY(get_rows(s, r, &h, ids, logp, tail));
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
