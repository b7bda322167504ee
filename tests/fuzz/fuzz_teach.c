// SPDX-License-Identifier: Apache-2.0
// Messages that a worker gets from another cluster's worker in modes rtd and distill. These are
// batches of replaced tokens, with or without the text; batches of rows of shared embeddings, and
// the rows in answer; labels, also of a student's samples and with a teacher's answers; and a
// student's requests. Bad messages are refused. The worker trains on accepted ones. Input: a byte
// that chooses one of `kinds`, then messages. An odd byte: the true next message, changed at half
// as many places (u16 where, u8 xor); else the input's own (u16 length, bytes).
#include "agent/train/distill.h"
#include "agent/train/rtd.h"
#include "tests/testing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS = 4, MESSAGES = 8, EDITS = 3 };
enum kind { TEXT_HERE, TEXT_PUSHED, SHARED, ROWS, LABELS, REQUESTS, SAMPLES, ANSWERS, KINDS };
static struct kern *K;
static struct intra_corpus *corpus;
static char folder[64];
struct talk { // messages of the other side
    struct agent_job job;
    struct neb_buf said[MESSAGES];
    int n;
};
static struct talk kinds[KINDS];

// ---- once per process: a corpus of pairs, and the true messages ----

static void progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static void make_corpus(void) {
    static const char *const words[] = {"file\tDatei", "open\toffen", "read\tlesen",
                                        "name\tName",  "line\tZeile", "end\tEnde"};
    static struct intra_build_spec spec = {.name = "t",
                                           .seed = 1,
                                           .vocab = 300,
                                           .type = "bpe",
                                           .character_coverage = 1,
                                           .byte_fallback = true,
                                           .train_lines = 500,
                                           .holdout_per_mille = 200,
                                           .threads = 1,
                                           .n_sources = 1};
    struct intra_source_spec *s = &spec.sources[0];
    struct neb_buf text = {0};
    char dir[80];
    bool skipped;
    for (uint32_t i = 0; i < 216; i++)
        for (uint32_t side = 0; side < 2; side++) {
            for (uint32_t k = 0, rest = i; k < 3; k++, rest /= 6) {
                const char *word = words[rest % 6], *tab = strchr(word, '\t');
                size_t n = side ? strlen(tab + 1) : (size_t)(tab - word);
                neb_buf_add(&text, side ? tab + 1 : word, n);
                neb_buf_u8(&text, k < 2 ? ' ' : side ? '\n' : '\t');
            }
        }
    snprintf(folder, sizeof folder, "%s/nebula-fuzz-teach-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    NEB_ASSERT(mkdtemp(folder));
    *s = (struct intra_source_spec){
        .name = "pairs", .format = INTRA_TSV, .parallel = true, .target_column = 1};
    snprintf(s->path, sizeof s->path, "%s/pairs.tsv", folder);
    snprintf(dir, sizeof dir, "%s/corpus", folder);
    NEB_ASSERT(neb_fs_write(s->path, text.p, text.len, 0600) == NEB_OK);
    NEB_ASSERT(intra_corpus_build(&spec, dir, progress, NULL, &skipped) == NEB_OK);
    NEB_ASSERT(intra_corpus_open(dir, false, &corpus) == NEB_OK);
    neb_buf_free(&text);
}

static void make_job(struct agent_job *j, const char *mode) {
    char text[1024];
    int n = snprintf(
        text, sizeof text,
        "job: t\nsteps: %d\nmodel: {n_layers: 1, d_model: 8, n_heads: 2, d_ff: 16, tied: true}\n"
        "data: {corpus: /nowhere, seq_len: 16, batch: 2, accumulate: 2}\n"
        "optim: {lr: 0.1}\neval: {windows: 3}\n%s",
        STEPS, mode);
    NEB_ASSERT(agent_job_parse(text, (size_t)n, "t.yaml", j) == NEB_OK);
}

static void keep(struct talk *t, const struct neb_buf *b) {
    if (t->n < MESSAGES)
        neb_buf_add(&t->said[t->n++], b->p, b->len);
}

static struct agent_rtd_side *rtd_side(const struct talk *t, enum agent_role role) {
    struct agent_rtd_side *s = NULL;
    struct intra_place at = {.K = K};
    NEB_ASSERT(agent_rtd_create(&t->job, role, corpus, &at, &s) == NEB_OK);
    return s;
}

static struct agent_distill_side *distill_side(const struct talk *t, enum agent_role role) {
    struct agent_distill_side *s = NULL;
    struct intra_place at = {.K = K};
    NEB_ASSERT(agent_distill_create(&t->job, role, 0, corpus, &at, &s) == NEB_OK);
    return s;
}

// rows: gets the rows of the answers, or NULL.
static void talk_rtd(struct talk *t, const char *options, struct talk *rows) {
    char text[512];
    struct neb_buf batch = {0};
    snprintf(text, sizeof text,
             "mode: rtd\nrtd: {mask_rate: 0.3, generator: {n_layers: 1, d_model: 8, n_heads: 2, "
             "d_ff: 16}%s}\n"
             "clusters: [{name: anna, role: generator}, {name: bert, role: discriminator}]\n",
             options);
    make_job(&t->job, text);
    struct agent_rtd_side *g = rtd_side(t, AGENT_ROLE_GENERATOR),
                          *d = rtd_side(t, AGENT_ROLE_DISCRIMINATOR);
    while (!d->s.done) {
        bool made;
        NEB_ASSERT(agent_rtd_produce(g, &batch, &made) == NEB_OK && made);
        keep(t, &batch);
        NEB_ASSERT(agent_rtd_consume(d, batch.p, batch.len) == NEB_OK);
        const struct neb_buf *reply = agent_rtd_reply(d);
        if (!reply)
            continue;
        keep(rows, reply);
        NEB_ASSERT(agent_rtd_answer(g, reply->p, reply->len) == NEB_OK);
    }
    agent_rtd_destroy(&g);
    agent_rtd_destroy(&d);
    neb_buf_free(&batch);
}

// requests: gets the student's, or NULL.
static void talk_distill(struct talk *labels, enum agent_text_source source,
                         struct talk *requests) {
    struct neb_buf request = {0}, out = {0};
    make_job(&labels->job,
             "mode: distill\ndistill: {k: 4, teacher: {learn: true, n_layers: 1, "
             "d_model: 8, n_heads: 2, d_ff: 16}}\n"
             "clusters: [{name: anna, role: teacher}, {name: bert, role: student}]\n");
    labels->job.distill.source = source; // the teacher learns only because it has no checkpoint
    struct agent_distill_side *teacher = distill_side(labels, AGENT_ROLE_TEACHER),
                              *student = distill_side(labels, AGENT_ROLE_STUDENT);
    for (int64_t step = 0; step < STEPS; step++) {
        NEB_ASSERT(distill_write_ahead(student) == NEB_OK);
        NEB_ASSERT(agent_distill_request(student, step, &request) == NEB_OK);
        NEB_ASSERT(agent_distill_label(teacher, 0, step, 4, request.p, request.len, &out) ==
                   NEB_OK);
        NEB_ASSERT(agent_distill_step_of(out.p, out.len) == step);
        if (requests)
            keep(requests, &request);
        keep(labels, &out);
        NEB_ASSERT(agent_distill_learn(student, &(struct agent_distill_labels){out.p, out.len, 1},
                                       1) == NEB_OK);
        NEB_ASSERT(student->s.taught == student->s.targets);
    }
    agent_distill_destroy(&teacher);
    agent_distill_destroy(&student);
    neb_buf_free(&request);
    neb_buf_free(&out);
}

static void free_all(void) {
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < kinds[k].n; i++)
            neb_buf_free(&kinds[k].said[i]);
    intra_corpus_close(&corpus);
    kern_destroy(&K);
    if (neb_fs_remove_tree(folder) != NEB_OK)
        neb_warn("%s stays", folder);
}

