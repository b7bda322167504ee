// SPDX-License-Identifier: Apache-2.0
// Corpora larger than memory: how much is held in memory, what is read twice, and that the corpus
// is the same.
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "intra/data/data.h"
#include "intra/data/tokenizer.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int messages;

static void capture(void *user, enum neb_log_level level, const char *text) {
    messages += level == NEB_LOG_ERROR;
    scratch_keep(user, level, text);
}
static void quiet(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage;
    assert_true(done <= total);
}

static const char *in_dir(const char *name) {
    static char path[4][NEB_PATH_MAX];
    static int at;
    at = (at + 1) % 4;
    assert_int_equal(neb_path(path[at], NEB_PATH_MAX, dir, name), NEB_OK);
    return path[at];
}

static void put(const char *name, const struct neb_buf *b) {
    FILE *f = fopen(in_dir(name), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(b->p, 1, b->len, f), b->len);
    assert_int_equal(fclose(f), 0);
}

static void add(struct neb_buf *b, const char *text) { neb_buf_add(b, text, strlen(text)); }

static struct intra_build_spec spec_of(enum intra_format format, const char *name) {
    struct intra_build_spec s = {.name = "t",
                                 .seed = 3,
                                 .vocab = 400,
                                 .type = "bpe",
                                 .character_coverage = 1,
                                 .byte_fallback = true,
                                 .train_lines = 300,
                                 .holdout_per_mille = 100,
                                 .test_per_mille = 50,
                                 .threads = 2,
                                 .n_sources = 1};
    s.sources[0].format = format;
    snprintf(s.sources[0].name, sizeof s.sources[0].name, "s");
    snprintf(s.sources[0].field, sizeof s.sources[0].field, "text");
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s", in_dir(name));
    return s;
}

static void build(const struct intra_build_spec *s, const char *out) {
    bool skipped;
    assert_int_equal(intra_corpus_build(s, in_dir(out), quiet, NULL, &skipped), NEB_OK);
    assert_false(skipped);
}

static void same_file(const char *a, const char *b) {
    struct neb_buf x = {0}, y = {0};
    assert_int_equal(neb_fs_read(in_dir(a), 1 << 28, &x), NEB_OK);
    assert_int_equal(neb_fs_read(in_dir(b), 1 << 28, &y), NEB_OK);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.p, y.p, x.len);
    neb_buf_free(&x);
    neb_buf_free(&y);
}

// ---- a second implementation
// Builds the corpus in memory: all documents, then duplicates, then the sample, then tokens.

enum { SOURCES = 2, DOCS = 9000 };

struct plain {
    char *text; // NULL: a duplicate
    uint64_t hash;
};

static struct plain docs[SOURCES][DOCS];

