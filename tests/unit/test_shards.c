// SPDX-License-Identifier: Apache-2.0
// Shards of an exchange's state (inter/outer/outer.h, compress/update.h): they are spread evenly
// over their owners, and give the same bytes, digests and parameters as a single rank.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "inter/outer/outer.h"
#include "intra/train/shards.h"
#include "intra/train/trainer_parts.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 300, RANKS = 64, UNITS = 7, OWNERS = 3, FRAGMENTS = 2, N = 24000, ROUNDS = 6 };

static void check_bounds(const uint64_t *elements, const int32_t *fragment, int32_t n, int ranks,
                         int32_t fragments) {
    uint64_t load[RANKS], total = 0, largest = 0, sum[RANKS] = {0};
    int32_t owner[MANY], again[MANY];
    intra_shards_assign(elements, fragment, n, ranks, NULL, NULL, load, owner);
    intra_shards_assign(elements, fragment, n, ranks, NULL, NULL, load, again);
    assert_memory_equal(owner, again, (size_t)n * sizeof *owner);
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(owner[i], 0, ranks - 1);
        sum[owner[i]] += elements[i];
        total += elements[i];
        largest = elements[i] > largest ? elements[i] : largest;
    }
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(load[r], sum[r]);
        assert_true(load[r] <= total / (uint64_t)ranks + largest);
    }
    for (int32_t f = 0; f < fragments; f++) { // one exchange is one fragment
        uint64_t of[RANKS] = {0}, all = 0;
        for (int32_t i = 0; i < n; i++) {
            of[owner[i]] += fragment[i] == f ? elements[i] : 0;
            all += fragment[i] == f ? elements[i] : 0;
        }
        for (int r = 0; r < ranks; r++)
            assert_true(of[r] <= all / (uint64_t)ranks + 2 * largest);
    }
}

static void test_units_are_dealt_by_size(void **state) {
    (void)state;
    // The example that shards.h draws.
    const uint64_t drawn[] = {6, 6, 2, 2, 2, 4, 2};
    const int32_t one[7] = {0};
    uint64_t load[RANKS];
    int32_t owner[MANY], fragment[MANY];
    intra_shards_assign(drawn, one, 7, 3, NULL, NULL, load, owner);
    assert_int_equal(owner[0], 0);
    assert_int_equal(owner[1], 1);
    assert_int_equal(owner[5], 2);
    assert_true(load[0] == 8 && load[1] == 8 && load[2] == 8);
    struct neb_rng r = neb_rng_make(5, 1);
    uint64_t elements[MANY];
    for (int ranks = 1; ranks <= RANKS; ranks += 7)
        for (int32_t fragments = 1; fragments <= 4; fragments++) {
            for (int32_t i = 0; i < MANY; i++) {
                elements[i] = 1 + neb_rng_below(&r, i % 10 ? 5000 : 200000);
                fragment[i] = i * fragments / MANY;
            }
            check_bounds(elements, fragment, MANY, ranks, fragments);
        }
    // With fewer units than ranks, the first ranks have one each.
    intra_shards_assign(elements, one, 3, 8, NULL, NULL, load, owner);
    uint32_t seen = 0;
    for (int i = 0; i < 3; i++)
        seen |= 1u << owner[i];
    assert_int_equal(seen, 7);
    assert_int_equal(load[3], 0);
}

// ---- units that ranks hold parts of ----

struct holdings {
    uint64_t by[MANY][RANKS];
};
static uint64_t held_by(void *user, int32_t unit, int rank) {
    return ((const struct holdings *)user)->by[unit][rank];
}

// The loads of two ranks differ by one unit, or by 5 % of a share.
static void check_even(const uint64_t *elements, const uint64_t *load, int ranks) {
    uint64_t total = 0, largest = 0, most = 0, least = UINT64_MAX;
    for (int32_t i = 0; i < MANY; i++) {
        total += elements[i];
        largest = elements[i] > largest ? elements[i] : largest;
    }
    for (int r = 0; r < ranks; r++) {
        most = load[r] > most ? load[r] : most;
        least = load[r] < least ? load[r] : least;
    }
    uint64_t share = total / (uint64_t)ranks / 20;
    assert_true(most - least <= (largest > share ? largest : share));
}

