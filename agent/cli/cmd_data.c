// SPDX-License-Identifier: Apache-2.0
// nebula data build SPEC.yaml: makes a corpus from text.
#include "agent/cli/cmd_data.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/nearest.h"
#include "agent/base/number.h"
#include "agent/base/plain.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/show/progress.h"
#include "intra/read/charset.h"
#include "kernels/pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

static const char spec_help[] =
    "keys: name, seed, threads, tokenizer (a tokenizer.model or tokenizer.json to use), "
    "vocabulary: {size, type: unigram|bpe, character_coverage, byte_fallback, train_lines}, "
    "holdout: {per_mille, test_per_mille}, stream: {shuffle, shard_tokens}, sources: [{name, "
    "format: text|jsonl|tsv|po|"
    "tar|parquet|arrow|nanogpt|megatron, path, field, member, column, target_column, reverse, tag, "
    "encoding, max_bad_share}]";

struct reader {
    yaml_document_t doc;
    const char *file;
    char base[NEB_PATH_MAX]; // folder of the spec: relative paths start there
};

static const char *text_of(yaml_node_t *n) {
    return n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static enum neb_status bad(const struct reader *r, const yaml_node_t *n, const char *key,
                           const char *what) {
    return neb_fail(NEB_ERR_INVALID, "%s:%zu: %s: %s; %s", r->file, n->start_mark.line + 1, key,
                    what, spec_help);
}

// allowed: "name, seed"
static enum neb_status unknown(const struct reader *r, const yaml_node_t *n, const char *key,
                               const char *of, const char *allowed) {
    char near[NEB_EDITS_MAX], what[128];
    neb_nearest_of(key, allowed, near, sizeof near);
    snprintf(what, sizeof what, "unknown key%s%s%s%s", of, *near ? " (did you mean '" : "", near,
             *near ? "'?)" : "");
    return bad(r, n, key, what);
}

static enum neb_status take_number(const struct reader *r, yaml_node_t *n, const char *key,
                                   double min, double max, double *out) {
    const char *t = text_of(n);
    *out = 0;
    if (!t || !neb_number_real(t, min, max, out)) {
        char why[64];
        snprintf(why, sizeof why, "not a number from %.10g to %.10g", min, max);
        return bad(r, n, key, why);
    }
    return NEB_OK;
}

static enum neb_status take_int(const struct reader *r, yaml_node_t *n, const char *key,
                                int32_t min, int32_t max, int32_t *out) {
    double v;
    NEB_TRY(take_number(r, n, key, min, max, &v));
    *out = (int32_t)v;
    return *out == v ? NEB_OK : bad(r, n, key, "is not an integer");
}

static enum neb_status take_text(const struct reader *r, yaml_node_t *n, const char *key, char *out,
                                 size_t cap) {
    const char *t = text_of(n);
    if (!t || !*t || strlen(t) >= cap)
        return bad(r, n, key, "must be text");
    memcpy(out, t, strlen(t) + 1);
    return NEB_OK;
}

static enum neb_status take_name(const struct reader *r, yaml_node_t *n, const char *key, char *out,
                                 size_t cap) {
    NEB_TRY(take_text(r, n, key, out, cap));
    if (strspn(out, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") !=
        strlen(out))
        return bad(r, n, key, "a name may have only letters, digits, '-' and '_'");
    return NEB_OK;
}

static enum neb_status take_path(const struct reader *r, yaml_node_t *n, const char *key, char *out,
                                 size_t cap) {
    char text[NEB_PATH_MAX], path[NEB_PATH_MAX];
    NEB_TRY(take_text(r, n, key, text, sizeof text));
    if (!strcmp(text, "-")) // the standard input
        snprintf(text, sizeof text, "/dev/stdin");
    if (neb_path_home(path, sizeof path, text, key) != NEB_OK) // the reason is logged
        return bad(r, n, key, "no such path");
    int len = path[0] == '/' ? snprintf(out, cap, "%s", path)
                             : snprintf(out, cap, "%s/%s", r->base, path);
    return len > 0 && (size_t)len < cap ? NEB_OK : bad(r, n, key, "path too long");
}

typedef enum neb_status take_pair(struct reader *r, const char *key, yaml_node_t *k, yaml_node_t *v,
                                  void *into);

static enum neb_status each_pair(struct reader *r, yaml_node_t *map, const char *what,
                                 take_pair *take, void *into) {
    if (!map || map->type != YAML_MAPPING_NODE)
        return map ? bad(r, map, what, "must be a mapping")
                   : neb_fail(NEB_ERR_INVALID, "%s: is empty; %s", r->file, spec_help);
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        yaml_node_t *k = yaml_document_get_node(&r->doc, p->key),
                    *v = yaml_document_get_node(&r->doc, p->value);
        const char *key = text_of(k);
        if (!key)
            return bad(r, k, what, "a key must be a word");
        for (yaml_node_pair_t *q = map->data.mapping.pairs.start; q < p; q++)
            if (!strcmp(text_of(yaml_document_get_node(&r->doc, q->key)), key))
                return bad(r, k, key, "given twice");
        NEB_TRY(take(r, key, k, v, into));
    }
    return NEB_OK;
}

static enum neb_status take_flag(struct reader *r, yaml_node_t *v, const char *key, bool *out) {
    const char *t = text_of(v);
    if (!t || (strcmp(t, "true") && strcmp(t, "false")))
        return bad(r, v, key, "must be true or false");
    *out = t[0] == 't';
    return NEB_OK;
}

static enum neb_status vocabulary_pair(struct reader *r, const char *key, yaml_node_t *k,
                                       yaml_node_t *v, void *into) {
    struct intra_build_spec *s = into;
    if (!strcmp(key, "size"))
        return take_int(r, v, key, 300, 1 << 20, &s->vocab);
    if (!strcmp(key, "type")) {
        NEB_TRY(take_text(r, v, key, s->type, sizeof s->type));
        return !strcmp(s->type, "unigram") || !strcmp(s->type, "bpe")
                   ? NEB_OK
                   : bad(r, v, key, "must be unigram or bpe");
    }
    if (!strcmp(key, "character_coverage"))
        return take_number(r, v, key, 0.9, 1, &s->character_coverage);
    if (!strcmp(key, "train_lines"))
        return take_int(r, v, key, 100, 1 << 30, &s->train_lines);
    if (!strcmp(key, "byte_fallback"))
        return take_flag(r, v, key, &s->byte_fallback);
    return unknown(r, k, key, " of vocabulary",
                   "size, type, character_coverage, byte_fallback, train_lines");
}

static enum neb_status holdout_pair(struct reader *r, const char *key, yaml_node_t *k,
                                    yaml_node_t *v, void *into) {
    struct intra_build_spec *s = into;
    if (!strcmp(key, "test_per_mille"))
        return take_int(r, v, key, 0, 90, &s->test_per_mille);
    return !strcmp(key, "per_mille")
               ? take_int(r, v, key, 0, 900, &s->holdout_per_mille)
               : unknown(r, k, key, " of holdout", "per_mille, test_per_mille");
}

static enum neb_status stream_pair(struct reader *r, const char *key, yaml_node_t *k,
                                   yaml_node_t *v, void *into) {
    struct intra_build_spec *s = into;
    if (!strcmp(key, "shuffle"))
        return take_int(r, v, key, 1, 4096, &s->shuffle);
    return !strcmp(key, "shard_tokens") ? take_int(r, v, key, 65536, 64 << 20, &s->shard_tokens)
                                        : unknown(r, k, key, " of stream", "shuffle, shard_tokens");
}

static enum neb_status source_pair(struct reader *r, const char *key, yaml_node_t *k,
                                   yaml_node_t *v, void *into) {
    struct intra_source_spec *s = into;
    if (!strcmp(key, "name"))
        return take_name(r, v, key, s->name, sizeof s->name);
    if (!strcmp(key, "path"))
        return take_path(r, v, key, s->path, sizeof s->path);
    if (!strcmp(key, "field"))
        return take_text(r, v, key, s->field, sizeof s->field);
    if (!strcmp(key, "member"))
        return take_name(r, v, key, s->member, sizeof s->member);
    if (!strcmp(key, "column"))
        return take_int(r, v, key, 0, 1000, &s->column);
    if (!strcmp(key, "target_column")) {
        s->parallel = true;
        return take_int(r, v, key, 0, 1000, &s->target_column);
    }
    if (!strcmp(key, "tag")) {
        NEB_TRY(take_text(r, v, key, s->tag, sizeof s->tag));
        return strpbrk(s->tag, ", \t\n") ? bad(r, v, key, "must be a word without commas") : NEB_OK;
    }
    if (!strcmp(key, "encoding")) {
        NEB_TRY(take_text(r, v, key, s->encoding, sizeof s->encoding));
        return intra_charset_is_known(s->encoding)
                   ? NEB_OK
                   : bad(r, v, key, "is not known (iconv --list shows the known ones)");
    }
    if (!strcmp(key, "max_bad_share"))
        return take_number(r, v, key, 0, 1, &s->max_bad_share);
    if (!strcmp(key, "reverse"))
        return take_flag(r, v, key, &s->reverse);
    if (!strcmp(key, "format")) {
        static const char *const names[] = {"text",    "jsonl", "tsv",     "po",      "tar",
                                            "parquet", "arrow", "nanogpt", "megatron"};
        const char *t = text_of(v);
        for (size_t i = 0; t && i < sizeof names / sizeof *names; i++)
            if (!strcmp(t, names[i])) {
                s->format = (enum intra_format)i;
                return NEB_OK;
            }
        return bad(r, v, key,
                   "must be text, jsonl, tsv, po, tar, parquet, arrow, nanogpt or megatron");
    }
    return unknown(
        r, k, key, " of a source",
        "name, format, path, field, member, column, target_column, reverse, tag, encoding, "
        "max_bad_share");
}

static enum neb_status check_source(const struct reader *r, const yaml_node_t *item,
                                    struct intra_source_spec *s) {
    enum intra_format f = s->format;
    bool rows = f == INTRA_PARQUET || f == INTRA_ARROW,
         ids = f == INTRA_NANOGPT || f == INTRA_MEGATRON;
    if (!s->name[0] || !s->path[0] || ((rows || f == INTRA_JSONL) && !s->field[0]))
        return bad(r, item, "sources",
                   "a source needs a name and a path, and for jsonl, parquet and arrow a field");
    if (s->member[0] && f != INTRA_TAR)
        return bad(r, item, "member", "is a key of format tar");
    if (s->encoding[0] && (rows || ids))
        return bad(r, item, "encoding", "this format has none");
    if (f == INTRA_TAR && !s->member[0])
        snprintf(s->member, sizeof s->member, "%s", s->field[0] ? "json" : "txt");
    return NEB_OK;
}

// Ids mean nothing without their vocabulary.
static enum neb_status check_ids(const char *path, const struct intra_build_spec *s) {
    for (int32_t i = 0; i < s->n_sources; i++)
        if (!s->tokenizer[0] && s->sources[i].format >= INTRA_NANOGPT)
            return neb_fail(NEB_ERR_INVALID,
                            "%s: tokenizer: source %s holds token ids, so name the vocabulary that "
                            "they are of",
                            path, s->sources[i].name);
    return NEB_OK;
}

static enum neb_status top_pair(struct reader *r, const char *key, yaml_node_t *k, yaml_node_t *v,
                                void *into) {
    struct intra_build_spec *s = into;
    int32_t n;
    if (!strcmp(key, "name"))
        return take_name(r, v, key, s->name, sizeof s->name);
    if (!strcmp(key, "seed")) {
        NEB_TRY(take_int(r, v, key, 0, INT32_MAX, &n));
        s->seed = (uint64_t)n;
        return NEB_OK;
    }
    if (!strcmp(key, "threads"))
        return take_int(r, v, key, 0, KERN_POOL_THREADS_MAX, &s->threads);
    if (!strcmp(key, "tokenizer"))
        return take_path(r, v, key, s->tokenizer, sizeof s->tokenizer);
    if (!strcmp(key, "vocabulary"))
        return each_pair(r, v, key, vocabulary_pair, s);
    if (!strcmp(key, "stream")) {
        s->shuffle = 16;
        return each_pair(r, v, key, stream_pair, s);
    }
    if (!strcmp(key, "holdout"))
        return each_pair(r, v, key, holdout_pair, s);
    if (strcmp(key, "sources"))
        return unknown(r, k, key, "",
                       "name, seed, threads, tokenizer, vocabulary, holdout, stream, sources");
    if (v->type != YAML_SEQUENCE_NODE)
        return bad(r, v, key, "must be a list");
    for (yaml_node_item_t *i = v->data.sequence.items.start; i < v->data.sequence.items.top; i++) {
        yaml_node_t *item = yaml_document_get_node(&r->doc, *i);
        struct intra_source_spec *src = &s->sources[s->n_sources];
        if (s->n_sources == INTRA_SOURCES_MAX)
            return bad(r, v, key, "too many sources");
        NEB_TRY(each_pair(r, item, key, source_pair, src));
        NEB_TRY(check_source(r, item, src));
        for (int32_t j = 0; j < s->n_sources; j++)
            if (!strcmp(s->sources[j].name, src->name))
                return bad(r, item, key, "two sources have the same name");
        s->n_sources++;
    }
    return NEB_OK;
}

enum neb_status agent_recipe_load(const char *path, struct intra_build_spec *s) {
    struct neb_buf b = {0};
    yaml_parser_t parser;
    struct reader r = {.file = path};
    enum neb_status st;
    *s = (struct intra_build_spec){.name = "corpus",
                                   .seed = 1,
                                   .vocab = 4096,
                                   .type = "unigram",
                                   .character_coverage = 0.9995,
                                   .byte_fallback = true,
                                   .train_lines = 100000,
                                   .holdout_per_mille = 20};
    neb_path_folder(r.base, sizeof r.base, path);
    NEB_TRY(neb_fs_read(path, 1 << 20, &b));
    if (!yaml_parser_initialize(&parser)) {
        neb_buf_free(&b);
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
    }
    yaml_parser_set_input_string(&parser, b.p, b.len);
    if (!yaml_parser_load(&parser, &r.doc)) {
        st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: not valid YAML: %s", path,
                      parser.problem_mark.line + 1, parser.problem);
    } else {
        st = each_pair(&r, yaml_document_get_root_node(&r.doc), "spec", top_pair, s);
        if (st == NEB_OK && !s->n_sources)
            st = neb_fail(NEB_ERR_INVALID, "%s: sources: is missing; %s", path, spec_help);
        if (st == NEB_OK)
            st = check_ids(path, s);
        yaml_document_delete(&r.doc);
        if (st == NEB_OK && yaml_parser_load(&parser, &r.doc)) {
            const yaml_node_t *root = yaml_document_get_root_node(&r.doc);
            if (root)
                st =
                    bad(&r, root, "spec", "a second document begins here, but a file has only one");
            yaml_document_delete(&r.doc);
        }
    }
    yaml_parser_delete(&parser);
    neb_buf_free(&b);
    return st;
}

