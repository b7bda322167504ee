#include "inter/outer_state.h"
#include "inter/robust.h"
#include "agent/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A strip's sum and one update of it stay in the first cache.
enum { STRIP = 4096 };

static float *floats(size_t n) { return calloc(n ? n : 1, sizeof(float)); }

static enum neb_status make_slot(struct inter_outer *o, struct outer_slot *s,
                                 const struct inter_outer_unit *u) {
    s->u = *u;
    s->u.row_weights = u->row_weights && o->c.row_weights;
    s->n = (size_t)u->rows * u->cols;
    s->at = o->n;
    o->n += s->n;
    NEB_TRY(cmp_work_create(&s->work));
    s->strip = !s->u.row_weights ? STRIP : u->cols >= STRIP ? u->cols : STRIP / u->cols * u->cols;
    s->acc = floats(s->strip);
    s->part = floats(s->strip);
    s->mean = o->c.robust ? floats(s->n) : NULL;
    s->weights = s->u.row_weights ? floats((size_t)u->rows * INTER_PARTS_MAX) : NULL;
    s->row_counts =
        s->u.row_weights ? calloc((size_t)u->rows * INTER_PARTS_MAX, sizeof *s->row_counts) : NULL;
    if (!s->acc || !s->part || (o->c.robust && !s->mean) ||
        (s->u.row_weights && (!s->weights || !s->row_counts)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer state of %u x %u parameters",
                        u->rows, u->cols);
    return NEB_OK;
}

static enum neb_status make_fragment(struct inter_outer *o, int32_t f) {
    struct outer_fragment *g = &o->fragments[f];
    g->units = calloc((size_t)o->n_units, sizeof *g->units);
    g->shapes = calloc((size_t)o->n_units, sizeof *g->shapes);
    if (!g->units || !g->shapes)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for fragment %d", f);
    for (int32_t i = 0; i < o->n_units; i++)
        if (o->slots[i].u.fragment == f) {
            const struct inter_outer_unit *u = &o->slots[i].u;
            g->shapes[g->n] =
                (struct cmp_unit_shape){(uint32_t)i, u->rows, u->cols, u->row_weights};
            g->units[g->n++] = i;
        }
    return g->n ? NEB_OK
                : neb_fail(NEB_ERR_INVALID, "sync.fragments: fragment %d of %d is empty; use fewer",
                           f, o->c.fragments);
}

enum neb_status inter_outer_create(const struct inter_outer_config *c,
                                   const struct inter_outer_unit *units, int32_t n,
                                   struct kern_pool *pool, struct inter_outer **out) {
    enum neb_status st = NEB_OK;
    struct inter_outer *o = calloc(1, sizeof *o);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the outer optimiser");
    NEB_ASSERT(c->fragments >= 1 && n >= 1);
    o->c = *c;
    o->pool = pool;
    o->n_units = n;
    o->slots = calloc((size_t)n, sizeof *o->slots);
    o->fragments = calloc((size_t)c->fragments, sizeof *o->fragments);
    o->views = calloc((size_t)n, sizeof *o->views);
    if (!o->slots || !o->fragments || !o->views) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for the outer optimiser");
        goto fail;
    }
    for (int32_t i = 0; i < n; i++)
        NEB_TRY_GOTO(make_slot(o, &o->slots[i], &units[i]), fail);
    for (int32_t f = 0; f < c->fragments; f++)
        NEB_TRY_GOTO(make_fragment(o, f), fail);
    o->theta = floats(o->n);
    o->v = floats(o->n);
    o->u = floats(o->n);
    o->sent = floats(o->n);
    if (!o->theta || !o->v || !o->u || !o->sent) {
        st = neb_fail(NEB_ERR_NOMEM,
                      "out of memory for the outer state of %zu parameters (16 bytes each)", o->n);
        goto fail;
    }
    for (int32_t i = 0; i < n; i++)
        memcpy(o->theta + o->slots[i].at, units[i].theta_m, o->slots[i].n * sizeof(float));
    *out = o;
    return NEB_OK;
fail:
    inter_outer_destroy(&o);
    return st;
}