static void set_up(void) {
    make_corpus();
    NEB_ASSERT(kern_cpu_create(1, &K) == NEB_OK);
    talk_rtd(&kinds[TEXT_HERE], "", NULL);
    talk_rtd(&kinds[TEXT_PUSHED], ", push_text: true", NULL);
    talk_rtd(&kinds[SHARED], ", ahead: 1, share_embeddings: 1", &kinds[ROWS]);
    kinds[ROWS].job = kinds[SHARED].job;
    talk_distill(&kinds[LABELS], AGENT_TEXT_CORPUS, &kinds[REQUESTS]);
    kinds[REQUESTS].job = kinds[LABELS].job;
    talk_distill(&kinds[SAMPLES], AGENT_TEXT_STUDENT, NULL);
    talk_distill(&kinds[ANSWERS], AGENT_TEXT_TEACHER, NULL);
    atexit(free_all);
}

// ---- an input ----

// Message number k, in memory of exact size; NULL: there is none.
static uint8_t *next(const struct talk *t, int k, struct neb_rd *r, size_t *n) {
    uint8_t how = neb_rd_u8(r);
    if (r->bad)
        return NULL;
    bool true_one = how & 1 && k < t->n;
    *n = true_one ? t->said[k].len : neb_rd_u16(r);
    *n = true_one || *n < neb_rd_left(r) ? *n : neb_rd_left(r);
    uint8_t *p = malloc(*n ? *n : 1);
    NEB_ASSERT(p);
    if (*n)
        memcpy(p, true_one ? t->said[k].p : neb_rd_view(r, *n), *n);
    for (int i = 0; true_one && i < how / 2 && i < EDITS; i++) {
        uint16_t where = neb_rd_u16(r);
        p[where % *n] ^= neb_rd_u8(r);
    }
    return p;
}

