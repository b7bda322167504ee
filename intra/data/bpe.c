// SPDX-License-Identifier: Apache-2.0
// Pieces to ids, and ids back to text. bpe_load.c reads the file.
#include "intra/data/bpe_state.h"

#include "agent/base/rng.h"

#include <stdlib.h>
#include <string.h>

// A piece of at most this many bytes is scanned for the next pair; a longer one uses a heap.
enum { SHORT = 32 };

// ---- tables -------------------------------------------------------------------------------------

uint64_t bpe_hash(uint64_t seed, const uint8_t *p, size_t n) {
    uint64_t h = neb_mix64(seed ^ n), w = 0;
    for (; n >= sizeof w; p += sizeof w, n -= sizeof w) {
        memcpy(&w, p, sizeof w);
        h = neb_mix64(h ^ w);
    }
    w = 0;
    memcpy(&w, p, n);
    return neb_mix64(h ^ w);
}

int32_t bpe_find(const struct intra_bpe *b, const uint8_t *p, size_t n) {
    size_t mask = b->names_cap - 1;
    for (size_t i = bpe_hash(b->seed, p, n) & mask;; i = (i + 1) & mask) {
        int32_t id = b->names[i];
        if (id < 0)
            return -1;
        const struct bpe_token *t = &b->tokens[id];
        if (t->len == n && !memcmp(b->text.p + t->at, p, n))
            return id;
    }
}

struct bpe_merge *bpe_merge_slot(const struct intra_bpe *b, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = b->merges_cap - 1;
    for (size_t i = neb_mix64(pair ^ b->seed) & mask;; i = (i + 1) & mask) {
        struct bpe_merge *m = &b->merges[i];
        if (m->rank < 0 || m->pair == pair)
            return m;
    }
}

// ---- merging ------------------------------------------------------------------------------------

static enum neb_status add_ids(struct bpe_work *w, const int32_t *ids, size_t n) {
    if (w->ids_cap - w->n_ids < n + 1) { // one more, for a caller that appends an EOS
        size_t cap = 2 * w->ids_cap + n + 64;
        int32_t *more = realloc(w->ids, cap * sizeof *more);
        if (!more)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu tokens", cap);
        w->ids = more;
        w->ids_cap = cap;
    }
    if (n)
        memcpy(w->ids + w->n_ids, ids, n * sizeof *ids);
    w->n_ids += n;
    return NEB_OK;
}

// ranks[i] and into[i] belong to the pair of symbols i and i + 1.
static enum neb_status merge_short(const struct intra_bpe *b, struct bpe_work *w, const uint8_t *p,
                                   size_t len) {
    int32_t ids[SHORT], ranks[SHORT], into[SHORT];
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        if (b->byte_ids[p[i]] >= 0)
            ids[n++] = b->byte_ids[p[i]];
#define LOOK_UP(i)                                                                                 \
    do {                                                                                           \
        const struct bpe_merge *m_ = bpe_merge_slot(b, ids[i], ids[(i) + 1]);                      \
        ranks[i] = m_->rank;                                                                       \
        into[i] = m_->id;                                                                          \
    } while (0)
    for (size_t i = 0; i + 1 < n; i++)
        LOOK_UP(i);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (ranks[i] >= 0 && (best == n || ranks[i] < ranks[best]))
                best = i;
        if (best == n)
            break;
        ids[best] = into[best];
        for (size_t i = best + 1; i + 1 < n; i++) {
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1];
            into[i] = into[i + 1];
        }
        n--;
        if (best + 1 < n)
            LOOK_UP(best);
        if (best > 0)
            LOOK_UP(best - 1);
    }
#undef LOOK_UP
    return add_ids(w, ids, n);
}

static bool before(const struct bpe_candidate *a, const struct bpe_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct bpe_work *w, struct bpe_candidate c) {
    size_t i = w->n_heap++;
    for (size_t up; i && before(&c, &w->heap[up = (i - 1) / 2]); i = up)
        w->heap[i] = w->heap[up];
    w->heap[i] = c;
}

static struct bpe_candidate pop(struct bpe_work *w) {
    struct bpe_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < w->n_heap; i = down) {
        if (down + 1 < w->n_heap && before(&w->heap[down + 1], &w->heap[down]))
            down++;
        if (!before(&w->heap[down], &last))
            break;
        w->heap[i] = w->heap[down];
    }
    w->heap[i] = last;
    return top;
}

static void consider(const struct intra_bpe *b, struct bpe_work *w, int32_t at) {
    const struct bpe_symbol *s = &w->symbols[at];
    if (s->next < 0)
        return;
    const struct bpe_merge *m = bpe_merge_slot(b, s->id, w->symbols[s->next].id);
    if (m->rank >= 0)
        push(w, (struct bpe_candidate){m->rank, at, m->id});
}

