// SPDX-License-Identifier: Apache-2.0
// Measures an exchange for agent/plan/profile.h as a worker makes it (inter/outer/outer.h). It
// encodes an update with its pseudo-gradient and error feedback. It merges commits of one and of
// three updates, and the difference gives the time per update and the time per merge.
#include "agent/base/rng.h"
#include "agent/plan/profile.h"
#include "agent/plan/profile_clock.h"
#include "compress/device.h"
#include "compress/update.h"
#include "inter/outer/outer.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE = 1 << 18,      // values for measuring size and error
    UNIT_SAMPLE = 1 << 16, // for the size of a unit; larger ones take as much for each element
    COLS = 1024,
    UNIT_ROWS = 128, // on processors
    UNITS_LEAST = 8,
    UNITS_MOST = 64,
    RUNS = 3,
    MANY = 3, // updates of the larger commit
};
// The least share of a merge that decoding takes, and that the rest takes, whatever the clock
// shows.
static const double LEAST = 0.05;
static const double LONG_S = 0.05;

struct exchange {
    struct kern_pool *pool;
    struct kern *D; // NULL: on processors
    struct inter_outer *outer;
    int32_t units;
    size_t rows, n;        // rows of a unit; elements of all units
    float *zero, *learned; // (n) θ; the parameters after training, as θ_m
    float *theta_m;        // (n) host
    void *there;           // (n) device
    struct neb_buf blob;
};

static void normal(float *x, size_t n) {
    struct neb_rng r = neb_rng_make(1, 1);
    neb_rng_normals(&r, x, n);
    for (size_t i = 0; i < n; i++)
        x[i] *= 1e-3f;
}

// ---- an exchange's state ------------------------------------------------------------------------

static void exchange_free(struct exchange *x) {
    inter_outer_destroy(&x->outer);
    if (x->D)
        x->D->ops->release(x->D, x->there);
    neb_buf_free(&x->blob);
    free(x->zero);
    free(x->learned);
    free(x->theta_m);
    *x = (struct exchange){0};
}

static enum neb_status place_exchange(struct exchange *x) {
    float *at[UNITS_MOST];
    NEB_TRY(x->D->ops->alloc(x->D, x->n * sizeof(float), &x->there));
    for (int32_t i = 0; i < x->units; i++)
        at[i] = (float *)x->there + (size_t)i * x->rows * COLS;
    return inter_outer_to_device(x->outer, x->D, at, 0);
}

