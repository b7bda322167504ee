// SPDX-License-Identifier: Apache-2.0
// Which files a source may have: encodings, byte order marks, files that are not text, bad lines
// and the allowed share of them, NUL, folders with links. Tokens of the vocabulary are bytes, so
// that documents can be read back: '|' ends a document, '=' separates the sides of a pair.
#include "intra/data/data.h"
#include "intra/read/charset.h"
#include "intra/read/text_kind.h"
#include "tests/corpus_token.h"
#include "tests/unit/scratch.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EOS = 256, BOS = 257 };
static char said[16384];

static void keep(void *user, enum neb_log_level level, const char *text) {
    size_t n = strlen(said);
    (void)user, (void)level;
    snprintf(said + n, sizeof said - n, "%s\n", text);
}

static void progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
}

static void put(const char *name, const void *p, size_t n) {
    char path[NEB_PATH_MAX], folder[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(neb_fs_mkdirs(folder, 0755), NEB_OK);
    assert_int_equal(neb_fs_write(path, p, n, 0644), NEB_OK);
}

// A byte-level BPE whose tokens are the bytes as GPT-2's bytes_to_unicode writes them.
static void make_vocabulary(void) {
    static const char config[] = "{\"eos_token\": \"<eos>\", \"bos_token\": \"<bos>\"}";
    json_t *vocab = json_object();
    for (int b = 0, next = 256; b < 256; b++) {
        int c = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad) ? b : next++;
        char name[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            name[0] = (char)(0xc0 | c >> 6);
            name[1] = (char)(0x80 | (c & 0x3f));
        }
        json_object_set_new(vocab, name, json_integer(b));
    }
    json_t *o = json_pack(
        "{s:[{s:i,s:s,s:b},{s:i,s:s,s:b}],s:{s:s,s:b,s:b},s:{s:s},s:{s:s,s:o,s:[]}}",
        "added_tokens", "id", EOS, "content", "<eos>", "special", 1, "id", BOS, "content", "<bos>",
        "special", 1, "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0,
        "decoder", "type", "ByteLevel", "model", "type", "BPE", "vocab", vocab, "merges");
    char *text = json_dumps(o, 0);
    assert_non_null(text);
    put("v/tokenizer.json", text, strlen(text));
    put("v/tokenizer_config.json", config, sizeof config - 1);
    free(text);
    json_decref(o);
}

static struct intra_build_spec spec_of(const char *path, enum intra_format format) {
    static struct intra_build_spec s;
    s = (struct intra_build_spec){.name = "t", .threads = 2, .n_sources = 1};
    struct intra_source_spec *o = &s.sources[0];
    snprintf(s.tokenizer, sizeof s.tokenizer, "%s/v/tokenizer.json", dir);
    snprintf(o->name, sizeof o->name, "t");
    snprintf(o->path, sizeof o->path, "%s/%s", dir, path);
    snprintf(o->field, sizeof o->field, "text");
    o->format = format;
    return s;
}

// The corpus as text. NULL: the build failed, and `said` holds the log.
static const char *documents(const struct intra_build_spec *s) {
    static char text[65536];
    char out[NEB_PATH_MAX];
    struct intra_corpus *c = NULL;
    bool skipped;
    size_t n = 0;
    said[0] = 0;
    snprintf(out, sizeof out, "%s/corpus", dir);
    assert_int_equal(neb_fs_remove_tree(out), NEB_OK);
    if (intra_corpus_build(s, out, progress, NULL, &skipped) != NEB_OK)
        return NULL;
    assert_int_equal(intra_corpus_open(out, true, &c), NEB_OK);
    uint64_t tokens = intra_corpus_tokens(c, 0, INTRA_TRAIN);
    assert_true(tokens < sizeof text);
    for (uint64_t i = 0; i < tokens; i++) {
        int32_t id = corpus_token(c, 0, INTRA_TRAIN, i);
        text[n++] = id == EOS ? '|' : id == BOS ? '=' : (char)id;
    }
    text[n] = 0;
    intra_corpus_close(&c);
    return text;
}

#define BYTES(text) text, sizeof text - 1

struct row {
    enum intra_format format;
    const char *bytes;
    size_t n;
    const char *encoding;
    double share;
    const char *want, *says; // want NULL: the build is refused with the message `says`
};

