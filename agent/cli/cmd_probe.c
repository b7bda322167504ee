// SPDX-License-Identifier: Apache-2.0
// nebula eval --task probe: a linear probe on a checkpoint, trained on one language, tested on this
// and other languages.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/cli/probe.h"
#include "agent/job/json.h"
#include "agent/job/model_init.h"
#include "agent/proc/seal.h"
#include "intra/data/tokenizer_files.h"
#include "intra/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TESTS_MAX = 8, KEY_SEAL = 1000 };

struct options {
    const char *checkpoint, *tokenizer, *text, *train, *tests[TESTS_MAX], *task, *seal_key;
    int n_tests, threads;
    uint64_t seed;
    bool random, json;
};

// Makes a model of the same shape with initial parameters.
static enum neb_status forget_everything(struct intra_model **m, uint64_t seed) {
    struct intra_model_config c = (*m)->c;
    struct intra_trainable t = (*m)->trainable;
    intra_model_destroy(m);
    return intra_model_create(&c, &t, seed, m);
}

static enum neb_status load(const struct options *o, struct intra_model **m,
                            struct intra_tokenizer **t) {
    char file[NEB_PATH_MAX], tokenizer[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    neb_log_set_level(NEB_LOG_ERROR);
    struct sec_vault *vault = NULL;
    NEB_TRY(agent_seal_option(o->seal_key, &vault));
    enum neb_status st =
        agent_checkpoint_file(sec_vault_of(vault), o->checkpoint, file, sizeof file);
    if (st == NEB_OK)
        st = intra_ckpt_open_in(sec_vault_of(vault), file, true, &c);
    if (st == NEB_OK)
        st = intra_model_load(c, m);
    intra_ckpt_close(&c);
    sec_vault_destroy(&vault);
    NEB_TRY(st);
    if (o->random)
        NEB_TRY(forget_everything(m, o->seed));
    char *slash = strrchr(file, '/');
    if (slash)
        *slash = 0;
    const char *named = o->tokenizer ? o->tokenizer : slash ? file : ".";
    NEB_TRY(intra_tokenizer_resolve(named, tokenizer, sizeof tokenizer));
    NEB_TRY(intra_tokenizer_open(tokenizer, t));
    if (intra_tokenizer_vocab(*t) > (*m)->c.vocab)
        return neb_fail(NEB_ERR_INVALID,
                        "the vocabulary has %d pieces and the model %d: it is not the model's "
                        "(give --tokenizer FILE)",
                        intra_tokenizer_vocab(*t), (*m)->c.vocab);
    return NEB_OK;
}

static void print(const struct options *o, const char *language, size_t n,
                  const struct agent_probe_result *r) {
    if (o->json)
        printf("{\"kind\": \"language\", \"trained_on\": \"%s\", \"tested_on\": \"%s\", "
               "\"examples\": %zu, \"accuracy\": "
               "%.4f, \"balanced_accuracy\": "
               "%.4f, \"majority\": %.4f}\n",
               o->train, language, n, r->accuracy, r->balanced, r->majority);
    else
        printf("%s -> %-6s %6zu paragraphs  accuracy %.3f  balanced %.3f  (always the most "
               "frequent: %.3f)\n",
               o->train, language, n, r->accuracy, r->balanced, r->majority);
}

// The last line, for programs: the mean over the languages.
static void print_mean(const struct options *o, const struct agent_probe_result *r) {
    double accuracy = 0, balanced = 0;
    for (int i = 0; i < o->n_tests; i++) {
        accuracy += r[i].accuracy / o->n_tests;
        balanced += r[i].balanced / o->n_tests;
    }
    printf(
        "{\"kind\": \"summary\", \"task\": \"probe\", \"trained_on\": \"%s\", \"languages\": %d, "
        "\"accuracy\": %.4f, \"balanced_accuracy\": %.4f}\n",
        o->train, o->n_tests, accuracy, balanced);
}

static enum neb_status probe(const struct options *o) {
    struct agent_probe p = {.min_tokens = 24, .most_a_page = 6};
    struct intra_tokenizer *t = NULL;
    struct agent_probe_set train = {0}, tests[TESTS_MAX] = {{0}};
    struct agent_probe_result results[TESTS_MAX];
    char dir[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(load(o, &p.model, &t), out);
    NEB_TRY_GOTO(kern_cpu_create(o->threads, &p.K), out);
    p.tokenizer = t;
    p.max_tokens = p.model->c.max_seq < 128 ? p.model->c.max_seq : 128;
    p.min_tokens = p.min_tokens < p.max_tokens ? p.min_tokens : p.max_tokens;
    NEB_TRY_GOTO(neb_path(dir, sizeof dir, o->text, o->train), out);
    NEB_TRY_GOTO(agent_probe_read(&p, dir, 0, false, &train), out);
    for (int i = 0; i < o->n_tests; i++) {
        NEB_TRY_GOTO(neb_path(dir, sizeof dir, o->text, o->tests[i]), out);
        NEB_TRY_GOTO(agent_probe_read(&p, dir, 1, true, &tests[i]), out);
    }
    NEB_TRY_GOTO(agent_probe_fit(&p, &train, tests, o->n_tests, 1e-3, results), out);
    for (int i = 0; i < o->n_tests; i++)
        print(o, o->tests[i], tests[i].n, &results[i]);
    if (o->json)
        print_mean(o, results);
out:
    for (int i = 0; i < TESTS_MAX; i++)
        agent_probe_set_free(&tests[i]);
    agent_probe_set_free(&train);
    intra_tokenizer_close(&t);
    intra_model_destroy(&p.model);
    kern_destroy(&p.K);
    return st;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'a': o->task = arg; return 0;
    case 'x': o->text = arg; return 0;
    case 't': o->train = arg; return 0;
    case 'b':
        if (o->n_tests == TESTS_MAX)
            argp_error(state, "at most %d --test", TESTS_MAX);
        o->tests[o->n_tests++] = arg;
        return 0;
    case 'v': o->tokenizer = arg; return 0;
    case 'r': o->random = true; return 0;
    case 's': o->seed = agent_option_whole(state, key, arg, 0, UINT64_MAX); return 0;
    case 'j': o->json = true; return 0;
    case KEY_SEAL: o->seal_key = arg; return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->checkpoint = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->checkpoint || !o->text || !o->train || !o->n_tests)
            argp_error(
                state,
                "give a checkpoint, --text DIR, --train LANGUAGE and at least one --test LANGUAGE");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_eval_probe(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"task", 'a', "probe", 0, "this task", 0},
        {"text", 'x', "DIR", 0,
         "folder with a folder of pages NAME.SECTION.txt for each language "
         "(configs/corpus-manpages makes it)",
         0},
        {"train", 't', "LANGUAGE", 0, "language to train on: one half of its pages", 0},
        {"test", 'b', "LANGUAGE", 0,
         "language to test on: the other half of its pages; may be repeated", 0},
        {"tokenizer", 'v', "FILE", 0,
         "vocabulary, or a folder with one (default: that of the checkpoint)", 0},
        {"random", 'r', NULL, 0, "use the same model before training, for comparison", 0},
        {"seed", 's', "S", 0, "seed of --random", 0},
        {"seal-key", KEY_SEAL, "FILE", 0, "key of a sealed checkpoint", 0},
        {"json", 'j', NULL, 0, "one JSON object per line", 0},
        {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .args_doc = "CHECKPOINT",
        .doc = "Finds the manual section of a paragraph with a linear layer on the mean of a "
               "model's hidden states, trained on one language."};
    struct options o = {.seed = 1};
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    return agent_json_exit(o.json, agent_exit_of(probe(&o)));
}
