// SPDX-License-Identifier: Apache-2.0
// Pieces of tensors (agent/lib/pieces.h) against element-by-element searches, over random shapes,
// boxes and meshes.
#include "agent/base/rng.h"
#include "agent/lib/pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS_MAX = 6, ROUNDS = 3000 };
static struct neb_rng rng;

static int64_t below(int64_t n) { return (int64_t)neb_rng_below(&rng, (uint64_t)n); }

struct shape {
    int32_t dims;
    int64_t n[PIECES_DIMS_MAX], size;
};

static struct shape some_shape(void) {
    struct shape s = {.dims = (int32_t)below(5)};
    for (int32_t k = 0; k < s.dims; k++)
        s.n[k] = 1 + below(7);
    s.size = pieces_size(s.dims, s.n);
    return s;
}

static struct pieces_box whole(const struct shape *s) {
    struct pieces_box b = {0};
    memcpy(b.n, s->n, sizeof b.n);
    return b;
}

static struct pieces_box some_box(const struct shape *s) {
    struct pieces_box b = {0};
    for (int32_t k = 0; k < s->dims; k++) {
        b.at[k] = below(s->n[k]);
        b.n[k] = below(4) ? 1 + below(s->n[k] - b.at[k]) : below(s->n[k] - b.at[k] + 1);
    }
    return b;
}

static bool inside(const struct shape *s, const struct pieces_box *b, int64_t i) {
    bool in = true;
    for (int32_t k = s->dims - 1; k >= 0; k--) {
        int64_t c = i % s->n[k];
        i /= s->n[k];
        in = in && c >= b->at[k] && c < b->at[k] + b->n[k];
    }
    return in;
}

static int times_inside(const struct shape *s, const struct pieces_boxes *b, int64_t i) {
    int times = 0;
    for (size_t k = 0; k < b->len; k++)
        times += inside(s, &b->p[k], i);
    return times;
}

struct seen {
    int64_t next; // elements come in ascending order
    int *times;
};

static enum neb_status see(void *user, const struct pieces_block *b) {
    struct seen *s = user;
    assert_true(b->len > 0 && b->runs > 0 && b->pitch >= b->len);
    for (int64_t r = 0; r < b->runs; r++)
        for (int64_t i = 0; i < b->len; i++) {
            int64_t at = b->at + r * b->pitch + i;
            assert_true(at >= s->next);
            s->next = at + 1;
            s->times[at]++;
        }
    return NEB_OK;
}

static void test_walk_and_count(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct shape s = some_shape();
        struct pieces_box b = some_box(&s);
        int64_t begin = below(s.size), end = begin + below(s.size - begin + 1), want = 0;
        struct seen seen = {0, calloc((size_t)s.size, sizeof(int))};
        assert_int_equal(pieces_walk(s.dims, s.n, &b, begin, end, see, &seen), NEB_OK);
        for (int64_t i = 0; i < s.size; i++) {
            bool in = i >= begin && i < end && inside(&s, &b, i);
            assert_int_equal(seen.times[i], in);
            want += in;
        }
        assert_int_equal(pieces_count(s.dims, s.n, &b, begin, end), want);
        free(seen.times);
    }
}

// A block of a column shard is one call, however many rows it has.
static enum neb_status count_blocks(void *user, const struct pieces_block *b) {
    (void)b;
    ++*(int *)user;
    return NEB_OK;
}
static void test_few_blocks(void **state) {
    (void)state;
    const int64_t shape[] = {1000, 64}, deep[] = {8, 50, 3, 3};
    struct pieces_box columns = {{0, 16}, {1000, 16}}, rows = {{250, 0}, {250, 64}},
                      channels = {{0, 10, 0, 0}, {8, 10, 3, 3}};
    int n = 0;
    assert_int_equal(pieces_walk(2, shape, &columns, 0, 64000, count_blocks, &n), NEB_OK);
    assert_int_equal(n, 1);
    n = 0;
    assert_int_equal(pieces_walk(2, shape, &columns, 100, 60000, count_blocks, &n), NEB_OK);
    assert_true(n <= 3);
    n = 0;
    assert_int_equal(pieces_walk(2, shape, &rows, 0, 64000, count_blocks, &n), NEB_OK);
    assert_int_equal(n, 1);
    n = 0;
    assert_int_equal(pieces_walk(4, deep, &channels, 0, 3600, count_blocks, &n), NEB_OK);
    assert_int_equal(n, 1);
}

static void test_subtract(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct shape s = some_shape();
        struct pieces_boxes left = {0}, without = {0};
        struct pieces_box all = whole(&s);
        assert_int_equal(pieces_add(&left, &all), NEB_OK);
        for (int64_t k = below(5); k > 0; k--) {
            struct pieces_box b = some_box(&s);
            assert_int_equal(pieces_add(&without, &b), NEB_OK);
        }
        assert_int_equal(pieces_subtract(s.dims, &left, &without), NEB_OK);
        int64_t first = -1;
        for (int64_t i = s.size - 1; i >= 0; i--) {
            bool in = !times_inside(&s, &without, i);
            assert_int_equal(times_inside(&s, &left, i), in);
            first = in ? i : first;
        }
        assert_int_equal(pieces_first(s.dims, s.n, &left), first);
        pieces_free(&left);
        pieces_free(&without);
    }
}

