// SPDX-License-Identifier: Apache-2.0
// Works on some rows of a pass. In modes rtd and distill only a part of the positions have a
// target.
//
//     the loss      takes the rows with a target, gathered, if they are few; the gradients of the
//                   other rows are zero
//     other calls   give scores, draws and labels at rows that the caller names; logits of these
//                   rows are computed again in fp32, block by block, in the loss's buffer
//
// On processors the loss itself skips rows without a target, unless the vocabulary is cut over
// ranks; and ops read and write the caller's arrays.
//
// With a cut vocabulary each tensor-parallel rank makes candidates from its own ids, and the ranks
// exchange these over host memory (m->mesh), never logits. All ranks get the same results.
#include "intra/model/state.h"
#include "kernels/device_stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the loss -----------------------------------------------------------------------------------

// Whether the loss gathers rows with a target: not on processors, whose op does it, unless the
// vocabulary is cut.
static bool gathers(const struct intra_device *d) {
    return d->c.soft_k && intra_model_last(d->m) && d->m->c.head == INTRA_HEAD_LM &&
           (!device_host(d) || device_cut(d));
}

// Ids of a row that one rank may name; the same on all ranks.
static int32_t most_named(const struct intra_device *d) {
    int32_t tp = intra_mesh_tp(d->c.mesh), each = (d->m->c.vocab + tp - 1) / tp;
    return d->c.soft_k < each ? d->c.soft_k : each;
}

// What one rank tells the others of n rows: ids and log-probabilities, the tail, the log of the
// sum.
static size_t told(int32_t n, int32_t k) { return (size_t)n * (2 * (size_t)k + 2); }

enum neb_status device_picks_create(struct intra_device *d) {
    size_t n = device_tokens(d), k = (size_t)d->c.soft_k, tp = (size_t)intra_mesh_tp(d->c.mesh);
    struct device_soft_rows *s = &d->soft_rows;
    bool made = true;
    if (!k || !intra_model_last(d->m))
        return NEB_OK;
    if (gathers(d)) {
        d->lists = malloc(3 * n * sizeof *d->lists);
        s->ids = malloc(n * k * sizeof *s->ids);
        s->logp = malloc(n * k * sizeof *s->logp);
        s->tail = malloc(n * sizeof *s->tail);
        made = d->lists && s->ids && s->logp && s->tail;
    }
    if (device_cut(d)) {
        d->told = calloc(tp * told((int32_t)n, most_named(d)), sizeof *d->told);
        d->draws_host = malloc(n * sizeof *d->draws_host);
        d->own_rows = malloc((2 * n + tp) * sizeof *d->own_rows);
        made = made && d->told && d->draws_host && d->own_rows;
    }
    return made ? NEB_OK
                : neb_fail(NEB_ERR_NOMEM, "out of memory for the labels of %zu positions", n);
}

void device_picks_destroy(struct intra_device *d) {
    free(d->told);
    free(d->draws_host);
    free(d->own_rows);
    free(d->lists);
    free(d->soft_rows.ids);
    free(d->soft_rows.logp);
    free(d->soft_rows.tail);
}

// How many rows the output layer takes if `count` of n positions have a target; 0: all rows. The
// number is rounded up, because the libraries must choose kernels for each new shape.
static size_t rows_for(size_t n, int64_t count) {
    size_t step = n / 16 + 1, rows = ((size_t)count + step) / step * step;
    return 4 * rows <= 3 * n ? rows : 0;
}

static void gather(struct intra_device *d, const struct intra_batch *b, size_t n, size_t rows) {
    int32_t *at = d->lists, *target = at + n, *of = target + n, k = 0;
    for (size_t i = 0; i < n; i++) {
        of[i] = b->targets[i] == KERN_IGNORE ? -1 : k;
        if (of[i] < 0)
            continue;
        at[k] = (int32_t)i;
        target[k++] = b->targets[i];
    }
    for (; (size_t)k < rows; k++) {
        at[k] = -1;
        target[k] = KERN_IGNORE;
    }
    kern_stage_upload(d->c.D, d->row_at, at, rows * sizeof *at);
    kern_stage_upload(d->c.D, d->row_target, target, rows * sizeof *target);
    kern_stage_upload(d->c.D, d->row_of, of, n * sizeof *of);
}

