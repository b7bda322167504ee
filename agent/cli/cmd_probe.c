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

enum { TESTS_MAX = 8 };

struct options {
    struct agent_options common; // its argument: the checkpoint
    const char *tokenizer, *text, *train, *task;
    struct agent_list tests;
    uint64_t seed;
    bool random;
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
    char file[NEB_PATH_MAX], folder[NEB_PATH_MAX], tokenizer[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    neb_log_set_level(NEB_LOG_ERROR);
    struct sec_vault *vault = NULL;
    NEB_TRY(agent_seal_option(o->common.seal_key, &vault));
    enum neb_status st =
        agent_checkpoint_file(sec_vault_of(vault), o->common.args[0], file, sizeof file);
    if (st == NEB_OK)
        st = intra_ckpt_open_in(sec_vault_of(vault), file, true, &c);
    if (st == NEB_OK)
        st = intra_model_load(c, m);
    intra_ckpt_close(&c);
    sec_vault_destroy(&vault);
    NEB_TRY(st);
    if (o->random)
        NEB_TRY(forget_everything(m, o->seed));
    neb_path_folder(folder, sizeof folder, file);
    NEB_TRY(
        intra_tokenizer_resolve(o->tokenizer ? o->tokenizer : folder, tokenizer, sizeof tokenizer));
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
    if (o->common.json)
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
    for (int i = 0; i < o->tests.n; i++) {
        accuracy += r[i].accuracy / o->tests.n;
        balanced += r[i].balanced / o->tests.n;
    }
    printf(
        "{\"kind\": \"summary\", \"task\": \"probe\", \"trained_on\": \"%s\", \"languages\": %d, "
        "\"accuracy\": %.4f, \"balanced_accuracy\": %.4f}\n",
        o->train, o->tests.n, accuracy, balanced);
}

static enum neb_status probe(const struct options *o) {
    struct agent_probe p = {.min_tokens = 24, .most_a_page = 6};
    struct intra_tokenizer *t = NULL;
    struct agent_probe_set train = {0}, tests[TESTS_MAX] = {{0}};
    struct agent_probe_result results[TESTS_MAX];
    char dir[NEB_PATH_MAX];
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(load(o, &p.model, &t), out);
    NEB_TRY_GOTO(kern_cpu_create(0, &p.K), out);
    p.tokenizer = t;
    p.max_tokens = p.model->c.max_seq < 128 ? p.model->c.max_seq : 128;
    p.min_tokens = p.min_tokens < p.max_tokens ? p.min_tokens : p.max_tokens;
    NEB_TRY_GOTO(neb_path(dir, sizeof dir, o->text, o->train), out);
    NEB_TRY_GOTO(agent_probe_read(&p, dir, 0, false, &train), out);
    for (int i = 0; i < o->tests.n; i++) {
        NEB_TRY_GOTO(neb_path(dir, sizeof dir, o->text, o->tests.text[i]), out);
        NEB_TRY_GOTO(agent_probe_read(&p, dir, 1, true, &tests[i]), out);
    }
    NEB_TRY_GOTO(agent_probe_fit(&p, &train, tests, o->tests.n, 1e-3, results), out);
    for (int i = 0; i < o->tests.n; i++)
        print(o, o->tests.text[i], tests[i].n, &results[i]);
    if (o->common.json)
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

// nebula eval has other options for this task.
static bool is_probe(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool apart = !strcmp(argv[i], "--task") || !strcmp(argv[i], "-a");
        if (!strcmp(argv[i], "--task=probe") || !strcmp(argv[i], "-aprobe") ||
            (apart && i + 1 < argc && !strcmp(argv[i + 1], "probe")))
            return true;
    }
    return false;
}

static const char *check(const void *options) {
    const struct options *o = options;
    return o->tests.n > TESTS_MAX ? "--test is given more than 8 times"
           : !o->common.n || !o->text || !o->train || !o->tests.n
               ? "give a checkpoint, --text DIR, --train LANGUAGE and at least one --test LANGUAGE"
               : NULL;
}

static int run(void *options) {
    const struct options *o = options;
    return agent_json_exit(o->common.json, agent_exit_of(probe(o)));
}

static const struct agent_option table[] = {
    OPT_TEXT("task", 'a', "probe", "this task", AT(task)),
    OPT_TEXT("text", 'x', "DIR",
             "folder with a folder of pages NAME.SECTION.txt for each language "
             "(configs/corpus-manpages makes it)",
             AT(text)),
    OPT_TEXT("train", 't', "LANGUAGE", "language to train on: one half of its pages", AT(train)),
    OPT_LIST("test", 'b', "LANGUAGE",
             "language to test on: the other half of its pages; may be repeated", AT(tests), NULL,
             NULL),
    OPT_TEXT("tokenizer", 'v', "FILE",
             "vocabulary, or a folder with one (default: that of the checkpoint)", AT(tokenizer)),
    OPT_FLAG("random", 'r', "use the same model before training, for comparison", AT(random)),
    OPT_WHOLE("seed", 's', "S", "seed of --random", AT(seed), 0, UINT64_MAX),
    OPT_SEAL_KEY("key of a sealed checkpoint"),
    OPT_JSON("one JSON object per line"),
    OPT_END};

const struct agent_command cmd_eval_probe = {
    .name = "eval",
    .options = table,
    .arguments = "CHECKPOINT",
    .doc = "Finds the manual section of a paragraph with a linear layer on the mean of a model's "
           "hidden states, trained on one language.",
    .most = 1,
    .check = check,
    .size = sizeof(struct options),
    .preset = &(const struct options){.seed = 1},
    .run = run,
    .meant = is_probe};
