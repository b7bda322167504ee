// SPDX-License-Identifier: Apache-2.0
// agent/plan: counts equal the counts of the models that are built, and bytes equal those of the
// codec.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/job/update_size.h"
#include "agent/plan/plan.h"
#include "compress/update.h"
#include "intra/train/shards.h"
#include "intra/train/trainer.h"
#include "security/secure_sum.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char base[] =
    "job: j\nsteps: 100\n"
    "model: {vocab: 96, n_layers: 3, d_model: 32, n_heads: 4, n_kv_heads: 2, d_ff: 80}\n"
    "data: {corpus: c, seq_len: 16, batch: 4, accumulate: 2}\n"
    "optim: {lr: 1e-3}\nclusters: [{name: a}, {name: b}]\n";

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)level;
    snprintf(user, 512, "%s", text);
}

static struct agent_job job_with(const char *const *sets) {
    struct agent_job j;
    assert_int_equal(agent_job_parse(base, strlen(base), "job.yaml", &j), NEB_OK);
    for (; *sets; sets++)
        assert_int_equal(agent_job_set(&j, *sets), NEB_OK);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_OK);
    return j;
}

// Every kind of trainable set.
static const char *const learning[][6] = {
    {NULL},
    {"model.tied=false", NULL},
    {"model.qkv_bias=true", "model.n_kv_heads=0", NULL},
    {"model.head_dim=16", "trainable.freeze=[embeddings]", NULL},
    {"model.tied=false", "trainable.freeze=[embeddings]", NULL},
    {"trainable=lora", "trainable.rank=4", "trainable.targets=[q,v,down]", NULL},
    {"trainable=lora", "trainable.rank=2", "trainable.targets=[k,o,gate,up]", "model.tied=false",
     NULL},
    {"trainable=bitfit", "model.qkv_bias=true", NULL},
    {"trainable=last_layers", "trainable.n=2", NULL},
    {"trainable=last_layers", "trainable.n=3", "model.tied=false", "model.qkv_bias=true", NULL},
};

static struct intra_model_config model_of(const struct agent_job *j) {
    struct intra_model_config c = j->model;
    c.head_dim = c.head_dim ? c.head_dim : c.d_model / c.n_heads;
    c.n_kv_heads = c.n_kv_heads ? c.n_kv_heads : c.n_heads;
    c.max_seq = j->seq_len;
    return c;
}

static void test_counts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof learning / sizeof learning[0]; i++) {
        struct agent_job j = job_with(learning[i]);
        struct agent_plan p;
        struct intra_model *m;
        assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
        struct intra_model_config c = model_of(&j);
        assert_int_equal(intra_model_create(&c, &j.trainable, 1, &m), NEB_OK);
        int64_t params = 0;
        for (int32_t k = 0; k < m->n_tensors; k++)
            params += (int64_t)intra_tensor_size(&m->tensors[k]);
        assert_int_equal(p.params, params);
        assert_int_equal(p.trainable, m->n_trainable);
        intra_model_destroy(&m);
    }
}

// As many fragments as the model has trainable parts: no fragment is empty. One fragment more is
// refused.
static void fragments_fill(const char *const *sets, const char *vocab, const char *layers) {
    enum { MANY = 64 };
    struct agent_job j = job_with(sets);
    struct intra_model *m;
    struct intra_unit *units;
    uint64_t elements[MANY], parts = 0, used = 0;
    int32_t n, layer[MANY], fragment[MANY];
    char said[512] = "", text[128];
    assert_int_equal(agent_job_set(&j, vocab), NEB_OK);
    assert_int_equal(agent_job_set(&j, layers), NEB_OK);
    struct intra_model_config c = model_of(&j);
    assert_int_equal(intra_model_layout(&c, &j.trainable, &m), NEB_OK);
    assert_int_equal(intra_units(m, &units, &n), NEB_OK);
    assert_in_range(n, 1, MANY);
    for (int32_t i = 0; i < n; i++) {
        elements[i] = (uint64_t)units[i].rows * (uint64_t)units[i].cols;
        layer[i] = units[i].tensor->layer;
        parts |= 1ull << (layer[i] + 1);
    }
    j.sync.fragments = __builtin_popcountll(parts);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_OK);
    intra_shards_fragments(elements, layer, n, c.n_layers, j.sync.fragments, fragment);
    for (int32_t i = 0; i < n; i++) {
        assert_true(!i || fragment[i] == fragment[i - 1] || fragment[i] == fragment[i - 1] + 1);
        used |= 1ull << fragment[i];
    }
    assert_int_equal(used, (1ull << j.sync.fragments) - 1);
    snprintf(text, sizeof text, "sync.fragments: %d, but the trained parameters have only %d parts",
             j.sync.fragments + 1, j.sync.fragments);
    j.sync.fragments++;
    neb_log_set_sink(keep, said);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    assert_non_null(strstr(said, text));
    free(units);
    intra_model_destroy(&m);
}