struct show {
    bool json, terminal;
    char stage[32];
    neb_ns start, last;
};

static void show_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    struct show *s = user;
    neb_ns now = neb_now();
    bool fresh = strcmp(stage, s->stage) != 0;
    if (fresh) {
        snprintf(s->stage, sizeof s->stage, "%s", stage);
        s->start = now;
    } else if (now - s->last < (s->terminal ? NEB_S / 5 : 5 * NEB_S)) {
        return;
    }
    s->last = now;
    if (s->json) {
        printf("{\"kind\": \"stage\", \"stage\": \"%s\", \"done\": %llu, \"total\": %llu}\n", stage,
               (unsigned long long)done, (unsigned long long)total);
    } else {
        char left[32] = "--:--";
        if (done && !fresh)
            agent_human_time(neb_seconds(now - s->start) * (double)(total - done) / (double)done,
                             left, sizeof left);
        printf("%s%-24s %3.0f%%  %s left%s",
               s->terminal && !fresh ? "\r"
               : s->terminal         ? "\n"
                                     : "",
               stage, total ? 100.0 * (double)done / (double)total : 0, left,
               s->terminal ? "" : "\n");
    }
    fflush(stdout);
}

static void print_json(const struct intra_corpus *c, bool skipped, const char *digest) {
    json_t *sources = json_array();
    char dir[NEB_PATH_MAX];
    snprintf(dir, sizeof dir, "%s", intra_corpus_dir(c));
    neb_plain(dir, false); // the path may not be UTF-8, which JSON needs
    for (int32_t i = 0; i < intra_corpus_sources(c); i++)
        json_array_append_new(
            sources, json_pack("{s:s, s:I, s:I}", "name", intra_corpus_source_name(c, i),
                               "train_tokens", (json_int_t)intra_corpus_tokens(c, i, INTRA_TRAIN),
                               "valid_tokens", (json_int_t)intra_corpus_tokens(c, i, INTRA_VALID)));
    json_t *o = json_pack("{s:s, s:s, s:i, s:b, s:s, s:o}", "kind", "summary", "corpus", dir,
                          "vocab", intra_corpus_vocab(c), "unchanged", skipped, "digest", digest,
                          "sources", sources);
    agent_json_print(o, JSON_COMPACT);
    json_decref(o);
}

