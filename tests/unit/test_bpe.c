// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: ids of texts in many scripts equal those of Hugging Face tokenizers with the same
// files (golden/make_bpe_golden.py), and decode back. Also: threads, words of a megabyte,
// tokenizers that are refused, malformed files.
#include "agent/base/clock.h"
#include "intra/data/tokenizer.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <jansson.h>
#include <pthread.h>
#include <string.h>

static const struct golden {
    const char *file, *text; // text NULL: decoding only
    size_t len;
    const int32_t *ids;
    size_t n;
    const char *back;
} goldens[] = {
#include "tests/golden/bpe_golden.inc"
};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens };
static const char *const kinds[] = {"gpt2",    "gpt2_space",       "llama3",     "qwen2",
                                    "smollm2", "gpt2_space_added", "qwen2_added"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int errors;

static void keep(void *user, enum neb_log_level level, const char *text) {
    errors += level == NEB_LOG_ERROR;
    scratch_keep(user, level, text);
}

static const char *in(char *out, const char *name) {
    snprintf(out, NEB_PATH_MAX, "%s/%s", dir, name);
    return out;
}

static struct intra_tokenizer *open_kind(const char *kind) {
    char name[64], path[NEB_PATH_MAX];
    struct intra_tokenizer *t = NULL;
    snprintf(name, sizeof name, "tests/golden/bpe/%s.json", kind);
    testing_source(name, path);
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_OK);
    return t;
}

// True if the golden's text gives its ids, and the ids give its text.
static bool holds(const struct intra_tokenizer *t, const struct golden *g) {
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = g->n;
    bool same = true;
    if (g->text) {
        same = intra_tokenizer_encode(t, g->text, g->len, &ids, &n) == NEB_OK && n == g->n &&
               !memcmp(ids, g->ids, n * sizeof *ids);
        free(ids);
    }
    same =
        same && intra_tokenizer_decode(t, g->ids, g->n, &text) == NEB_OK && !strcmp(text, g->back);
    free(text);
    return same;
}

static void test_golden(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct intra_tokenizer *t = open_kind(kinds[k]);
        for (int i = 0; i < N_GOLDENS; i++)
            if (!strcmp(goldens[i].file, kinds[k]) && !holds(t, &goldens[i]))
                fail_msg("%s: wrong ids or text for \"%s\"", kinds[k],
                         goldens[i].text ? goldens[i].text : goldens[i].back);
        intra_tokenizer_close(&t);
    }
}

struct thread {
    pthread_t id;
    const struct intra_tokenizer *t;
    const char *kind;
    int wrong;
};

static void *all_again(void *arg) {
    struct thread *h = arg;
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < N_GOLDENS; i++)
            h->wrong += !strcmp(goldens[i].file, h->kind) && !holds(h->t, &goldens[i]);
    return NULL;
}

static void test_threads(void **state) {
    struct thread threads[4];
    (void)state;
    struct intra_tokenizer *t = open_kind("qwen2");
    for (int i = 0; i < 4; i++) {
        threads[i] = (struct thread){.t = t, .kind = "qwen2"};
        assert_int_equal(pthread_create(&threads[i].id, NULL, all_again, &threads[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i].id, NULL);
        assert_int_equal(threads[i].wrong, 0);
    }
    intra_tokenizer_close(&t);
}

// With these words an algorithm whose time is quadratic in the word's length takes minutes.
static void test_long_words(void **state) {
    static const char *const units[] = {
        "a", "freedom", "\xe8\x87\xaa", "\xcc\x81\xcc\xa3", " ", "\n ", "7", "!?"};
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG + 1), *back;
    (void)state;
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t len = 0, k = strlen(units[u]), n;
        for (; len + k <= LONG; len += k)
            memcpy(text + len, units[u], k);
        text[len] = 0;
        for (int i = 0; i < N_KINDS; i++) {
            struct intra_tokenizer *t = open_kind(kinds[i]);
            int32_t *ids;
            neb_ns start = neb_now();
            assert_int_equal(intra_tokenizer_encode(t, text, len, &ids, &n), NEB_OK);
            assert_int_equal(intra_tokenizer_decode(t, ids, n, &back), NEB_OK);
            assert_true(neb_seconds(neb_now() - start) < 10 * TESTING_SLOWER);
            const char *from = back + (back[0] == ' ' && text[0] != ' '); // gpt2_space
            if (strcmp(kinds[i], "qwen2") != 0 && strcmp(kinds[i], "smollm2") != 0 &&
                !strstr(kinds[i], "_added"))
                assert_string_equal(from, text);
            free(back);
            free(ids);
            intra_tokenizer_close(&t);
        }
    }
    free(text);
}

