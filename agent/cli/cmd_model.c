// SPDX-License-Identifier: Apache-2.0
// nebula eval: what a checkpoint has learned.
#include "agent/base/log.h"
#include "agent/cli/place.h"
#include "agent/job/json.h"
#include "agent/job/model_init.h"
#include "agent/proc/seal.h"
#include "agent/show/corpus_note.h"
#include "agent/train/translate.h"
#include "intra/data/data.h"
#include "intra/train/decode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVAL_SEQ_MAX = 4096 };

struct options {
    struct agent_options common; // its argument: the checkpoint
    struct agent_place place;
    const char *corpus, *ids, *task, *out;
    int beam, windows, seq_len;
    bool merge, logits;
};

static enum neb_status load_model(const struct options *o, const struct neb_vault *vault,
                                  struct intra_model **m) {
    char file[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    NEB_TRY(agent_checkpoint_file(vault, o->common.args[0], file, sizeof file));
    NEB_TRY(intra_ckpt_open_in(vault, file, true, &c));
    enum neb_status st = intra_model_load(c, m);
    intra_ckpt_close(&c);
    return st;
}

// The logits of a masked language model are useful for comparisons; a discriminator has none.
static enum neb_status fits(const struct options *o, const struct intra_model *m) {
    if (intra_model_continues(m) || (o->logits && m->c.head == INTRA_HEAD_LM))
        return NEB_OK;
    return neb_fail(NEB_ERR_UNSUPPORTED,
                    "%s is the %s of mode rtd, which predicts no next token (nebula eval --task "
                    "probe measures its hidden states)",
                    o->common.args[0], m->c.head == INTRA_HEAD_LM ? "generator" : "discriminator");
}

static enum neb_status load(const struct options *o, struct kern **K, struct intra_model **m) {
    struct sec_vault *vault = NULL;
    neb_log_set_level(NEB_LOG_ERROR);
    NEB_TRY(agent_seal_option(o->common.seal_key, &vault));
    enum neb_status st = load_model(o, sec_vault_of(vault), m);
    sec_vault_destroy(&vault);
    NEB_TRY(st);
    NEB_TRY(fits(o, *m));
    NEB_TRY(kern_cpu_create(0, K));
    if (o->merge)
        intra_lora_merge(*K, *m);
    return NEB_OK;
}

static enum neb_status eval_source(const struct options *o, struct intra_device *passes,
                                   const struct intra_corpus *c, int32_t T, int32_t source,
                                   double *mean, int64_t *count) {
    int32_t x[EVAL_SEQ_MAX], y[EVAL_SEQ_MAX];
    uint64_t have = intra_corpus_windows(c, source, INTRA_VALID, T);
    uint64_t n = o->windows && (uint64_t)o->windows < have ? (uint64_t)o->windows : have;
    double sum = 0, loss;
    int64_t k;
    *count = 0;
    for (uint64_t i = 0; i < n; i++) {
        intra_corpus_window(c, source, INTRA_VALID, T, i * have / n, x, y);
        NEB_TRY(intra_device_pass(passes,
                                  &(struct intra_batch){.tokens = x, .targets = y, .B = 1, .T = T},
                                  0, &loss, &k));
        sum += loss;
        *count += k;
    }
    *mean = *count ? sum / (double)*count : 0;
    return isfinite(*mean) ? NEB_OK
                           : neb_fail(NEB_ERR_STATE,
                                      "%s: the loss on %s is not a finite number: the model has "
                                      "diverged; take an older checkpoint",
                                      o->common.args[0], intra_corpus_source_name(c, source));
}

static void print_loss(bool json, const char *kind, const char *source, double loss) {
    double perplexity = exp(loss); // may be infinite for a very bad model
    if (!json) {
        printf("%-12s loss %.4f nats per token, perplexity %.2f\n", source, loss, perplexity);
        return;
    }
    json_t *line = json_pack("{s:s,s:s,s:o,s:o}", "kind", kind, "source", source, "loss",
                             agent_json_number(loss), "perplexity", agent_json_number(perplexity));
    agent_json_print(line, 0);
    json_decref(line);
}

static enum neb_status eval(const struct options *o) {
    struct kern *K = NULL;
    struct intra_model *m = NULL;
    struct intra_device *passes = NULL;
    struct intra_corpus *c = NULL;
    enum neb_status st = NEB_OK;
    double sum = 0;
    int counted = 0;
    NEB_TRY_GOTO(load(o, &K, &m), out);
    NEB_TRY_GOTO(intra_corpus_open(o->corpus, false, &c), out);
    if (intra_corpus_vocab(c) > m->c.vocab) {
        st = neb_fail(NEB_ERR_INVALID,
                      "the corpus has %d pieces and the model %d: it is not the model's vocabulary",
                      intra_corpus_vocab(c), m->c.vocab);
        goto out;
    }
    if (o->seq_len > m->c.max_seq || o->seq_len > EVAL_SEQ_MAX) {
        st = neb_fail(NEB_ERR_INVALID, "--seq-len %d: the model takes at most %d tokens, eval %d",
                      o->seq_len, m->c.max_seq, EVAL_SEQ_MAX);
        goto out;
    }
    int32_t T = o->seq_len ? o->seq_len : m->c.max_seq < EVAL_SEQ_MAX ? m->c.max_seq : EVAL_SEQ_MAX;
    NEB_TRY_GOTO(intra_device_on_host(K, m, 1, T, false, false, &passes), out);
    for (int32_t i = 0; i < intra_corpus_sources(c); i++) {
        double mean;
        int64_t count;
        NEB_TRY_GOTO(eval_source(o, passes, c, T, i, &mean, &count), out);
        if (!count)
            continue;
        print_loss(o->common.json, "source", intra_corpus_source_name(c, i), mean);
        sum += mean;
        counted++;
    }
    if (!counted)
        st = neb_fail(NEB_ERR_INVALID, "%s has no held-out windows of %d tokens", o->corpus, T);
    else
        print_loss(o->common.json, "summary", "mean", sum / counted);
out:
    intra_device_destroy(&passes);
    intra_corpus_close(&c);
    intra_model_destroy(&m);
    kern_destroy(&K);
    return st;
}

// Prints a line of V numbers per position, for comparisons with other implementations.
static enum neb_status print_logits(const struct options *o) {
    struct kern *K = NULL;
    struct intra_model *m = NULL;
    struct intra_device *passes = NULL;
    int32_t *ids = NULL;
    float *logits = NULL;
    size_t n;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(load(o, &K, &m), out);
    NEB_TRY_GOTO(agent_ids_parse(o->ids, m->c.vocab, &ids, &n), out);
    if (n > (size_t)m->c.max_seq) {
        st = neb_fail(NEB_ERR_INVALID, "--ids: %zu tokens, the model takes at most %d", n,
                      m->c.max_seq);
        goto out;
    }
    NEB_TRY_GOTO(intra_device_on_host(K, m, 1, (int)n, false, false, &passes), out);
    if (!(logits = malloc(sizeof *logits * (size_t)m->c.vocab))) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory for %d logits", m->c.vocab);
        goto out;
    }
    NEB_TRY_GOTO(intra_device_pass(passes,
                                   &(struct intra_batch){.tokens = ids, .B = 1, .T = (int)n}, 0,
                                   NULL, NULL),
                 out);
    for (size_t t = 0; t < n; t++) {
        intra_device_logits(passes, (int)t, 1, logits);
        for (int32_t v = 0; v < m->c.vocab; v++)
            printf("%s%.9g", v ? " " : "", (double)logits[v]);
        putchar('\n');
    }
out:
    free(logits);
    free(ids);
    intra_device_destroy(&passes);
    intra_model_destroy(&m);
    kern_destroy(&K);
    return st;
}