// Uploads a teacher's labels: those of the gathered rows, or of all positions.
static void send_soft(struct intra_device *d, struct device_acts *a, const struct kern_soft *s,
                      size_t n) {
    struct device_soft_rows *r = &d->soft_rows,
                            by = {(int32_t *)s->ids, (float *)s->logp, (float *)s->tail};
    size_t k = (size_t)s->k, rows = a->n_rows ? (size_t)a->n_rows : n;
    NEB_ASSERT(s->k >= 1 && s->k <= d->c.soft_k);
    for (size_t i = 0; a->n_rows && i < rows && d->lists[i] >= 0; i++) {
        size_t at = (size_t)d->lists[i];
        memcpy(r->ids + i * k, s->ids + at * k, k * sizeof *r->ids);
        memcpy(r->logp + i * k, s->logp + at * k, k * sizeof *r->logp);
        r->tail[i] = s->tail[at];
    }
    if (a->n_rows)
        by = *r;
    kern_stage_upload(d->c.D, d->pick_id, by.ids, rows * k * sizeof *by.ids);
    kern_stage_upload(d->c.D, d->pick_logp, by.logp, rows * k * sizeof *by.logp);
    kern_stage_upload(d->c.D, d->pick_tail, by.tail, rows * sizeof *by.tail);
    a->soft = (struct kern_soft){.k = s->k,
                                 .lambda = s->lambda,
                                 .temperature = s->temperature,
                                 .ids = d->pick_id,
                                 .logp = d->pick_logp,
                                 .tail = d->pick_tail};
}

void device_send_rows(struct intra_device *d, struct device_acts *a, const struct intra_batch *b,
                      int64_t count) {
    size_t n = (size_t)b->B * (size_t)b->T;
    bool last = intra_model_last(d->m);
    a->n_rows = b->targets && gathers(d) ? (int)rows_for(n, count) : 0;
    a->taught = b->teacher && last;
    if (a->n_rows)
        gather(d, b, n, (size_t)a->n_rows);
    if (a->taught && device_host(d) && !a->n_rows)
        a->soft = *b->teacher;
    else if (a->taught)
        send_soft(d, a, b->teacher, n);
}

// ---- other calls --------------------------------------------------------------------------------

// The memory from which an op reads the array `host`, or to which it writes the result for it.
static const void *sent(struct intra_device *d, void *there, const void *host, size_t bytes) {
    if (device_host(d))
        return host;
    kern_stage_upload(d->c.D, there, host, bytes);
    return there;
}
static void *into(const struct intra_device *d, void *there, void *host) {
    return device_host(d) ? host : there;
}
static void fetch(struct intra_device *d, void *host, const void *there, size_t bytes) {
    if (!device_host(d))
        kern_stage_download(d->c.D, host, there, bytes);
}

enum neb_status intra_device_scores(struct intra_device *d, int32_t n, float *out) {
    NEB_ASSERT(d->m->rtd_weight && (size_t)n <= device_tokens(d));
    kern_stage_download(d->c.D, out, d->scores, (size_t)n * sizeof *out);
    return kern_stage_end(d->c.D);
}

// Describes the logits of the rows `at` (n), for the first V ids of this rank.
static struct kern_rows rows_of(struct intra_device *d, const int32_t *at, int32_t n, int32_t V) {
    // so many rows fit into the buffer of the last loss
    size_t block = device_logits_bytes(d) / ((size_t)kern_logits_ld(V) * sizeof(float));
    NEB_ASSERT((size_t)n <= device_tokens(d) && V <= d->m->local.vocab);
    return (struct kern_rows){.n = n,
                              .d = d->m->c.d_model,
                              .V = V,
                              .x = d->yf,
                              .at = sent(d, d->picked, at, (size_t)n * sizeof *at),
                              .w = device_weight(d, d->m->head),
                              .gathered = device_gathered(d),
                              .logits = d->logits,
                              .block = (int)(block < device_tokens(d) ? block : device_tokens(d))};
}

static enum neb_status draw(struct intra_device *d, int32_t V, const int32_t *at, int32_t n,
                            float temperature, const double *u, int32_t *ids) {
    struct kern_rows rows = rows_of(d, at, n, V);
    const double *sent_u = sent(d, d->draws, u, (size_t)n * sizeof *u);
    device_ops(d)->sample_rows(d->c.D, d->c.type, &rows, temperature, sent_u,
                               into(d, d->pick_id, ids));
    fetch(d, ids, d->pick_id, (size_t)n * sizeof *ids);
    return kern_stage_end(d->c.D);
}

