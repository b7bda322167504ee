// SPDX-License-Identifier: Apache-2.0
// The header of a snapshot, and the messages of one transfer, from a hostile holder or joiner.
// Input: a header; and the same bytes as messages, each after a u16 little-endian length (highest
// bit: bulk).
#include "agent/base/fs.h"
#include "inter/service/snapshot.h"

#include <stdlib.h>
#include <string.h>

static bool takes_part(void *user, const uint8_t id[INTER_ID_BYTES], uint32_t peer) {
    (void)user, (void)peer;
    return id[0] != 0xff;
}
static void refused(void *user, const uint8_t id[INTER_ID_BYTES], uint32_t peer) {
    (void)user, (void)id, (void)peer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t job[INTER_ID_BYTES], body[100];

static enum neb_status read_body(void *pin, int i, uint64_t at, void *dst, size_t n) {
    (void)pin, (void)i;
    memcpy(dst, body + at, n);
    return NEB_OK;
}

static enum neb_status open_source(void *user, const uint8_t id[INTER_ID_BYTES],
                                   struct inter_snapshot_source *out) {
    (void)user;
    if (memcmp(id, job, sizeof job))
        return NEB_ERR_NOT_FOUND;
    *out = (struct inter_snapshot_source){.len = {sizeof body, sizeof body}, .read = read_body};
    neb_buf_add(&out->header, body, 64);
    return NEB_OK;
}
static void close_source(void *user, struct inter_snapshot_source *s) {
    (void)user;
    neb_buf_free(&s->header);
}
static void done(void *user, const uint8_t id[INTER_ID_BYTES], enum neb_status st, const char *part,
                 uint64_t header, uint32_t giver) {
    (void)user, (void)id, (void)st, (void)header, (void)giver;
    (void)!neb_fs_remove(part);
}
static enum neb_status put(void *user, uint32_t peer, bool bulk, const void *head, size_t n,
                           const void *p, size_t m) {
    (void)user, (void)peer, (void)bulk, (void)head, (void)n, (void)p, (void)m;
    return NEB_OK;
}

static uint64_t elements(void *user, const uint8_t id[INTER_ID_BYTES]) {
    (void)user;
    return id[0] & 1 ? 1000 : UINT64_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct inter_snapshots_config c = {.open = open_source,
                                       .close = close_source,
                                       .done = done,
                                       .send = put,
                                       .elements = elements,
                                       .takes_part = takes_part,
                                       .refused = refused};
    struct inter_snapshots *s = NULL;
    struct inter_snapshot *header = malloc(sizeof *header);
    struct neb_rd r = neb_rd_make(data, size);
    if (header)
        (void)!inter_snapshot_get(&r, header);
    free(header);
    if (inter_snapshots_create(&c, &s) != NEB_OK)
        return 0;
    // The folder does not exist, so an accepted offer ends with an error before any byte is
    // written.
    (void)!inter_snapshots_fetch(s, job, "/nonexistent/x", (const uint32_t[]){1}, 1, false, NEB_S);
    r = neb_rd_make(data, size);
    neb_ns now = 2 * NEB_S;
    for (int i = 0; i < 64 && neb_rd_left(&r) >= 2; i++, now += NEB_S) {
        uint16_t head = neb_rd_u16(&r);
        size_t len = head & 0x7fff;
        len = len < neb_rd_left(&r) ? len : neb_rd_left(&r);
        const uint8_t *p = neb_rd_view(&r, len);
        (void)!inter_snapshots_message(s, now, 1, head >> 15, p, len);
        (void)!inter_snapshots_tick(s, now);
    }
    inter_snapshots_destroy(&s);
    return 0;
}