static void test_fragments(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof learning / sizeof learning[0]; i++) {
        fragments_fill(learning[i], "model.vocab=2", "model.n_layers=4");
        fragments_fill(learning[i], "model.vocab=2000", "model.n_layers=3");
    }
}

static void test_bytes(void **state) {
    (void)state;
    static const struct {
        const char *sets[4];
        int64_t exchanges;
        double bits_min, bits_max;
    } cases[] = {
        {{"sync.interval=10", "sync.codec=fp32", NULL}, 10, 29, 33},
        {{"sync.interval=30", "sync.codec=int4", NULL}, 4, 3, 4.2},
        {{"sync.early_steps=20", "sync.early_interval=5", "sync.interval=30", NULL}, 7, 3, 4.2},
        {{"trainable=bitfit", "sync.interval=99", "sync.codec=topk:64/4096", NULL},
         2,
         5,
         12}, // all trainable tensors are short vectors: int4, and the head of each frame
        {{"model.vocab=100000", "sync.codec=topk:64/4096", NULL}, 4, 0.1, 0.3},
        {{"sync.scheme=synchronous", NULL}, 100, 32, 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct agent_job j = job_with(cases[i].sets);
        struct agent_plan p;
        assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
        assert_int_equal(p.exchanges, cases[i].exchanges);
        if (p.bits_per_param < cases[i].bits_min || p.bits_per_param > cases[i].bits_max)
            fail_msg("case %zu: %g bits", i, p.bits_per_param);
        double exact = 100.0 * 32 / (p.bits_per_param * (double)p.exchanges);
        assert_true(fabs(p.reduction / exact - 1) < 1e-12);
        assert_int_equal(p.tokens, 100 * 4 * 2 * 16);
    }
    struct agent_job none = job_with((const char *const[]){"sync.scheme=none", NULL});
    struct agent_plan p;
    assert_int_equal(agent_job_plan(&none, 0, &p), NEB_OK);
    assert_true(p.exchanges == 0 && p.bytes == 0 && isnan(p.reduction));
    none.model.vocab = 0; // the corpus's vocabulary when the job leaves it open
    struct agent_plan with;
    assert_int_equal(agent_job_plan(&none, 200, &with), NEB_OK);
    assert_int_equal(with.params - p.params, (200 - 96) * 32);
}

static float draw(struct neb_rng *r) {
    float x;
    neb_rng_normals(r, &x, 1);
    return x;
}

// Bytes of a real update of all units, by another generator than that of the plan.
static double written(const struct agent_job *j, const struct intra_model *m) {
    struct cmp_codec codec;
    struct cmp_work *work;
    struct neb_buf update = {0};
    struct neb_rng rng = neb_rng_make(7, 7);
    struct intra_unit *units;
    int32_t n;
    assert_int_equal(cmp_codec_parse(j->sync.codec, &codec), NEB_OK);
    assert_int_equal(cmp_work_create(&work), NEB_OK);
    assert_int_equal(intra_units(m, &units, &n), NEB_OK);
    cmp_update_begin(&update, (uint32_t)n);
    for (int32_t i = 0; i < n; i++) {
        size_t size = (size_t)units[i].rows * (size_t)units[i].cols;
        float *x = malloc(size * sizeof *x);
        for (size_t k = 0; k < size; k++)
            x[k] = 1e-4f * draw(&rng);
        const struct cmp_unit_shape shape = {(uint32_t)i, (uint32_t)units[i].rows,
                                             (uint32_t)units[i].cols, false};
        assert_int_equal(
            cmp_update_add(work, &update, &shape, &codec, &(struct cmp_source){.x = x}, NULL),
            NEB_OK);
        free(x);
    }
    double bytes = (double)update.len;
    free(units);
    neb_buf_free(&update);
    cmp_work_destroy(&work);
    return bytes;
}

// The planned bytes of an exchange are those of real updates within 1 % (top-k: 3 %), and at most
// the bound.
static void test_bytes_are_written(void **state) {
    (void)state;
    static const char *const codecs[] = {"sync.codec=fp32", "sync.codec=bf16", "sync.codec=int8",
                                         "sync.codec=int4", "sync.codec=topk:64/4096"};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        struct agent_job j =
            job_with((const char *const[]){codecs[i], "model.vocab=4000", "model.d_ff=3000", NULL});
        struct agent_plan p;
        struct intra_model *m;
        assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
        struct intra_model_config c = model_of(&j);
        assert_int_equal(intra_model_create(&c, &j.trainable, 1, &m), NEB_OK);
        double bytes = written(&j, m);
        if (fabs(p.bytes_per_exchange / bytes - 1) > (strstr(codecs[i], "topk") ? 0.03 : 0.01) ||
            bytes > p.bits_most / 8 * (double)p.trainable)
            fail_msg("%s: planned %.0f bytes, at most %.0f, written %.0f", codecs[i],
                     p.bytes_per_exchange, p.bits_most / 8 * (double)p.trainable, bytes);
        intra_model_destroy(&m);
    }
    // Masked sums have one size.
    struct agent_job j = job_with((const char *const[]){"sync.codec=bf16", "sync.row_weights=false",
                                                        "sync.fragments=2", NULL});
    struct agent_plan p;
    j.sync.gate = AGENT_GATE_PRIVATE;
    j.n_clusters = 3;
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.bytes_per_exchange ==
                2.0 * (double)p.trainable + 2.0 * (double)sec_sum_bytes(3, 0));
    assert_true(p.bits_most == p.bits_per_param);
}

