// SPDX-License-Identifier: Apache-2.0
// The contract of agent/exchange/trainer.h, for each trainer: the built-in one, an attached loop,
// and a student that takes part in rounds. The last test runs an exchange over each of them and
// over plain arrays: the same updates, the same digests, the same parameters.
#include "agent/base/sha256.h"
#include "agent/exchange/shards.h"
#include "agent/lib/state.h"
#include "agent/train/distill.h"
#include "agent/train/side.h"
#include "agent/train/worker.h"
#include "intra/data/data.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef skip // a macro of cmocka, and an operation of trainers

static char dir[] = "/tmp/nebula-trainer-XXXXXX", corpus_dir[NEB_PATH_MAX];
static struct kern *kern;

struct subject {
    const struct agent_trainer *t;
    // One step: the change of the parameters depends on their values and on the number of the step.
    void (*train)(struct subject *s);
    // The parameters of a unit, in the memory that the next step reads: (rows, cols).
    const float *(*seen)(struct subject *s, int32_t unit);
    void (*destroy)(struct subject *s);
    int64_t step;
    struct agent_worker *w;   // built-in, student
    struct agent_side side;   // student
    struct nebula *n;         // attached
    float **memory;           // attached: (tensors)
    float **arrays;           // arrays: (units)
    uint64_t *counters;       // arrays: (n_counters)
    struct agent_trainer own; // arrays
    struct agent_unit *units; // arrays
};

// ---- the trainers of this program ---------------------------------------------------------------

static void parse(struct agent_job *j, const char *rest) {
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "job: t\nsteps: 40\n"
                     "model: {n_layers: 2, d_model: 8, n_heads: 2, d_ff: 16, tied: true}\n"
                     "data: {corpus: %s, seq_len: 16, batch: 2, accumulate: 2}\n"
                     "optim: {lr: 0.05}\n%s",
                     corpus_dir, rest);
    assert_int_equal(agent_job_parse(text, (size_t)n, "t.yaml", j), NEB_OK);
}

// Nobody listens to its messages.
static struct agent_worker *make_worker(const char *rest) {
    struct agent_worker *w = calloc(1, sizeof *w);
    char path[NEB_PATH_MAX];
    assert_non_null(w);
    exchange_init(&w->x);
    parse(&w->x.job, rest);
    snprintf(w->x.dir, sizeof w->x.dir, "%s", dir);
    assert_int_equal(neb_path(path, sizeof path, dir, "agent.sock"), NEB_OK);
    assert_non_null(w->x.link.zctx = zmq_ctx_new());
    assert_int_equal(agent_ipc_connect(w->x.link.zctx, path, &w->x.link.ipc), NEB_OK);
    return w;
}

static void destroy_worker(struct subject *s) {
    int linger = 0;
    zmq_setsockopt(agent_ipc_socket(s->w->x.link.ipc), ZMQ_LINGER, &linger, sizeof linger);
    exchange_destroy(&s->w->x);
    worker_builtin_destroy(s->w);
    intra_corpus_close(&s->w->corpus);
    kern_destroy(&s->w->K);
    exchange_leave(&s->w->x);
    free(s->w);
    free(s);
}

static const float *seen_by_worker(struct subject *s, int32_t unit) {
    const struct intra_unit *u = &s->w->tensors.rows[unit];
    return intra_param(s->w->model, u->tensor) + (size_t)u->row0 * (size_t)u->cols;
}

static void train_builtin(struct subject *s) {
    assert_int_equal(worker_builtin_step(s->w), NEB_OK);
    s->step++;
}

static struct subject *make_builtin(void) {
    struct subject *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->w = make_worker("clusters:\n  - {name: a, threads: 1, device: cpu}\n  - {name: b}\n");
    assert_int_equal(worker_builtin_create(s->w), NEB_OK);
    s->t = &s->w->x.trainer;
    s->train = train_builtin;
    s->seen = seen_by_worker;
    s->destroy = destroy_worker;
    return s;
}

static void train_student(struct subject *s) {
    struct distill_run *r = s->side.own;
    assert_int_equal(agent_distill_learn(r->side, NULL, 0), NEB_OK);
    s->step++;
}

static void destroy_student(struct subject *s) {
    side_student.destroy(&s->side);
    destroy_worker(s);
}

