// SPDX-License-Identifier: Apache-2.0
// Builds a corpus. Sources are read twice, because the text may be larger than the memory:
//
//     sources -> digest, duplicates, splits, a sample of lines     build_notes.c, build_sample.c
//                sample -> vocabulary
//     sources -> tokens -> shards                                  build_shards.c
//
// Everything is written into DIR.nebula-building, which replaces DIR at the end.
#include "agent/base/log.h"
#include "intra/data/build_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCABULARY_MAX = 64 << 20 }; // bytes of a file

// Writes the given vocabulary into the corpus, with the bytes that were hashed.
static enum neb_status take_tokenizer(struct build *b) {
    bool json = intra_tokenizer_is_json(b->vocabulary_file);
    char file[NEB_PATH_MAX], config[NEB_PATH_MAX];
    NEB_TRY(
        neb_path(file, sizeof file, b->dir, json ? INTRA_TOKENIZER_JSON : INTRA_TOKENIZER_MODEL));
    NEB_TRY(neb_path(config, sizeof config, b->dir, INTRA_TOKENIZER_CONFIG));
    NEB_TRY(neb_fs_write(file, b->vocabulary.p, b->vocabulary.len, 0644));
    if (b->vocabulary_config.len)
        NEB_TRY(neb_fs_write(config, b->vocabulary_config.p, b->vocabulary_config.len, 0644));
    NEB_TRY(intra_tokenizer_open(file, &b->tokenizer));
    return intra_tokenizer_eos(b->tokenizer) >= 0
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID, "%s has no EOS piece to end documents with; %s",
                          b->vocabulary_file,
                          json ? "name one as eos_token in its tokenizer_config.json"
                               : "use a vocabulary that has one");
}

static enum neb_status make_tokenizer(struct build *b) {
    char model[NEB_PATH_MAX], prefix[NEB_PATH_MAX], sample[NEB_PATH_MAX];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const struct intra_build_spec *s = b->spec;
    if (s->tokenizer[0])
        return take_tokenizer(b);
    NEB_TRY(neb_path(model, sizeof model, b->dir, INTRA_TOKENIZER_MODEL));
    b->progress(b->user, "training the vocabulary", 0, 1);
    NEB_TRY(neb_path(prefix, sizeof prefix, b->dir, "tokenizer"));
    NEB_TRY(neb_path(sample, sizeof sample, b->dir, "sample.txt"));
    NEB_TRY(build_sample_write(&b->sample, sample));
    char symbols[INTRA_SOURCES_MAX * 17 + 1] = "";
    for (int32_t i = 0; i < s->n_sources; i++) {
        size_t at = strlen(symbols);
        bool known = false;
        for (int32_t k = 0; k < i; k++)
            known = known || !strcmp(s->sources[k].tag, s->sources[i].tag);
        if (s->sources[i].tag[0] && !known)
            snprintf(symbols + at, sizeof symbols - at, ",%s", s->sources[i].tag);
    }
    struct intra_tokenizer_train t = {.vocab = s->vocab,
                                      .type = s->type,
                                      .character_coverage = s->character_coverage,
                                      .byte_fallback = s->byte_fallback,
                                      .threads = s->threads         ? s->threads
                                                 : processors < 128 ? (int32_t)processors
                                                                    : 128,
                                      .symbols = symbols};
    NEB_TRY(intra_tokenizer_train(sample, prefix, &t));
    NEB_TRY(neb_fs_remove(sample));
    return intra_tokenizer_open(model, &b->tokenizer);
}

// Sources of ids are checked against the vocabulary that the spec names.
static enum neb_status measure_vocabulary(struct build *b) {
    struct intra_tokenizer *t = NULL;
    bool any = false;
    for (b->source = 0; b->source < b->spec->n_sources; b->source++)
        any = any || build_is_ids(b);
    if (!any)
        return NEB_OK;
    NEB_TRY(intra_tokenizer_open(b->vocabulary_file, &t));
    b->given_vocab = intra_tokenizer_vocab(t);
    b->given_eos = intra_tokenizer_eos(t);
    intra_tokenizer_close(&t);
    return NEB_OK;
}

static enum neb_status read_vocabulary(struct build *b) {
    char config[NEB_PATH_MAX];
    const char *file = b->vocabulary_file;
    NEB_TRY(
        intra_tokenizer_resolve(b->spec->tokenizer, b->vocabulary_file, sizeof b->vocabulary_file));
    NEB_TRY(neb_fs_read(file, VOCABULARY_MAX, &b->vocabulary));
    NEB_TRY(intra_tokenizer_digest(file, b->vocabulary_sha));
    NEB_TRY(intra_tokenizer_config(file, config, sizeof config));
    return intra_tokenizer_is_json(file) && neb_fs_exists(config)
               ? neb_fs_read(config, VOCABULARY_MAX, &b->vocabulary_config)
               : NEB_OK;
}