static uint64_t hash(const char *text, size_t n) {
    uint8_t sha[INTRA_SHA_BYTES];
    neb_sha256(text, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

static void write_docs(void) { // of both sources, as JSON lines
    struct neb_rng r = neb_rng_make(1, 1);
    for (int s = 0; s < SOURCES; s++) {
        struct neb_buf json = {0};
        for (int i = 0; i < DOCS; i++) {
            struct neb_buf text = {0};
            char word[32];
            bool again = i > 10 && neb_rng_below(&r, 8) == 0;
            if (again)
                add(&text, docs[s][neb_rng_below(&r, (uint64_t)i)].text);
            for (uint64_t l = again ? 0 : 1 + neb_rng_below(&r, 4); l > 0; l--) {
                for (uint64_t w = neb_rng_below(&r, 9); w > 0; w--) {
                    snprintf(word, sizeof word, "wort%d ", (int)neb_rng_below(&r, 400));
                    add(&text, word);
                }
                snprintf(word, sizeof word, "%c%s", (char)('a' + neb_rng_below(&r, 26)),
                         l > 1 ? "\n" : "");
                add(&text, word);
            }
            neb_buf_u8(&text, 0);
            docs[s][i].text = (char *)text.p;
            add(&json, "{\"text\": \"");
            for (const char *p = docs[s][i].text; *p; p++)
                *p == '\n' ? add(&json, "\\n") : neb_buf_u8(&json, (uint8_t)*p);
            const char *blanks = neb_rng_below(&r, 5) ? "" : i % 2 ? "  " : "\\n ";
            add(&json, blanks);
            add(&json, "\", \"id\": 1}\n");
            char *raw = malloc(text.len + 8); // the split is decided by the text with its blanks
            snprintf(raw, text.len + 8, "%s%s", docs[s][i].text,
                     !*blanks         ? ""
                     : *blanks == ' ' ? "  "
                                      : "\n ");
            docs[s][i].hash = hash(raw, strlen(raw));
            free(raw);
        }
        put(s ? "two.jsonl" : "one.jsonl", &json);
        neb_buf_free(&json);
    }
    for (int s = 0; s < SOURCES; s++) {
        static char *seen[DOCS];
        int n = 0;
        for (int i = 0; i < DOCS; i++) {
            int k = 0;
            while (k < n && strcmp(seen[k], docs[s][i].text))
                k++;
            if (k < n) {
                free(docs[s][i].text);
                docs[s][i].text = NULL;
            } else {
                seen[n++] = docs[s][i].text;
            }
        }
    }
}

static uint64_t lines_in(const char *text) {
    uint64_t n = 1;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void write_sample(const struct intra_build_spec *spec, const char *name) {
    struct neb_rng r = neb_rng_make(spec->seed, 17);
    struct neb_buf out = {0};
    for (int s = 0; s < SOURCES; s++) {
        uint64_t lines = 0;
        for (int i = 0; i < DOCS; i++)
            lines += docs[s][i].text ? lines_in(docs[s][i].text) : 0;
        double keep = (double)spec->train_lines / SOURCES / (double)lines;
        for (int i = 0; i < DOCS; i++)
            for (const char *p = docs[s][i].text; p && *p;) {
                size_t n = strcspn(p, "\n");
                if (n && neb_rng_unit(&r) < keep) {
                    neb_buf_add(&out, p, n);
                    add(&out, "\n");
                }
                p += n + (p[n] == '\n');
            }
    }
    put(name, &out);
    neb_buf_free(&out);
}

static void check_tokens(const struct intra_build_spec *spec, const char *model) {
    struct intra_corpus *c = NULL;
    struct intra_tokenizer *t = NULL;
    assert_int_equal(intra_corpus_open(in_dir("corpus"), true, &c), NEB_OK);
    assert_int_equal(intra_tokenizer_open(in_dir(model), &t), NEB_OK);
    for (int s = 0; s < SOURCES; s++) {
        uint64_t at[INTRA_SPLITS] = {0};
        for (int i = 0; i < DOCS; i++) {
            int32_t *ids, got[4096];
            size_t n;
            int64_t per_mille = (int64_t)(docs[s][i].hash % 1000);
            if (!docs[s][i].text)
                continue;
            int split = per_mille < spec->holdout_per_mille                          ? INTRA_VALID
                        : per_mille < spec->holdout_per_mille + spec->test_per_mille ? INTRA_TEST
                                                                                     : INTRA_TRAIN;
            assert_int_equal(
                intra_tokenizer_encode(t, docs[s][i].text, strlen(docs[s][i].text), &ids, &n),
                NEB_OK);
            assert_true(n < 4096);
            intra_corpus_copy(c, s, (enum intra_split)split, at[split], n + 1, got);
            assert_memory_equal(got, ids, n * sizeof *ids);
            assert_int_equal(got[n], intra_tokenizer_eos(t));
            at[split] += n + 1;
            free(ids);
        }
        for (int k = 0; k < INTRA_SPLITS; k++) {
            assert_true(at[k] > 100);
            assert_int_equal(intra_corpus_tokens(c, s, (enum intra_split)k), at[k]);
        }
    }
    intra_tokenizer_close(&t);
    intra_corpus_close(&c);
}

static void test_same_corpus_as_in_memory(void **state) {
    (void)state;
    struct intra_build_spec s = spec_of(INTRA_JSONL, "one.jsonl");
    write_docs();
    s.n_sources = SOURCES;
    s.sources[1] = s.sources[0];
    snprintf(s.sources[1].name, sizeof s.sources[1].name, "two");
    snprintf(s.sources[1].path, sizeof s.sources[1].path, "%s", in_dir("two.jsonl"));
    build(&s, "corpus");
    // the model contains the names of its input files, so they must be the names that the build
    // uses
    struct intra_tokenizer_train train = {.vocab = s.vocab,
                                          .type = s.type,
                                          .character_coverage = 1,
                                          .byte_fallback = true,
                                          .threads = 2,
                                          .symbols = ""};
    assert_int_equal(neb_fs_mkdirs(in_dir("corpus.nebula-building"), 0755), NEB_OK);
    write_sample(&s, "corpus.nebula-building/sample.txt");
    assert_int_equal(intra_tokenizer_train(in_dir("corpus.nebula-building/sample.txt"),
                                           in_dir("corpus.nebula-building/tokenizer"), &train),
                     NEB_OK);
    same_file("corpus.nebula-building/tokenizer.model", "corpus/tokenizer.model");
    check_tokens(&s, "corpus/tokenizer.model");
    assert_int_equal(neb_fs_remove_tree(in_dir("corpus.nebula-building")), NEB_OK);
    for (int k = 0; k < SOURCES; k++)
        for (int i = 0; i < DOCS; i++)
            free(docs[k][i].text);
}

// ---- one text, read in several ways

static void test_pipe_and_folder(void **state) {
    (void)state;
    struct intra_build_spec s = spec_of(INTRA_JSONL, "one.jsonl");
    struct neb_buf text = {0}, part = {0};
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s", in_dir("corpus/tokenizer.model"));
    s.shard_tokens = 20000; // several shards
    build(&s, "file");
    // a pipe can be read only once
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char command[NEB_PATH_MAX + 16];
        snprintf(command, sizeof command, "cat %s", in_dir("one.jsonl"));
        dup2(ends[1], 1);
        close(ends[0]);
        _exit(system(command) != 0);
    }
    close(ends[1]);
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "/dev/fd/%d", ends[0]);
    build(&s, "piped");
    close(ends[0]);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    same_file("file/corpus.json", "piped/corpus.json");
    same_file("file/s/train-00003.bin", "piped/s/train-00003.bin");
    // the same lines as files of a folder, in the order of their names
    assert_int_equal(neb_fs_mkdirs(in_dir("parts/more"), 0755), NEB_OK);
    assert_int_equal(neb_fs_read(in_dir("one.jsonl"), 1 << 28, &text), NEB_OK);
    for (size_t at = 0, k = 0; at < text.len; k++) {
        char name[48];
        size_t end = at + text.len / 3 < text.len ? at + text.len / 3 : text.len;
        while (end < text.len && text.p[end - 1] != '\n')
            end++;
        neb_buf_clear(&part);
        neb_buf_add(&part, text.p + at, end - at);
        snprintf(name, sizeof name, k ? "parts/more/%zu.jsonl" : "parts/%zu.jsonl", k);
        put(name, &part);
        at = end;
    }
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s", in_dir("parts"));
    build(&s, "folder");
    same_file("file/corpus.json", "folder/corpus.json");
    add(&part, "{\"text\": 5}\n");
    put("parts/more/2.jsonl", &part);
    bool skipped;
    assert_int_equal(intra_corpus_build(&s, in_dir("folder"), quiet, NULL, &skipped),
                     NEB_ERR_FORMAT);
    assert_non_null(strstr(message, "parts/more/2.jsonl:"));
    neb_buf_free(&text);
    neb_buf_free(&part);
}

// Lines that end with CR LF give the same corpus as lines that end with LF.
static void windows_lines(enum intra_format format, const char *source, const char *name,
                          const struct neb_buf *text) {
    struct intra_build_spec s = spec_of(format, source);
    struct neb_buf other = {0};
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s", in_dir("corpus/tokenizer.model"));
    put(name, text);
    assert_int_equal(neb_fs_remove_tree(in_dir("unix")), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(in_dir("windows")), NEB_OK);
    build(&s, "unix");
    for (size_t i = 0; i < text->len; i++) {
        if (text->p[i] == '\n')
            neb_buf_u8(&other, '\r');
        neb_buf_u8(&other, text->p[i]);
    }
    put(name, &other);
    build(&s, "windows");
    same_file("unix/corpus.json", "windows/corpus.json");
    neb_buf_free(&other);
}

static void test_windows_lines(void **state) {
    (void)state;
    enum { BLOCK = 1 << 20, PARAGRAPHS = 3 * BLOCK / 32 };
    struct neb_buf text = {0}, lines = {0};
    char line[64];
    // this shifts the paragraphs, so that the reader's blocks end inside the end of a paragraph
    add(&text, "0");
    for (int i = 0; i < PARAGRAPHS; i++) { // a paragraph has 32 bytes with its CRs
        snprintf(line, sizeof line, "%07d wort\n%014d\n\n", i % 1000, i);
        add(&text, line);
        snprintf(line, sizeof line, "wort%d\n", i);
        if (i < 1000)
            add(&lines, line);
    }
    windows_lines(INTRA_TEXT, "windows.txt", "windows.txt", &text);
    windows_lines(INTRA_TSV, "windows.tsv", "windows.tsv", &lines);
    assert_int_equal(neb_fs_mkdirs(in_dir("pages"), 0755), NEB_OK);
    windows_lines(INTRA_TEXT, "pages", "pages/windows.txt", &lines);
    neb_buf_free(&text);
    neb_buf_free(&lines);
}

// ---- memory

static long built_kb(const struct intra_build_spec *s,
                     const char *out) { // runs in its own process, to measure its peak
    int ends[2];
    long kb = -1;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rusage before, after;
        bool skipped;
        getrusage(RUSAGE_SELF, &before);
        if (intra_corpus_build(s, in_dir(out), quiet, NULL, &skipped) == NEB_OK) {
            getrusage(RUSAGE_SELF, &after);
            kb = after.ru_maxrss - before.ru_maxrss;
        }
        _exit(write(ends[1], &kb, sizeof kb) != sizeof kb);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(ends[0], &kb, sizeof kb), sizeof kb);
    close(ends[0]);
    close(ends[1]);
    return kb;
}

