// SPDX-License-Identifier: Apache-2.0
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "inter/link/link.h"
#include "security/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENDS = 2, POLL_MAX = 64, HEADER = 64 /* key, number, digest */, ACK = 16 };
static const neb_ns patience = 20 * NEB_S; // without progress

struct end {
    struct sec_identity *id;
    struct inter_link *link;
    uint32_t peer;
    bool up;
    uint64_t got; // payload bytes that arrived (receiver) or are acknowledged (sender)
    enum neb_status st;
};

static void on_event(void *user, const struct inter_link_event *ev) {
    struct end *e = user;
    uint8_t ack[ACK] = {0};
    if (ev->kind != INTER_LINK_MSG) {
        e->up = ev->kind == INTER_LINK_UP || (e->up && ev->kind == INTER_LINK_LOST);
    } else if (ev->channel == INTER_BULK && ev->len > HEADER) {
        e->got += ev->len - HEADER;
        neb_put_u32(ack, (uint32_t)(ev->len - HEADER));
        e->st = inter_link_send(e->link, ev->peer, INTER_CONTROL, ack, sizeof ack);
    } else if (ev->len == ACK) {
        struct neb_rd r = neb_rd_make(ev->data, ev->len);
        e->got += neb_rd_u32(&r);
    }
}

static enum neb_status turn(struct end ends[ENDS]) {
    zmq_pollitem_t items[POLL_MAX];
    size_t n = inter_link_poll_items(ends[0].link, items, POLL_MAX / 2);
    n += inter_link_poll_items(ends[1].link, items + n, POLL_MAX - n);
    if (zmq_poll(items, (int)n, 10) < 0 && zmq_errno() != EINTR)
        return neb_fail(NEB_ERR_IO, "poll: %s", zmq_strerror(zmq_errno()));
    for (int i = 0; i < ENDS; i++) {
        NEB_TRY(inter_link_process(ends[i].link, on_event, &ends[i]));
        NEB_TRY(ends[i].st);
    }
    return NEB_OK;
}

// End 0 listens, end 1 dials.
static enum neb_status open_ends(const char *dir, struct end ends[ENDS]) {
    struct sec_members members = {0};
    char home[NEB_PATH_MAX], name[16];
    NEB_TRY(sec_init());
    for (int i = 0; i < ENDS; i++) {
        struct sec_member m = {0};
        snprintf(name, sizeof name, "site%d", i);
        NEB_TRY(neb_path(home, sizeof home, dir, name));
        NEB_TRY(neb_fs_mkdirs(home, 0700));
        NEB_TRY(sec_identity_create(home, name, &ends[i].id));
        m.pub = *sec_identity_public(ends[i].id);
        NEB_TRY(sec_members_add(&members, &m));
    }
    for (int i = 0; i < ENDS; i++) {
        const struct sec_member *other =
            sec_members_by_curve(&members, sec_identity_public(ends[!i].id)->curve);
        ends[i].peer = (uint32_t)(other - members.m); // the list has its own order
        if (i)
            snprintf(members.m[ends[i].peer].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u",
                     inter_link_port(ends[0].link));
        const struct inter_link_config c = {.identity = ends[i].id,
                                            .members = &members,
                                            .listen = i ? NULL : "127.0.0.1:*",
                                            .n_bulk = 1};
        NEB_TRY(inter_link_create(&c, &ends[i].link));
    }
    return NEB_OK;
}

static enum neb_status send_all(struct end ends[ENDS], size_t payload, uint32_t chunk,
                                const uint8_t *noise, uint64_t *sent) {
    struct inter_link_stats from, to;
    uint64_t queued = 0, last = 0;
    for (neb_ns end = neb_now() + patience; !(ends[0].up && ends[1].up) && neb_now() < end;)
        NEB_TRY(turn(ends));
    if (!ends[0].up || !ends[1].up)
        return neb_fail(NEB_ERR_TIMEOUT, "no link over loopback within 20 s");
    NEB_TRY(inter_link_stats(ends[1].link, ends[1].peer, &from));
    for (neb_ns end = neb_now() + patience; ends[1].got < payload && neb_now() < end;) {
        while (queued < payload) {
            size_t n = payload - queued < chunk ? (size_t)(payload - queued) : chunk;
            enum neb_status st =
                inter_link_send2(ends[1].link, ends[1].peer, INTER_BULK, noise, HEADER, noise, n);
            if (st == NEB_ERR_AGAIN)
                break;
            NEB_TRY(st);
            queued += n;
        }
        NEB_TRY(turn(ends));
        end = ends[1].got > last ? neb_now() + patience : end;
        last = ends[1].got;
    }
    if (ends[1].got < payload)
        return neb_fail(NEB_ERR_TIMEOUT,
                        "a transfer of %zu bytes over loopback made no progress for 20 s", payload);
    NEB_TRY(inter_link_stats(ends[1].link, ends[1].peer, &to));
    *sent = to.sent_bytes - from.sent_bytes;
    return NEB_OK;
}

enum neb_status bench_socket_bytes(size_t payload, uint32_t chunk_bytes, uint64_t *sent) {
    char dir[NEB_PATH_MAX] = "";
    struct end ends[ENDS] = {{0}};
    enum neb_status st;
    uint8_t *noise = malloc(chunk_bytes + HEADER);
    if (!noise)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a chunk of %u bytes", chunk_bytes);
    struct neb_rng r = neb_rng_make(1, 2);
    for (size_t i = 0; i < chunk_bytes + HEADER; i++)
        noise[i] = (uint8_t)neb_rng_u64(&r);
    NEB_TRY_GOTO(bench_folder(NULL, dir), out);
    NEB_TRY_GOTO(open_ends(dir, ends), out);
    NEB_TRY_GOTO(send_all(ends, payload, chunk_bytes, noise, sent), out);
out:
    for (int i = ENDS; i-- > 0;) {
        inter_link_destroy(&ends[i].link);
        sec_identity_destroy(&ends[i].id);
    }
    free(noise);
    bench_folder_remove(dir);
    return st;
}