static struct subject *make_student(void) {
    struct subject *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->w = make_worker("mode: distill\n"
                       "distill: {k: 2, federate: true, teacher: {learn: true, n_layers: 1, "
                       "d_model: 8, n_heads: 2, d_ff: 16}}\n"
                       "clusters:\n  - {name: a, role: student}\n  - {name: b, role: student}\n"
                       "  - {name: c, role: teacher}\n");
    assert_int_equal(kern_cpu_create(1, &s->w->K), NEB_OK);
    assert_int_equal(intra_corpus_open(corpus_dir, false, &s->w->corpus), NEB_OK);
    s->side = (struct agent_side){.role = &side_student, .w = s->w};
    s->side.at = (struct intra_place){.K = s->w->K, .mesh = s->w->x.job.clusters[0].mesh};
    assert_int_equal(side_student.create(&s->side), NEB_OK);
    s->w->model = s->side.model;
    assert_int_equal(side_trainer(&s->side, true), NEB_OK);
    s->t = &s->w->x.trainer;
    s->train = train_student;
    s->seen = seen_by_worker;
    s->destroy = destroy_student;
    return s;
}

// ---- an attached loop ---------------------------------------------------------------------------

static void train_attached(struct subject *s) {
    const struct nebula *n = s->n;
    int32_t V = n->model->c.vocab, inputs[2] = {(int32_t)s->step % V, 1}, targets[2] = {1, -1};
    for (int32_t i = 0; i < n->n_tensors; i++)
        for (size_t k = 0; k < (size_t)n->tensors[i]->size; k++)
            s->memory[i][k] += 0.01f * (s->memory[i][k] + (float)((k + (size_t)s->step) % 5));
    assert_int_equal(nebula_count(s->n, inputs, targets, 2), NEBULA_OK);
    s->step++;
}

static const float *seen_by_loop(struct subject *s, int32_t unit) {
    for (int32_t i = 0; i < s->n->n_tensors; i++)
        if (s->n->tensors[i] == s->n->of[unit])
            return s->memory[i] + s->n->first[unit];
    return NULL;
}

static void destroy_attached(struct subject *s) {
    for (int32_t i = 0; i < s->n->n_tensors; i++)
        free(s->memory[i]);
    free(s->memory);
    lib_destroy(s->n);
    free(s);
}

static struct subject *make_attached(void) {
    struct subject *s = calloc(1, sizeof *s);
    struct intra_trainer_config c =
        testing_small_trainer((struct intra_trainable){.mode = INTRA_TRAIN_FULL});
    struct nebula *n = calloc(1, sizeof *n);
    struct nebula_tensor t = {.size = sizeof t};
    assert_true(s && n);
    s->n = n;
    n->process = getpid();
    n->ranks = 1;
    exchange_init(&n->x);
    n->x.job.seed = 3;
    size_t counters = 2 * (size_t)c.model.vocab;
    assert_non_null(n->counters = calloc(counters, sizeof *n->counters));
    assert_non_null(n->sum = calloc(counters, sizeof *n->sum));
    assert_int_equal(kern_pool_create(1, &n->pool), NEB_OK);
    assert_int_equal(intra_model_layout(&c.model, &c.trainable, &n->model), NEB_OK);
    assert_non_null(s->memory = calloc((size_t)n->model->n_tensors, sizeof *s->memory));
    for (int32_t i = 0; nebula_tensor_at(n, i, &t) == NEBULA_OK; i++) {
        struct nebula_piece p = {.size = sizeof p, .name = t.name};
        memcpy(p.extent, t.shape, sizeof p.extent);
        assert_int_equal(nebula_declare(n, &t), NEBULA_OK);
        assert_non_null(s->memory[i] = calloc((size_t)n->declared[i].size, sizeof(float)));
        p.data = s->memory[i];
        assert_int_equal(nebula_register(n, &p), NEBULA_OK);
    }
    assert_int_equal(lib_prepare(n), NEB_OK); // draws the initial values
    n->begun = true;
    s->t = &n->x.trainer;
    s->train = train_attached;
    s->seen = seen_by_loop;
    s->destroy = destroy_attached;
    return s;
}

// ---- plain arrays: what the exchange computes without a trainer ---------------------------------

static enum neb_status read_arrays(void *user, const struct agent_move *moves, int32_t n) {
    const struct subject *s = user;
    for (int32_t i = 0; i < n; i++)
        memcpy(moves[i].at, s->arrays[moves[i].unit],
               agent_unit_size(&s->units[moves[i].unit]) * sizeof(float));
    return NEB_OK;
}