void inter_outer_destroy(struct inter_outer **op) {
    struct inter_outer *o = *op;
    if (!o)
        return;
    for (int32_t i = 0; o->slots && i < o->n_units; i++) {
        struct outer_slot *s = &o->slots[i];
        cmp_work_destroy(&s->work);
        neb_buf_free(&s->frame);
        free(s->acc);
        free(s->part);
        free(s->mean);
        for (size_t p = 0; p < INTER_PARTS_MAX; p++)
            cmp_reader_destroy(&s->readers[p]);
        free(s->weights);
        free(s->row_counts);
    }
    for (int32_t f = 0; o->fragments && f < o->c.fragments; f++) {
        free(o->fragments[f].units);
        free(o->fragments[f].shapes);
    }
    free(o->slots);
    free(o->fragments);
    free(o->views);
    outer_device_destroy(&o->device);
    free(o->theta);
    free(o->v);
    free(o->u);
    free(o->sent);
    free(o);
    *op = NULL;
}

// ---- encode ---------------------------------------------------------------------------------------------------

struct encode_job {
    struct inter_outer *o;
    const struct outer_fragment *g;
    const struct cmp_codec *codec;
    inter_outer_counts *counts;
    void *user;
};

static void encode_unit(void *arg, size_t i) {
    struct encode_job *j = arg;
    struct inter_outer *o = j->o;
    struct outer_slot *s = &o->slots[j->g->units[i]];
    bool again = j->g->in_flight; // what was learned since the send comes on top
    if (again)
        kern_exact_pseudo_gradient(o->u + s->at, o->sent + s->at, s->u.theta_m, 1, s->n);
    struct cmp_feedback f = {.u = o->u + s->at,
                             .theta = o->theta + s->at,
                             .theta_m = s->u.theta_m,
                             .sent = o->sent + s->at,
                             .beta = o->c.beta};
    neb_buf_clear(&s->frame);
    const uint64_t *counts = s->u.row_weights ? j->counts(j->user, j->g->units[i]) : NULL;
    if (again) {
        memcpy(f.sent, f.theta_m, s->n * sizeof *f.sent);
        s->st = cmp_update_add(s->work, &s->frame, &j->g->shapes[i], j->codec, f.u, counts);
    } else {
        s->st = cmp_update_add_feedback(s->work, &s->frame, &j->g->shapes[i], j->codec, &f, counts);
    }
}

enum neb_status inter_outer_encode(struct inter_outer *o, int32_t f, const struct cmp_codec *codec,
                                   inter_outer_counts *counts, void *user, struct neb_buf *out) {
    struct outer_fragment *g = &o->fragments[f];
    struct encode_job job = {o, g, codec, counts, user};
    if (o->device)
        NEB_TRY(outer_device_encode(o, f, codec, counts, user));
    else
        kern_pool_run(o->pool, (size_t)g->n, encode_unit, &job);
    neb_buf_clear(out);
    cmp_update_begin(out, (uint32_t)g->n);
    for (int32_t i = 0; i < g->n; i++) {
        const struct outer_slot *s = &o->slots[g->units[i]];
        NEB_TRY(s->st);
        neb_buf_add(out, s->frame.p, s->frame.len);
    }
    NEB_TRY(neb_buf_check(out));
    g->in_flight = true;
    return NEB_OK;
}

// Unpacks and checks a part's frame of this unit.
static enum neb_status open_part(struct outer_slot *s, size_t p) {
    if (!s->readers[p])
        NEB_TRY(cmp_reader_create(&s->readers[p]));
    return cmp_reader_open(s->readers[p], s->work, s->views[p].frame, s->views[p].frame_len, s->n);
}

static bool better_sample(size_t n, size_t best) {
    const size_t enough = 1 << 16;
    return best < enough ? n > best : n >= enough && n < best;
}

float inter_outer_error(struct inter_outer *o, int32_t f, const uint8_t *blob, size_t len) {
    const struct outer_fragment *g = &o->fragments[f];
    int32_t pick = -1;
    double lost = 0, all = 0;
    if (!g->in_flight || cmp_update_open(blob, len, g->shapes, (uint32_t)g->n, o->views) != NEB_OK)
        return 0;
    for (int32_t i = 0; i < g->n; i++)
        if (pick < 0 || better_sample(o->slots[g->units[i]].n, o->slots[g->units[pick]].n))
            pick = i;
    if (pick < 0)
        return 0;
    struct outer_slot *s = &o->slots[g->units[pick]];
    s->views[0] = o->views[pick];
    if (open_part(s, 0) != NEB_OK || (o->device && outer_device_fetch_u(o, s) != NEB_OK))
        return 0;
    const float *sent = o->device ? s->mean : o->u + s->at;
    for (size_t at = 0; at < s->n; at += s->strip) {
        size_t n = s->n - at < s->strip ? s->n - at : s->strip;
        cmp_reader_read(s->readers[0], at, s->part, n);
        for (size_t i = 0; i < n; i++) {
            double u = (double)sent[at + i], d = u - (double)s->part[i];
            lost += d * d;
            all += u * u;
        }
    }
    return all > 0 ? (float)sqrt(lost / all) : 0;
}