static void write_file(const char *name, const char *text) {
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_fs_write(in(path, name), text, strlen(text), 0644), NEB_OK);
}

// gpt2.json with "a.b.c" set to `value` (JSON), or removed if NULL.
static json_t *edited(const char *where, const char *value) {
    char path[NEB_PATH_MAX], key[64];
    testing_source("tests/golden/bpe/gpt2.json", path);
    json_t *root = json_load_file(path, 0, NULL), *o = root;
    assert_non_null(root);
    for (const char *dot; (dot = strchr(where, '.')); where = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - where), where);
        o = json_is_array(o) ? json_array_get(o, (size_t)atol(key)) : json_object_get(o, key);
        assert_non_null(o);
    }
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (json_is_array(o))
        assert_int_equal(json_array_set_new(o, (size_t)atol(where), v), 0);
    else
        assert_int_equal(value ? json_object_set_new(o, where, v) : json_object_del(o, where), 0);
    return root;
}

static enum neb_status open_edited(const char *where, const char *value,
                                   struct intra_tokenizer **t) {
    char path[NEB_PATH_MAX];
    json_t *root = edited(where, value);
    assert_int_equal(json_dump_file(root, in(path, "tokenizer.json"), 0), 0);
    json_decref(root);
    errors = 0;
    return intra_tokenizer_open(path, t);
}

static void test_refused(void **state) {
    static const struct {
        const char *where, *value, *says;
        enum neb_status st;
    } rows[] = {
        {"model.type", "\"Unigram\"", "model.type is 'Unigram'", NEB_ERR_UNSUPPORTED},
        {"model.type", "\"WordPiece\"", "model.type is 'WordPiece'", NEB_ERR_UNSUPPORTED},
        {"model.byte_fallback", "true", "model.byte_fallback is 'true'", NEB_ERR_UNSUPPORTED},
        {"model.byte_fallback", "1", "neither true nor false", NEB_ERR_FORMAT},
        {"model.dropout", "0.1", "model.dropout", NEB_ERR_UNSUPPORTED},
        {"model.end_of_word_suffix", "\"</w>\"", "'</w>'", NEB_ERR_UNSUPPORTED},
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer is 'NFKC'", NEB_ERR_UNSUPPORTED},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
         "normalizer is 'Lowercase'", NEB_ERR_UNSUPPORTED},
        {"normalizer", "{\"type\": \"Sequence\"}", "without a list", NEB_ERR_FORMAT},
        {"pre_tokenizer", "{\"type\": \"Metaspace\"}", "pre_tokenizer is 'Metaspace'",
         NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer", "null", "does not end with ByteLevel", NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer", "{\"type\": \"Digits\"}", "does not end with ByteLevel",
         NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
         "\"Digits\"}]}",
         "after ByteLevel", NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer", "{\"type\": \"Split\", \"behavior\": \"Removed\", \"invert\": false}",
         "behavior is 'Removed'", NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer", "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"invert\": true}",
         "invert is 'true'", NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer",
         "{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"String\": \" \"}}",
         "no Regex", NEB_ERR_UNSUPPORTED},
        {"pre_tokenizer.use_regex", "2", "use_regex is neither", NEB_ERR_FORMAT},
        {"decoder", "{\"type\": \"Metaspace\"}", "decoder is 'Metaspace'", NEB_ERR_UNSUPPORTED},
        {"decoder", NULL, "decoder is 'not given'", NEB_ERR_UNSUPPORTED},
        {"model", "[]", "it has no model", NEB_ERR_FORMAT},
        {"model.vocab", "[]", "model.vocab is not an object", NEB_ERR_FORMAT},
        {"model.vocab", "{}", "needs a token", NEB_ERR_FORMAT},
        {"model.vocab.a", "-1", "'a' has no id", NEB_ERR_FORMAT},
        {"model.vocab.a", "\"x\"", "'a' has no id", NEB_ERR_FORMAT},
        {"model.vocab.a", "4194304", "over 4194303", NEB_ERR_LIMIT},
        {"model.vocab.a", "9223372036854775807", "over 4194303", NEB_ERR_LIMIT},
        {"model.vocab.a", "20", "two tokens have the id 20", NEB_ERR_FORMAT},
        {"model.merges", "{}", "model.merges is not a list", NEB_ERR_FORMAT},
        {"model.merges.3", "\"a\"", "model.merges[3] is not two tokens", NEB_ERR_FORMAT},
        {"model.merges.3", "\"a b c\"", "model.merges[3] is not two tokens", NEB_ERR_FORMAT},
        {"model.merges.3", "[\"a\"]", "model.merges[3] is not two tokens", NEB_ERR_FORMAT},
        {"model.merges.3", "[\"a\", 1]", "model.merges[3] is not two tokens", NEB_ERR_FORMAT},
        {"model.merges.3", "[\"a\", \"~\"]", "needs a token 'a~'", NEB_ERR_FORMAT},
        {"added_tokens", "{}", "added_tokens is not a list", NEB_ERR_FORMAT},
        {"added_tokens.0", "{\"id\": 1}", "added_tokens[0] has no content", NEB_ERR_FORMAT},
        {"added_tokens.0.special", "3", "special is neither", NEB_ERR_FORMAT},
        {"added_tokens.0.normalized", "[]", "normalized is neither", NEB_ERR_FORMAT},
        {"added_tokens.0.single_word", "1", "single_word is neither", NEB_ERR_FORMAT},
        {"added_tokens.0.lstrip", "\"\"", "lstrip is neither", NEB_ERR_FORMAT},
        {"added_tokens.0.rstrip", "{}", "rstrip is neither", NEB_ERR_FORMAT},
    };
    char want[256];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct intra_tokenizer *t = NULL;
        enum neb_status st = open_edited(rows[i].where, rows[i].value, &t);
        snprintf(want, sizeof want, "%s/tokenizer.json: ", dir);
        if (st != rows[i].st || errors != 1 || !strstr(message, rows[i].says) ||
            strncmp(message, want, strlen(want)) != 0 || t)
            fail_msg("%s %s: status %d, %d errors: %s", rows[i].where, rows[i].value, st, errors,
                     message);
    }
}