static enum neb_status write_arrays(void *user, const struct agent_move *moves, int32_t n,
                                    bool there) {
    const struct subject *s = user;
    assert_false(there);
    for (int32_t i = 0; i < n; i++)
        memcpy(s->arrays[moves[i].unit], moves[i].at,
               agent_unit_size(&s->units[moves[i].unit]) * sizeof(float));
    return NEB_OK;
}

static enum neb_status no_counts(void *user, uint64_t *out) {
    (void)user, (void)out;
    return NEB_ERR_STATE;
}

static const float *seen_in_array(struct subject *s, int32_t unit) { return s->arrays[unit]; }

static void destroy_arrays(struct subject *s) {
    for (int32_t i = 0; i < s->own.n_units; i++)
        free(s->arrays[i]);
    free(s->arrays);
    free(s->units);
    free(s);
}

static void copy_parameters(struct subject *to, struct subject *from) {
    for (int32_t i = 0; i < to->own.n_units; i++)
        memcpy(to->arrays[i], from->seen(from, i), agent_unit_size(&to->units[i]) * sizeof(float));
}

// Arrays with the units and parameters of `of`.
static struct subject *make_arrays(struct subject *of) {
    static const struct agent_trainer_ops ops = {
        .read = read_arrays, .write = write_arrays, .counts = no_counts};
    struct subject *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->own = *of->t;
    s->own.ops = &ops;
    s->own.user = s;
    s->own.pool = kern->pool;
    assert_non_null(s->units = calloc((size_t)s->own.n_units, sizeof *s->units));
    assert_non_null(s->arrays = calloc((size_t)s->own.n_units, sizeof *s->arrays));
    s->own.units = s->units;
    for (int32_t i = 0; i < s->own.n_units; i++) {
        s->units[i] = of->t->units[i];
        s->units[i].data = NULL;
        assert_non_null(s->arrays[i] = calloc(agent_unit_size(&s->units[i]), sizeof(float)));
    }
    copy_parameters(s, of);
    s->t = &s->own;
    s->seen = seen_in_array;
    s->destroy = destroy_arrays;
    return s;
}

// ---- the suite ----------------------------------------------------------------------------------

static const struct {
    const char *name;
    struct subject *(*make)(void);
} kinds[] = {{"built-in", make_builtin}, {"attached", make_attached}, {"student", make_student}};

static void each(void (*test)(struct subject *s, struct subject *(*make)(void))) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct subject *s = kinds[i].make();
        print_message("  %s\n", kinds[i].name);
        test(s, kinds[i].make);
        s->destroy(s);
    }
}

static size_t bytes_of(const struct subject *s, int32_t unit) {
    return agent_unit_size(&s->t->units[unit]) * sizeof(float);
}

// Makes moves of the units with unit % every == 0, from or into the trainer's own memory.
static int32_t moves_of(const struct subject *s, int32_t every, struct agent_move **out) {
    int32_t n = 0;
    assert_non_null(*out = calloc((size_t)s->t->n_units, sizeof **out));
    for (int32_t i = 0; i < s->t->n_units; i += every)
        (*out)[n++] = (struct agent_move){i, 0, s->t->units[i].data};
    return n;
}

static void read_all(struct subject *s) {
    struct agent_move *moves;
    int32_t n = moves_of(s, 1, &moves);
    assert_int_equal(s->t->ops->read(s->t->user, moves, n), NEB_OK);
    free(moves);
}

static uint64_t *counts_of(struct subject *s) {
    uint64_t *out = calloc(s->t->n_counters + 1, sizeof *out);
    assert_non_null(out);
    assert_int_equal(s->t->ops->counts(s->t->user, out), NEB_OK);
    return out;
}

static bool same_parameters(struct subject *a, struct subject *b) {
    for (int32_t i = 0; i < a->t->n_units; i++)
        if (memcmp(a->seen(a, i), b->seen(b, i), bytes_of(a, i)) != 0)
            return false;
    return true;
}