// ---- apply ----------------------------------------------------------------------------------------------------

// w[row] of part p: (n_p + κ·share_p) / Σ_q (n_q + κ·share_q), members in order.
void outer_row_weights(const struct outer_apply *j, struct outer_slot *s, size_t p) {
    float kappa = j->o->c.kappa, *weights = s->weights + p * s->u.rows;
    for (uint32_t row = 0; row < s->u.rows; row++) {
        float sum = 0, own = 0;
        for (size_t q = 0; q < j->r->n; q++) {
            float prior = kappa * j->share[q];
            float n = (float)s->row_counts[q * s->u.rows + row] * j->scale[q] + prior;
            sum = sum + n;
            if (q == p)
                own = n;
        }
        weights[row] = sum > 0 ? own / sum : j->share[p];
    }
}

// The profile `robust`: all parts decoded beside each other, then the trimmed mean.
enum neb_status outer_sum_robust(const struct outer_apply *j, struct outer_slot *s) {
    size_t n = j->r->n, rows = s->u.rows;
    float clip[INTER_PARTS_MAX], *all = malloc(n * (s->n + rows) * sizeof *all), *w = all + n * s->n;
    enum neb_status st = all ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "robust mean of %zu updates", n);
    for (size_t p = 0; p < n && st == NEB_OK; p++) {
        clip[p] = j->r->parts[p].clip;
        st = cmp_decode(s->work, s->views[p].frame, s->views[p].frame_len, all + p * s->n, s->n);
        for (size_t row = 0; row < rows; row++)
            w[p * rows + row] = s->u.row_weights ? s->weights[p * rows + row] : j->share[p];
    }
    if (st == NEB_OK) {
        memset(s->mean, 0, s->n * sizeof(float));
        inter_robust_mean(s->mean, all, w, clip, n, rows, s->u.cols);
    }
    free(all);
    return st;
}

enum neb_status outer_read_counts(const struct outer_apply *j, struct outer_slot *s) {
    size_t rows = s->u.rows;
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        NEB_TRY(cmp_update_counts(s->work, &s->views[p], s->u.rows, s->row_counts + p * rows));
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        outer_row_weights(j, s, p);
    return NEB_OK;
}

// First pass, which may fail: unpacks and checks every part.
static enum neb_status open_unit(struct outer_apply *j, struct outer_slot *s) {
    size_t rows = s->u.rows;
    NEB_TRY(outer_read_counts(j, s));
    if (j->o->c.robust)
        NEB_TRY(outer_sum_robust(j, s));
    for (size_t p = 0; p < j->r->n; p++)
        if (!j->o->c.robust || j->r->parts[p].mine)
            NEB_TRY(open_part(s, p));
    for (size_t p = 0; s->u.row_weights && !j->o->c.robust && p < j->r->n; p++)
        for (size_t row = 0; j->r->parts[p].clip != 1 && row < rows; row++)
            s->weights[p * rows + row] = s->weights[p * rows + row] * j->r->parts[p].clip;
    return NEB_OK;
}

static void sum_unit(void *arg, size_t i) {
    struct outer_apply *j = arg;
    struct outer_slot *s = &j->o->slots[j->g->units[i]];
    s->st = open_unit(j, s);
}

// Elements [at, at + n) of the weighted sum, and what of them was ours leaves the residual.
static const float *sum_strip(const struct outer_apply *j, struct outer_slot *s, size_t at, size_t n) {
    bool robust = j->o->c.robust;
    memset(s->acc, 0, n * sizeof(float));
    for (size_t p = 0; p < j->r->n; p++) {
        const struct inter_outer_part *part = &j->r->parts[p];
        if (robust && !part->mine)
            continue;
        cmp_reader_read(s->readers[p], at, s->part, n);
        if (part->mine)
            kern_exact_residual(j->o->u + s->at + at, s->part, n);
        if (robust)
            continue;
        if (s->u.row_weights)
            kern_exact_add_rows(s->acc, s->part, s->weights + p * s->u.rows + at / s->u.cols,
                                n / s->u.cols, s->u.cols);
        else
            kern_exact_add_scaled(s->acc, s->part,
                                  part->clip == 1 ? j->share[p] : j->share[p] * part->clip, n);
    }
    return robust ? s->mean + at : s->acc;
}

