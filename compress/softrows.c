// SPDX-License-Identifier: Apache-2.0
#include "compress/softrows.h"

#include <string.h>

enum { NONE = CMP_ROWS_SLOTS, FADE = 250, COUNTED_MOST = 1 << 22 };
enum { ONE = 64, ONE_BITS = 6 }; // of likeness

void cmp_rows_free(struct cmp_rows *s) {
    neb_buf_free(&s->slot_of);
    neb_buf_free(&s->rows);
    neb_buf_free(&s->likeness);
}

// ---- a frame ------------------------------------------------------------------------------------

static void nodes_begin(struct cmp_node *n, size_t count) {
    for (size_t i = 0; i < count; i++)
        n[i] = CMP_NODE;
}

static enum neb_status zeros(struct neb_buf *b, size_t n) {
    neb_buf_clear(b);
    uint8_t *p = neb_buf_grow(b, n + 1);
    if (p)
        memset(p, 0, n + 1);
    return neb_buf_check(b);
}

static enum neb_status begin(struct cmp_rows *s, int32_t k, int32_t vocab, uint32_t rows) {
    uint64_t cube = (uint64_t)k * (uint64_t)k * (uint64_t)k;
    s->k = k;
    for (s->bits = 1; s->bits < 31 && (1 << s->bits) < vocab; s->bits++) {
    }
    s->n = s->counted = 0;
    // as many steps for each label, so that the time of a label does not depend on k
    s->reach = k <= 16 ? CMP_ROWS_REACH : 512 / (uint32_t)k;
    for (s->shift = 0; cube << (2 * ONE_BITS) >> s->shift > 1 << 23; s->shift++) {
    }
    memset(s->block, 0, sizeof s->block);
    nodes_begin(&s->gaps[0][0][0], sizeof s->gaps / sizeof s->gaps[0][0][0]);
    nodes_begin(&s->tails[0][0], sizeof s->tails / sizeof s->tails[0][0]);
    nodes_begin(s->high, sizeof s->high / sizeof *s->high);
    nodes_begin(s->fresh, sizeof s->fresh / sizeof *s->fresh);
    NEB_TRY(zeros(&s->slot_of, sizeof(uint16_t) * (size_t)vocab));
    NEB_TRY(zeros(&s->rows, sizeof(uint16_t) * rows * (size_t)k));
    return zeros(&s->likeness, sizeof(uint32_t) * rows);
}

enum neb_status cmp_rows_write(struct cmp_rows *s, int32_t k, int32_t vocab, uint32_t rows,
                               struct neb_buf *out) {
    s->reads = false;
    s->to = cmp_range_writer_make(out);
    return begin(s, k, vocab, rows);
}

enum neb_status cmp_rows_read(struct cmp_rows *s, int32_t k, int32_t vocab, uint32_t rows,
                              const uint8_t *p, size_t n) {
    s->reads = true;
    s->from = cmp_range_reader_make(p, n);
    return begin(s, k, vocab, rows);
}

static uint16_t *slots_of(struct cmp_rows *s) { return (void *)s->slot_of.p; }
static uint16_t *row_at(struct cmp_rows *s, uint32_t row) {
    return (uint16_t *)(void *)s->rows.p + (size_t)row * (size_t)s->k;
}
static uint32_t *likeness(struct cmp_rows *s) { return (void *)s->likeness.p; }

// ---- symbols ------------------------------------------------------------------------------------

static unsigned bit(struct cmp_rows *s, struct cmp_node *n, unsigned value) {
    if (s->reads)
        return cmp_range_get_bit(&s->from, n, FADE);
    cmp_range_put_bit(&s->to, n, FADE, value);
    return value;
}

static unsigned symbol(struct cmp_rows *s, struct cmp_node *tree, int bits, unsigned value) {
    unsigned node = 1;
    for (int i = bits; i-- > 0;)
        node = 2 * node + bit(s, &tree[node], value >> i & 1);
    return node - (1u << bits);
}

static uint32_t spell(struct cmp_rows *s, uint32_t id) {
    int low = s->bits > 8 ? s->bits - 8 : 0;
    uint32_t mask = (1u << low) - 1, high = symbol(s, s->high, s->bits - low, id >> low);
    id &= mask;
    if (s->reads) {
        id = cmp_range_peek_part(&s->from, mask + 1);
        cmp_range_take_part(&s->from, id, 1, mask + 1);
    } else
        cmp_range_put_part(&s->to, id, 1, mask + 1);
    return high << low | id;
}

// ---- weights ------------------------------------------------------------------------------------

// Of the slots below `slot`.
static uint32_t weight_before(const struct cmp_rows *s, uint32_t slot) {
    uint32_t sum = 0, i = 0;
    for (; i < slot / CMP_ROWS_BLOCK; i++)
        sum += s->block[i];
    for (i *= CMP_ROWS_BLOCK; i < slot; i++)
        sum += s->weight[i];
    return sum;
}

// The slot whose share has `at`; *start: of the share.
static uint32_t slot_with(const struct cmp_rows *s, uint32_t at, uint32_t *start) {
    uint32_t sum = 0, i = 0;
    while (at - sum >= s->block[i])
        sum += s->block[i++];
    for (i *= CMP_ROWS_BLOCK; at - sum >= s->weight[i]; i++)
        sum += s->weight[i];
    *start = sum;
    return i;
}