static void print_summary(const struct intra_corpus *c, bool json, bool skipped) {
    char hex[65];
    uint8_t sha[INTRA_SHA_BYTES];
    intra_corpus_digest(c, sha);
    neb_hex(sha, sizeof sha, hex);
    if (json) {
        print_json(c, skipped, hex);
        return;
    }
    printf("%s%s: vocabulary %d, digest %.16s\n", intra_corpus_dir(c),
           skipped ? " (unchanged)" : "", intra_corpus_vocab(c), hex);
    for (int32_t i = 0; i < intra_corpus_sources(c); i++)
        printf("  %-12s %12llu tokens to train, %10llu held out\n", intra_corpus_source_name(c, i),
               (unsigned long long)intra_corpus_tokens(c, i, INTRA_TRAIN),
               (unsigned long long)intra_corpus_tokens(c, i, INTRA_VALID));
}

// Scripts in configs/ fetch the text of the specs there. If that text is missing, names the script.
static void say_recipe(const struct intra_build_spec *s) {
    static const char *const made[][2] = {
        {"/nebula/manpages/text-small/", "configs/corpus-manpages --small"},
        {"/nebula/manpages/text/", "configs/corpus-manpages"},
        {"/nebula/parallel/po/", "configs/corpus-parallel"}};
    for (int32_t i = 0; i < s->n_sources; i++)
        for (size_t k = 0; k < sizeof made / sizeof *made; k++)
            if (strstr(s->sources[i].path, made[k][0]) && !neb_fs_exists(s->sources[i].path)) {
                neb_log(NEB_LOG_ERROR, "source %s: run %s to get its text", s->sources[i].name,
                        made[k][1]);
                return;
            }
}