static void check(const struct row *r, const char *path) {
    struct intra_build_spec s = spec_of(path, r->format);
    snprintf(s.sources[0].encoding, sizeof s.sources[0].encoding, "%s",
             r->encoding ? r->encoding : "");
    s.sources[0].max_bad_share = r->share;
    const char *got = documents(&s);
    if (r->want ? !got || strcmp(got, r->want) != 0 : got != NULL)
        fail_msg("%s: got \"%s\", want \"%s\"; log: %s", path, got ? got : "(refused)",
                 r->want ? r->want : "(refused)", said);
    if (r->says && !strstr(said, r->says))
        fail_msg("%s: \"%s\" is not in the log: %s", path, r->says, said);
}

static void test_encodings(void **state) {
    static const struct row rows[] = {
        {INTRA_TEXT,
         BYTES("\xef\xbb\xbf"
               "one\r\n\r\n\xef\xbb\xbf"
               "two\n"),
         .want = "one|\xef\xbb\xbf"
                 "two|"},
        {INTRA_JSONL, BYTES("\xef\xbb\xbf{\"text\": \"one\"}\n{\"text\": \"two\"}"),
         .want = "one|two|"},
        {INTRA_TSV, BYTES("\xef\xbb\xbfone\tx\r\ntwo\ty\r\n"), .want = "one|two|"},
        {INTRA_TEXT, BYTES("T\xfcr\n"),
         .says = "in.bin:1: byte 0xfc at offset 1 of the file is not UTF-8; it looks like an "
                 "8-bit encoding"},
        {INTRA_TEXT, BYTES("one\r\n\r\ntwo\r\nT\xfcr\n"),
         .says = "in.bin:4: byte 0xfc at offset 13"},
        {INTRA_TEXT, BYTES("\xef\xbb\xbfone\n\xc3"), .says = "in.bin:2: byte 0xc3 at offset 7"},
        {INTRA_TEXT, BYTES("T\xfcr\r\n\r\nauf\r\n"), .encoding = "latin-1",
         .want = "T\xc3\xbcr|auf|"},
        {INTRA_TEXT, BYTES("\x93T\x94\n"), .encoding = "windows1252",
         .want = "\xe2\x80\x9cT\xe2\x80\x9d|"},
        {INTRA_TEXT, BYTES("\x95\x5c\\n~\n"), .encoding = "shift_jis", .want = "\xe8\xa1\xa8\\n~|"},
        {INTRA_TEXT, BYTES("\xff\xfeo\0n\0e\0\n\0"),
         .says = "offset 0: the byte order mark of UTF-16LE"},
        {INTRA_TEXT, BYTES("\xfe\xff\0o\0n\0e"),
         .says = "offset 0: the byte order mark of UTF-16BE"},
        {INTRA_TEXT, BYTES("\xff\xfeo\0n\0e\0\n\0"), .encoding = "utf-16", .want = "one|"},
        {INTRA_TEXT, BYTES("\xfe\xff\0o\0n\0e\0\n\0\n\0t"), .encoding = "UTF-16", .want = "one|t|"},
        {INTRA_TEXT, BYTES("o\0n\0e\0 \0t\0w\0o\0\n\0"), .says = "it looks like UTF-16LE"},
        {INTRA_TEXT, BYTES("o\0n\0e\0 \0t\0w\0o\0\n\0"), .encoding = "utf-16", .want = "one two|"},
        {INTRA_TEXT, BYTES("\0o\0n\0e\0 \0t\0w\0o\0\n"), .encoding = "utf-16", .want = "one two|"},
        {INTRA_TEXT, BYTES("\1\2\3\4\5\6"), .encoding = "utf-16", .says = "byte order"},
        {INTRA_TEXT, BYTES("o\0n\0e\0 \0t\0w\0o\0\n\0x"), .encoding = "utf_16_le",
         .says = "in.bin:2: bytes that are not utf_16_le"},
        {INTRA_TEXT,
         BYTES("o\0\0\xd8"
               "e\0"),
         .encoding = "utf-16le", .says = "in.bin:1: bytes that are not"},
        {INTRA_TEXT, BYTES("o\0\0\0n\0\0\0\n\0\0\0"), .encoding = "utf-32", .want = "on|"},
        {INTRA_JSONL, BYTES("{\0\"\0t\0e\0x\0t\0\"\0:\0\"\0\xfc\0\"\0}\0\r\0\n\0"),
         .encoding = "utf-16le", .want = "\xc3\xbc|"},
        {INTRA_TSV, BYTES("\xfc\ty\n"), .encoding = "latin1", .want = "\xc3\xbc|"},
        {INTRA_PO, BYTES("msgid \"open\"\nmsgstr \"T\xfcr\"\n"), .encoding = "latin1",
         .want = "open=T\xc3\xbcr|"},
        {INTRA_TEXT, BYTES("\xef\xbb\xbfone"), .encoding = "latin1",
         .says = "the byte order mark of UTF-8, but"},
        {INTRA_TEXT, BYTES("one"), .encoding = "no-such",
         .says = "encoding 'no-such' is not known"},
        {INTRA_TEXT, BYTES("a\0b"), .says = "in.bin:1: byte 0x00 at offset 1 of the file is NUL"},
        {INTRA_TEXT, BYTES("a\0b"), .encoding = "latin1", .says = "in.bin:1: a NUL in latin1"},
        {INTRA_TSV, BYTES("one\ttw\0o\n"), .says = "in.bin:1: byte 0x00 at offset 6"},
        {INTRA_JSONL, BYTES("{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n"),
         .says = "in.bin:2: byte 0xff at offset 24"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("in.bin", rows[i].bytes, rows[i].n);
        check(&rows[i], "in.bin");
    }
}

// Blocks of the reader may end within a character or between CR and LF.
static void test_long_files(void **state) {
    struct neb_buf b = {0};
    (void)state;
    for (int i = 0; i < 300; i++) { // 1.2 MiB in UTF-16
        for (int k = 0; k < 2047; k++)
            neb_buf_add(&b, "\xac\x20", 2);
        neb_buf_add(&b, "\r\0\n\0", 4);
    }
    neb_buf_add(&b, "e\0n\0d\0", 6);
    put("long.txt", b.p, b.len);
    neb_buf_free(&b);
    struct intra_build_spec s = spec_of("long.txt", INTRA_TSV);
    snprintf(s.sources[0].encoding, sizeof s.sources[0].encoding, "utf-16le");
    const char *got = documents(&s); // 300 equal lines and one different line
    assert_non_null(got);
    assert_int_equal(strlen(got), 3 * 2047 + 1 + 4);
    assert_string_equal(got + 3 * 2047, "|end|");
    // a file without a line end is refused long before its end is read
    uint8_t *zero = calloc(1, 3 << 20);
    assert_non_null(zero);
    put("zero.txt", zero, 3 << 20);
    free(zero);
    s = spec_of("zero.txt", INTRA_JSONL);
    s.sources[0].max_bad_share = 1;
    assert_null(documents(&s));
    assert_non_null(strstr(said, "zero.txt: byte 0x00 at offset 0 is not UTF-8 text"));
}

static void test_files_that_are_not_text(void **state) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } rows[] = {
        {BYTES("\x1f\x8b\x08\0\0\0\0\0"), "gzip"},
        {BYTES("\x28\xb5\x2f\xfd\x04\x58"), "zstd"},
        {BYTES("\xfd"
               "7zXZ\0\0"),
         "xz"},
        {BYTES("BZh91AY&SY\1\2"), "bzip2"},
        {BYTES("PK\3\4\x14\0"), "ZIP"},
        {BYTES("PAR1\x15\x04\x15"), "Parquet"},
        {BYTES("ARROW1\0\0\xff\xff\xff\xff"), "Arrow file"},
        {BYTES("\xff\xff\xff\xff\x80\1\0\0"), "Arrow stream"},
        {BYTES("FEA1\0\0\0\0"), "Feather"},
        {BYTES("%PDF-1.4\n"), "PDF"},
        {BYTES("\177ELF\2\1\1"), "ELF"},
        {BYTES("NEBSHRD\0\1\0\0\0"), "shard"},
        {BYTES("\xde\x12\x04\x95\0\0\0\0"), "compiled message catalogue"},
        {BYTES("version https://git-lfs.github.com/spec/v1\n"), "Git LFS"},
    };
    char tar[512] = "a.txt";
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("in.bin", rows[i].bytes, rows[i].n);
        for (int f = INTRA_TEXT; f <= INTRA_PO; f++)
            check(&(struct row){.format = (enum intra_format)f, .share = 1, .says = rows[i].says},
                  "in.bin");
    }
    memcpy(tar + 257, "ustar", 5);
    put("in.bin", tar, sizeof tar);
    check(&(struct row){.format = INTRA_TEXT, .says = "offset 257: this is a tar archive"},
          "in.bin");
    // the file is not a Parquet file
    static const char good[] = "PAR1 is how a Parquet file begins\n";
    put("in.bin", good, sizeof good - 1);
    check(&(struct row){.want = "PAR1 is how a Parquet file begins|"}, "in.bin");
    // a file of token ids
    uint16_t ids[256];
    for (uint32_t i = 0; i < 256; i++)
        ids[i] = (uint16_t)(i * 40503u >> 3);
    put("in.bin", ids, sizeof ids);
    check(&(struct row){.says = "in.bin:1: byte"}, "in.bin");
}

