// SPDX-License-Identifier: Apache-2.0
#include "agent/train/translate.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "intra/data/tokenizer.h"
#include "intra/data/tokenizer_files.h"
#include "intra/model/score.h"
#include "intra/train/decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum intra_split agent_translate_split(const struct intra_corpus *corpus) {
    for (int32_t i = 0; i < intra_corpus_sources(corpus); i++)
        if (intra_corpus_tokens(corpus, i, INTRA_TEST))
            return INTRA_TEST;
    return INTRA_VALID;
}

enum { CHUNK = 512 }; // pairs that are decoded in one call

struct run {
    const struct agent_translate_options *o;
    struct intra_group *group;
    struct intra_tokenizer *t;
    struct intra_pairs *pairs;
    struct intra_chrf chrf;
    struct intra_bleu bleu;
    int32_t *ids, *out; // (CHUNK, longest + 1) (CHUNK, max_tokens)
    struct intra_prompt prompts[CHUNK];
    int32_t n_ids[CHUNK];
};

static void line(FILE *f, const char *text) {
    if (f)
        fprintf(f, "%s\n", text);
}

static enum neb_status score(struct run *r, int32_t i, struct agent_translate_result *result) {
    const struct intra_prompt *p = &r->prompts[i];
    char *hypothesis = NULL, *reference = NULL, *source = NULL;
    enum neb_status st = intra_tokenizer_decode(r->t, p->out, (size_t)p->got, &hypothesis);
    if (st == NEB_OK)
        st = intra_tokenizer_decode(r->t, p->tokens + p->n, (size_t)(r->n_ids[i] - p->n - 1),
                                    &reference);
    if (st == NEB_OK)
        st = intra_tokenizer_decode(r->t, p->tokens, (size_t)p->n - 1, &source);
    if (st == NEB_OK) {
        for (char *c = hypothesis; *c; c++) // the vocabulary can have a piece for a newline
            *c = *c == '\n' || *c == '\r' ? ' ' : *c;
        line(r->o->hypotheses, hypothesis);
        line(r->o->references, reference);
        line(r->o->sources, source);
        st = intra_chrf_add(&r->chrf, hypothesis, reference);
    }
    if (st == NEB_OK)
        st = intra_bleu_add(&r->bleu, hypothesis, reference);
    free(hypothesis);
    free(reference);
    free(source);
    result->pairs++;
    result->tokens += p->got;
    return st;
}

// Translates the pairs [from, to) of n, which are spread over the `have` of the split.
static enum neb_status chunk(struct run *r, uint64_t from, uint64_t to, uint64_t n, uint64_t have,
                             struct agent_translate_result *result) {
    size_t each = (size_t)r->o->longest + 1;
    struct intra_decode_config c = {.beam = r->o->beam,
                                    .alpha = r->o->alpha,
                                    .eos = intra_pairs_eos(r->pairs),
                                    .longest = r->o->longest,
                                    .prefix = true};
    for (uint64_t i = from; i < to; i++) {
        struct intra_prompt *p = &r->prompts[i - from];
        int32_t *ids = r->ids + (i - from) * each;
        *p = (struct intra_prompt){.tokens = ids,
                                   .most = r->o->max_tokens,
                                   .out = r->out + (i - from) * (size_t)r->o->max_tokens};
        r->n_ids[i - from] = intra_pairs_get(r->pairs, i * have / n, ids, &p->n, NULL);
    }
    NEB_TRY(intra_decode(r->group, &c, r->prompts, (int32_t)(to - from)));
    for (uint64_t i = from; i < to; i++)
        NEB_TRY(score(r, (int32_t)(i - from), result));
    return NEB_OK;
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
    for (uint64_t i = 0; i < n && st == NEB_OK; i += CHUNK)
        st = chunk(r, i, n - i < CHUNK ? n : i + CHUNK, n, have, result);
    intra_pairs_destroy(&r->pairs);
    return st;
}