// log_sums: NULL, or written (kern_rows).
static enum neb_status label(struct intra_device *d, int32_t V, const int32_t *at, int32_t n,
                             int32_t k, float temperature, int32_t *ids, float *logp, float *tail,
                             float *log_sums) {
    struct kern_rows rows = rows_of(d, at, n, V);
    size_t named = (size_t)n * (size_t)k;
    rows.log_sums = log_sums ? into(d, d->pick_sum, log_sums) : NULL;
    device_ops(d)->label_rows(d->c.D, d->c.type, &rows, k, temperature, into(d, d->pick_id, ids),
                              into(d, d->pick_logp, logp), into(d, d->pick_tail, tail));
    fetch(d, ids, d->pick_id, named * sizeof *ids);
    fetch(d, logp, d->pick_logp, named * sizeof *logp);
    fetch(d, tail, d->pick_tail, (size_t)n * sizeof *tail);
    if (log_sums)
        fetch(d, log_sums, d->pick_sum, (size_t)n * sizeof *log_sums);
    return kern_stage_end(d->c.D);
}

// ---- a vocabulary cut over ranks ----------------------------------------------------------------

// A rank's block in d->told.
struct block {
    int32_t *ids; // (n, k)
    float *logp;  // (n, k) among the rank's own ids; -infinity: fewer ids
    float *tail;  // (n)
    float *sum;   // (n) log of the sum of exp(logit / temperature); -infinity: no ids
};

static struct block block_of(const struct intra_device *d, int32_t rank, int32_t n, int32_t k) {
    float *p = d->told + (size_t)rank * told(n, k);
    size_t named = (size_t)n * (size_t)k;
    return (struct block){(int32_t *)(void *)p, p + named, p + 2 * named, p + 2 * named + n};
}

static struct intra_comm *host_tp(const struct intra_device *d) { return d->m->mesh->tp; }

// Gives every rank all blocks; after a failure of the collective no other one runs.
static enum neb_status tell(struct intra_device *d, int32_t n, int32_t k, enum neb_status st) {
    intra_model_keep_failure(d->m, st);
    if (d->m->failed == NEB_OK)
        intra_model_keep_failure(d->m,
                                 host_tp(d)->ops->all_gather(host_tp(d), d->told, told(n, k)));
    return d->m->failed;
}

// Fills this rank's block: k labels among its first V ids.
static enum neb_status make_block(struct intra_device *d, int32_t V, const int32_t *at, int32_t n,
                                  int32_t k, float temperature) {
    struct block own = block_of(d, host_tp(d)->rank, n, k);
    int32_t has = k < V ? k : V, row0 = d->m->head->row0;
    for (size_t i = 0; i < (size_t)n; i++)
        own.sum[i] = -INFINITY;
    if (has > 0)
        NEB_TRY(label(d, V, at, n, has, temperature, own.ids, own.logp, own.tail, own.sum));
    for (int32_t i = n - 1; i >= 0; i--) // from the end: rows move up if this rank has fewer ids
        for (int32_t j = k - 1; j >= 0; j--) {
            size_t to = (size_t)i * (size_t)k + (size_t)j,
                   from = (size_t)i * (size_t)has + (size_t)j;
            own.logp[to] = j < has ? own.logp[from] : -INFINITY;
            own.ids[to] = j < has ? own.ids[from] + row0 : -1;
        }
    return NEB_OK;
}

// The log of the sum over all ranks in row i.
static double join_sums(const struct intra_device *d, int32_t i, int32_t n, int32_t k) {
    double most = -INFINITY, sum = 0;
    for (int r = 0; r < host_tp(d)->size; r++)
        most = fmax(most, (double)block_of(d, r, n, k).sum[i]);
    for (int r = 0; r < host_tp(d)->size; r++)
        sum += exp((double)block_of(d, r, n, k).sum[i] - most);
    return most + log(sum);
}

// Merges the candidates of row i. Each rank's are in order, and a tie goes to the lower id, so to
// the lower rank.
static void merge(const struct intra_device *d, int32_t i, int32_t n, int32_t each, int32_t k,
                  int32_t *ids, float *logp, float *tail) {
    int tp = host_tp(d)->size;
    int32_t *next = d->own_rows; // (tp) candidates that were taken
    double log_sum = join_sums(d, i, n, each), rest = 0;
    memset(next, 0, (size_t)tp * sizeof *next);
    for (int32_t j = 0; j < k; j++) {
        int best = -1;
        double top = 0;
        for (int r = 0; r < tp; r++) {
            struct block b = block_of(d, r, n, each);
            double x =
                next[r] < each ? (double)b.logp[i * each + next[r]] + (double)b.sum[i] : -INFINITY;
            if ((best < 0 && next[r] < each) || x > top) {
                best = r;
                top = x;
            }
        }
        struct block b = block_of(d, best, n, each);
        ids[j] = b.ids[i * each + next[best]++];
        logp[j] = (float)(top - log_sum);
    }
    for (int r = 0; r < tp; r++) {
        struct block b = block_of(d, r, n, each);
        double share = exp((double)b.sum[i] - log_sum);
        rest += share > 0 ? share * (double)b.tail[i] : 0;
        for (int32_t j = next[r]; j < each; j++)
            rest += share * exp((double)b.logp[i * each + j]);
    }
    *tail = (float)fmin(rest, 1);
}