static enum neb_status exchange_make(struct exchange *x) {
    struct inter_outer_unit units[UNITS_MOST];
    const struct inter_outer_config c = {.beta = 1, .keep = 0.5f, .fragments = 1};
    x->n = (size_t)x->units * x->rows * COLS;
    x->zero = calloc(x->n, sizeof *x->zero);
    x->learned = malloc(x->n * sizeof *x->learned);
    x->theta_m = calloc(x->n, sizeof *x->theta_m);
    if (!x->zero || !x->learned || !x->theta_m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory measuring exchanges");
    normal(x->learned, x->n);
    for (int32_t i = 0; i < x->units; i++)
        units[i] = (struct inter_outer_unit){.rows = (uint32_t)x->rows,
                                             .cols = COLS,
                                             .theta_m = x->theta_m + (size_t)i * x->rows * COLS};
    NEB_TRY(inter_outer_create(&c, units, x->units, x->pool, &x->outer));
    return x->D ? place_exchange(x) : NEB_OK;
}

// Starts from θ = 0, without a residual of earlier updates, and with `learned` as the learned
// change.
static enum neb_status begin_exchange(struct exchange *x) {
    inter_outer_adopt(x->outer, 0, x->zero, x->zero, 0);
    if (!x->D) {
        memcpy(x->theta_m, x->learned, x->n * sizeof *x->theta_m);
        return NEB_OK;
    }
    x->D->ops->upload(x->D, x->there, x->learned, x->n * sizeof *x->learned);
    return x->D->ops->finish(x->D);
}

// ---- seconds ------------------------------------------------------------------------------------

static enum neb_status encode(struct exchange *x, const struct cmp_codec *codec, double *best) {
    struct profile_clock clock;
    NEB_TRY(begin_exchange(x));
    profile_clock_start(&clock);
    NEB_TRY(inter_outer_encode(x->outer, 0, codec, NULL, NULL, &x->blob));
    *best = fmin(*best, profile_clock_stop(&clock, kern_pool_threads(x->pool)));
    return NEB_OK;
}

static enum neb_status merge(struct exchange *x, size_t updates, double *best) {
    struct profile_clock clock;
    struct inter_outer_part parts[NEB_MEMBERS_MAX];
    struct kern_digest digest;
    const struct inter_outer_round r = {.parts = parts, .n = updates, .eta = 1};
    for (size_t p = 0; p < updates; p++)
        parts[p] = (struct inter_outer_part){
            .blob = x->blob.p, .len = x->blob.len, .tokens = 1, .clip = 1, .mine = p == 0};
    profile_clock_start(&clock);
    NEB_TRY(inter_outer_apply(x->outer, 0, &r, &digest));
    *best = fmin(*best, profile_clock_stop(&clock, kern_pool_threads(x->pool)));
    return NEB_OK;
}

static enum neb_status measure(struct exchange *x, const struct cmp_codec *codec,
                               struct inter_wan_rates *out) {
    double encode_s = INFINITY, one = INFINITY, many = INFINITY, n = (double)x->n;
    for (int i = 0; i < RUNS; i++) {
        NEB_TRY(encode(x, codec, &encode_s));
        NEB_TRY(merge(x, 1, &one));
        NEB_TRY(encode(x, codec, &encode_s));
        NEB_TRY(merge(x, MANY, &many));
        if (encode_s + one + many > LONG_S * RUNS)
            break;
    }
    double decode_s = fmin(fmax((many - one) / (MANY - 1), LEAST * one), (1 - LEAST) * one);
    *out = (struct inter_wan_rates){n / encode_s, n / decode_s, n / (one - decode_s)};
    return NEB_OK;
}

static enum neb_status on_processors(struct kern_pool *pool, const struct cmp_codec *codec,
                                     struct inter_wan_rates *out) {
    int threads = kern_pool_threads(pool);
    struct exchange x = {.pool = pool,
                         .rows = UNIT_ROWS,
                         .units = threads < UNITS_LEAST  ? UNITS_LEAST
                                  : threads > UNITS_MOST ? UNITS_MOST
                                                         : threads};
    enum neb_status st = exchange_make(&x);
    if (st == NEB_OK)
        st = measure(&x, codec, out);
    exchange_free(&x);
    return st;
}

// A device encodes one unit after the other. The unit grows until an exchange takes long.
enum neb_status agent_profile_codec_device(struct kern *D, struct inter_wan_codec *out) {
    static const size_t rows[] = {64, 1024, 4096};
    struct kern_pool *pool = NULL;
    struct cmp_codec codec;
    struct inter_wan_rates *r = &out->at[INTER_WAN_DEVICE];
    enum neb_status st = NEB_OK;
    NEB_TRY(cmp_codec_parse(out->name, &codec));
    NEB_TRY(kern_pool_create(1, &pool));
    for (size_t i = 0; i < sizeof rows / sizeof *rows && st == NEB_OK; i++) {
        struct exchange x = {.pool = pool, .D = D, .rows = rows[i], .units = 1};
        double n = (double)rows[i] * COLS;
        if (i && n / r->encode + n / r->settle > LONG_S * (i == 1 ? 1 : 4))
            break;
        st = exchange_make(&x);
        if (st == NEB_OK)
            st = measure(&x, &codec, r);
        exchange_free(&x);
    }
    kern_pool_destroy(&pool);
    return st;
}

// ---- size and error -----------------------------------------------------------------------------

// Updates are close to normally distributed within a block. The sample is drawn once, because a
// plan measures several codecs.
static float sample[SAMPLE];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void draw(void) { normal(sample, SAMPLE); }

static enum neb_status error_of(struct cmp_work *work, const struct neb_buf *frame, double *out) {
    double error = 0, norm = 0;
    float *y = malloc(SAMPLE * sizeof *y);
    enum neb_status st = y ? cmp_decode(work, frame->p, frame->len, y, SAMPLE)
                           : neb_fail(NEB_ERR_NOMEM, "out of memory measuring a codec");
    for (int i = 0; i < SAMPLE && st == NEB_OK; i++) {
        double x = (double)sample[i], e = x - (double)y[i];
        error += e * e;
        norm += x * x;
    }
    *out = sqrt(error / norm);
    free(y);
    return st;
}

enum neb_status agent_profile_sample(const struct cmp_codec *codec, double *bits,
                                     double *rel_error) {
    struct cmp_work *work = NULL;
    struct neb_buf frame = {0};
    enum neb_status st;
    (void)pthread_once(&once, draw);
    NEB_TRY(cmp_work_create(&work));
    st = cmp_encode(work, codec, sample, SAMPLE, &frame);
    *bits = 8.0 * (double)frame.len / SAMPLE;
    if (st == NEB_OK && rel_error)
        st = error_of(work, &frame, rel_error);
    cmp_work_destroy(&work);
    neb_buf_free(&frame);
    return st;
}

static enum neb_status written(struct cmp_work *work, const struct cmp_codec *codec, uint32_t rows,
                               uint32_t cols, double *bytes) {
    const struct cmp_unit_shape shape = {.rows = rows, .cols = cols};
    const struct cmp_source from = {.x = sample};
    struct neb_buf unit = {0};
    enum neb_status st = cmp_update_add(work, &unit, &shape, codec, &from, NULL);
    *bytes = (double)unit.len;
    neb_buf_free(&unit);
    return st;
}

enum neb_status agent_profile_unit(const struct cmp_codec *codec, int32_t rows, int32_t cols,
                                   double *bytes) {
    struct cmp_work *work = NULL;
    uint32_t r = (uint32_t)rows, c = (uint32_t)cols;
    double n = (double)rows * cols, half = 0;
    bool large = n > UNIT_SAMPLE, vector = rows == 1 || cols == 1;
    (void)pthread_once(&once, draw);
    if (large) {
        c = vector ? UNIT_SAMPLE : COLS;
        r = UNIT_SAMPLE / c;
    }
    NEB_TRY(cmp_work_create(&work));
    enum neb_status st = written(work, codec, r, c, bytes);
    if (st == NEB_OK && large)
        st = vector ? written(work, codec, r, c / 2, &half) : written(work, codec, r / 2, c, &half);
    if (large)
        *bytes += (*bytes - half) * (n - UNIT_SAMPLE) / (UNIT_SAMPLE / 2);
    cmp_work_destroy(&work);
    return st;
}

// ---- memory -------------------------------------------------------------------------------------

static double allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd);
}