static void check_units(struct subject *s, struct subject *(*make)(void)) {
    const struct agent_trainer *t = s->t;
    (void)make;
    assert_true(t->n_units > 3 && t->ops && t->pool && !t->world);
    for (int32_t i = 0; i < t->n_units; i++) {
        const struct agent_unit *u = &t->units[i], *last = i ? u - 1 : NULL;
        bool first = agent_unit_first(u), same_row = last && last->row0 == u->row0;
        assert_true(u->tensor && *u->tensor && u->rows && u->cols && u->group >= 0 && u->data);
        assert_true(first || (last && !strcmp(last->tensor, u->tensor) && last->group == u->group));
        // the next rows; or the next columns of a row that is longer than a unit may be
        if (!first && same_row)
            assert_true(u->rows == 1 && last->rows == 1 && last->col0 + last->cols == u->col0);
        else if (!first)
            assert_true(u->col0 == 0 && last->row0 + last->rows == u->row0 &&
                        (last->col0 || last->cols == u->cols));
        assert_true(!t->held || t->held(t->user, i, 0) == agent_unit_size(u)); // the only rank
        for (int32_t k = 0; k < i && first; k++)
            assert_true(strcmp(t->units[k].tensor, u->tensor) != 0);
        for (int k = 0; k < 2; k++)
            assert_true(u->counter[k] == -1 ||
                        (u->counter[k] >= 0 && (size_t)u->counter[k] + u->rows <= t->n_counters));
    }
}
static void test_units(void **state) {
    (void)state;
    each(check_units);
}

static void check_read(struct subject *s, struct subject *(*make)(void)) {
    struct subject *was = make_arrays(s);
    (void)make;
    s->train(s);
    assert_false(same_parameters(s, was));
    read_all(s);
    for (int32_t i = 0; i < s->t->n_units; i++)
        assert_memory_equal(s->t->units[i].data, s->seen(s, i), bytes_of(s, i));
    was->destroy(was);
}
static void test_read(void **state) {
    (void)state;
    each(check_read);
}

// Units that are written reach the trainer, and the others keep what the trainer has.
static void check_write(struct subject *s, struct subject *(*make)(void)) {
    struct agent_move *moves;
    (void)make;
    s->train(s);
    struct subject *was = make_arrays(s);
    int32_t n = moves_of(s, 2, &moves);
    assert_int_equal(s->t->ops->read(s->t->user, moves, n), NEB_OK);
    for (int32_t m = 0; m < n; m++)
        for (size_t k = 0; k < agent_unit_size(&s->t->units[moves[m].unit]); k++)
            moves[m].at[k] = 0.25f + (float)(k % 7);
    assert_int_equal(s->t->ops->write(s->t->user, moves, n, false), NEB_OK);
    for (int32_t i = 0; i < s->t->n_units; i++)
        if (i % 2)
            assert_memory_equal(s->seen(s, i), was->arrays[i], bytes_of(s, i));
        else
            for (size_t k = 0; k < agent_unit_size(&s->t->units[i]); k++)
                assert_true(s->seen(s, i)[k] == 0.25f + (float)(k % 7));
    free(moves);
    was->destroy(was);
}
static void test_write(void **state) {
    (void)state;
    each(check_write);
}

// The counters of every unit's rows grow, and none falls.
static void check_counts(struct subject *s, struct subject *(*make)(void)) {
    uint64_t *before, *after;
    (void)make;
    s->train(s);
    before = counts_of(s);
    s->train(s);
    after = counts_of(s);
    assert_true(s->t->n_counters);
    for (size_t i = 0; i < s->t->n_counters; i++)
        assert_true(after[i] >= before[i]);
    for (int32_t i = 0; i < s->t->n_units; i++)
        for (int k = 0; k < 2; k++) {
            const struct agent_unit *u = &s->t->units[i];
            uint64_t grown = 0;
            for (uint32_t r = 0; r < u->rows && u->counter[k] >= 0; r++)
                grown += after[u->counter[k] + r] - before[u->counter[k] + r];
            assert_true(grown || u->counter[k] < 0);
        }
    free(before);
    free(after);
}
static void test_counts(void **state) {
    (void)state;
    each(check_counts);
}

static void write_file(struct subject *s, const char *path) {
    struct intra_ckpt_writer *out = NULL;
    assert_int_equal(intra_ckpt_create_in(NULL, path, &out), NEB_OK);
    assert_int_equal(s->t->ops->save(s->t->user, out), NEB_OK);
    assert_int_equal(intra_ckpt_commit(out), NEB_OK);
    intra_ckpt_writer_destroy(&out);
}

static void read_file(struct subject *s, const char *path, enum neb_status expected) {
    struct intra_ckpt *c = NULL;
    assert_int_equal(intra_ckpt_open_in(NULL, path, true, &c), NEB_OK);
    assert_int_equal(s->t->ops->restore(s->t->user, c), expected);
    intra_ckpt_close(&c);
}