// Three documents repeated over 200 MB: much to read, little to encode. The text is not held in
// memory.
static void test_text_is_not_held_in_memory(void **state) {
    (void)state;
    enum { MB = 200 };
    struct intra_build_spec s = spec_of(INTRA_TEXT, "large.txt");
    FILE *f = fopen(in_dir("large.txt"), "w");
    static char text[10000];
    memset(text, 'x', sizeof text - 1);
    assert_non_null(f);
    for (int i = 0; i < MB * 100; i++) {
        text[0] = (char)('a' + i % 3);
        assert_true(fprintf(f, "%s\n\n", text) > 0);
    }
    assert_int_equal(fclose(f), 0);
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s", in_dir("corpus/tokenizer.model"));
    s.holdout_per_mille = s.test_per_mille = 0;
    long kb = built_kb(&s, "large");
    print_message("%d MB of text took %.0f MB of memory\n", MB, (double)kb / 1000);
    assert_true(kb > 0);
#ifndef TESTING_SANITIZED // sanitizers hold freed memory
    assert_true(kb < MB * 1000 / 2);
#endif
    assert_int_equal(neb_fs_remove(in_dir("large.txt")), NEB_OK);
}

// ---- a source that changes during the build

struct change {
    const char *file;
    int64_t at;       // the byte that changes; < 0: the file loses this many bytes at its end
    const char *more; // appended to the file
    bool gone, done;
};