static enum neb_status label_cut(struct intra_device *d, const int32_t *at, int32_t n, int32_t k,
                                 float temperature, int32_t *ids, float *logp, float *tail) {
    int32_t each = k < most_named(d) ? k : most_named(d);
    NEB_TRY(tell(d, n, each, make_block(d, d->m->local.vocab, at, n, each, temperature)));
    for (int32_t i = 0; i < n; i++)
        merge(d, i, n, each, k, ids + (size_t)i * (size_t)k, logp + (size_t)i * (size_t)k,
              tail + i);
    return NEB_OK;
}

// The rank in whose ids the running sum of row i exceeds u. *within: u among the ids of that rank.
static int owner_of(const struct intra_device *d, int32_t i, int32_t n, double u, double *within) {
    double log_sum = join_sums(d, i, n, 1), run = 0, share = 0;
    int owner = -1;
    for (int r = 0; r < host_tp(d)->size && (owner < 0 || run + share <= u); r++) {
        double next = exp((double)block_of(d, r, n, 1).sum[i] - log_sum);
        if (!(next > 0)) // no ids, or none with a probability
            continue;
        run += share;
        share = next;
        owner = r;
    }
    *within = fmin(fmax((u - run) / share, 0), 1);
    return owner < 0 ? 0 : owner;
}

// Each draw belongs to one rank: the ranks first exchange the sums of their ids.
static enum neb_status draw_cut(struct intra_device *d, int32_t n_ids, const int32_t *at, int32_t n,
                                float temperature, const double *u, int32_t *ids) {
    int32_t V = n_ids - d->m->head->row0, self = host_tp(d)->rank, mine = 0, *row = d->own_rows,
            *of = row + device_tokens(d);
    V = V < 0 ? 0 : V < d->m->local.vocab ? V : d->m->local.vocab;
    NEB_TRY(tell(d, n, 1, make_block(d, V, at, n, 1, temperature)));
    for (int32_t i = 0; i < n; i++) {
        double within;
        ids[i] = owner_of(d, i, n, u[i], &within);
        if (ids[i] != self)
            continue;
        row[mine] = at[i];
        of[mine] = i;
        d->draws_host[mine++] = within;
    }
    struct block own = block_of(d, self, n, 1);
    enum neb_status st = mine ? draw(d, V, row, mine, temperature, d->draws_host, row) : NEB_OK;
    for (int32_t j = 0; j < mine; j++)
        own.ids[of[j]] = row[j] + d->m->head->row0;
    NEB_TRY(tell(d, n, 1, st));
    for (int32_t i = 0; i < n; i++)
        ids[i] = block_of(d, ids[i], n, 1).ids[i];
    return NEB_OK;
}

// ---- for all ------------------------------------------------------------------------------------

enum neb_status intra_device_sample(struct intra_device *d, int32_t n_ids, const int32_t *positions,
                                    int32_t n, float temperature, const double *u, int32_t *ids) {
    NEB_ASSERT(d->c.soft_k && temperature > 0);
    if (!n)
        return NEB_OK;
    return device_cut(d) ? draw_cut(d, n_ids, positions, n, temperature, u, ids)
                         : draw(d, n_ids, positions, n, temperature, u, ids);
}

enum neb_status intra_device_labels(struct intra_device *d, const int32_t *at, int32_t n, int32_t k,
                                    float temperature, int32_t *ids, float *logp, float *tail) {
    bool whole = device_host(d) && !device_cut(d);
    NEB_ASSERT(temperature > 0 && k <= d->m->c.vocab);
    NEB_ASSERT(k >= !whole && k <= (whole ? KERN_SOFT_K_MAX : d->c.soft_k));
    if (!n)
        return NEB_OK;
    return device_cut(d) ? label_cut(d, at, n, k, temperature, ids, logp, tail)
                         : label(d, d->m->c.vocab, at, n, k, temperature, ids, logp, tail, NULL);
}

enum neb_status intra_device_pick(struct intra_device *d, const struct intra_picks *p) {
    switch (p->kind) {
    case INTRA_PICK_DRAWS:
        return intra_device_sample(d, p->n_ids, p->at, p->n,
                                   p->temperature > 0 ? p->temperature : 1, p->u, p->ids);
    case INTRA_PICK_LABELS:
        return intra_device_labels(d, p->at, p->n, p->k, p->temperature, p->ids, p->logp, p->tail);
    case INTRA_PICK_SCORES: return intra_device_scores(d, p->n, p->logp);
    }
    return NEB_ERR_STATE;
}
