// SPDX-License-Identifier: Apache-2.0
// The table of all codecs, and what is asked of it by name or number. Codecs and their variants
// stand finest first: the controller tries codec levels in this order.
#include "compress/ops.h"

#include <stdio.h>
#include <string.h>

extern const struct cmp_codec_ops cmp_fp32, cmp_bf16, cmp_int8, cmp_int4, cmp_topk;
#ifdef CMP_TEST_CODEC // a test compiles this file with one more codec (tests/unit/codec_added.c)
extern const struct cmp_codec_ops CMP_TEST_CODEC;
#endif

const struct cmp_codec_ops *const cmp_codecs[] = {&cmp_fp32,       &cmp_bf16,
#ifdef CMP_TEST_CODEC
                                                  &CMP_TEST_CODEC,
#endif
                                                  &cmp_int8,       &cmp_int4, &cmp_topk, NULL};

int cmp_format_numbered(uint8_t number) {
    for (int i = 0; cmp_codecs[i]; i++)
        if (cmp_codecs[i]->number == number)
            return i;
    return -1;
}

// ---- text ---------------------------------------------------------------------------------------

void cmp_codec_usage(char *out, size_t cap) {
    size_t n = 0;
    for (int i = 0; cmp_codecs[i] && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", cmp_codecs[i]->usage);
}

enum neb_status cmp_codec_parse(const char *text, struct cmp_codec *out) {
    char usage[256];
    for (int i = 0; cmp_codecs[i]; i++) {
        struct cmp_codec c = {
            .format = (uint8_t)i, .block = 128, .chunk = 4096, .k = 64, .zstd_level = 1, .bits = 2};
        if (cmp_ops(&c)->parse ? !cmp_ops(&c)->parse(text, &c)
                               : strcmp(text, cmp_ops(&c)->name) != 0)
            continue;
        if (c.block < 8 || c.block > 65535 || c.chunk < 64 || c.chunk > 65536 || c.k < 1 ||
            c.k > c.chunk)
            return neb_fail(NEB_ERR_INVALID,
                            "codec \"%s\": BLOCK is 8..65535, CHUNK 64..65536, K 1..CHUNK", text);
        *out = c;
        return NEB_OK;
    }
    cmp_codec_usage(usage, sizeof usage);
    return neb_fail(NEB_ERR_INVALID, "codec \"%s\" is not known; use one of %s", text, usage);
}

void cmp_codec_name(const struct cmp_codec *c, char *out, size_t cap) {
    if (cmp_ops(c)->print)
        cmp_ops(c)->print(c, out, cap);
    else
        snprintf(out, cap, "%s", cmp_ops(c)->name);
}

// ---- properties ---------------------------------------------------------------------------------

double cmp_codec_density(const struct cmp_codec *c) {
    return cmp_codec_sparse(c) ? (double)cmp_ops(c)->entries(c, c->chunk) / c->chunk : 1;
}

struct cmp_codec cmp_codec_dense(const struct cmp_codec *c) {
    struct cmp_codec dense = *c;
    if (cmp_codec_sparse(c))
        dense.format = (uint8_t)cmp_format_numbered(cmp_int4.number), dense.levels = 0,
        dense.bits = 2;
    return dense;
}

double cmp_codec_code_bytes(const struct cmp_codec *c) {
    double bytes = 0;
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        bytes += cmp_ops(c)->streams[i] == CMP_CODES8   ? 1
                 : cmp_ops(c)->streams[i] == CMP_CODES4 ? 0.5
                                                        : 0;
    return bytes;
}

bool cmp_codec_coarse(const struct cmp_codec *c) {
    return cmp_ops(c)->variants[0].bits < cmp_int8.variants[0].bits;
}

uint64_t cmp_codec_bytes_max(const struct cmp_codec *c, uint64_t n, uint64_t units) {
    // Bytes of a unit's heads: of the update, the frame, the streams; and the last block's scale.
    enum { HEADS = 512 };
    // n / 16: row counts, a byte for a row of at least 16 columns
    uint64_t most = units * HEADS + n / 16;
    size_t min[CMP_STREAMS_MAX] = {0}, max[CMP_STREAMS_MAX] = {0};
    if (cmp_ops(c)->bound)
        return most + cmp_ops(c)->bound(c, n, units);
    cmp_ops(c)->sizes(c, n, min, max);
    for (int i = 0; i < CMP_STREAMS_MAX; i++)
        most += max[i];
    return most;
}

// ---- variants and levels ------------------------------------------------------------------------

const struct cmp_variant *cmp_variant(int i, unsigned uses) {
    for (int k = 0; cmp_codecs[k]; k++)
        for (const struct cmp_variant *v = cmp_codecs[k]->variants; v->name; v++)
            if (v->uses & uses && i-- == 0)
                return v;
    return NULL;
}

const struct cmp_variant *cmp_level(int level) {
    return level > 0 ? cmp_variant(level - 1, CMP_LEVEL) : NULL;
}

bool cmp_level_valid(int level) { return level == CMP_LEVEL_JOB || cmp_level(level); }

int cmp_level_of(const char *text) {
    const struct cmp_variant *v;
    for (int i = 1; (v = cmp_level(i)); i++)
        if (!strcmp(text, v->name) || (v->alias && !strcmp(text, v->alias)))
            return i;
    return CMP_LEVEL_JOB;
}

uint8_t cmp_level_number(int level) {
    const struct cmp_variant *v = cmp_level(level);
    return v ? v->level : CMP_LEVEL_JOB;
}

int cmp_level_numbered(uint8_t number) {
    const struct cmp_variant *v;
    for (int i = 1; number && (v = cmp_level(i)); i++)
        if (v->level == number)
            return i;
    return number ? -1 : CMP_LEVEL_JOB;
}
