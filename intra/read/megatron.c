// SPDX-License-Identifier: Apache-2.0
#include "intra/read/megatron.h"

#include <string.h>

static const char magic[9] = "MMIDIDX\0";

// Bytes per id of a type; 0: not a type of ids.
static uint32_t width_of(uint8_t type) {
    static const uint8_t widths[] = {0, 1, 1, 2, 4, 8, 0, 0, 2}; // u8 i8 i16 i32 i64 f64 f32 u16
    return type < sizeof widths ? widths[type] : 0;
}

static uint64_t word(const uint8_t *p, uint64_t k) {
    struct neb_rd r = neb_rd_make(p + 8 * k, 8);
    return neb_rd_u64(&r);
}

void intra_megatron_sequence(const struct intra_megatron *m, uint64_t k, uint64_t *at, size_t *n) {
    struct neb_rd r = neb_rd_make(m->lengths + 4 * k, 4);
    *n = (size_t)neb_rd_u32(&r) * m->width;
    *at = word(m->offsets, k);
}

void intra_megatron_document(const struct intra_megatron *m, uint64_t k, uint64_t *first,
                             uint64_t *end) {
    *first = word(m->firsts, k);
    *end = word(m->firsts, k + 1);
}

static bool fits(const struct intra_megatron *m) {
    for (uint64_t k = 0; k < m->sequences; k++) {
        uint64_t at;
        size_t n;
        intra_megatron_sequence(m, k, &at, &n);
        if (at > m->bin_bytes || n > m->bin_bytes - at)
            return false;
    }
    for (uint64_t k = 0; k < m->documents; k++) {
        uint64_t first, end;
        intra_megatron_document(m, k, &first, &end);
        if (first > end || end > m->sequences)
            return false;
    }
    return true;
}

enum neb_status intra_megatron_open(const uint8_t *p, size_t n, uint64_t bin_bytes,
                                    const char *path, struct intra_megatron *out) {
    struct neb_rd r = neb_rd_make(p, n);
    char begins[sizeof magic];
    neb_rd_copy(&r, begins, sizeof begins);
    uint64_t version = neb_rd_u64(&r);
    uint8_t type = neb_rd_u8(&r);
    uint64_t sequences = neb_rd_u64(&r), firsts = neb_rd_u64(&r);
    *out = (struct intra_megatron){.sequences = sequences,
                                   .documents = firsts ? firsts - 1 : 0,
                                   .width = width_of(type),
                                   .bin_bytes = bin_bytes};
    if (r.bad || memcmp(begins, magic, sizeof magic) != 0)
        return neb_fail(NEB_ERR_FORMAT, "%s: not the index (.idx) of a Megatron data set", path);
    if (version != 1)
        return neb_fail(NEB_ERR_FORMAT, "%s: version %llu of the index is not known", path,
                        (unsigned long long)version);
    if (!out->width)
        return neb_fail(NEB_ERR_FORMAT, "%s: type %d is not one of token ids", path, type);
    // n bounds both counts, so that the products below do not overflow
    if (sequences <= n && firsts <= n) {
        out->lengths = neb_rd_view(&r, (size_t)sequences * 4);
        out->offsets = neb_rd_view(&r, (size_t)sequences * 8);
        out->firsts = neb_rd_view(&r, (size_t)firsts * 8);
    }
    if (r.bad || !out->lengths || !out->offsets || !out->firsts || !firsts)
        return neb_fail(NEB_ERR_FORMAT, "%s: the index is cut short: %zu bytes", path, n);
    return fits(out)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "%s: the index does not fit its .bin file of %llu bytes",
                          path, (unsigned long long)bin_bytes);
}