// The digest covers the bytes of the vocabulary, because another file may be at its path by now.
static enum neb_status hash_spec(struct build *b) {
    const struct intra_build_spec *s = b->spec;
    char text[512];
    int n = snprintf(text, sizeof text, "v1 %s %llu %d %s %.9g %d %d %d", s->name,
                     (unsigned long long)s->seed, s->vocab, s->type, s->character_coverage,
                     s->byte_fallback, s->train_lines, s->holdout_per_mille);
    neb_sha256_add(b->inputs, text, (size_t)n);
    if (s->test_per_mille)
        neb_sha256_add(b->inputs, &s->test_per_mille, sizeof s->test_per_mille);
    if (s->shuffle) { // named, since a number alone could be test_per_mille
        neb_sha256_add(b->inputs, "shuffle", 7);
        neb_sha256_add(b->inputs, &s->shuffle, sizeof s->shuffle);
    }
    if (s->shard_tokens)
        neb_sha256_add(b->inputs, &s->shard_tokens, sizeof s->shard_tokens);
    if (!s->tokenizer[0])
        return NEB_OK;
    NEB_TRY(read_vocabulary(b));
    neb_sha256_add(b->inputs, b->vocabulary_sha, sizeof b->vocabulary_sha);
    return measure_vocabulary(b);
}

static enum neb_status check_trained(const struct intra_corpus *c, const char *model) {
    char path[NEB_PATH_MAX];
    struct neb_map list = {0};
    struct intra_tokenizer *t = NULL;
    NEB_TRY(neb_path(path, sizeof path, intra_corpus_dir(c), "tokenizer.vocab"));
    NEB_TRY(intra_corpus_check_tokenizer(c));
    NEB_TRY(neb_map_open(path, &list));
    enum neb_status st = intra_tokenizer_open(model, &t);
    if (st == NEB_OK && !intra_tokenizer_is_listed(t, (const char *)list.p, list.len))
        st = neb_fail(NEB_ERR_CORRUPT, "the pieces of %s differ from those of %s", model, path);
    if (t)
        intra_tokenizer_close(&t);
    neb_map_close(&list);
    return st;
}

// corpus.json holds no digest of the vocabulary. It cannot get one, because jobs know a corpus by
// the bytes of corpus.json. So a given vocabulary is compared with its file, a trained one with the
// list of its pieces.
static enum neb_status check_vocabulary(const struct build *b, const struct intra_corpus *c) {
    char path[NEB_PATH_MAX];
    uint8_t sha[INTRA_SHA_BYTES];
    NEB_TRY(intra_tokenizer_in(intra_corpus_dir(c), path, sizeof path));
    // SentencePiece does not tell why it cannot read a file; this does.
    NEB_TRY(intra_tokenizer_digest(path, sha));
    if (!b->spec->tokenizer[0])
        return check_trained(c, path);
    return memcmp(sha, b->vocabulary_sha, sizeof sha) == 0
               ? NEB_OK
               : neb_fail(NEB_ERR_CORRUPT, "%s differs from the vocabulary %s", path,
                          b->vocabulary_file);
}

static enum neb_status check_corpus(const struct build *b, const char *dir) {
    struct intra_corpus *c = NULL;
    b->progress(b->user, "verifying", 0, 1);
    NEB_TRY(intra_corpus_open(dir, true, &c));
    enum neb_status st = check_vocabulary(b, c);
    intra_corpus_close(&c);
    return st;
}

// A damaged corpus is rebuilt, as the error messages advise. A corpus that cannot be read at the
// moment may be intact, so it is not replaced.
static enum neb_status already_built(const struct build *b, const char *dir, const char *inputs,
                                     bool *built) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, "corpus.json"));
    json_t *root = json_load_file(path, 0, NULL);
    const char *was = json_string_value(json_object_get(root, "inputs"));
    *built = was && !strcmp(was, inputs) && (!b->spec->shuffle || build_stream_same(b, dir));
    json_decref(root);
    if (!*built)
        return NEB_OK;
    enum neb_status st = check_corpus(b, dir);
    *built = st == NEB_OK;
    if (st != NEB_ERR_FORMAT && st != NEB_ERR_CORRUPT && st != NEB_ERR_NOT_FOUND)
        return st;
    neb_warn("the corpus in %s is damaged; it is rebuilt", dir);
    return NEB_OK;
}