// Second pass, which cannot fail: sum, residual, outer step, rebase and digest of every strip while it is in the cache.
static void settle_unit(void *arg, size_t i) {
    struct outer_apply *j = arg;
    struct inter_outer *o = j->o;
    struct outer_slot *s = &o->slots[j->g->units[i]];
    s->digest = (struct kern_digest){0, 0};
    for (size_t at = 0; at < s->n; at += s->strip) {
        size_t n = s->n - at < s->strip ? s->n - at : s->strip, all = s->at + at;
        const float *sum = sum_strip(j, s, at, n);
        float *theta = o->theta + all, *v = o->v + all;
        if (j->r->merge) {
            memset(v, 0, n * sizeof(float));
            kern_exact_outer_step(theta, v, sum, 1, 0, n);
            memset(v, 0, n * sizeof(float));
        } else {
            kern_exact_outer_step(theta, v, sum, j->r->eta, j->r->mu, n);
        }
        kern_exact_rebase(s->u.theta_m + at, theta, o->sent + all, n);
        s->digest = kern_digest_add(s->digest, kern_digest_part(theta, v, all, n));
    }
}

static struct kern_digest fragment_digest(const struct inter_outer *o, const struct outer_fragment *g) {
    struct kern_digest d = {neb_mix64(g->version + 1), neb_mix64((uint64_t)g->version << 32 | 7)};
    for (int32_t i = 0; i < g->n; i++)
        d = kern_digest_add(d, o->slots[g->units[i]].digest);
    return d;
}

// The units' digests as the parameters are now.
static struct kern_digest digest_now(const struct inter_outer *o, const struct outer_fragment *g) {
    if (o->device)
        outer_device_digests(o, (int32_t)(g - o->fragments));
    for (int32_t i = 0; !o->device && i < g->n; i++) {
        struct outer_slot *s = &o->slots[g->units[i]];
        s->digest = kern_digest_part(o->theta + s->at, o->v + s->at, s->at, s->n);
    }
    return fragment_digest(o, g);
}

static enum neb_status open_parts(struct inter_outer *o, const struct outer_fragment *g,
                                  const struct inter_outer_round *r) {
    for (size_t p = 0; p < r->n; p++) {
        if (!(r->parts[p].clip > 0 && r->parts[p].clip <= 1))
            return neb_fail(NEB_ERR_FORMAT, "commit: clip factor %g is not in (0, 1]",
                            (double)r->parts[p].clip);
        NEB_TRY(cmp_update_open(r->parts[p].blob, r->parts[p].len, g->shapes, (uint32_t)g->n,
                                o->views));
        for (int32_t i = 0; i < g->n; i++)
            o->slots[g->units[i]].views[p] = o->views[i];
    }
    return NEB_OK;
}

static uint64_t weight_of(const struct inter_outer_part *p) { return p->weight ? p->weight : p->tokens; }

static enum neb_status apply_on_host(struct outer_apply *j) {
    struct inter_outer *o = j->o;
    const struct outer_fragment *g = j->g;
    kern_pool_run(o->pool, (size_t)g->n, sum_unit, j);
    for (int32_t i = 0; i < g->n; i++)
        NEB_TRY(o->slots[g->units[i]].st);
    if (!g->in_flight) // nothing of ours travels: there is no progress before a send, only since θ
        for (int32_t i = 0; i < g->n; i++) {
            const struct outer_slot *s = &o->slots[g->units[i]];
            memcpy(o->sent + s->at, o->theta + s->at, s->n * sizeof(float));
        }
    kern_pool_run(o->pool, (size_t)g->n, settle_unit, j);
    return NEB_OK;
}