// A restored trainer has the parameters and counters, and its next steps are the same.
static void check_resume(struct subject *s, struct subject *(*make)(void)) {
    char path[NEB_PATH_MAX];
    struct subject *next = make();
    assert_int_equal(neb_path(path, sizeof path, dir, "t.ckpt"), NEB_OK);
    s->train(s);
    s->train(s);
    assert_int_equal(s->t->ops->skip(s->t->user, 3), NEB_OK);
    write_file(s, path);
    assert_false(same_parameters(s, next));
    read_file(next, path, NEB_OK);
    next->step = s->step;
    for (int i = 0; i < 3; i++) {
        uint64_t *a = counts_of(s), *b = counts_of(next);
        assert_true(same_parameters(s, next));
        assert_memory_equal(a, b, s->t->n_counters * sizeof *a);
        free(a);
        free(b);
        s->train(s);
        next->train(next);
    }
    next->destroy(next);
}
static void test_resume(void **state) {
    (void)state;
    each(check_resume);
}

static void check_missing(struct subject *s, struct subject *(*make)(void)) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    uint64_t x = 1;
    (void)make;
    assert_int_equal(neb_path(path, sizeof path, dir, "t.ckpt"), NEB_OK);
    assert_int_equal(intra_ckpt_create_in(NULL, path, &out), NEB_OK);
    assert_int_equal(intra_ckpt_add(out, "other", INTRA_U64, 1, 1, &x), NEB_OK);
    assert_int_equal(intra_ckpt_commit(out), NEB_OK);
    intra_ckpt_writer_destroy(&out);
    neb_log_set_sink(testing_drop, NULL);
    read_file(s, path, NEB_ERR_NOT_FOUND);
    neb_log_set_sink(NULL, NULL);
}
static void test_section_missing(void **state) {
    (void)state;
    each(check_missing);
}

struct sections {
    uint8_t sha[64][NEB_SHA256_BYTES];
    int n;
};

static enum neb_status note(void *user, const char *name, enum intra_dtype dtype, uint64_t rows,
                            uint64_t cols, const void *data, uint64_t bytes) {
    struct sections *x = user;
    (void)name, (void)dtype, (void)rows, (void)cols;
    assert_true(x->n < 64);
    neb_sha256(data, bytes, x->sha[x->n++]);
    return NEB_OK;
}

