// SPDX-License-Identifier: Apache-2.0
#include "agent/train/rtd_share.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum neb_status rtd_share_create(struct intra_model *m, struct rtd_share **out) {
    struct rtd_share *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for shared embeddings");
    int32_t rows = m->embed->rows, cols = m->embed->cols,
            fit = RTD_SHARE_BYTES / cols > 1 ? RTD_SHARE_BYTES / cols : 1;
    s->model = m;
    s->pending = -1;
    s->block = fit < rows ? fit : rows;
    s->n_blocks = (rows + s->block - 1) / s->block;
    size_t n = (size_t)s->block * (size_t)cols;
    s->ours = calloc(n, sizeof *s->ours);
    s->theirs = calloc(n, sizeof *s->theirs);
    enum neb_status st = s->ours && s->theirs
                             ? cmp_work_create(&s->work)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory for shared embeddings");
    if (st == NEB_OK)
        st = cmp_codec_parse("int8", &s->codec);
    if (st != NEB_OK)
        rtd_share_destroy(&s);
    *out = s;
    return st;
}

void rtd_share_destroy(struct rtd_share **sp) {
    struct rtd_share *s = *sp;
    if (!s)
        return;
    cmp_work_destroy(&s->work);
    neb_buf_free(&s->frame);
    free(s->ours);
    free(s->theirs);
    free(s);
    *sp = NULL;
}

static int32_t first_row(const struct rtd_share *s, int64_t x) {
    return (int32_t)(x % s->n_blocks) * s->block;
}

static size_t elements_of(const struct rtd_share *s, int64_t x) { // of exchange x
    const struct intra_tensor *t = s->model->embed;
    int32_t left = t->rows - first_row(s, x);
    return (size_t)(left < s->block ? left : s->block) * (size_t)t->cols;
}

// The rows of exchange x, and their number of elements in *n. The caller has pulled the embedding.
static float *rows_of(const struct rtd_share *s, int64_t x, size_t *n) {
    const struct intra_tensor *t = s->model->embed;
    int32_t first = first_row(s, x);
    *n = elements_of(s, x);
    return s->model->params + t->at + (size_t)first * (size_t)t->cols;
}

enum neb_status rtd_share_send(struct rtd_share *s, int64_t x) {
    size_t n;
    const float *rows = rows_of(s, x, &n);
    neb_buf_clear(&s->frame);
    NEB_TRY(cmp_encode(s->work, &s->codec, rows, n, &s->frame));
    return cmp_decode(s->work, s->frame.p, s->frame.len, s->ours, n);
}

static double square(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

// Refuses rows far from ours. Both sides start with rows of one size and meet every few events, so
// distant rows were not learned from the same text. A small row is measured by the block's mean.
static enum neb_status near(const struct rtd_share *s, const float *rows, size_t elements) {
    size_t cols = (size_t)s->model->embed->cols, n = elements / cols;
    double usual = square(rows, elements) / (double)n, most = RTD_SHARE_AWAY * RTD_SHARE_AWAY;
    for (size_t r = 0; r < n; r++) {
        const float *own = rows + r * cols, *other = s->theirs + r * cols;
        double away = 0;
        for (size_t i = 0; i < cols; i++) {
            double d = (double)other[i] - (double)own[i];
            away += d * d;
        }
        if (!(away <= most * fmax(usual, square(own, cols)))) // also false for what is not finite
            return neb_fail(NEB_ERR_FORMAT,
                            "shared embeddings: row %zu of the block is %.3g away from this side's "
                            "row, and rows have a length of about %.3g: check that the other side "
                            "runs the same job, and that its training has not failed",
                            r, sqrt(away), sqrt(usual));
    }
    return NEB_OK;
}

enum neb_status rtd_share_take(struct rtd_share *s, int64_t x, const uint8_t *p, size_t n) {
    size_t elements;
    struct cmp_frame_info info;
    const float *rows = rows_of(s, x, &elements);
    NEB_TRY(cmp_frame_peek(p, n, &info));
    if (info.n != elements || info.codec.format != s->codec.format)
        return neb_fail(NEB_ERR_FORMAT,
                        "shared embeddings: a frame has %llu elements, but %zu in int8 are due",
                        (unsigned long long)info.n, elements);
    NEB_TRY(cmp_decode(s->work, p, n, s->theirs, elements));
    NEB_TRY(near(s, rows, elements));
    s->answered = true;
    return NEB_OK;
}

void rtd_share_merge(struct rtd_share *s, int64_t x) {
    size_t n;
    float *rows = rows_of(s, x, &n);
    for (size_t i = 0; i < n; i++)
        rows[i] += 0.5f * (s->theirs[i] - s->ours[i]);
    s->answered = false;
}

enum neb_status rtd_share_save(const struct rtd_share *s, struct intra_ckpt_writer *w) {
    if (s->pending < 0)
        return NEB_OK;
    uint64_t x = (uint64_t)s->pending;
    NEB_TRY(intra_ckpt_add(w, "rtd.share", INTRA_U64, 1, 1, &x));
    return intra_ckpt_add(w, "rtd.share.frame", INTRA_BYTES, s->frame.len, 1, s->frame.p);
}

enum neb_status rtd_share_restore(struct rtd_share *s, const struct intra_ckpt *c) {
    const struct intra_ckpt_section *f = intra_ckpt_find(c, "rtd.share.frame");
    uint64_t x;
    s->pending = -1;
    if (!f)
        return NEB_OK;
    NEB_TRY(intra_ckpt_read(c, "rtd.share", INTRA_U64, 1, 1, &x));
    s->pending = (int64_t)(x & INT64_MAX);
    neb_buf_clear(&s->frame);
    NEB_TRY(neb_buf_reserve(&s->frame, f->bytes));
    NEB_TRY(intra_ckpt_range(c, f, 0, s->frame.p, f->bytes));
    s->frame.len = f->bytes;
    return cmp_decode(s->work, s->frame.p, s->frame.len, s->ours, elements_of(s, s->pending));
}