// A piece of n symbols has n - 1 pairs, and each of at most n - 1 merges makes two new ones.
static enum neb_status make_room(struct bpe_work *w, size_t n) {
    if (n <= w->cap)
        return NEB_OK;
    size_t cap = n + n / 2;
    struct bpe_symbol *symbols = realloc(w->symbols, cap * sizeof *symbols);
    if (symbols)
        w->symbols = symbols;
    struct bpe_candidate *heap = realloc(w->heap, 3 * cap * sizeof *heap);
    if (heap)
        w->heap = heap;
    if (!symbols || !heap)
        return neb_fail(NEB_ERR_NOMEM, "out of memory tokenizing a word of %zu bytes", n);
    w->cap = cap;
    return NEB_OK;
}

static enum neb_status merge_long(const struct intra_bpe *b, struct bpe_work *w, const uint8_t *p,
                                  size_t len) {
    int32_t n = 0;
    if (len > INT32_MAX - 1)
        return neb_fail(NEB_ERR_LIMIT, "cannot tokenize a word of %zu bytes", len);
    NEB_TRY(make_room(w, len));
    struct bpe_symbol *s = w->symbols;
    for (size_t i = 0; i < len; i++)
        if (b->byte_ids[p[i]] >= 0) {
            s[n] = (struct bpe_symbol){b->byte_ids[p[i]], n - 1, n + 1};
            n++;
        }
    if (n == 0)
        return NEB_OK;
    s[n - 1].next = -1;
    w->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++)
        consider(b, w, i);
    while (w->n_heap) {
        struct bpe_candidate c = pop(w);
        struct bpe_symbol *left = &s[c.at];
        if (left->id < 0 || left->next < 0)
            continue;
        struct bpe_symbol *right = &s[left->next];
        const struct bpe_merge *m = bpe_merge_slot(b, left->id, right->id);
        if (m->rank != c.rank) // an outdated candidate: its pair has changed
            continue;
        left->id = c.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            s[left->next].prev = c.at;
        if (left->prev >= 0)
            consider(b, w, left->prev);
        consider(b, w, c.at);
    }
    for (int32_t i = 0; i >= 0; i = s[i].next)
        NEB_TRY(add_ids(w, &s[i].id, 1));
    return NEB_OK;
}

enum neb_status bpe_merge_piece(const struct intra_bpe *b, struct bpe_work *w, const uint8_t *p,
                                size_t n) {
    return n <= SHORT ? merge_short(b, w, p, n) : merge_long(b, w, p, n);
}

void bpe_work_free(struct bpe_work *w) {
    free(w->symbols);
    free(w->heap);
    free(w->ids);
}

// ---- the interface ------------------------------------------------------------------------------

struct encoding {
    const struct intra_bpe *b;
    struct bpe_work work;
};

static enum neb_status take_piece(void *user, const uint8_t *p, size_t n) {
    struct encoding *e = user;
    int32_t id = bpe_find(e->b, p, n);
    return id >= 0 && e->b->tokens[id].whole ? add_ids(&e->work, &id, 1)
                                             : bpe_merge_piece(e->b, &e->work, p, n);
}

static enum neb_status take_added(void *user, int32_t id) {
    struct encoding *e = user;
    return add_ids(&e->work, &id, 1);
}

enum neb_status intra_bpe_encode(const struct intra_bpe *b, const char *text, size_t len,
                                 int32_t **ids, size_t *n) {
    struct encoding e = {.b = b};
    struct bpe_split s = {.b = b, .piece = take_piece, .token = take_added, .user = &e};
    struct neb_buf mended = {0};
    const uint8_t *p = (const uint8_t *)text;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(add_ids(&e.work, NULL, 0), out);
    NEB_TRY_GOTO(bpe_text_to_utf8(&p, &len, &mended), out);
    st = bpe_split(&s, p, len);
out:
    bpe_split_end(&s);
    neb_buf_free(&mended);
    if (st == NEB_OK) {
        *ids = e.work.ids;
        *n = e.work.n_ids;
        e.work.ids = NULL;
    }
    bpe_work_free(&e.work);
    return st;
}

enum neb_status intra_bpe_decode(const struct intra_bpe *b, const int32_t *ids, size_t n,
                                 char **text) {
    struct neb_buf all = {0}, mended = {0};
    enum neb_status st;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < b->vocab)
            neb_buf_add(&all, b->text.p + b->tokens[ids[i]].at, b->tokens[ids[i]].len);
    const uint8_t *p = all.p;
    size_t len = all.len;
    NEB_TRY_GOTO(neb_buf_check(&all), out);
    NEB_TRY_GOTO(bpe_text_to_utf8(&p, &len, &mended), out);
    *text = malloc(len + 1);
    if (!*text) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory decoding %zu tokens", n);
        goto out;
    }
    if (len)
        memcpy(*text, p, len);
    (*text)[len] = 0;
out:
    neb_buf_free(&mended);
    neb_buf_free(&all);
    return st;
}

int32_t intra_bpe_vocab(const struct intra_bpe *b) { return b->vocab; }
int32_t intra_bpe_bos(const struct intra_bpe *b) { return b->bos; }
int32_t intra_bpe_eos(const struct intra_bpe *b) { return b->eos; }