// The first half of the ranks holds more than the others.
static void hold_at_random(struct holdings *h, const uint64_t *elements, int ranks,
                           struct neb_rng *r) {
    memset(h, 0, sizeof *h);
    for (int32_t i = 0; i < MANY; i++)
        for (int k = 0; k < ranks; k++)
            h->by[i][k] = neb_rng_below(r, elements[i] + 1) / (k < ranks / 2 ? 1 : 3);
}

static void test_units_are_owned_where_they_are(void **state) {
    (void)state;
    static struct holdings h;
    uint64_t elements[MANY], load[RANKS];
    int32_t owner[MANY], fragment[MANY];
    enum { ROW_RANKS = 4, EACH = MANY / ROW_RANKS };
    for (int32_t i = 0; i < MANY; i++) {
        elements[i] = 1000;
        fragment[i] = i % 2;
    }
    // By rows: each rank holds as much, and owns what it holds. With a second replica, both share.
    for (int32_t i = 0; i < MANY; i++)
        h.by[i][i / EACH] = 1000;
    intra_shards_assign(elements, fragment, MANY, ROW_RANKS, held_by, &h, load, owner);
    for (int32_t i = 0; i < MANY; i++)
        assert_int_equal(owner[i], i / EACH);
    for (int32_t i = 0; i < MANY; i++)
        h.by[i][ROW_RANKS + i / EACH] = 1000;
    intra_shards_assign(elements, fragment, MANY, 2 * ROW_RANKS, held_by, &h, load, owner);
    for (int32_t i = 0; i < MANY; i++)
        assert_int_equal(owner[i] % ROW_RANKS, i / EACH);
    check_even(elements, load, 2 * ROW_RANKS);
    // By columns: all hold the same of each unit.
    for (int32_t i = 0; i < MANY; i++)
        for (int r = 0; r < ROW_RANKS; r++)
            h.by[i][r] = 250;
    intra_shards_assign(elements, fragment, MANY, ROW_RANKS, held_by, &h, load, owner);
    check_even(elements, load, ROW_RANKS);
    check_bounds(elements, fragment, MANY, ROW_RANKS, 2);
}

static void test_owners_are_even_whatever_they_hold(void **state) {
    (void)state;
    static struct holdings h;
    uint64_t elements[MANY], load[RANKS], again[RANKS];
    int32_t owner[MANY], fragment[MANY], same[MANY];
    struct neb_rng r = neb_rng_make(6, 1);
    for (int ranks = 1; ranks <= RANKS; ranks += 9)
        for (int32_t fragments = 1; fragments <= 4; fragments++) {
            for (int32_t i = 0; i < MANY; i++) {
                elements[i] = 1 + neb_rng_below(&r, i % 10 ? 5000 : 200000);
                fragment[i] = i * fragments / MANY;
            }
            hold_at_random(&h, elements, ranks, &r);
            intra_shards_assign(elements, fragment, MANY, ranks, held_by, &h, load, owner);
            check_even(elements, load, ranks);
            intra_shards_assign(elements, fragment, MANY, ranks, held_by, &h, again, same);
            assert_memory_equal(owner, same, sizeof owner);
        }
    // Only one rank holds anything: the others still take their shares.
    memset(&h, 0, sizeof h);
    for (int32_t i = 0; i < MANY; i++)
        h.by[i][2] = elements[i];
    intra_shards_assign(elements, fragment, MANY, 4, held_by, &h, load, owner);
    check_even(elements, load, 4);
}

