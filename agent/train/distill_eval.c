// SPDX-License-Identifier: Apache-2.0
// Translates held-out pairs and scores the translations against the references.
#include "agent/base/clock.h"
#include "agent/train/distill.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "intra/model/translate.h"

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