static enum neb_status open_regex(const char *regex, struct intra_tokenizer **t) {
    json_t *o =
        json_pack("{s:s,s:[{s:s,s:s,s:b,s:{s:s}},{s:s,s:b,s:b}]}", "type", "Sequence",
                  "pretokenizers", "type", "Split", "behavior", "Isolated", "invert", 0, "pattern",
                  "Regex", regex, "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    char *text = json_dumps(o, 0);
    enum neb_status st = open_edited("pre_tokenizer", text, t);
    free(text);
    json_decref(o);
    return st;
}

// An expression that Oniguruma and PCRE2 may read differently is refused, because ids could differ.
static void test_regexes(void **state) {
    static const struct {
        const char *regex, *says;
    } bad[] = {
        {"\\w+", "this escape"},
        {"\\bx", "this escape"},
        {"\\1x", "this escape"},
        {"\\", "this escape"},
        {"\\Qx\\E", "this escape"},
        {"\\x41", "an escaped number"},
        {"\\pL", "a property without braces"},
        {"\\p{Han}", "not a general category"},
        {"\\p{L", "not a general category"},
        {"^x", "an anchor"},
        {"x$", "an anchor"},
        {"(?i)x", "this group"},
        {"(?<a>x)", "this group"},
        {"(?R)x", "this group"},
        {"(*ACCEPT)x", "this group"},
        {"x{1,3}+", "this repetition"},
        {"x{2}?", "this repetition"},
        {"x{,2}", "this repetition"},
        {"x{a}", "this repetition"},
        {"[[:alpha:]]", "a class in a class"},
        {"[a&&b]", "a class in a class"},
        {"[]a]", "a class that begins with ]"},
        {"(?i:straSSe)", "can join into one"},
        {"(?i:\xc3\xa9)", "outside ASCII"},
        {"x*", "an empty match"},
        {"(?=x)", "an empty match"},
        {"x(", "missing"},
        {"[a", "missing"},
        {"*x", "quantifier"},
        {"(?:(?:xy){999}z){999}", "too large"},
    };
    static const char *const good[] = {
        ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
         "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"),
        "\\p{^L}|\\P{N}|\\x{4e00}|[\\x{4e00}-\\x{9fa5}]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+| ?[\\p{P}\\p{S}]+[\\r\\n]*",
        "(?<=a)b(?!c)|(?>d+)|e++|f??g|\\d{2,}|.",
    };
    struct intra_tokenizer *t = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum neb_status st = open_regex(bad[i].regex, &t);
        if (st == NEB_OK || errors != 1 || !strstr(message, bad[i].says))
            fail_msg("%s: status %d: %s", bad[i].regex, st, message);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (open_regex(good[i], &t) != NEB_OK)
            fail_msg("%s: %s", good[i], message);
        intra_tokenizer_close(&t);
    }
}