// An update goes to each other cluster that exchanges; labels go to none of them.
static void test_receivers(void **state) {
    (void)state;
    struct agent_job j = job_with((const char *const[]){"sync.interval=20", NULL});
    struct agent_plan two, p;
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.attached_bytes == 0);
    j.clusters[0].launcher = AGENT_LAUNCHER_ATTACH;
    assert_int_equal(agent_job_plan(&j, 0, &two), NEB_OK);
    assert_true(two.others == 1 && two.bytes == 5 * two.bytes_per_exchange);
    for (j.n_clusters = 3; j.n_clusters < 6; j.n_clusters++) {
        assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
        assert_true(p.bytes == two.bytes * (j.n_clusters - 1));
        assert_true(fabs(p.reduction * (j.n_clusters - 1) / two.reduction - 1) < 1e-12);
    }
    j.n_clusters = 4;
    j.clusters[3].witness = true; // this cluster takes no updates
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.bytes == two.bytes * 2);
    j.n_clusters = 1;
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.bytes == 0 && p.exchanges == 0 && isnan(p.reduction));
    assert_true(p.attached_bytes == 0 && two.attached_bytes > 20.0 * (double)two.trainable);
    j.mode = AGENT_MODE_DISTILL;
    j.n_clusters = 3;
    j.clusters[0].role = j.clusters[1].role = AGENT_ROLE_STUDENT;
    j.clusters[2].role = AGENT_ROLE_TEACHER;
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.others == 0 && p.bytes == 0 && p.label_bytes > 1 && p.label_bytes < 100);
    j.distill.federate = true; // the students, among themselves
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.bytes == two.bytes && p.attached_bytes == two.attached_bytes &&
                p.label_bytes > 1);
    j.clusters[2].role = AGENT_ROLE_STUDENT;
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.bytes == two.bytes * 2 && p.label_bytes == 0);
}