struct options {
    struct agent_options common; // its arguments: build, the recipe
    const char *out;
};

static const char *check(const void *options) {
    const struct options *o = options;
    return !o->out ? "give a spec and --out DIR" : NULL;
}

static int run(void *options) {
    const struct options *o = options;
    bool json = o->common.json;
    static struct intra_build_spec spec; // large
    struct intra_corpus *c = NULL;
    bool skipped = false;
    if (agent_recipe_load(o->common.args[1], &spec) != NEB_OK)
        return agent_json_exit(json, AGENT_EXIT_USAGE);
    struct show show = {.json = json, .terminal = isatty(STDOUT_FILENO)};
    if (intra_corpus_build(&spec, o->out, show_progress, &show, &skipped) != NEB_OK) {
        if (json)
            agent_json_print_error();
        say_recipe(&spec);
        return AGENT_EXIT_FAILED;
    }
    if (intra_corpus_open(o->out, false, &c) != NEB_OK)
        return agent_json_exit(json, AGENT_EXIT_FAILED);
    if (show.terminal && !json)
        putchar('\n');
    print_summary(c, json, skipped);
    intra_corpus_close(&c);
    return AGENT_EXIT_OK;
}

static const struct agent_option table[] = {
    OPT_TEXT("out", 'o', "DIR", "folder of the corpus", AT(out)),
    OPT_JSON("machine-readable output"), OPT_END};

const struct agent_command cmd_data = {
    .name = "data",
    .summary = "make a corpus from text",
    .options = table,
    .arguments = "build SPEC.yaml",
    .doc = "Makes a corpus from text: trains a SentencePiece vocabulary, tokenizes, and holds out "
           "documents for evaluation.\vAn unchanged corpus stays; a damaged one is made again. For "
           "the keys of a spec: nebula help corpus.",
    .least = 2,
    .missing = "give a spec and --out DIR",
    .actions = (const struct agent_action[]){{"build", 2}, {0}},
    .check = check,
    .size = sizeof(struct options),
    .run = run};
