// SPDX-License-Identifier: Apache-2.0
// Packed files, tar archives and Megatron indexes, good and hostile. The packers are the libraries
// themselves; tests/e2e/test_formats.sh has files of other programs.
#include "intra/read/input.h"
#include "intra/read/megatron.h"
#include "intra/read/tar.h"
#include "tests/unit/scratch.h"

#include <lzma.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { GZ, ZST, XZ, PACKERS };

static void pack(int how, const void *p, size_t n, struct neb_buf *out) {
    size_t at = out->len, used = 0;
    assert_int_equal(neb_buf_reserve(out, n + n / 100 + 1024), NEB_OK);
    size_t cap = out->cap - at;
    if (how == GZ) {
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_in = (Bytef *)(uintptr_t)p;
        z.avail_in = (uInt)n;
        z.next_out = out->p + at;
        z.avail_out = (uInt)cap;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        used = cap - z.avail_out;
        deflateEnd(&z);
    } else if (how == ZST) {
        used = ZSTD_compress(out->p + at, cap, p, n, 3);
        assert_false(ZSTD_isError(used));
    } else {
        assert_int_equal(
            lzma_easy_buffer_encode(1, LZMA_CHECK_CRC64, NULL, p, n, out->p + at, &used, cap),
            LZMA_OK);
    }
    out->len = at + used;
}

// Reads a file of these bytes in pieces of `step`.
static enum neb_status unpack(const struct neb_buf *packed, size_t step, struct neb_buf *out) {
    struct intra_input *in = NULL;
    neb_buf_clear(out);
    message[0] = 0;
    FILE *f = fmemopen(packed->p, packed->len, "r");
    assert_non_null(f);
    enum neb_status st = intra_input_take(f, "in.bin", 0, NULL, &in);
    for (size_t got = step; st == NEB_OK && got == step;) {
        assert_int_equal(neb_buf_reserve(out, step), NEB_OK);
        st = intra_input_read(in, out->p + out->len, step, &got);
        out->len += st == NEB_OK ? got : 0;
        if (out->len > 1 << 28)
            fail_msg("no limit");
    }
    intra_input_close(&in);
    return st;
}

static void test_packed(void **state) {
    struct neb_buf text = {0}, packed = {0}, got = {0};
    (void)state;
    for (int i = 0; i < 60000; i++) {
        char line[32];
        neb_buf_add(&text, line, (size_t)snprintf(line, sizeof line, "%d\n", i * 7919 % 100003));
    }
    for (int how = 0; how < PACKERS; how++) {
        static const size_t steps[] = {1 << 20, 65536, 1000};
        neb_buf_clear(&packed);
        pack(how, text.p, 100000, &packed); // two parts
        size_t first = packed.len;
        pack(how, text.p + 100000, text.len - 100000, &packed);
        for (int s = 0; s < 3; s++) {
            assert_int_equal(unpack(&packed, steps[s], &got), NEB_OK);
            assert_int_equal(got.len, text.len);
            assert_memory_equal(got.p, text.p, text.len);
        }
        for (size_t n = 7; n < packed.len; n += 997) { // cut anywhere but between the parts
            struct neb_buf cut = {.p = packed.p, .len = n};
            assert_int_equal(unpack(&cut, 1 << 20, &got), NEB_ERR_CORRUPT);
            assert_non_null(strstr(message, "in.bin: the "));
            assert_non_null(strstr(message, "the file is cut short"));
        }
        struct neb_buf half = {.p = packed.p, .len = first};
        assert_int_equal(unpack(&half, 1 << 20, &got), NEB_OK);
        assert_int_equal(got.len, 100000);
        packed.p[how == ZST ? 5 : first / 2] ^= 0xff; // this zstd file has no sum
        assert_true(unpack(&packed, 1 << 20, &got) != NEB_OK);
        packed.p[how == ZST ? 5 : first / 2] ^= 0xff;
        neb_buf_add(&packed, "rest", 4);
        assert_true(unpack(&packed, 1 << 20, &got) != NEB_OK);
    }
    neb_buf_clear(&packed);
    pack(GZ, "padded", 6, &packed);
    memset(neb_buf_grow(&packed, 600), 0, 600);
    assert_int_equal(unpack(&packed, 1000, &got), NEB_OK);
    assert_int_equal(got.len, 6);
    neb_buf_free(&packed);
    neb_buf_free(&text);
    neb_buf_free(&got);
}