// The token is in this row: rows that have it become more like this row. A row's tokens gain the
// square of its likeness.
static void recall(struct cmp_rows *s, uint32_t slot) {
    // ONE / sqrt(n + 1.5)
    static const uint8_t share[CMP_ROWS_REACH + 1] = {52, 40, 34, 30, 27, 25, 23, 22, 21, 20, 19,
                                                      18, 17, 17, 16, 16, 15, 15, 14, 14, 14, 13,
                                                      13, 13, 13, 12, 12, 12, 12, 12, 11, 11, 11};
    uint32_t n = s->seen[slot] < s->reach ? s->seen[slot] : s->reach, more = share[n];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = s->rows_with[slot][i], *like = &likeness(s)[row];
        uint32_t gain = more * (2 * *like + more) >> s->shift;
        const uint16_t *slots = row_at(s, row);
        *like += more;
        for (int32_t j = 0; j < s->k; j++) {
            uint32_t add = gain & s->open[slots[j]];
            s->weight[slots[j]] += add;
            s->block[slots[j] / CMP_ROWS_BLOCK] += add;
        }
    }
}

// The token is coded. slot NONE: it is new. Returns its slot; NONE: all are in use.
static uint32_t take(struct cmp_rows *s, uint32_t slot, int32_t id) {
    if (slot == NONE && s->n < CMP_ROWS_SLOTS) {
        slot = s->n++;
        s->id[slot] = id;
        s->count[slot] = s->weight[slot] = s->seen[slot] = 0;
        slots_of(s)[id] = (uint16_t)(slot + 1);
    }
    s->open[slot] = 0;
    s->block[slot / CMP_ROWS_BLOCK] -= s->weight[slot];
    s->weight[slot] = 0;
    if (slot != NONE)
        recall(s, slot);
    return slot;
}

// After a row: weights are the counts again.
static void learn(struct cmp_rows *s, uint32_t row) {
    const uint16_t *slots = row_at(s, row);
    for (int32_t j = 0; j < s->k; j++) {
        uint32_t slot = slots[j];
        if (slot == NONE)
            continue;
        for (uint32_t i = 0; i < s->seen[slot] && i < s->reach; i++)
            likeness(s)[s->rows_with[slot][i]] = 0;
        s->rows_with[slot][s->seen[slot]++ % s->reach] = row;
        s->count[slot]++;
        s->counted++;
    }
    if (s->counted > COUNTED_MOST) {
        s->counted = 0;
        for (uint32_t i = 0; i < s->n; i++)
            s->counted += s->count[i] -= s->count[i] / 2;
    }
    memset(s->block, 0, sizeof s->block);
    for (uint32_t i = 0; i < s->n; i++) {
        s->open[i] = UINT32_MAX;
        s->block[i / CMP_ROWS_BLOCK] += s->weight[i] = s->count[i];
    }
}

// ---- a row --------------------------------------------------------------------------------------

static uint32_t slot_of(struct cmp_rows *s, int32_t id) {
    uint32_t slot = slots_of(s)[id];
    return slot ? slot - 1 : NONE;
}

// Ties in the order of their slots, then of their ids.
static void sort_ties(struct cmp_rows *s, int32_t *ids, const uint8_t *gaps) {
    for (int32_t j = 1; j < s->k; j++)
        for (int32_t i = j; i > 0 && !gaps[i]; i--) {
            uint32_t a = slot_of(s, ids[i - 1]), b = slot_of(s, ids[i]);
            if (a < b || (a == b && ids[i - 1] < ids[i]))
                break;
            int32_t id = ids[i];
            ids[i] = ids[i - 1];
            ids[i - 1] = id;
        }
}

// Codes an id whose slot is at least `least`. Returns its slot, or NONE.
static uint32_t code_id(struct cmp_rows *s, int32_t *id, uint32_t least, struct cmp_node *fresh) {
    uint32_t skipped = weight_before(s, least), start = 0, total = weight_before(s, s->n) - skipped,
             slot = s->reads ? NONE : slot_of(s, *id);
    if (!total || bit(s, fresh, slot == NONE)) {
        *id = (int32_t)spell(s, (uint32_t)*id);
        return NONE;
    }
    if (s->reads) {
        slot = slot_with(s, cmp_range_peek_part(&s->from, total) + skipped, &start);
        *id = s->id[slot];
        cmp_range_take_part(&s->from, start - skipped, s->weight[slot], total);
    } else
        cmp_range_put_part(&s->to, weight_before(s, slot) - skipped, s->weight[slot], total);
    return slot;
}

bool cmp_rows_code(struct cmp_rows *s, uint32_t row, int32_t *ids, uint8_t *gaps, uint8_t *tail) {
    uint16_t *slots = row_at(s, row);
    unsigned fall = 0;
    size_t vocab = s->slot_of.len / sizeof(uint16_t);
    if (!s->reads)
        sort_ties(s, ids, gaps);
    gaps[0] = 0;
    for (int32_t j = 0; j < s->k; j++) {
        int32_t rank = j < CMP_ROWS_RANKS ? j : CMP_ROWS_RANKS - 1;
        uint32_t least = 0;
        if (j) {
            unsigned last = gaps[j - 1], kind = last < 1 ? 0 : last < 3 ? 1 : last < 8 ? 2 : 3;
            gaps[j] = (uint8_t)symbol(s, s->gaps[rank][kind], 8, gaps[j]);
            fall += gaps[j];
            least = gaps[j] ? 0 : slots[j - 1] == NONE ? s->n : slots[j - 1] + 1u;
        }
        uint32_t slot = code_id(s, &ids[j], least, &s->fresh[rank]);
        if ((size_t)ids[j] >= vocab)
            return false;
        slots[j] = (uint16_t)take(s, slot == NONE ? slot_of(s, ids[j]) : slot, ids[j]);
    }
    *tail = (uint8_t)symbol(s, s->tails[fall / 8 < 7 ? fall / 8 : 7], 8, *tail);
    learn(s, row);
    return true;
}