static void save_sections(struct subject *s, struct sections *out) {
    struct intra_ckpt_writer *w = NULL;
    out->n = 0;
    assert_int_equal(intra_ckpt_create_sink(note, out, false, &w), NEB_OK);
    assert_int_equal(s->t->ops->save(s->t->user, w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
}

// The parameters stay. A trainer with its own data moves its data and its schedule. A loop gets the
// new step from the library.
static void check_skip(struct subject *s, struct subject *(*make)(void)) {
    struct sections before, after;
    int moved = 0;
    (void)make;
    s->train(s);
    struct subject *was = make_arrays(s);
    save_sections(s, &before);
    assert_int_equal(s->t->ops->skip(s->t->user, 5), NEB_OK);
    save_sections(s, &after);
    assert_true(same_parameters(s, was));
    assert_int_equal(before.n, after.n);
    for (int i = 0; i < after.n; i++)
        moved += memcmp(before.sha[i], after.sha[i], sizeof *after.sha) != 0;
    assert_true(s->n ? moved == 0 : moved >= 2);
    was->destroy(was);
}
static void test_skip(void **state) {
    (void)state;
    each(check_skip);
}

// ---- an exchange over it ------------------------------------------------------------------------

enum { FRAGMENTS = 2, ROUNDS = 6 };

static struct agent_shards *make_shards(struct subject *s) {
    struct agent_shards *o = NULL;
    const struct inter_outer_config c = {
        .beta = 0.9f, .keep = 0.5f, .kappa = 0.1f, .row_weights = true, .fragments = FRAGMENTS};
    int32_t *fragment = calloc((size_t)s->t->n_units, sizeof *fragment);
    assert_non_null(fragment);
    for (int32_t i = 0; i < s->t->n_units; i++)
        fragment[i] = s->t->units[i].group > 1;
    assert_int_equal(agent_shards_create(s->t, &c, fragment, false, &o), NEB_OK);
    free(fragment);
    return o;
}

static void row_counts(void *user, int32_t unit, uint64_t *out) {
    const struct subject *s = user;
    for (uint32_t r = 0; r < s->t->units[unit].rows; r++)
        out[r] = r % 3 + (uint64_t)s->step;
}

// One update of this trainer and a smaller one of another are committed.
static void merge(struct agent_shards *o, const struct neb_buf *b, int round,
                  struct kern_digest *d) {
    const struct inter_outer_part parts[2] = {{b->p, b->len, 700, 1, true, 0},
                                              {b->p, b->len, 300, 0.5f, false, 0}};
    const struct inter_outer_round r = {parts, round % 4 == 3 ? 0 : 2, 0.7f, 0.9f,
                                        false, round == ROUNDS - 1,    NULL};
    assert_int_equal(agent_shards_merge(o, round % FRAGMENTS, round % 4 == 2, &r, d), NEB_OK);
}

static void check_exchange(struct subject *s, struct subject *(*make)(void)) {
    struct subject *plain = make_arrays(s);
    struct agent_shards *a = make_shards(s), *b = make_shards(plain);
    struct neb_buf of_a = {0}, of_b = {0};
    struct cmp_codec codec;
    (void)make;
    assert_int_equal(cmp_codec_parse("int4", &codec), NEB_OK);
    for (int round = 0; round < ROUNDS; round++) {
        struct kern_digest da, db;
        int32_t f = round % FRAGMENTS;
        float ea, eb;
        s->train(s);
        plain->step = s->step;
        copy_parameters(plain, s);
        assert_int_equal(agent_shards_encode(a, f, 0, &codec, row_counts, s, &ea, &of_a), NEB_OK);
        assert_int_equal(agent_shards_encode(b, f, 0, &codec, row_counts, plain, &eb, &of_b),
                         NEB_OK);
        assert_int_equal(of_a.len, of_b.len);
        assert_memory_equal(of_a.p, of_b.p, of_a.len);
        assert_true(ea == eb);
        s->train(s); // it trains while the update is in flight
        copy_parameters(plain, s);
        merge(a, &of_a, round, &da);
        merge(b, &of_b, round, &db);
        assert_true(da.lo == db.lo && da.hi == db.hi);
        assert_true(same_parameters(s, plain));
    }
    neb_buf_free(&of_a);
    neb_buf_free(&of_b);
    agent_shards_destroy(&a);
    agent_shards_destroy(&b);
    plain->destroy(plain);
}
static void test_exchange(void **state) {
    (void)state;
    each(check_exchange);
}

// ---- a corpus of pairs, which both modes can read -----------------------------------------------

static void progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static int setup(void **state) {
    static struct intra_build_spec spec = {.name = "t",
                                           .seed = 1,
                                           .vocab = 300,
                                           .type = "bpe",
                                           .character_coverage = 1,
                                           .byte_fallback = true,
                                           .train_lines = 500,
                                           .holdout_per_mille = 100,
                                           .threads = 1,
                                           .n_sources = 1};
    struct intra_source_spec *source = &spec.sources[0];
    struct neb_buf text = {0};
    char line[96];
    bool skipped;
    (void)state;
    if (!mkdtemp(dir) || kern_cpu_create(1, &kern) != NEB_OK)
        return -1;
    for (int i = 0; i < 300; i++)
        neb_buf_add(&text, line,
                    (size_t)snprintf(line, sizeof line, "file %d of %d\tDatei %d von %d\n", i,
                                     i % 7, i, i % 7));
    *source = (struct intra_source_spec){
        .name = "pairs", .format = INTRA_TSV, .parallel = true, .target_column = 1};
    snprintf(source->path, sizeof source->path, "%s/pairs.tsv", dir);
    enum neb_status st = neb_path(corpus_dir, sizeof corpus_dir, dir, "corpus");
    if (st == NEB_OK)
        st = neb_fs_write(source->path, text.p, text.len, 0600);
    neb_buf_free(&text);
    neb_log_set_level(NEB_LOG_WARN);
    return st == NEB_OK && intra_corpus_build(&spec, corpus_dir, progress, NULL, &skipped) == NEB_OK
               ? 0
               : -1;
}

static int teardown(void **state) {
    (void)state;
    kern_destroy(&kern);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),  cmocka_unit_test(test_read),
        cmocka_unit_test(test_write),  cmocka_unit_test(test_counts),
        cmocka_unit_test(test_resume), cmocka_unit_test(test_section_missing),
        cmocka_unit_test(test_skip),   cmocka_unit_test(test_exchange)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
