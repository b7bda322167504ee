// SPDX-License-Identifier: Apache-2.0
#include "agent/train/eval_translate.h"
#include "agent/base/fs.h"
#include "agent/train/distill.h"

#include <stdlib.h>

// The limit without --seq-len: no sentence is longer, and an imported model may take 32,768 tokens.
enum { TRANSLATE_SEQ_MAX = 1024 };

static enum neb_status open_file(const char *dir, const char *name, FILE **out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, name));
    *out = fopen(path, "w");
    return *out ? NEB_OK : neb_fail_errno("cannot write %s", path);
}

static enum neb_status close_file(FILE *f) {
    return !f || fclose(f) == 0 ? NEB_OK : neb_fail_errno("cannot write a list of translations");
}

static enum neb_status load(const struct neb_vault *vault, const char *path,
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
    NEB_TRY_GOTO(load(o->vault, o->checkpoint, &m), out);
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
        NEB_TRY_GOTO(open_file(o->out, "hypotheses.txt", &t.hypotheses), out);
        NEB_TRY_GOTO(open_file(o->out, "references.txt", &t.references), out);
        NEB_TRY_GOTO(open_file(o->out, "sources.txt", &t.sources), out);
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
        enum neb_status closed = close_file(files[i]);
        st = st == NEB_OK ? closed : st;
    }
    intra_corpus_close(&corpus);
    kern_destroy(&K);
    intra_model_destroy(&m);
    return st;
}