static void test_parts_of_a_checkpoint_are_dealt_by_load(void **state) {
    (void)state;
    const uint64_t bytes[] = {100, 40, 30, 30, 10};
    int32_t out[5];
    // Rank 0 writes its own file. It writes parts only if it is alone.
    uint64_t able[3] = {1, 1, 1}, load[3] = {INTRA_PARTS_NOTHING, 0, 0};
    intra_parts_assign(bytes, 5, able, 3, load, out);
    assert_true(out[0] == 1 && out[1] == 2 && out[2] == 2 && out[3] == 2 && out[4] == 1);
    assert_true(load[1] == 110 && load[2] == 100);
    uint64_t alone[3] = {1, 0, 0}, none[3] = {INTRA_PARTS_NOTHING, 0, 0};
    intra_parts_assign(bytes, 5, alone, 3, none, out);
    for (int i = 0; i < 5; i++)
        assert_int_equal(out[i], 0);
    // With the load that each rank has anyway, all ranks have about the same total.
    uint64_t has[3] = {60, 50, 100};
    intra_parts_assign(bytes, 5, able, 3, has, out);
    assert_int_equal(out[0], 1);
    assert_int_equal(out[1], 0);
    assert_true(has[0] <= 150 && has[1] <= 160 && has[2] <= 150);
}

// ---- the state of one member on one rank and on several ----

static const struct {
    uint32_t rows, cols;
    bool rows_weighted;
    int32_t fragment;
} shapes[UNITS] = {{40, 100, true, 0},  {3, 1000, false, 0}, {1, 37, false, 0}, {80, 100, true, 1},
                   {1, 5000, false, 1}, {20, 40, false, 0},  {1, 3, false, 1}};

struct member {
    float theta_m[N];
    uint64_t counts[80];
    struct inter_outer *o;
    struct neb_buf blob;
    struct neb_rng rng;
};
struct owner {
    struct inter_outer *o;
    uint32_t units[UNITS]; // indices into all units
    struct neb_buf blob, cut[2];
};

static struct kern_pool *pool;

static const uint64_t *counts_of(void *user, int32_t unit) {
    (void)unit;
    return ((struct member *)user)->counts;
}

static size_t at_of(int unit) {
    size_t at = 0;
    for (int i = 0; i < unit; i++)
        at += (size_t)shapes[i].rows * shapes[i].cols;
    return at;
}

static const struct inter_outer_config config = {
    .beta = 1, .kappa = 1, .row_weights = true, .fragments = FRAGMENTS};

static void make_member(struct member *m, uint64_t stream) {
    struct inter_outer_unit units[UNITS];
    struct neb_rng same = neb_rng_make(1, 1);
    memset(m, 0, sizeof *m);
    m->rng = neb_rng_make(2, stream);
    for (int k = 0; k < N; k++)
        m->theta_m[k] = neb_rng_normal(&same);
    for (int i = 0; i < UNITS; i++)
        units[i] =
            (struct inter_outer_unit){shapes[i].rows, shapes[i].cols, shapes[i].rows_weighted,
                                      shapes[i].fragment, m->theta_m + at_of(i)};
    assert_int_equal(inter_outer_create(&config, units, UNITS, pool, &m->o), NEB_OK);
}

// Creates owners whose θ_m is the memory of `twin`.
static void make_owners(struct owner *owners, const int32_t *owner, struct member *twin) {
    for (int r = 0; r < OWNERS; r++) {
        struct inter_outer_unit units[UNITS];
        struct inter_outer_position places[UNITS + 1]; // not empty even without a unit
        struct inter_outer_array a[INTER_OUTER_ARRAYS];
        struct inter_outer_config c = config;
        int32_t n = 0;
        for (int i = 0; i < UNITS; i++)
            if (owner[i] == r) {
                owners[r].units[n] = (uint32_t)i;
                places[n] = (struct inter_outer_position){(uint32_t)i, at_of(i)};
                units[n++] = (struct inter_outer_unit){shapes[i].rows, shapes[i].cols,
                                                       shapes[i].rows_weighted, shapes[i].fragment,
                                                       twin->theta_m + at_of(i)};
            }
        c.places = places;
        assert_int_equal(inter_outer_create(&c, units, n, pool, &owners[r].o), NEB_OK);
        inter_outer_arrays(owners[r].o, a);
        for (int32_t k = 0; k < n; k++)
            memcpy(a[0].p + inter_outer_unit_at(owners[r].o, k), units[k].theta_m,
                   (size_t)units[k].rows * units[k].cols * sizeof(float));
    }
}

