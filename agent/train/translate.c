// SPDX-License-Identifier: Apache-2.0
#include "agent/train/translate.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/moved.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "intra/model/translate.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum intra_split agent_translate_split(const struct intra_corpus *corpus) {
    for (int32_t i = 0; i < intra_corpus_sources(corpus); i++)
        if (intra_corpus_tokens(corpus, i, INTRA_TEST))
            return INTRA_TEST;
    return INTRA_VALID;
}

struct run {
    const struct agent_translate_options *o;
    const struct intra_model *m;
    struct intra_tokenizer *t;
    struct intra_decoder *d;
    struct intra_pairs *pairs;
    struct intra_chrf chrf;
    int32_t *ids, *out;
};

static void line(FILE *f, const char *text) {
    if (f)
        fprintf(f, "%s\n", text);
}

static enum neb_status one(struct run *r, uint64_t i, struct agent_translate_result *result) {
    char *hypothesis = NULL, *reference = NULL, *source = NULL;
    int32_t prefix, got, n = intra_pairs_get(r->pairs, i, r->ids, &prefix, NULL);
    struct intra_beam_config c = {r->o->beam, r->o->max_tokens, r->o->alpha,
                                  intra_pairs_eos(r->pairs)};
    enum neb_status st = intra_decode(r->d, r->ids, prefix, &c, r->out, &got);
    if (st == NEB_OK)
        st = intra_tokenizer_decode(r->t, r->out, (size_t)got, &hypothesis);
    if (st == NEB_OK)
        st = intra_tokenizer_decode(r->t, r->ids + prefix, (size_t)(n - prefix - 1), &reference);
    if (st == NEB_OK)
        st = intra_tokenizer_decode(r->t, r->ids, (size_t)prefix - 1, &source);
    if (st == NEB_OK) {
        for (char *p = hypothesis; *p; p++) // the vocabulary can have a piece for a newline
            *p = *p == '\n' || *p == '\r' ? ' ' : *p;
        line(r->o->hypotheses, hypothesis);
        line(r->o->references, reference);
        line(r->o->sources, source);
        st = intra_chrf_add(&r->chrf, hypothesis, reference);
    }
    free(hypothesis);
    free(reference);
    free(source);
    neb_moved_add(1); // a sign of progress: thousands of pairs may take an hour
    result->pairs++;
    result->tokens += got;
    return st;
}

static enum neb_status one_source(struct run *r, const struct intra_corpus *corpus,
                                  enum intra_split split, int32_t source,
                                  struct agent_translate_result *result) {
    int32_t seq = r->o->longest;
    struct intra_pairs_config c = {.seed = 1,
                                   .seq_len = seq,
                                   .tokens = seq,
                                   .n_sources = 1,
                                   .sources = {source},
                                   .may_be_empty = true};
    enum neb_status st = NEB_OK;
    NEB_TRY(intra_pairs_create(corpus, split, &c, &r->pairs));
    uint64_t have = intra_pairs_count(r->pairs), n = have;
    if (r->o->max_pairs && (uint64_t)r->o->max_pairs < have)
        n = (uint64_t)r->o->max_pairs;
    for (uint64_t i = 0; i < n && st == NEB_OK; i++) // spread over the whole split
        st = one(r, i * have / n, result);
    intra_pairs_destroy(&r->pairs);
    return st;
}

enum neb_status agent_translate(const struct intra_corpus *corpus, enum intra_split split,
                                struct kern *K, const struct intra_model *m,
                                const struct agent_translate_options *o,
                                struct agent_translate_result *out) {
    struct run r = {.o = o, .m = m};
    char path[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    neb_ns start = neb_now();
    *out = (struct agent_translate_result){0};
    r.ids = calloc((size_t)o->longest + 2, sizeof *r.ids);
    r.out = calloc((size_t)o->max_tokens + 1, sizeof *r.out);
    if (!r.ids || !r.out) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory translating");
        goto out;
    }
    NEB_TRY_GOTO(intra_tokenizer_in(intra_corpus_dir(corpus), path, sizeof path), out);
    NEB_TRY_GOTO(intra_tokenizer_open(path, &r.t), out);
    NEB_TRY_GOTO(intra_decoder_create(K, m, o->beam, o->longest, &r.d), out);
    for (int32_t i = 0; i < intra_corpus_sources(corpus); i++)
        NEB_TRY_GOTO(one_source(&r, corpus, split, i, out), out);
    out->chrf = out->pairs ? intra_chrf_score(&r.chrf) : NAN;
    out->seconds = neb_seconds(neb_now() - start);
out:
    intra_decoder_destroy(&r.d);
    intra_tokenizer_close(&r.t);
    free(r.ids);
    free(r.out);
    return st;
}