// Memory of an exchange of `rows` rows a unit, without its state and without the updates. *update:
// bytes of an update.
static enum neb_status held(const struct cmp_codec *codec, size_t members, size_t rows,
                            double *bytes, double *update) {
    struct kern_pool *pool = NULL;
    NEB_TRY(kern_pool_create(1, &pool));
    struct exchange x = {.pool = pool, .rows = rows, .units = UNITS_LEAST};
    double unused = INFINITY;
    double before = allocated();
    enum neb_status st = exchange_make(&x);
    if (st == NEB_OK)
        st = encode(&x, codec, &unused);
    if (st == NEB_OK)
        st = merge(&x, members, &unused);
    *update = (double)x.blob.len;
    double arrays = 4.0 * (double)x.n * (INTER_OUTER_ARRAYS + 3); // the state, and zero to theta_m
    *bytes = allocated() - before - arrays - *update;
    exchange_free(&x);
    kern_pool_destroy(&pool);
    return st;
}

// Bytes for each element of a large frame on a device.
static double kept_bytes(const struct cmp_codec *codec) {
    enum { LARGE = 1 << 20 };
    return (double)cmp_device_kept_bytes(codec, LARGE) / LARGE;
}

enum neb_status agent_profile_frames(const struct cmp_codec *codec, int32_t members,
                                     struct intra_cost_frames *out) {
    enum { FEW_ROWS = 1, MANY_ROWS = 128, KEPT = 32 };
    static struct {
        char codec[32];
        int32_t members;
        struct intra_cost_frames frames;
    } all[KEPT];
    static int kept;
    char name[32];
    double few, many, update, n = (double)UNITS_LEAST * COLS;
    // Without a moving threshold of malloc, every process finds the same figures.
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
    cmp_codec_name(codec, name, sizeof name);
    for (int i = 0; i < kept; i++)
        if (all[i].members == members && !strcmp(all[i].codec, name)) {
            *out = all[i].frames;
            return NEB_OK;
        }
    NEB_TRY(held(codec, (size_t)members, FEW_ROWS, &few, &update));
    NEB_TRY(held(codec, (size_t)members, MANY_ROWS, &many, &update));
    double work = fmax(0, (many - few) / (n * (MANY_ROWS - FEW_ROWS)));
    *out = (struct intra_cost_frames){.unit = fmax(0, few - work * n * FEW_ROWS) / UNITS_LEAST,
                                      .work = work,
                                      .update = update / (n * MANY_ROWS),
                                      .kept = members * kept_bytes(codec)};
    if (kept < KEPT) {
        memcpy(all[kept].codec, name, sizeof name);
        all[kept].members = members;
        all[kept++].frames = *out;
    }
    return NEB_OK;
}

enum neb_status agent_profile_codec(const char *name, struct kern_pool *pool,
                                    struct inter_wan_codec *out) {
    struct cmp_codec codec;
    struct kern_pool *own = NULL;
    *out = (struct inter_wan_codec){0};
    snprintf(out->name, sizeof out->name, "%.31s", name);
    NEB_TRY(cmp_codec_parse(name, &codec));
    out->density = cmp_codec_density(&codec);
    NEB_TRY(agent_profile_sample(&codec, &out->bits, &out->rel_error));
    if (!pool)
        NEB_TRY(kern_pool_create(0, &own));
    enum neb_status st = on_processors(pool ? pool : own, &codec, &out->at[INTER_WAN_HOST]);
    kern_pool_destroy(&own);
    return st;
}