static enum neb_status translate(const struct options *o) {
    struct agent_placed place = {0};
    struct agent_eval_translate t = {.model = &place.o,
                                     .seq_len = o->seq_len,
                                     .corpus = o->corpus,
                                     .out = o->out,
                                     .beam = o->beam,
                                     .windows = o->windows,
                                     .json = o->common.json};
    neb_log_set_level(NEB_LOG_ERROR);
    enum neb_status st = agent_place_take(&o->common, &o->place, o->merge, &place);
    if (st == NEB_OK)
        st = agent_eval_translate(&t);
    sec_vault_destroy(&place.vault);
    return st;
}

// ---- eval ---------------------------------------------------------------------------------------

static const char *check_eval(const void *options) {
    const struct options *o = options;
    return o->logits && !o->ids ? "--logits needs --ids IDS"
           : o->task && (strcmp(o->task, "translate") || o->logits)
               ? "--task: expected translate or probe"
           : !o->task && (o->beam != 1 || o->out || agent_place_given(&o->place))
               ? "--beam, --out, --device, --precision, --dp, --pp and --tp need --task translate"
               : NULL;
}

static int run_eval(void *options) {
    struct options *o = options;
    const char *checkpoint = o->common.args[0];
    char corpus[NEB_PATH_MAX];
    if (!o->logits && !o->corpus) {
        if (!neb_fs_exists(checkpoint)) // not a wrong command line, as with --corpus
            return agent_json_exit(
                o->common.json,
                agent_exit_of(neb_fail(NEB_ERR_NOT_FOUND, "there is no %s", checkpoint)));
        if (agent_corpus_note_read(checkpoint, corpus, sizeof corpus) != NEB_OK)
            return agent_json_exit(o->common.json, AGENT_EXIT_USAGE);
        o->corpus = corpus;
    }
    enum neb_status st = o->task ? agent_place_ranks(&o->place) : NEB_OK;
    if (st == NEB_OK)
        st = o->task ? translate(o) : o->logits ? print_logits(o) : eval(o);
    return agent_json_exit(o->common.json, agent_exit_of(st));
}