static void test_bad_lines(void **state) {
    static const char
        lines[] = "{\"text\": \"one\"}\nnot json\n{\"text\": \"two\"}\n{\"text\": 3}\n"
                  "{\"text\": \"\xff\"}\n{\"text\": \"six\"}\n",
        tsv[] = "a b\tc d\nonly\ne f\tg\xffh\ni j\tk l\nx\tx\n",
        po[] = "msgid \"open it\"\nmsgstr \"auf damit\"\nmsgid \"broken\nmsgstr \"x\"\n\n"
               "msgid \"third one\"\nmsgstr \"drittes\"\n",
        text[] = "one\n\nt\xffwo\n\nthree\n";
    struct intra_build_spec s;
    (void)state;
    put("b.jsonl", lines, sizeof lines - 1);
    check(&(struct row){.format = INTRA_JSONL, .says = "b.jsonl:2: cannot be read as JSON"},
          "b.jsonl");
    check(&(struct row){.format = INTRA_JSONL, .share = 0.4, .says = "3 of 6 lines cannot be read"},
          "b.jsonl");
    check(&(struct row){.format = INTRA_JSONL, .share = 0.5, .want = "one|two|six|"}, "b.jsonl");
    assert_non_null(strstr(said, "b.jsonl:2: cannot be read as JSON"));
    assert_non_null(strstr(said, "b.jsonl:4: no text in field \"text\""));
    assert_non_null(strstr(said, "b.jsonl:5: byte 0xff"));
    assert_non_null(strstr(said, "3 of 6 lines cannot be read and are left out"));
    put("b.tsv", tsv, sizeof tsv - 1);
    s = spec_of("b.tsv", INTRA_TSV);
    s.sources[0].parallel = true;
    s.sources[0].target_column = 1;
    assert_null(documents(&s));
    assert_non_null(strstr(said, "b.tsv:2: fewer than 2 columns"));
    s.sources[0].max_bad_share = 0.4;
    assert_string_equal(documents(&s), "a b=c d|i j=k l|");
    put("b.po", po, sizeof po - 1);
    check(&(struct row){.format = INTRA_PO, .says = "b.po:3: a string does not end"}, "b.po");
    check(&(struct row){.format = INTRA_PO,
                        .share = 0.4,
                        .want = "open it=auf damit|third one=drittes|"},
          "b.po");
    put("b.txt", text, sizeof text - 1);
    check(&(struct row){.says = "b.txt:3: byte 0xff at offset 6"}, "b.txt");
    check(&(struct row){.share = 0.34, .want = "one|three|"}, "b.txt");
    // bad lines are skipped in both passes, over several chunks, and at most ten are named
    struct neb_buf b = {0};
    char line[64];
    for (int i = 0; i < 40000; i++) {
        int n =
            snprintf(line, sizeof line, i % 100 ? "{\"text\": \"same\"}\n" : "{\"text\": %d}\n", i);
        neb_buf_add(&b, line, (size_t)n);
    }
    put("many.jsonl", b.p, b.len);
    neb_buf_free(&b);
    check(&(struct row){.format = INTRA_JSONL, .share = 0.01, .want = "same|"}, "many.jsonl");
    assert_non_null(strstr(said, "many.jsonl:901: no text"));
    assert_null(strstr(said, "many.jsonl:1001: no text"));
    assert_non_null(strstr(said, "400 of 40000 lines"));
}