// Zeros shrink a thousandfold and more.
static void test_bombs(void **state) {
    struct neb_buf packed = {0}, got = {0};
    (void)state;
    size_t n = 120 << 20;
    uint8_t *zeros = calloc(1, n);
    assert_non_null(zeros);
    for (int how = 0; how < PACKERS; how++) {
        neb_buf_clear(&packed);
        pack(how, zeros, n, &packed);
        assert_int_equal(unpack(&packed, 1 << 20, &got), NEB_ERR_LIMIT);
        assert_non_null(strstr(message, "more than 256 times as many"));
        assert_true(got.len <= 100 << 20);
        neb_buf_clear(&packed); // but a small file may shrink as much as it can
        pack(how, zeros, 32 << 20, &packed);
        assert_int_equal(unpack(&packed, 1 << 20, &got), NEB_OK);
        assert_int_equal(got.len, 32 << 20);
    }
    free(zeros);
    // a window of 2 GiB
    static const uint8_t wide[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0, 0};
    neb_buf_clear(&packed);
    neb_buf_add(&packed, wide, sizeof wide);
    assert_int_equal(unpack(&packed, 1 << 20, &got), NEB_ERR_FORMAT);
    neb_buf_free(&packed);
    neb_buf_free(&got);
}

static void test_pipes(void **state) {
    struct intra_input *in = NULL;
    struct neb_buf got = {0};
    char path[NEB_PATH_MAX];
    (void)state;
    snprintf(path, sizeof path, "%s/fifo", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    pid_t child = fork();
    if (child == 0) {
        struct neb_buf packed = {0};
        usleep(50000); // the reader waits for it
        pack(GZ, "through a named pipe", 20, &packed);
        FILE *f = fopen(path, "w");
        _exit(!f || fwrite(packed.p, 1, packed.len, f) != packed.len || fclose(f) != 0);
    }
    assert_int_equal(intra_input_open(path, &in), NEB_OK);
    assert_int_equal(intra_input_whole(in, 100, &got), NEB_OK);
    assert_string_equal((char *)got.p, "through a named pipe");
    intra_input_close(&in);
    assert_int_equal(intra_input_open(dir, &in), NEB_ERR_INVALID);
    neb_buf_free(&got);
    assert_int_equal(intra_input_name("a.txt.gz"), 5);
    assert_int_equal(intra_input_name(".gz"), 3);
}

// ---- tar ----------------------------------------------------------------------------------------

static uint8_t *header(struct neb_buf *b, const char *name, char type, size_t size) {
    char *h = (char *)neb_buf_grow(b, 512);
    memset(h, 0, 512);
    snprintf(h, 100, "%s", name);
    snprintf(h + 124, 12, "%011zo", size);
    h[156] = type;
    memcpy(h + 257, "ustar\00000", 8);
    return (uint8_t *)h;
}

static void seal(uint8_t *h) {
    unsigned sum = 8 * ' ';
    for (int i = 0; i < 512; i++)
        sum += i >= 148 && i < 156 ? 0 : h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
}

static void member(struct neb_buf *b, const char *name, char type, const char *text) {
    size_t n = strlen(text);
    seal(header(b, name, type, n));
    neb_buf_add(b, text, n);
    if (n % 512)
        memset(neb_buf_grow(b, 512 - n % 512), 0, 512 - n % 512);
}

// The archive as "name=content|"; an error as its message.
static const char *listing(const struct neb_buf *tar) {
    static char out[16384];
    struct intra_tar t = {.path = "a.tar"};
    struct neb_buf text = {0};
    bool found = true;
    out[0] = message[0] = 0;
    FILE *f = fmemopen(tar->p, tar->len, "r");
    enum neb_status st = intra_input_take(f, "a.tar", 0, NULL, &t.in);
    while (st == NEB_OK && (st = intra_tar_next(&t, &found)) == NEB_OK && found)
        if ((st = intra_tar_content(&t, 1000, &text)) == NEB_OK)
            snprintf(out + strlen(out), sizeof out - strlen(out), "%s=%s|", t.name, (char *)text.p);
    intra_input_close(&t.in);
    neb_buf_free(&text);
    return st == NEB_OK ? out : message;
}

static void test_tar(void **state) {
    struct neb_buf b = {0};
    char name[300], pax[400], want[400];
    (void)state;
    member(&b, "../../etc/passwd", '0', "only a name");
    member(&b, "/abs", 0, "x");
    seal(header(&b, "link", '2', 0));
    seal(header(&b, "folder/", '5', 4096)); // some programs write a size
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    member(&b, "././@LongLink", 'L', name);
    member(&b, "short", '0', "gnu");
    snprintf(pax, sizeof pax, "%zu path=%s\n", strlen(name) + 10, name);
    member(&b, "pax", 'x', pax);
    member(&b, "short", '0', "pax");
    memset(neb_buf_grow(&b, 1024), 0, 1024);
    snprintf(want, sizeof want, "../../etc/passwd=only a name|/abs=x|%.250s", name);
    assert_non_null(strstr(listing(&b), want));
    assert_non_null(strstr(listing(&b), "n=gnu|n"));
    assert_non_null(strstr(listing(&b), "n=pax|"));
    for (size_t n = 1; n < b.len - 1024; n += 100) { // cut anywhere
        struct neb_buf cut = {.p = b.p, .len = n};
        assert_non_null(strstr(listing(&cut), "it is cut short"));
    }
    b.p[1] ^= 1;
    assert_non_null(strstr(listing(&b), "wrong sum"));
    neb_buf_clear(&b);
    seal(header(&b, "large", '0', 2000));
    memset(neb_buf_grow(&b, 4096), 0, 4096);
    assert_non_null(strstr(listing(&b), "large has 2000 bytes, at most 1000"));
    static const struct {
        const char *pax, *says;
    } rows[] = {
        {"9999 path=x\n", "pax header is damaged"},
        {"12 size=0x10\n", "pax header is damaged"},
        {"13 size=0x10\n", "not a number"},
        {"32 size=99999999999999999999999\n", "not a number"},
        {"24 GNU.sparse.major=1.0\n", "sparse"},
        {"20 path=without end", "pax header is damaged"},
        {"3 x", "pax header is damaged"},
        {"99999999999999999999999999 path=x\n", "pax header is damaged"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        neb_buf_clear(&b);
        member(&b, "pax", 'x', rows[i].pax);
        member(&b, "file", '0', "text");
        memset(neb_buf_grow(&b, 1024), 0, 1024);
        if (!strstr(listing(&b), rows[i].says))
            fail_msg("%s: %s", rows[i].pax, listing(&b));
    }
    neb_buf_clear(&b);
    uint8_t *h = header(&b, "vast", '0', 0); // a size in base 256
    memset(h + 124, 0xff, 12);
    h[124] = 0x80;
    seal(h);
    assert_non_null(strstr(listing(&b), "has no size"));
    neb_buf_free(&b);
}

// ---- Megatron -----------------------------------------------------------------------------------

static void put_index(struct neb_buf *b, uint8_t type, const uint32_t *lengths, uint64_t n,
                      const uint64_t *firsts, uint64_t n_firsts) {
    neb_buf_clear(b);
    neb_buf_add(b, "MMIDIDX\0", 9);
    neb_buf_u64(b, 1);
    neb_buf_u8(b, type);
    neb_buf_u64(b, n);
    neb_buf_u64(b, n_firsts);
    for (uint64_t i = 0; i < n; i++)
        neb_buf_u32(b, lengths[i]);
    for (uint64_t i = 0, at = 0; i < n; at += 2 * lengths[i++])
        neb_buf_u64(b, at);
    for (uint64_t i = 0; i < n_firsts; i++)
        neb_buf_u64(b, firsts[i]);
}

static void test_megatron(void **state) {
    static const uint32_t lengths[] = {3, 5, 2};
    static const uint64_t firsts[] = {0, 2, 3}, twisted[] = {2, 0, 3}, beyond[] = {0, 4};
    struct neb_buf b = {0};
    struct intra_megatron m;
    uint64_t first, end, at;
    size_t n;
    (void)state;
    put_index(&b, 8, lengths, 3, firsts, 3);
    assert_int_equal(intra_megatron_open(b.p, b.len, 20, "x.idx", &m), NEB_OK);
    assert_int_equal(m.documents, 2);
    assert_int_equal(m.width, 2);
    intra_megatron_document(&m, 0, &first, &end);
    assert_true(first == 0 && end == 2);
    intra_megatron_sequence(&m, 1, &at, &n);
    assert_true(at == 6 && n == 10);
    assert_int_equal(intra_megatron_open(b.p, b.len, 19, "x.idx", &m), NEB_ERR_FORMAT);
    for (size_t cut = 0; cut < b.len; cut++)
        assert_int_equal(intra_megatron_open(b.p, cut, 20, "x.idx", &m), NEB_ERR_FORMAT);
    put_index(&b, 7, lengths, 3, firsts, 3); // floats
    assert_int_equal(intra_megatron_open(b.p, b.len, 20, "x.idx", &m), NEB_ERR_FORMAT);
    put_index(&b, 8, lengths, 3, twisted, 3);
    assert_int_equal(intra_megatron_open(b.p, b.len, 20, "x.idx", &m), NEB_ERR_FORMAT);
    put_index(&b, 8, lengths, 3, beyond, 2);
    assert_int_equal(intra_megatron_open(b.p, b.len, 20, "x.idx", &m), NEB_ERR_FORMAT);
    neb_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed), cmocka_unit_test(test_bombs),
                                       cmocka_unit_test(test_pipes), cmocka_unit_test(test_tar),
                                       cmocka_unit_test(test_megatron)};
    neb_log_set_sink(scratch_keep, NULL);
    return cmocka_run_group_tests_name("input", tests, scratch_make, scratch_remove);
}
