// SPDX-License-Identifier: Apache-2.0
// agent/daemon/ranks: the limit on parts of updates that wait; a damaged part.
#include "agent/base/log.h"
#include "agent/daemon/ranks.h"
#include "compress/update.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

// p NULL: zeros.
static enum neb_status put_bytes(struct agent_ranks *r, int32_t rank, int fragment, const void *p,
                                 size_t bytes) {
    struct agent_ipc_msg m = {
        .head = json_pack("{s:i,s:i,s:i}", "fragment", fragment, "round", 0, "again", 0),
        .n_parts = 1};
    assert_int_equal(zmq_msg_init_size(&m.frames[0], bytes), 0);
    memset(zmq_msg_data(&m.frames[0]), 0, bytes);
    if (p)
        memcpy(zmq_msg_data(&m.frames[0]), p, bytes);
    m.parts[0] = (struct agent_ipc_part){zmq_msg_data(&m.frames[0]), bytes};
    enum neb_status st = agent_ranks_put(r, rank, &m);
    agent_ipc_msg_clear(&m);
    return st;
}

static enum neb_status put(struct agent_ranks *r, int32_t rank, int fragment, size_t bytes) {
    return put_bytes(r, rank, fragment, NULL, bytes);
}

// Parts that came before the owners exceed the limit that the owners set.
static void test_owners_lower_the_limit(void **state) {
    (void)state;
    const uint8_t owners[8] = {0, 0, 0, 0, 1, 0, 0, 0};
    struct agent_ranks *r = NULL;
    assert_int_equal(agent_ranks_create(2, 1, &r), NEB_OK);
    assert_int_equal(put(r, 1, 0, 3 * MIB), NEB_OK);
    assert_int_equal(agent_ranks_owners(r, owners, sizeof owners, 12), NEB_OK); // 2 MiB and a bit
    assert_int_equal(put(r, 1, 1, 8), NEB_ERR_LIMIT);
    assert_int_equal(put(r, 1, 0, MIB), NEB_OK); // in place of the large one
    assert_int_equal(put(r, 1, 1, MIB), NEB_OK);
    assert_int_equal(put(r, 1, 2, MIB), NEB_ERR_LIMIT);
    agent_ranks_destroy(&r);
}

static void test_a_damaged_part_names_its_rank(void **state) {
    (void)state;
    const uint8_t owners[8] = {0, 0, 0, 0, 1, 0, 0, 0};
    char why[256];
    struct agent_ranks *r = NULL;
    struct agent_ipc_msg head;
    struct neb_buf joined, empty = {0};
    cmp_update_begin(&empty, 0);
    assert_int_equal(agent_ranks_create(2, 1, &r), NEB_OK);
    assert_int_equal(agent_ranks_owners(r, owners, sizeof owners, 12), NEB_OK);
    assert_int_equal(put_bytes(r, 0, 0, empty.p, empty.len), NEB_OK);
    empty.p[0] ^= 1;
    assert_int_equal(put_bytes(r, 1, 0, empty.p, empty.len), NEB_OK);
    assert_int_equal(agent_ranks_join(r, 0, &head, &joined), NEB_ERR_FORMAT);
    neb_last_error(why, sizeof why);
    assert_non_null(strstr(why, "the part of rank 1, of 8 bytes, is damaged"));
    neb_buf_free(&empty);
    agent_ranks_destroy(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners_lower_the_limit),
        cmocka_unit_test(test_a_damaged_part_names_its_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