static void test_folders(void **state) {
    char path[NEB_PATH_MAX], to[NEB_PATH_MAX];
    (void)state;
    put("d/a.txt", BYTES("alpha"));
    put("d/s/b.txt", BYTES("beta"));
    snprintf(path, sizeof path, "%s/d/s/up", dir);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/d/s/abs", dir);
    snprintf(to, sizeof to, "%s/d", dir);
    assert_int_equal(symlink(to, path), 0);
    snprintf(path, sizeof path, "%s/d/c.txt", dir); // the same file by another name
    assert_int_equal(symlink("a.txt", path), 0);
    struct intra_build_spec s = spec_of("d", INTRA_TEXT);
    assert_string_equal(documents(&s), "alpha|beta|");
    assert_null(strstr(said, "left out")); // no file was read twice
    put("d/s/x.txt", BYTES("BZh91AY&SY\1\2"));
    assert_null(documents(&s));
    assert_non_null(strstr(said, "d/s/x.txt: offset 0: this is bzip2 data"));
    s.sources[0].max_bad_share = 0.4; // of documents; each file is one document
    assert_string_equal(documents(&s), "alpha|beta|");
    put("po/de/x.po", BYTES("msgid \"open it\"\nmsgstr \"auf damit\"\n"));
    put("po/de/x.mo", BYTES("\xde\x12\x04\x95\0\0\0\0"));
    s = spec_of("po", INTRA_PO);
    assert_string_equal(documents(&s), "open it=auf damit|");
    assert_non_null(strstr(said, "1 compiled catalogues (.mo) are left out"));
}

