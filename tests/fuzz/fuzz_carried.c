// SPDX-License-Identifier: Apache-2.0
// Parts of updates that the ranks of a trainer hand to their agent: owners of units, and parts that
// arrive in any order. What is joined is an update of whole units, each from its owner, and is the
// same after it was cut for the ranks again. Input: number of ranks, number of units, an owner for
// each; then parts: rank, fragment, round, again, and a length with so many bytes. Length 255: the
// part that the rank would send.
#include "agent/base/log.h"
#include "agent/daemon/ranks.h"
#include "compress/update.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { UNITS = 12, RANKS = 4, HONEST = 255 };
static struct neb_buf update; // of all units

static void free_update(void) { neb_buf_free(&update); }

static void make_update(void) {
    const float x[6] = {1, -2, 3, 0.5f, 0, 9};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    NEB_ASSERT(cmp_work_create(&w) == NEB_OK && cmp_codec_parse("fp32", &codec) == NEB_OK);
    cmp_update_begin(&update, UNITS);
    for (uint32_t i = 0; i < UNITS; i++) {
        const struct cmp_unit_shape shape = {.unit = i, .rows = 2, .cols = 3};
        NEB_ASSERT(cmp_update_add(w, &update, &shape, &codec, &(struct cmp_source){.x = x}, NULL) ==
                   NEB_OK);
    }
    cmp_work_destroy(&w);
    atexit(free_update);
}

static void put(struct agent_ranks *r, int32_t rank, uint8_t f, uint8_t round, uint8_t again,
                const void *p, size_t len) {
    struct agent_ipc_msg m = {
        .head = json_pack("{s:i, s:i, s:i}", "fragment", f, "round", round, "again", again),
        .n_parts = 1};
    NEB_ASSERT(m.head && zmq_msg_init_size(&m.frames[0], len) == 0);
    if (len)
        memcpy(zmq_msg_data(&m.frames[0]), p, len);
    m.parts[0] = (struct agent_ipc_part){zmq_msg_data(&m.frames[0]), len};
    (void)!agent_ranks_put(r, rank, &m);
    agent_ipc_msg_clear(&m);
}

// Cut for the ranks and joined again, it is the same.
static void check(const struct agent_ranks *r, int32_t ranks, const struct neb_buf *joined) {
    const struct agent_ipc_part whole = {joined->p, joined->len};
    struct cmp_update_piece pieces[RANKS];
    struct neb_buf parts[RANKS] = {{0}}, again = {0};
    for (int32_t i = 0; i < ranks; i++) {
        NEB_ASSERT(agent_ranks_cut(r, i, &whole, 1, &parts[i]) == NEB_OK);
        pieces[i] = (struct cmp_update_piece){parts[i].p, parts[i].len};
    }
    NEB_ASSERT(cmp_update_join(pieces, (size_t)ranks, &again) == NEB_OK);
    NEB_ASSERT(again.len == joined->len && !memcmp(again.p, joined->p, again.len));
    neb_buf_free(&again);
    for (int32_t i = 0; i < ranks; i++)
        neb_buf_free(&parts[i]);
}

static void run(struct agent_ranks *r, int32_t ranks, struct neb_rd *rd) {
    while (neb_rd_left(rd) >= 5) {
        int32_t rank = neb_rd_u8(rd) % ranks;
        uint8_t f = neb_rd_u8(rd) % 2, round = neb_rd_u8(rd), again = neb_rd_u8(rd),
                len = neb_rd_u8(rd);
        const struct agent_ipc_part whole = {update.p, update.len};
        struct neb_buf part = {0}, joined;
        struct agent_ipc_msg head;
        const uint8_t *p = len == HONEST ? NULL : neb_rd_view(rd, len);
        if (len == HONEST)
            NEB_ASSERT(agent_ranks_cut(r, rank, &whole, 1, &part) == NEB_OK);
        else if (!p)
            return;
        put(r, rank, f, round, again, p ? p : part.p, p ? len : part.len);
        neb_buf_free(&part);
        enum neb_status st = agent_ranks_join(r, f, &head, &joined);
        if (st == NEB_OK)
            check(r, ranks, &joined);
        else
            NEB_ASSERT(!head.head && !joined.p);
        agent_ipc_msg_clear(&head);
        neb_buf_free(&joined);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct neb_rd rd = neb_rd_make(data, size);
    struct neb_buf owners = {0};
    struct agent_ranks *r = NULL;
    if (!update.p)
        make_update();
    int32_t ranks = 2 + neb_rd_u8(&rd) % (RANKS - 1);
    uint32_t units = neb_rd_u8(&rd) % (UNITS + 1);
    NEB_ASSERT(agent_ranks_create(ranks, 1, &r) == NEB_OK);
    for (uint32_t i = 0; i < units; i++) {
        uint8_t owner = neb_rd_u8(&rd);
        neb_buf_u32(&owners, owner == UINT8_MAX ? UINT32_MAX : owner);
    }
    if (!rd.bad && agent_ranks_owners(r, owners.p, owners.len, 6 * UNITS) == NEB_OK &&
        units == UNITS)
        run(r, ranks, &rd);
    neb_buf_free(&owners);
    agent_ranks_destroy(&r);
    return 0;
}