// A match that would backtrack almost for ever ends with an error.
static void test_hostile_regex(void **state) {
    const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct intra_tokenizer *t = NULL;
    int32_t *ids;
    size_t n;
    (void)state;
    assert_int_equal(open_regex("(?:a|aa|a)+[bc]", &t), NEB_OK);
    errors = 0;
    assert_int_equal(intra_tokenizer_encode(t, text, strlen(text), &ids, &n), NEB_ERR_LIMIT);
    assert_int_equal(errors, 1);
    assert_non_null(strstr(message, "takes too many steps"));
    intra_tokenizer_close(&t);
}

static void test_cut_file(void **state) {
    char path[NEB_PATH_MAX];
    struct neb_buf whole = {0};
    struct intra_tokenizer *t = NULL;
    (void)state;
    testing_source("tests/golden/bpe/qwen2.json", path);
    assert_int_equal(neb_fs_read(path, 1 << 20, &whole), NEB_OK);
    for (size_t n = 1; n + 2 < whole.len; n += 89) {
        assert_int_equal(neb_fs_write(in(path, "cut"), whole.p, n, 0644), NEB_OK);
        errors = 0;
        assert_int_equal(intra_tokenizer_open(path, &t), NEB_ERR_FORMAT);
        assert_int_equal(errors, 1);
    }
    // the name does not end in .json, but the content is JSON
    assert_int_equal(neb_fs_write(path, whole.p, whole.len, 0644), NEB_OK);
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_OK);
    intra_tokenizer_close(&t);
    neb_buf_free(&whole);
    assert_int_not_equal(intra_tokenizer_open("/nonexistent/tokenizer.json", &t), NEB_OK);
    assert_int_not_equal(intra_tokenizer_open(dir, &t), NEB_OK);
}

static void test_special_tokens(void **state) {
    static const struct {
        const char *config, *says; // says NULL: it opens
        int32_t bos, eos;
    } rows[] = {
        {NULL, NULL, -1, -1},
        {"{}", NULL, -1, -1},
        {"{\"bos_token\": null, \"eos_token\": \"<|endoftext|>\"}", NULL, -1, 0},
        {"{\"bos_token\": {\"content\": \"<|im_start|>\"}, \"eos_token\": \"a\"}", NULL, 458, 65},
        {"{\"eos_token\": \"<nowhere>\"}", "eos_token '<nowhere>' is not in", 0, 0},
        {"{\"eos_token\": 3}", "eos_token is not a token", 0, 0},
        {"{\"bos_token\": {}}", "bos_token is not a token", 0, 0},
        {"[]", "is not a JSON object", 0, 0},
        {"{", "tokenizer_config.json:1:", 0, 0},
    };
    char *text;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct intra_tokenizer *t = NULL;
        if (rows[i].config)
            write_file("tokenizer_config.json", rows[i].config);
        enum neb_status st = open_edited("version", "\"1.0\"", &t);
        if (rows[i].says) {
            assert_int_equal(st, NEB_ERR_FORMAT);
            assert_non_null(strstr(message, rows[i].says));
            continue;
        }
        assert_int_equal(st, NEB_OK);
        assert_int_equal(intra_tokenizer_bos(t), rows[i].bos);
        assert_int_equal(intra_tokenizer_eos(t), rows[i].eos);
        // the file says 459, Hugging Face tokenizers 458
        assert_int_equal(intra_tokenizer_vocab(t), 460);
        const int32_t ids[] = {459, 458, 0, -1, 460, INT32_MAX, 65};
        assert_int_equal(intra_tokenizer_decode(t, ids, 7, &text), NEB_OK);
        assert_string_equal(text, "<|im_start|><|endoftext|>a");
        free(text);
        intra_tokenizer_close(&t);
    }
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_fs_remove(in(path, "tokenizer_config.json")), NEB_OK);
}