// ---- the command `nebula eval` ------------------------------------------------------------------

// The limit without --seq-len: no sentence is longer, and an imported model may take 32,768 tokens.
enum { TRANSLATE_SEQ_MAX = 1024 };

static const char *const names[] = {"hypotheses.txt", "references.txt", "sources.txt"};

static enum neb_status open_file(const char *dir, const char *name, FILE **out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, name));
    *out = fopen(path, "w");
    return *out ? NEB_OK : neb_fail_errno("cannot write %s", path);
}

static enum neb_status close_file(FILE *f, const char *dir, const char *name) {
    char path[NEB_PATH_MAX];
    if (!f)
        return NEB_OK;
    snprintf(path, sizeof path, "%s/%s", dir, name); // it fits: the file was opened
    return neb_fs_close(f, path);
}

static enum neb_status load_model(const struct neb_vault *vault, const char *path,
                                  struct intra_model **m) {
    struct intra_ckpt *c = NULL;
    NEB_TRY(intra_ckpt_open_in(vault, path, true, &c));
    enum neb_status st = intra_model_load(c, m);
    intra_ckpt_close(&c);
    return st;
}

static void print(const struct agent_translate_result *r, int beam, bool json) {
    if (json)
        printf("{\"kind\": \"summary\", \"task\": \"translate\", \"chrf\": %.4f, \"pairs\": %lld, "
               "\"tokens\": %lld, "
               "\"beam\": %d, \"seconds\": %.3f}\n",
               r->chrf, (long long)r->pairs, (long long)r->tokens, beam, r->seconds);
    else
        printf("chrF %.2f over %lld pairs (beam %d), %lld tokens in %.1f s\n", r->chrf,
               (long long)r->pairs, beam, (long long)r->tokens, r->seconds);
}

enum neb_status agent_eval_translate(const struct agent_eval_translate *o) {
    struct intra_corpus *corpus = NULL;
    struct intra_model *m = NULL;
    struct kern *K = NULL;
    struct agent_translate_options t = {.beam = o->beam, .max_pairs = o->windows, .alpha = 1};
    struct agent_translate_result r;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(load_model(o->vault, o->checkpoint, &m), out);
    NEB_TRY_GOTO(kern_cpu_create(o->threads, &K), out);
    if (o->merge)
        intra_lora_merge(K, m);
    NEB_TRY_GOTO(intra_corpus_open(o->corpus, false, &corpus), out);
    if (intra_corpus_vocab(corpus) > m->c.vocab) {
        st = neb_fail(
            NEB_ERR_INVALID,
            "the corpus has %d pieces, but the model has %d: it is not the model's vocabulary",
            intra_corpus_vocab(corpus), m->c.vocab);
        goto out;
    }
    if (o->out) {
        NEB_TRY_GOTO(neb_fs_mkdirs(o->out, 0755), out);
        NEB_TRY_GOTO(open_file(o->out, names[0], &t.hypotheses), out);
        NEB_TRY_GOTO(open_file(o->out, names[1], &t.references), out);
        NEB_TRY_GOTO(open_file(o->out, names[2], &t.sources), out);
    }
    t.longest = o->seq_len ? o->seq_len : TRANSLATE_SEQ_MAX;
    t.longest = t.longest < m->c.max_seq ? t.longest : m->c.max_seq;
    t.max_tokens = t.longest;
    NEB_TRY_GOTO(agent_translate(corpus, agent_translate_split(corpus), K, m, &t, &r), out);
    if (r.pairs)
        print(&r, o->beam, o->json);
    else
        st = neb_fail(NEB_ERR_INVALID, "%s holds no pairs of at most %d tokens to translate",
                      o->corpus, t.longest);
out:;
    FILE *const files[] = {t.hypotheses, t.references, t.sources};
    for (int i = 0; i < 3; i++) {
        enum neb_status closed = close_file(files[i], o->out, names[i]);
        st = st == NEB_OK ? closed : st;
    }
    intra_corpus_close(&corpus);
    kern_destroy(&K);
    intra_model_destroy(&m);
    return st;
}
