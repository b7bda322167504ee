// SPDX-License-Identifier: Apache-2.0
// A packed file (gzip, zstd, xz), a tar archive in it, and the index of a Megatron data set.
// Reading in pieces of another size gives the same bytes; the limits hold.
#include "agent/base/log.h"
#include "intra/read/input.h"
#include "intra/read/megatron.h"
#include "intra/read/tar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct intra_input *open_bytes(uint8_t *p, size_t n) {
    struct intra_input *in = NULL;
    FILE *f = fmemopen(p, n, "r");
    NEB_ASSERT(f);
    if (intra_input_take(f, "in", 0, NULL, &in) != NEB_OK)
        NEB_ASSERT(!in);
    return in;
}

static enum neb_status unpack(uint8_t *p, size_t n, size_t step, struct neb_buf *out) {
    struct intra_input *in = open_bytes(p, n);
    enum neb_status st = in ? NEB_OK : NEB_ERR_NOMEM;
    for (size_t got = step; st == NEB_OK && got == step;) {
        NEB_ASSERT(neb_buf_reserve(out, step) == NEB_OK);
        st = intra_input_read(in, out->p + out->len, step, &got);
        NEB_ASSERT(got <= step);
        out->len += st == NEB_OK ? got : 0;
    }
    if (in)
        NEB_ASSERT(intra_input_taken(in) <= n && out->len <= INTRA_UNPACK_FREE + 256 * n);
    intra_input_close(&in);
    return st;
}

static void list_tar(uint8_t *p, size_t n) {
    struct intra_tar t = {.path = "in", .in = open_bytes(p, n)};
    struct neb_buf text = {0};
    bool found = t.in != NULL;
    for (int i = 0; found && intra_tar_next(&t, &found) == NEB_OK && found; i++) {
        NEB_ASSERT(memchr(t.name, 0, sizeof t.name));
        if (i % 2 && intra_tar_content(&t, 1 << 16, &text) != NEB_OK)
            break;
    }
    neb_buf_free(&text);
    intra_input_close(&t.in);
}

static void read_index(const uint8_t *p, size_t n) {
    struct intra_megatron m;
    uint64_t first, end, at;
    size_t bytes;
    if (intra_megatron_open(p, n, 1000, "in", &m) != NEB_OK)
        return;
    for (uint64_t k = 0; k < m.documents; k++)
        for (intra_megatron_document(&m, k, &first, &end); first < end; first++) {
            intra_megatron_sequence(&m, first, &at, &bytes);
            NEB_ASSERT(at <= 1000 && bytes <= 1000 - at);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct neb_buf whole = {0}, pieces = {0};
    if (size < 2)
        return 0;
    size_t n = size - 1, step = (size_t)data[0] * 16 + 1;
    uint8_t *p = malloc(n); // of exact size
    NEB_ASSERT(p);
    memcpy(p, data + 1, n);
    enum neb_status st = unpack(p, n, 1 << 16, &whole);
    NEB_ASSERT(unpack(p, n, step, &pieces) == st);
    if (st == NEB_OK)
        NEB_ASSERT(whole.len == pieces.len &&
                   (!whole.len || !memcmp(whole.p, pieces.p, whole.len)));
    list_tar(p, n);
    read_index(p, n);
    neb_buf_free(&whole);
    neb_buf_free(&pieces);
    free(p);
    return 0;
}