// unk_token does not matter when every byte has a token; otherwise it is refused.
static void test_unk_token(void **state) {
    struct intra_tokenizer *t = NULL;
    int32_t *ids;
    size_t n;
    (void)state;
    assert_int_equal(open_edited("model.unk_token", "\"<|endoftext|>\"", &t), NEB_OK);
    intra_tokenizer_close(&t);
    json_t *root = edited("model.unk_token", "\"<|endoftext|>\"");
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_object_set(vocab, "~~~", json_object_get(vocab, "~"));
    json_object_del(vocab, "~");
    char path[NEB_PATH_MAX];
    assert_int_equal(json_dump_file(root, in(path, "tokenizer.json"), 0), 0);
    errors = 0;
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(message, "byte 0x7e"));
    json_object_set_new(json_object_get(root, "model"), "unk_token", json_null());
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    assert_int_equal(intra_tokenizer_open(path, &t), NEB_OK);
    // left out here, as in Hugging Face's library
    assert_int_equal(intra_tokenizer_encode(t, "~a~", 3, &ids, &n), NEB_OK);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 65);
    free(ids);
    intra_tokenizer_close(&t);
}

static void encodes(const struct intra_tokenizer *t, const char *text, const int32_t *want,
                    size_t n_want, const char *back) {
    int32_t *ids;
    size_t n;
    char *again;
    assert_int_equal(intra_tokenizer_encode(t, text, strlen(text), &ids, &n), NEB_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    assert_int_equal(intra_tokenizer_decode(t, ids, n, &again), NEB_OK);
    assert_string_equal(again, back);
    free(again);
    free(ids);
}

// Added tokens get the ids that Hugging Face gives them, whatever the file says. The later flags of
// a token given twice count. A token decodes to its own letters.
static void test_added_tokens(void **state) {
    struct intra_tokenizer *t = NULL;
    (void)state;
    assert_int_equal(
        open_edited("added_tokens",
                    "[{\"id\": 900, \"content\": \"\xc3\xbc"
                    "ber\"},"
                    " {\"id\": 7, \"content\": \"a\"}, {\"id\": 901, \"content\": \"<x>\"},"
                    " {\"id\": 901, \"content\": \"<x>\", \"lstrip\": true},"
                    " {\"id\": 902, \"content\": \"<y>\"},"
                    " {\"id\": 902, \"content\": \"<y>\", \"special\": true},"
                    " {\"id\": 903, \"content\": \"\"}]",
                    &t),
        NEB_OK);
    assert_int_equal(errors, 0);
    encodes(t,
            "\xc3\xbc"
            "ber",
            (const int32_t[]){458}, 1,
            "\xc3\xbc"
            "ber");
    encodes(t, " <x>", (const int32_t[]){459}, 1, "<x>");
    encodes(t, "a", (const int32_t[]){65}, 1, "a");
    encodes(t, "<y>", (const int32_t[]){28, 89, 30}, 3, "<y>");
    intra_tokenizer_close(&t);
    char *text = malloc(3000);
    assert_non_null(text);
    snprintf(text, 3000, "[{\"id\": 458, \"content\": \"%02000d\"}]", 0);
    assert_int_equal(open_edited("added_tokens", text, &t), NEB_ERR_LIMIT);
    assert_non_null(strstr(message, "added_tokens[0]"));
    free(text);
}

static int set_up(void **state) {
    neb_log_set_sink(keep, NULL);
    return scratch_make(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),     cmocka_unit_test(test_threads),
        cmocka_unit_test(test_long_words), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_regexes),    cmocka_unit_test(test_hostile_regex),
        cmocka_unit_test(test_cut_file),   cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_unk_token),  cmocka_unit_test(test_added_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