struct listener { // one of these is set
    struct agent_rtd_side *rtd;
    struct agent_distill_side *distill;
    struct neb_buf out;
};

static struct listener listen_to(enum kind kind) {
    const struct talk *t = &kinds[kind];
    struct listener l = {0};
    if (kind >= LABELS)
        l.distill = distill_side(t, kind == REQUESTS ? AGENT_ROLE_TEACHER : AGENT_ROLE_STUDENT);
    else
        l.rtd = rtd_side(t, kind == ROWS ? AGENT_ROLE_GENERATOR : AGENT_ROLE_DISCRIMINATOR);
    return l;
}

static void end(struct listener *l) {
    agent_rtd_destroy(&l->rtd);
    agent_distill_destroy(&l->distill);
    neb_buf_free(&l->out);
}

static enum neb_status take_rows(struct listener *l, const uint8_t *p, size_t n) {
    bool made;
    while (!agent_rtd_awaits(l->rtd)) {
        if (agent_rtd_trained(l->rtd))
            return NEB_ERR_STATE;
        NEB_TRY(agent_rtd_produce(l->rtd, &l->out, &made));
    }
    return agent_rtd_answer(l->rtd, p, n);
}

static enum neb_status take(enum kind kind, struct listener *l, const uint8_t *p, size_t n) {
    int64_t step;
    switch (kind) {
    case LABELS:
    case SAMPLES:
    case ANSWERS:
        NEB_ASSERT(distill_write_ahead(l->distill) == NEB_OK);
        step = agent_distill_step_of(p, n);
        NEB_ASSERT(step >= 0 || n < 8 || p[7] & 0x80);
        return l->distill->s.f.step < STEPS
                   ? agent_distill_learn(l->distill, &(struct agent_distill_labels){p, n, 1}, 1)
                   : NEB_ERR_STATE;
    case REQUESTS:
        step = l->distill->s.f.step;
        return step < STEPS ? agent_distill_label(l->distill, 0, step, 4, p, n, &l->out)
                            : NEB_ERR_STATE;
    case ROWS: return take_rows(l, p, n);
    default: return l->rtd->s.done ? NEB_ERR_STATE : agent_rtd_consume(l->rtd, p, n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!K)
        set_up();
    struct neb_rd r = neb_rd_make(data, size);
    enum kind kind = neb_rd_u8(&r) % KINDS;
    struct listener l = listen_to(kind);
    enum neb_status st = NEB_OK;
    for (int k = 0; k < MESSAGES && st == NEB_OK; k++) {
        size_t n;
        uint8_t *p = next(&kinds[kind], k, &r, &n);
        if (!p)
            break;
        st = take(kind, &l, p, n);
        NEB_ASSERT(st == NEB_OK || st == NEB_ERR_FORMAT || st == NEB_ERR_STATE ||
                   st == NEB_ERR_INVALID);
        free(p);
    }
    end(&l);
    return 0;
}