static void train(struct member *m, float size) {
    for (int k = 0; k < N; k++) {
        float z = neb_rng_normal(&m->rng);
        m->theta_m[k] += size * z * (z < 0 ? -z : z);
    }
    for (size_t r = 0; r < 80; r++)
        m->counts[r] += neb_rng_below(&m->rng, 3) == 0 ? neb_rng_below(&m->rng, 100) : 0;
}

static void merge(struct inter_outer *o, int32_t f, const struct neb_buf *const blobs[2], int own,
                  bool merges, struct kern_digest *d) {
    struct inter_outer_part parts[2];
    for (int p = 0; p < 2; p++)
        parts[p] = (struct inter_outer_part){blobs[p]->p, blobs[p]->len, 1000u * (unsigned)(p + 1),
                                             1,           p == own,      0};
    struct inter_outer_round r = {parts, 2, 0.8f, 0.5f, merges, false, NULL};
    assert_int_equal(inter_outer_apply(o, f, &r, d), NEB_OK);
}

// The shards put together equal the full state.
static void check_state(struct inter_outer *whole, struct owner *owners) {
    struct inter_outer_array a[INTER_OUTER_ARRAYS], b[INTER_OUTER_ARRAYS];
    uint64_t most = 0;
    size_t sum = 0;
    inter_outer_arrays(whole, a);
    for (int r = 0; r < OWNERS; r++) {
        size_t n = 0;
        inter_outer_arrays(owners[r].o, b);
        for (int k = 0; n < b[0].n; k++) {
            uint32_t u = owners[r].units[k];
            size_t size = (size_t)shapes[u].rows * shapes[u].cols;
            for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
                assert_memory_equal(b[i].p + n, a[i].p + at_of((int)u), size * sizeof(float));
            n += size;
        }
        sum += n;
        most = inter_outer_bytes(owners[r].o) > most ? inter_outer_bytes(owners[r].o) : most;
    }
    // Nothing is held twice, and no owner holds much more than a third.
    assert_int_equal(sum, at_of(UNITS));
    assert_true(most * 10 < inter_outer_bytes(whole) * 5);
}

static void test_owners_are_as_one(void **state) {
    (void)state;
    static const char *const names[] = {"fp32", "int8", "int4", "topk:64/4096"};
    struct member *one = malloc(sizeof *one), *twin = malloc(sizeof *twin),
                  *peer = malloc(sizeof *peer);
    assert_true(one && twin && peer);
    uint64_t elements[UNITS], load[OWNERS];
    int32_t owner[UNITS], fragment[UNITS];
    for (int i = 0; i < UNITS; i++) {
        elements[i] = (uint64_t)shapes[i].rows * shapes[i].cols;
        fragment[i] = shapes[i].fragment;
    }
    intra_shards_assign(elements, fragment, UNITS, OWNERS, NULL, NULL, load, owner);
    for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
        struct owner owners[OWNERS] = {0};
        struct cmp_codec codec;
        struct neb_buf joined = {0};
        assert_int_equal(cmp_codec_parse(names[c], &codec), NEB_OK);
        make_member(one, 7);
        make_member(twin, 7); // its own state is not used, because its owners hold it
        make_member(peer, 8);
        make_owners(owners, owner, twin);
        for (int round = 0; round < ROUNDS; round++) {
            int32_t f = round % FRAGMENTS;
            struct cmp_update_piece pieces[OWNERS];
            struct kern_digest d, sum, part;
            train(one, 0.01f);
            train(twin, 0.01f);
            train(peer, 0.01f);
            assert_int_equal(inter_outer_encode(one->o, f, &codec, counts_of, one, &one->blob),
                             NEB_OK);
            assert_int_equal(inter_outer_encode(peer->o, f, &codec, counts_of, peer, &peer->blob),
                             NEB_OK);
            for (int r = 0; r < OWNERS; r++) {
                assert_int_equal(
                    inter_outer_encode(owners[r].o, f, &codec, counts_of, twin, &owners[r].blob),
                    NEB_OK);
                pieces[r] = (struct cmp_update_piece){owners[r].blob.p, owners[r].blob.len};
            }
            neb_buf_clear(&joined);
            assert_int_equal(cmp_update_join(pieces, OWNERS, &joined), NEB_OK);
            assert_int_equal(joined.len, one->blob.len);
            assert_memory_equal(joined.p, one->blob.p, joined.len);
            train(one, 0.001f);
            train(twin, 0.001f);
            const struct neb_buf *const both[2] = {&one->blob, &peer->blob};
            merge(one->o, f, both, 0, round == 4, &d);
            merge(peer->o, f, both, 1, round == 4, &part);
            assert_true(part.lo == d.lo && part.hi == d.hi);
            sum = inter_outer_version_digest(inter_outer_version(one->o, f));
            for (int r = 0; r < OWNERS; r++) {
                for (int p = 0; p < 2; p++) {
                    neb_buf_clear(&owners[r].cut[p]);
                    assert_int_equal(cmp_update_cut(both[p]->p, both[p]->len, owner, UNITS, r,
                                                    &owners[r].cut[p]),
                                     NEB_OK);
                }
                const struct neb_buf *const cut[2] = {&owners[r].cut[0], &owners[r].cut[1]};
                merge(owners[r].o, f, cut, 0, round == 4, &part);
                sum = kern_digest_add(sum, part);
                assert_int_equal(inter_outer_version(owners[r].o, f),
                                 inter_outer_version(one->o, f));
            }
            assert_true(sum.lo == d.lo && sum.hi == d.hi);
            assert_memory_equal(one->theta_m, twin->theta_m, sizeof one->theta_m);
            check_state(one->o, owners);
        }
        for (int r = 0; r < OWNERS; r++) {
            inter_outer_destroy(&owners[r].o);
            neb_buf_free(&owners[r].blob);
            neb_buf_free(&owners[r].cut[0]);
            neb_buf_free(&owners[r].cut[1]);
        }
        struct member *const all[] = {one, twin, peer};
        for (int i = 0; i < 3; i++) {
            inter_outer_destroy(&all[i]->o);
            neb_buf_free(&all[i]->blob);
        }
        neb_buf_free(&joined);
    }
    free(one);
    free(twin);
    free(peer);
}