static void test_encoding_names(void **state) {
    (void)state;
    static const char *const good[] = {"utf-8",   "UTF8",   "utf-8-sig",    "ascii",
                                       "latin-1", "cp1252", "Windows-1251", "koi8_r",
                                       "euc_jp",  "utf-16", "utf_16_be",    "GB18030"};
    static const char *const bad[] = {"",
                                      "/",
                                      "utf-8//TRANSLIT",
                                      "../x",
                                      "nothing",
                                      "latin-1,",
                                      "an-encoding-with-a-name-of-more-than-forty-letters"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!intra_charset_is_known(good[i]))
            fail_msg("%s is not known", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (intra_charset_is_known(bad[i]))
            fail_msg("%s is known", bad[i]);
    assert_true(intra_charset_is_common("ISO-8859-2") && !intra_charset_is_common("IBM1390"));
}

// A text that is cut anywhere converts to the same bytes.
static void test_conversion_in_pieces(void **state) {
    static const char text[] = "a\x95\x5c\x5c\x82\xa0\xb1~z";
    struct neb_buf whole = {0}, pieces = {0};
    struct intra_charset *c = NULL;
    (void)state;
    const uint8_t *p = (const uint8_t *)text;
    size_t n = sizeof text - 1;
    assert_int_equal(intra_charset_open("SJIS", p, n, &c), NEB_OK);
    assert_int_equal(intra_charset_convert(c, p, n, true, &whole), NEB_OK);
    intra_charset_close(&c);
    for (size_t step = 1; step < n; step++) {
        neb_buf_clear(&pieces);
        assert_int_equal(intra_charset_open("SJIS", p, n, &c), NEB_OK);
        for (size_t at = 0; at < n; at += step) {
            size_t k = n - at < step ? n - at : step;
            assert_int_equal(intra_charset_convert(c, p + at, k, at + k == n, &pieces), NEB_OK);
        }
        intra_charset_close(&c);
        assert_int_equal(pieces.len, whole.len);
        assert_memory_equal(pieces.p, whole.p, whole.len);
    }
    neb_buf_free(&whole);
    neb_buf_free(&pieces);
}

static int set_up(void **state) {
    if (scratch_make(state) != 0)
        return -1;
    make_vocabulary();
    neb_log_set_sink(keep, NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_long_files),
        cmocka_unit_test(test_files_that_are_not_text),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_encoding_names),
        cmocka_unit_test(test_conversion_in_pieces),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