static void between(void *user, const char *stage, uint64_t done, uint64_t total) {
    struct change *c = user;
    (void)done, (void)total;
    if (c->done || strcmp(stage, "training the vocabulary"))
        return;
    c->done = true;
    if (c->gone) {
        assert_int_equal(neb_fs_remove(in_dir(c->file)), NEB_OK);
        return;
    }
    FILE *f = fopen(in_dir(c->file), c->more ? "a" : "r+");
    assert_non_null(f);
    if (c->more) {
        fputs(c->more, f);
    } else if (c->at < 0) {
        assert_int_equal(fseek(f, c->at, SEEK_END), 0);
        assert_int_equal(ftruncate(fileno(f), ftell(f)), 0);
    } else {
        assert_int_equal(fseek(f, c->at, SEEK_SET), 0);
        fputc('Q', f);
    }
    assert_int_equal(fclose(f), 0);
}

static void check_change(enum intra_format format, const char *source, struct change c,
                         enum neb_status want, const char *says) {
    struct intra_build_spec s = spec_of(format, source);
    struct neb_buf was = {0};
    bool skipped;
    messages = 0;
    assert_int_equal(neb_fs_read(in_dir(c.file), 1 << 28, &was), NEB_OK);
    assert_int_equal(intra_corpus_build(&s, in_dir("corpus"), between, &c, &skipped), want);
    assert_true(c.done);
    assert_int_equal(messages, 1);
    if (!strstr(message, says))
        fail_msg("\"%s\" does not say \"%s\"", message, says);
    assert_false(neb_fs_exists(in_dir("corpus.nebula-building")));
    struct intra_corpus *old = NULL;
    assert_int_equal(intra_corpus_open(in_dir("corpus"), true, &old), NEB_OK);
    // the folder still has the previous corpus
    assert_int_equal(intra_corpus_sources(old), SOURCES);
    intra_corpus_close(&old);
    put(c.file, &was);
    neb_buf_free(&was);
}