static void test_malformed_updates_are_refused(void **state) {
    (void)state;
    static float x[64];
    const struct cmp_unit_shape shape[2] = {{0, 1, 64, false}, {5, 1, 64, false}};
    const int32_t owner[6] = {0, 0, 0, 0, 0, 1};
    struct cmp_codec codec;
    struct cmp_work *w = NULL;
    struct neb_buf update = {0}, out = {0};
    assert_int_equal(cmp_codec_parse("int8", &codec), NEB_OK);
    assert_int_equal(cmp_work_create(&w), NEB_OK);
    cmp_update_begin(&update, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            cmp_update_add(w, &update, &shape[i], &codec, &(struct cmp_source){.x = x}, NULL),
            NEB_OK);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(cmp_update_cut(update.p, update.len, owner, 6, 1, &out), NEB_OK);
    size_t one = out.len;
    assert_int_equal(cmp_update_cut(update.p, update.len, owner, 5, 1, &out), NEB_ERR_FORMAT);
    for (size_t len = 0; len < update.len; len += 3) {
        struct cmp_update_piece pieces[2] = {{update.p, len}, {update.p, update.len}};
        neb_buf_clear(&out);
        assert_int_equal(cmp_update_cut(update.p, len, owner, 6, 0, &out), NEB_ERR_FORMAT);
        assert_int_equal(cmp_update_join(pieces, 2, &out), NEB_ERR_FORMAT);
    }
    neb_buf_u8(&update, 0);
    assert_int_equal(cmp_update_cut(update.p, update.len, owner, 6, 0, &out), NEB_ERR_FORMAT);
    assert_true(one < update.len);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&update);
    neb_buf_free(&out);
    cmp_work_destroy(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_are_dealt_by_size),
        cmocka_unit_test(test_units_are_owned_where_they_are),
        cmocka_unit_test(test_owners_are_even_whatever_they_hold),
        cmocka_unit_test(test_parts_of_a_checkpoint_are_dealt_by_load),
        cmocka_unit_test(test_owners_are_as_one),
        cmocka_unit_test(test_malformed_updates_are_refused)};
    if (kern_pool_create(2, &pool) != NEB_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kern_pool_destroy(&pool);
    return failed;
}