enum neb_status agent_translate(const struct intra_corpus *corpus, enum intra_split split,
                                struct intra_group *group, const struct agent_translate_options *o,
                                struct agent_translate_result *out) {
    struct run *r = calloc(1, sizeof *r);
    char path[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    neb_ns start = neb_now();
    *out = (struct agent_translate_result){0};
    if (!r)
        return neb_fail(NEB_ERR_NOMEM, "out of memory translating");
    r->o = o;
    r->group = group;
    r->ids = calloc(CHUNK * ((size_t)o->longest + 1), sizeof *r->ids);
    r->out = calloc(CHUNK * (size_t)o->max_tokens, sizeof *r->out);
    if (!r->ids || !r->out) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory translating");
        goto out;
    }
    NEB_TRY_GOTO(intra_tokenizer_in(intra_corpus_dir(corpus), path, sizeof path), out);
    NEB_TRY_GOTO(intra_tokenizer_open(path, &r->t), out);
    for (int32_t i = 0; i < intra_corpus_sources(corpus); i++)
        NEB_TRY_GOTO(one_source(r, corpus, split, i, out), out);
    out->chrf = out->pairs ? intra_chrf_score(&r->chrf) : NAN;
    out->bleu = out->pairs ? intra_bleu_score(&r->bleu) : NAN;
    out->seconds = neb_seconds(neb_now() - start);
out:
    intra_tokenizer_close(&r->t);
    free(r->ids);
    free(r->out);
    free(r);
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

static void print(const struct agent_translate_result *r, int beam, bool json) {
    if (json)
        printf("{\"kind\": \"summary\", \"task\": \"translate\", \"chrf\": %.4f, \"bleu\": %.4f, "
               "\"pairs\": %lld, \"tokens\": %lld, \"beam\": %d, \"seconds\": %.3f}\n",
               r->chrf, r->bleu, (long long)r->pairs, (long long)r->tokens, beam, r->seconds);
    else
        printf("chrF %.2f, BLEU %.2f over %lld pairs (beam %d), %lld tokens in %.1f s\n", r->chrf,
               r->bleu, (long long)r->pairs, beam, (long long)r->tokens, r->seconds);
}

static enum neb_status run_task(const struct agent_eval_translate *o, struct agent_decoder *d,
                                const struct intra_corpus *corpus,
                                struct agent_translate_options *t) {
    struct agent_translate_result r;
    if (intra_corpus_vocab(corpus) > d->model.vocab)
        return neb_fail(
            NEB_ERR_INVALID,
            "the corpus has %d pieces, but the model has %d: it is not the model's vocabulary",
            intra_corpus_vocab(corpus), d->model.vocab);
    t->longest = o->seq_len ? o->seq_len : TRANSLATE_SEQ_MAX;
    t->longest = t->longest < d->model.max_seq ? t->longest : d->model.max_seq;
    t->max_tokens = t->longest;
    NEB_TRY(agent_decoder_make(d, t->longest, INT32_MAX, o->beam > 1 ? 2 * o->beam : 1));
    NEB_TRY(agent_translate(corpus, agent_translate_split(corpus), d->group, t, &r));
    if (!r.pairs)
        return neb_fail(NEB_ERR_INVALID, "%s holds no pairs of at most %d tokens to translate",
                        o->corpus, t->longest);
    print(&r, o->beam, o->json);
    return NEB_OK;
}

enum neb_status agent_eval_translate(const struct agent_eval_translate *o) {
    struct intra_corpus *corpus = NULL;
    struct agent_decoder d = {0};
    struct agent_translate_options t = {.beam = o->beam, .max_pairs = o->windows, .alpha = 1};
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(agent_decoder_open(&d, o->model), out);
    if (agent_decoder_follows(&d))
        goto out;
    NEB_TRY_GOTO(intra_corpus_open(o->corpus, false, &corpus), out);
    if (o->out) {
        NEB_TRY_GOTO(neb_fs_mkdirs(o->out, 0755), out);
        NEB_TRY_GOTO(open_file(o->out, names[0], &t.hypotheses), out);
        NEB_TRY_GOTO(open_file(o->out, names[1], &t.references), out);
        NEB_TRY_GOTO(open_file(o->out, names[2], &t.sources), out);
    }
    st = run_task(o, &d, corpus, &t);
out:;
    FILE *const files[] = {t.hypotheses, t.references, t.sources};
    for (int i = 0; i < 3; i++) {
        enum neb_status closed = close_file(files[i], o->out, names[i]);
        st = st == NEB_OK ? closed : st;
    }
    intra_corpus_close(&corpus);
    agent_decoder_close(&d);
    return st;
}