static enum neb_status write_corpus(struct build *b, const char *inputs) {
    char path[NEB_PATH_MAX];
    json_t *sources = json_array();
    int32_t vocab = intra_tokenizer_vocab(b->tokenizer);
    b->width = vocab <= 65536 ? 2 : 4;
    b->places = b->spec->shuffle ? json_array() : NULL;
    enum neb_status st = build_encode_all(b, sources);
    if (st == NEB_OK && b->places)
        st = build_stream_write(b);
    json_t *root = json_pack("{s:i,s:s,s:i,s:s,s:o}", "version", 1, "name", b->spec->name, "vocab",
                             vocab, "inputs", inputs, "sources", sources);
    if (b->spec->shuffle) // else absent, so that the digests of other corpora stay
        json_object_set_new(root, "shuffle", json_integer(b->spec->shuffle));
    char *text = json_dumps(root, JSON_INDENT(1));
    if (st == NEB_OK)
        st = text ? neb_path(path, sizeof path, b->dir, "corpus.json")
                  : neb_fail(NEB_ERR_NOMEM, "out of memory writing corpus.json");
    if (st == NEB_OK)
        st = neb_fs_write(path, text, strlen(text), 0644);
    free(text);
    json_decref(root);
    return st;
}

static enum neb_status read_all(struct build *b) {
    NEB_TRY(neb_fs_remove_tree(b->dir)); // left by a build that was interrupted
    build_measure(b);
    build_sample_start(b);
    b->take_chunk = build_note_chunk;
    b->progress(b->user, "reading", 0, b->total);
    for (int32_t i = 0; i < b->spec->n_sources; i++) {
        const struct intra_source_spec *s = &b->spec->sources[i];
        neb_sha256_add(b->inputs, s->name, strlen(s->name) + 1);
        NEB_TRY(build_read_source(b, i));
        NEB_TRY(build_note_source_end(b));
    }
    return NEB_OK;
}

// Makes the complete corpus in b->dir.
static enum neb_status build_aside(struct build *b, const char *inputs) {
    NEB_TRY(neb_fs_mkdirs(b->dir, 0755));
    NEB_TRY(make_tokenizer(b));
    return write_corpus(b, inputs);
}

static void free_build(struct build *b) {
    for (int32_t i = 0; i < b->spec->n_sources; i++)
        if (b->pipes[i])
            fclose(b->pipes[i]);
    build_chunk_destroy(b);
    build_input_free(b);
    build_notes_free(&b->notes);
    build_sample_free(&b->sample);
    kern_pool_destroy(&b->pool);
    json_decref(b->places);
    intra_tokenizer_close(&b->tokenizer);
    neb_buf_free(&b->vocabulary);
    neb_buf_free(&b->vocabulary_config);
    neb_sha256_destroy(&b->inputs);
    neb_fs_release(b->dir, &b->lock);
    free(b);
}

// Builds into b->dir, or sets *skipped.
static enum neb_status build(struct build *b, const char *dir, bool *skipped) {
    uint8_t sha[INTRA_SHA_BYTES];
    char hex[65];
    NEB_TRY(neb_sha256_create(&b->inputs));
    NEB_TRY(kern_pool_create(b->spec->threads, &b->pool));
    NEB_TRY(build_chunk_create(b));
    NEB_TRY(hash_spec(b));
    NEB_TRY(read_all(b));
    neb_sha256_finish(b->inputs, sha);
    neb_hex(sha, sizeof sha, hex);
    NEB_TRY(already_built(b, dir, hex, skipped));
    if (*skipped)
        return NEB_OK;
    NEB_TRY(build_place_check(dir));
    NEB_TRY(build_aside(b, hex));
    return build_place_check(dir); // another process may have put something there meanwhile
}

enum neb_status intra_corpus_build(const struct intra_build_spec *spec, const char *out_dir,
                                   intra_build_progress *progress, void *user, bool *skipped) {
    char dir[NEB_PATH_MAX];
    struct build *b = calloc(1, sizeof *b);
    *skipped = false;
    if (!b)
        return neb_fail(NEB_ERR_NOMEM, "out of memory building a corpus");
    b->spec = spec;
    b->lock = -1;
    b->progress = progress;
    b->user = user;
    enum neb_status st = build_place(b, out_dir, dir);
    if (st == NEB_OK) {
        st = build(b, dir, skipped);
        if (st != NEB_OK || *skipped)
            (void)!neb_fs_remove_tree(b->dir);
        else
            st = neb_fs_replace_dir(b->dir, dir);
    }
    free_build(b);
    return st;
}