static const struct agent_option eval_table[] = {
    OPT_TEXT("corpus", 'c', "DIR",
             "corpus whose held-out text is scored (default: that of the checkpoint's run)",
             AT(corpus)),
    OPT_INT("windows", 'w', "N", "windows per source (default: all)", AT(windows), 0, INT32_MAX),
    OPT_INT("seq-len", 'T', "N",
            "tokens per window (default: the model's longest, at most 4096); with --task "
            "translate: of a source and its translation (default 1024)",
            AT(seq_len), 1, EVAL_SEQ_MAX),
    OPT_TEXT("task", 'a', "TASK",
             "a task instead of the loss. translate: translates the test pairs of the corpus and "
             "prints chrF. probe: a linear probe on hidden states, with its own options (nebula "
             "eval --task=probe --help)",
             AT(task)),
    OPT_INT("beam", 'b', "N", "translate: width of the beam (default 1: greedy)", AT(beam), 1,
            INTRA_BEAM_MAX),
    OPT_TEXT("out", 'o', "DIR",
             "translate: folder for hypotheses.txt, references.txt and sources.txt", AT(out)),
    AGENT_PLACE_OPTIONS,
    OPT_FLAG("logits", 'l', "print only the logits of --ids, one line per position", AT(logits)),
    OPT_CHECKED("ids", 'i', "IDS", "token ids, for example \"1 2 3\"", AT(ids), agent_ids_are,
                "a list of token ids with blanks between them"),
    OPT_FLAG("merge-lora", 'm', "merge adapters first", AT(merge)),
    OPT_SEAL_KEY("key of a sealed checkpoint"),
    OPT_JSON("one JSON object per line"),
    OPT_END};

const struct agent_command cmd_eval = {
    .name = "eval",
    .summary = "score a checkpoint: held-out loss, or a task",
    .options = eval_table,
    .arguments = "CHECKPOINT",
    .doc = "Prints the held-out loss of a checkpoint for each source, or its result in a task "
           "(--task).",
    .least = 1,
    .missing = "give a checkpoint",
    .check = check_eval,
    .size = sizeof(struct options),
    .preset = &(const struct options){.beam = 1, .place = AGENT_PLACE_HERE},
    .run = run_eval};