// 7B parameters with a tensor of 131072 x 4096: which updates fit, and the message for an update
// that does not fit.
static void test_updates_that_fit(void **state) {
    (void)state;
    enum { BILLION = 1000000000 };
    static const struct {
        const char *codec, *fragments, *reason; // NULL: it fits
    } cases[] = {
        {"sync.codec=int4", "sync.fragments=1", NULL},
        {"sync.codec=int8", "sync.fragments=1", "sync.fragments: 1"},
        {"sync.codec=int8", "sync.fragments=2", NULL},
        {"sync.codec=fp32", "sync.fragments=1", "use 7 fragments or more"},
        {"sync.codec=fp32", "sync.fragments=7", NULL},
        {"sync.codec=topk:64/4096", "sync.fragments=1", NULL},
    };
    char said[512];
    neb_log_set_sink(keep, said);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct agent_job j = job_with(
            (const char *const[]){cases[i].codec, cases[i].fragments, "model.n_layers=8", NULL});
        uint64_t largest = 7ull * BILLION / (uint64_t)j.sync.fragments;
        said[0] = 0;
        enum neb_status st = agent_update_fits(&j, largest, 500, 131072ull * 4096);
        assert_int_equal(st, cases[i].reason ? NEB_ERR_LIMIT : NEB_OK);
        if (cases[i].reason && !strstr(said, cases[i].reason))
            fail_msg("%s, %s: %s", cases[i].codec, cases[i].fragments, said);
    }
    struct agent_job j = job_with((const char *const[]){
        "sync.codec=fp32", "sync.interval=80", "sync.fragments=64", "model.n_layers=62", NULL});
    assert_int_equal(agent_update_fits(&j, 1100000000, 80, 1100000000), NEB_ERR_LIMIT);
    assert_non_null(strstr(said, "fragments do not cut a tensor"));
    neb_log_set_sink(NULL, NULL);
    // Only the job file is known. A fragment has its share of the parameters, and at least the
    // largest tensor.
    struct agent_plan p;
    j = job_with((const char *const[]){"model.vocab=96000", "sync.fragments=4", NULL});
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.tensor == 96000 * 32 && p.fragment == p.tensor);
    j = job_with((const char *const[]){"sync.fragments=2", NULL});
    assert_int_equal(agent_job_plan(&j, 0, &p), NEB_OK);
    assert_true(p.tensor == 96 * 32 && p.fragment == p.trainable / 2);
}

// Advice for jobs that depart from a measured recipe; none for the recipes, and none for jobs that
// nothing was measured with.
static void test_advice(void **state) {
    (void)state;
    static const char adamw[] = "long intervals cost AdamW much", sparse[] = "with optim.beta1 0.8",
                      dense[] = "Muon loses less with a dense", outer[] = "without an outer";
#define ADAMW                                                                                      \
    "optim.beta1=0.8", "optim.warmup=120", "sync.outer.lr=1.414", "sync.codec=topk:128/4096",      \
        "sync.interval=3"
#define MUON "optim.name=muon", "optim.warmup=40", "sync.codec=int2", "sync.interval=16"
#define RARE "sync.codec=int4", "sync.interval=30"
    static const struct {
        const char *expect, *sets[9];
    } rows[] = {
        {NULL, {ADAMW}},
        {NULL, {MUON}},
        {NULL, {ADAMW, "optim.beta1=0", "sync.outer.momentum=0.8", "sync.outer.lr=1"}},
        {sparse, {ADAMW, "optim.beta1=0.9"}},
        {sparse, {ADAMW, "optim.warmup=40"}},
        {sparse, {ADAMW, "sync.outer.lr=1"}},
        {sparse, {ADAMW, "sync.outer.momentum=0.5"}},
        {NULL, {ADAMW, "sync.codec=int8"}}, // no loss, only more bytes
        {NULL, {ADAMW, "sync.interval=6"}},
        {adamw, {ADAMW, "sync.interval=8"}},
        {adamw, {RARE}},
        {dense, {MUON, "sync.codec=topk:128/4096", "sync.interval=3"}},
        {NULL, {MUON, "sync.codec=topk:64/4096", "sync.interval=30"}}, // far fewer bytes
        {outer, {MUON, "sync.outer.momentum=0.6"}},
        {outer, {MUON, "sync.outer.lr=1.414"}},
        {NULL, {RARE, "trainable=bitfit"}},
        {NULL, {RARE, "trainable.freeze=[embeddings]"}},
        {NULL, {RARE, "init_from=there.safetensors"}},
        {NULL, {RARE, "steps=100"}},
        {NULL, {RARE, "sync.scheme=synchronous"}},
        {NULL, {RARE, "sync.interval=auto"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *sets[10] = {"steps=1500"};
        memcpy(sets + 1, rows[i].sets, sizeof rows[i].sets);
        struct agent_job j = job_with(sets);
        const char *text = agent_plan_advice(&j);
        if (!text != !rows[i].expect || (text && !strstr(text, rows[i].expect)))
            fail_msg("row %zu: %s", i, text ? text : "no advice");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),    cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_bytes),     cmocka_unit_test(test_bytes_are_written),
        cmocka_unit_test(test_receivers), cmocka_unit_test(test_updates_that_fit),
        cmocka_unit_test(test_advice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