static void test_changed_source(void **state) {
    (void)state;
    static const char has[] = "has changed while the corpus was built from it";
    struct neb_buf page = {0};
    for (int i = 0; i < 400; i++)
        add(&page, "some words of a page that has enough lines for a vocabulary\n");
    assert_int_equal(neb_fs_mkdirs(in_dir("pages"), 0755), NEB_OK);
    put("pages/1", &page);
    page.p[0] = 'S';
    put("pages/2", &page);
    neb_buf_free(&page);
    check_change(INTRA_JSONL, "one.jsonl", (struct change){.file = "one.jsonl", .at = 500000},
                 NEB_ERR_STATE, has);
    check_change(INTRA_JSONL, "one.jsonl", (struct change){.file = "one.jsonl", .at = 0},
                 NEB_ERR_STATE, has); // no longer JSON
    check_change(INTRA_JSONL, "one.jsonl", (struct change){.file = "one.jsonl", .at = -300},
                 NEB_ERR_STATE, has);
    check_change(INTRA_JSONL, "one.jsonl",
                 (struct change){.file = "one.jsonl", .more = "{\"text\": \"one more\"}\n"},
                 NEB_ERR_STATE, has);
    check_change(INTRA_TEXT, "pages", (struct change){.file = "pages/2", .at = 9}, NEB_ERR_STATE,
                 has);
    check_change(INTRA_TEXT, "pages", (struct change){.file = "pages/2", .gone = true},
                 NEB_ERR_STATE, has);
    check_change(INTRA_TEXT, "one.jsonl", (struct change){.file = "one.jsonl", .gone = true},
                 NEB_ERR_NOT_FOUND, "cannot read");
}

static uint64_t encoded; // bytes of text

static void how_far(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)total;
    if (!strcmp(stage, "encoding"))
        encoded = done;
}

// ---- two builds at once

struct second { // begun while the first one encodes
    enum neb_status st;
    bool done, skipped;
};

static void begin_second(void *user, const char *stage, uint64_t done, uint64_t total) {
    struct second *t = user;
    (void)done, (void)total;
    if (strcmp(stage, "encoding") || t->done)
        return;
    t->done = true;
    struct intra_build_spec s = spec_of(INTRA_JSONL, "one.jsonl");
    t->st = intra_corpus_build(&s, in_dir("both"), how_far, NULL, &t->skipped);
}

static void test_two_builds_at_once(void **state) {
    (void)state;
    struct intra_build_spec s = spec_of(INTRA_JSONL, "one.jsonl");
    struct second t = {.done = false};
    struct intra_corpus *c = NULL;
    bool skipped;
    assert_int_equal(intra_corpus_build(&s, in_dir("both"), begin_second, &t, &skipped), NEB_OK);
    assert_true(t.done);
    assert_int_equal(t.st, NEB_ERR_AGAIN);
    if (!strstr(message, "another nebula process is building"))
        fail_msg("%s", message);
    assert_int_equal(intra_corpus_open(in_dir("both"), true, &c), NEB_OK);
    intra_corpus_close(&c);
    assert_false(neb_fs_exists(in_dir("both.nebula-building")));
    assert_false(neb_fs_exists(in_dir("both.nebula-building.lock")));
    assert_int_equal(neb_fs_remove_tree(in_dir("both")), NEB_OK);
}

// ---- more shards than a corpus may have

static void test_too_many_shards(void **state) {
    (void)state;
    struct intra_build_spec s = spec_of(INTRA_JSONL, "one.jsonl");
    bool skipped;
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s", in_dir("corpus/tokenizer.model"));
    s.shard_tokens = 1;
    struct neb_buf lines = {0};
    for (int i = 0; i < 60000; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"text\": \"document %d\"}\n", i);
        add(&lines, line);
    }
    put("many.jsonl", &lines);
    snprintf(s.sources[0].path, sizeof s.sources[0].path, "%s", in_dir("many.jsonl"));
    assert_int_equal(intra_corpus_build(&s, in_dir("none"), how_far, NULL, &skipped),
                     NEB_ERR_LIMIT);
    if (!strstr(message, "but at most 32768 are allowed"))
        fail_msg("%s", message);
    assert_true(encoded <= lines.len / 10); // long before the end of the text
    assert_false(neb_fs_exists(in_dir("none")));
    assert_false(neb_fs_exists(in_dir("none.nebula-building")));
    neb_buf_free(&lines);
}

static int set_up(void **state) {
    neb_log_set_sink(capture, NULL);
    return scratch_make(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_corpus_as_in_memory),
        cmocka_unit_test(test_pipe_and_folder),
        cmocka_unit_test(test_text_is_not_held_in_memory),
        cmocka_unit_test(test_changed_source),
        cmocka_unit_test(test_two_builds_at_once),
        cmocka_unit_test(test_too_many_shards),
        cmocka_unit_test(test_windows_lines),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