static void test_overlap(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct shape s = some_shape();
        struct pieces_box a = some_box(&s), b = some_box(&s);
        bool both = false;
        for (int64_t i = 0; i < s.size; i++)
            both = both || (inside(&s, &a, i) && inside(&s, &b, i));
        assert_int_equal(pieces_overlap(s.dims, &a, &b), both);
    }
}

// ---- meshes -------------------------------------------------------------------------------------

static void chunk(int64_t n, int parts, int part, int64_t *at, int64_t *len) { // as torch.chunk
    int64_t each = (n + parts - 1) / parts;
    *at = each * part < n ? each * part : n;
    *len = *at + each < n ? each : n - *at;
}

static void add(struct pieces_boxes *b, struct pieces_box box) {
    assert_int_equal(pieces_add(b, &box), NEB_OK);
}

// Cuts a box in dimension k, and keeps one part.
static struct pieces_box cut(struct pieces_box b, int32_t k, int parts, int part) {
    int64_t at, len;
    chunk(b.n[k], parts, part, &at, &len);
    b.at[k] += at;
    b.n[k] = len;
    return b;
}

enum { SHARD, HSDP, TP_FSDP, STRIDED, SCATTERED, MESHES };

// What each of `ranks` ranks holds of a tensor with at least 1 dimension.
static void make_mesh(int kind, const struct shape *s, int ranks, struct pieces_boxes *held) {
    struct pieces_box all = whole(s);
    int32_t k = (int32_t)below(s->dims), other = (int32_t)below(s->dims);
    int halves = (ranks + 1) / 2;
    for (int r = 0; r < ranks; r++) {
        int half = r / 2, pair = r % 2;
        switch (kind) {
        case SHARD: add(&held[r], cut(all, k, ranks, r)); break; // uneven and empty ones
        case HSDP: add(&held[r], cut(all, k, ranks > 1 ? 2 : 1, pair)); break; // replicas over half
        case TP_FSDP: add(&held[r], cut(cut(all, k, 2, pair), other, halves, half)); break;
        case STRIDED: // FSDP over TP in one dimension: every tp part is cut by fsdp
            for (int t = 0; t < 2; t++)
                add(&held[r], cut(cut(all, k, 2, t), k, ranks, r));
            break;
        default: // single slices, dealt round
            for (int64_t i = r; i < s->n[k]; i += ranks) {
                struct pieces_box b = all;
                b.at[k] = i;
                b.n[k] = 1;
                add(&held[r], b);
            }
        }
    }
    if (kind == TP_FSDP && ranks % 2) // the last rank has the part that nobody has
        add(&held[ranks - 1], cut(cut(all, k, 2, 1), other, halves, halves - 1));
}

// For every owner, each element comes from the owner itself or from exactly one other rank: the
// lowest that has it.
static void test_who_sends(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS / 3; round++) {
        struct shape s = some_shape();
        int ranks = 1 + (int)below(RANKS_MAX), kind = round % MESHES;
        struct pieces_boxes held[RANKS_MAX] = {{0}}, sent[RANKS_MAX];
        if (!s.dims)
            continue;
        make_mesh(kind, &s, ranks, held);
        for (int owner = 0; owner < ranks; owner++) {
            memset(sent, 0, sizeof sent);
            for (int r = 0; r < ranks; r++)
                assert_int_equal(pieces_sent(s.dims, held, r, owner, &sent[r]), NEB_OK);
            assert_int_equal(sent[owner].len, 0);
            for (int64_t i = 0; i < s.size; i++) {
                int lowest = -1, senders = 0;
                for (int r = ranks - 1; r >= 0; r--) {
                    assert_true(times_inside(&s, &held[r], i) <= 1);
                    lowest = times_inside(&s, &held[r], i) ? r : lowest;
                    senders += times_inside(&s, &sent[r], i);
                }
                assert_true(lowest >= 0); // every mesh covers the tensor
                bool own = times_inside(&s, &held[owner], i);
                assert_int_equal(senders, !own);
                if (!own)
                    assert_int_equal(times_inside(&s, &sent[lowest], i), 1);
            }
            for (int r = 0; r < ranks; r++)
                pieces_free(&sent[r]);
        }
        for (int r = 0; r < ranks; r++)
            pieces_free(&held[r]);
    }
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk_and_count), cmocka_unit_test(test_few_blocks),
        cmocka_unit_test(test_subtract),       cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_who_sends),
    };
    printf("seed %llu\n", (unsigned long long)seed);
    rng = neb_rng_make(seed, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