enum neb_status inter_outer_apply(struct inter_outer *o, int32_t f,
                                  const struct inter_outer_round *r, struct kern_digest *digest) {
    struct outer_fragment *g = &o->fragments[f];
    struct outer_apply job = {.o = o, .g = g, .r = r};
    uint64_t total = 0;
    if (r->n < 1 || r->n > INTER_PARTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "commit: %zu updates, 1 to %d are possible", r->n,
                        INTER_PARTS_MAX);
    for (size_t p = 0; p < r->n; p++) {
        total += weight_of(&r->parts[p]);
        job.mine |= r->parts[p].mine;
    }
    if (total == 0 || total > (1ull << 60))
        return neb_fail(NEB_ERR_FORMAT, "commit: the updates' weights sum to %llu tokens",
                        (unsigned long long)total);
    // float of a 64-bit integer rounds to nearest on every machine; the quotient is one fp32 division.
    for (size_t p = 0; p < r->n; p++) {
        uint64_t w = weight_of(&r->parts[p]);
        job.share[p] = (float)w / (float)total;
        job.scale[p] = w == r->parts[p].tokens || !r->parts[p].tokens ? 1 : (float)w / (float)r->parts[p].tokens;
    }
    NEB_TRY(open_parts(o, g, r));
    if (o->device) {
        NEB_TRY(outer_device_sum(&job));
        NEB_TRY(outer_device_settle(&job));
    } else {
        NEB_TRY(apply_on_host(&job));
    }
    // Committed without ours: u becomes the residual as it is, which already contains Δ; so the progress up to the send
    // is no longer in θ_m: it comes back through the next update.
    g->in_flight = false;
    g->version++;
    *digest = fragment_digest(o, g);
    return NEB_OK;
}

void inter_outer_skip(struct inter_outer *o, int32_t f, struct kern_digest *digest) {
    struct outer_fragment *g = &o->fragments[f];
    if (o->device)
        outer_device_skip(o, f);
    for (int32_t i = 0; !o->device && i < g->n; i++) {
        struct outer_slot *s = &o->slots[g->units[i]];
        if (g->in_flight)
            kern_exact_rebase(s->u.theta_m, o->theta + s->at, o->sent + s->at, s->n);
    }
    g->in_flight = false;
    g->version++;
    *digest = digest_now(o, g);
}

void inter_outer_reject(struct inter_outer *o, int32_t f) {
    struct outer_fragment *g = &o->fragments[f];
    if (o->device)
        outer_device_reject(o, f);
    for (int32_t i = 0; !o->device && i < g->n; i++) {
        struct outer_slot *s = &o->slots[g->units[i]];
        memset(o->u + s->at, 0, s->n * sizeof(float));
        memcpy(s->u.theta_m, o->theta + s->at, s->n * sizeof(float));
    }
    g->in_flight = false;
}

bool inter_outer_in_flight(const struct inter_outer *o, int32_t f) {
    return o->fragments[f].in_flight;
}
uint32_t inter_outer_version(const struct inter_outer *o, int32_t f) {
    return o->fragments[f].version;
}

void inter_outer_adopt(struct inter_outer *o, int32_t f, const float *theta, const float *v, uint32_t version) {
    struct outer_fragment *g = &o->fragments[f];
    if (o->device)
        outer_device_adopt(o, f, theta, v);
    for (int32_t i = 0; !o->device && i < g->n; i++) {
        struct outer_slot *s = &o->slots[g->units[i]];
        memcpy(o->theta + s->at, theta + s->at, s->n * sizeof(float));
        memcpy(o->v + s->at, v + s->at, s->n * sizeof(float));
        memcpy(s->u.theta_m, theta + s->at, s->n * sizeof(float));
        memset(o->u + s->at, 0, s->n * sizeof(float));
    }
    g->in_flight = false;
    g->version = version;
}

struct kern_digest inter_outer_fragment_digest(const struct inter_outer *o, int32_t f) {
    return digest_now(o, &o->fragments[f]);
}

struct kern_digest inter_outer_digest(const struct inter_outer *o) {
    struct kern_digest d = {0, 0};
    for (int32_t f = 0; f < o->c.fragments; f++)
        d = kern_digest_add(d, inter_outer_fragment_digest(o, f));
    return d;
}

void inter_outer_arrays(struct inter_outer *o, struct inter_outer_array out[INTER_OUTER_ARRAYS]) {
    const struct inter_outer_array all[INTER_OUTER_ARRAYS] = {{"outer.theta", o->theta, o->n},
                                                              {"outer.v", o->v, o->n},
                                                              {"outer.u", o->u, o->n},
                                                              {"outer.sent", o->sent, o->n}};
    memcpy(out, all, sizeof all);
}

void inter_outer_set_fragment(struct inter_outer *o, int32_t f, uint32_t version, bool in_flight) {
    o->fragments[f].version = version;
    o->fragments[f].in_flight = in_flight;
}
