// SPDX-License-Identifier: Apache-2.0
#include "inter/link/link.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "agent/job/wan_spec.h"
#include "agent/proc/child.h"
#include "inter/round/transfer.h"
#include "security/identity.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SITES = 2, PORT = 7443, POLL_MAX = 128, FIRST_BLOB = 4 << 20, BLOB = 1 << 30 };

// ---- one end ------------------------------------------------------------------------------------

struct end {
    struct inter_link *link;
    struct sec_identity *id;
    uint32_t peer;
    bool up, done, full;
    struct inter_estimate e;
    struct inter_sender out;
    uint32_t blob; // number of the blob that is being sent
    uint64_t acked;
    uint8_t *noise; // a chunk of incompressible bytes
};

static enum neb_status end_create(const struct bench_link_options *o, struct end *t) {
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX], name[16];
    struct sec_members members;
    snprintf(name, sizeof name, "site%d", o->end);
    NEB_TRY(sec_init());
    NEB_TRY(neb_path(home, sizeof home, o->dir, name));
    NEB_TRY(neb_path(path, sizeof path, home, "members.json"));
    NEB_TRY(sec_identity_load(home, &t->id));
    NEB_TRY(sec_members_load(path, 0, &members));
    const struct sec_member *listener = sec_members_by_name(&members, "site0"),
                            *other = sec_members_by_name(&members, o->end ? "site0" : "site1");
    if (!listener || !other)
        return neb_fail(NEB_ERR_FORMAT, "%s does not name both ends", path);
    t->peer = (uint32_t)(other - members.m); // the list has its own order
    t->noise = malloc(INTER_CHUNK_MAX);
    if (!t->noise)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a chunk");
    struct neb_rng r = neb_rng_make(1, 2);
    for (size_t i = 0; i + 8 <= INTER_CHUNK_MAX; i += 8)
        neb_put_u64(t->noise + i, neb_rng_u64(&r));
    const struct inter_link_config c = {.identity = t->id,
                                        .members = &members,
                                        .listen = o->end == 0 ? listener->endpoint : NULL,
                                        .n_bulk = o->stripes,
                                        .congestion = o->congestion,
                                        .chunk_bytes = INTER_CHUNK_MAX};
    return inter_link_create(&c, &t->link);
}

static void end_destroy(struct end *t) {
    inter_link_destroy(&t->link);
    sec_identity_destroy(&t->id);
    inter_sender_free(&t->out);
    free(t->noise);
}

static void on_event(void *user, const struct inter_link_event *ev) {
    struct end *t = user;
    if (ev->kind == INTER_LINK_LOST)
        return; // the sender resends its chunk after a time
    if (ev->kind != INTER_LINK_MSG) {
        t->done = t->up && ev->kind == INTER_LINK_DOWN; // the other end has closed the link
        t->up = ev->kind == INTER_LINK_UP;
        return;
    }
    if (ev->channel == INTER_BULK && ev->len >= 8) { // a chunk: return its number
        if (inter_link_send(t->link, ev->peer, INTER_CONTROL, ev->data, 8) != NEB_OK)
            neb_debug("an acknowledgement was lost");
        return;
    }
    struct neb_rd r = neb_rd_make(ev->data, ev->len);
    uint32_t blob = neb_rd_u32(&r), chunk = neb_rd_u32(&r);
    if (!neb_rd_done(&r) || blob != t->blob || !t->out.acked.bits)
        return;
    uint64_t before = t->e.delivered;
    if (inter_sender_ack(&t->out, chunk, 0, &t->e, neb_now()))
        t->acked += t->e.delivered - before;
}

static enum neb_status fill(struct end *t) {
    while (t->up) {
        if (!t->out.acked.bits || inter_sender_done(&t->out)) {
            uint32_t bytes = t->blob ? BLOB : FIRST_BLOB;
            inter_sender_free(&t->out);
            NEB_TRY(inter_sender_init(&t->out, bytes, inter_estimate_chunk(&t->e, bytes)));
            t->out.ready = true;
            t->blob++;
        }
        int64_t c = inter_sender_next(&t->out, inter_estimate_window(&t->e), 0, &t->e, neb_now());
        if (c < 0)
            return NEB_OK;
        uint8_t head[8];
        neb_put_u32(head, t->blob);
        neb_put_u32(head + 4, (uint32_t)c);
        enum neb_status st =
            inter_link_send2(t->link, t->peer, INTER_BULK, head, sizeof head, t->noise,
                             inter_chunk_length(t->out.bytes, t->out.chunk_bytes, (uint32_t)c));
        if (st == NEB_OK)
            continue;
        inter_sender_unsend(&t->out, (uint32_t)c);
        return st == NEB_ERR_AGAIN ? NEB_OK : st;
    }
    return NEB_OK;
}

static enum neb_status turn(struct end *t, bool sends) {
    zmq_pollitem_t items[POLL_MAX];
    size_t n = inter_link_poll_items(t->link, items, POLL_MAX);
    neb_ns wait = inter_link_next_deadline(t->link) - neb_now();
    long ms = wait <= 0 ? 0 : wait > NEB_S ? 1000 : (long)(wait / NEB_MS) + 1;
    if (zmq_poll(items, (int)(n < POLL_MAX ? n : POLL_MAX), ms) < 0 && zmq_errno() != EINTR)
        return neb_fail(NEB_ERR_IO, "poll: %s", zmq_strerror(zmq_errno()));
    NEB_TRY(inter_link_process(t->link, on_event, t));
    return sends ? fill(t) : NEB_OK;
}

static enum neb_status send_for(struct end *t, double seconds) {
    struct inter_link_stats s0, s1;
    neb_ns patience = neb_now() + 20 * NEB_S;
    while (!t->up && neb_now() < patience)
        NEB_TRY(turn(t, true));
    if (!t->up)
        return neb_fail(NEB_ERR_TIMEOUT, "bench link: no connection to the other end within 20 s");
    neb_ns begin = neb_now(), from = begin + (neb_ns)(seconds / 3 * 1e9),
           end = begin + (neb_ns)(seconds * 1e9);
    while (neb_now() < from && !t->done)
        NEB_TRY(turn(t, true));
    uint64_t acked = t->acked;
    NEB_TRY(inter_link_stats(t->link, t->peer, &s0));
    from = neb_now();
    while (neb_now() < end && !t->done)
        NEB_TRY(turn(t, true));
    NEB_TRY(inter_link_stats(t->link, t->peer, &s1));
    double took = neb_seconds(neb_now() - from);
    printf("{\"goodput_bps\": %.0f, \"socket_bps\": %.0f, \"stripes\": %u, \"congestion\": \"%s\", "
           "\"window\": %llu, \"rtt_ms\": %.1f, \"estimate_bps\": %.0f, \"chunk\": %u}\n",
           8.0 * (double)(t->acked - acked) / took,
           8.0 * (double)(s1.sent_bytes - s0.sent_bytes) / took, s1.bulk_used, s1.congestion,
           (unsigned long long)inter_estimate_window(&t->e), neb_seconds(t->e.rtt) * 1e3,
           t->e.goodput_bps, t->out.chunk_bytes);
    return t->done ? neb_fail(NEB_ERR_STATE, "bench link: the link broke during the measurement")
                   : NEB_OK;
}

static enum neb_status run_end(const struct bench_link_options *o) {
    struct end t = {0};
    enum neb_status st = end_create(o, &t);
    if (st == NEB_OK && o->end == 1)
        st = send_for(&t, o->seconds);
    while (st == NEB_OK && o->end == 0) // until the parent ends this process
        st = turn(&t, false);
    end_destroy(&t);
    return st;
}

// ---- both ends ----------------------------------------------------------------------------------

struct places {
    char netns[SITES][64], endpoint[SEC_ENDPOINT_MAX];
};

static enum neb_status make_sites(const char *dir, const struct places *p) {
    struct sec_members members = {0};
    char home[SITES][NEB_PATH_MAX], path[NEB_PATH_MAX], name[16];
    for (int i = 0; i < SITES; i++) {
        struct sec_identity *id = NULL;
        struct sec_member m = {.connect = i ? SEC_CONNECT_OUT : SEC_CONNECT_IN};
        snprintf(name, sizeof name, "site%d", i);
        NEB_TRY(neb_path(home[i], sizeof home[i], dir, name));
        NEB_TRY(neb_fs_mkdirs(home[i], 0700));
        NEB_TRY(sec_identity_create(home[i], name, &id));
        m.pub = *sec_identity_public(id);
        sec_identity_destroy(&id);
        if (!i)
            snprintf(m.endpoint, sizeof m.endpoint, "%s", p->endpoint);
        NEB_TRY(sec_members_add(&members, &m));
    }
    for (int i = 0; i < SITES; i++) { // each site has its own view of who dials
        struct sec_members seen = members;
        for (uint32_t k = 0; k < seen.n; k++)
            seen.m[k].connect = seen.m[k].endpoint[0] ? SEC_CONNECT_OUT : SEC_CONNECT_IN;
        NEB_TRY(neb_path(path, sizeof path, home[i], "members.json"));
        NEB_TRY(sec_members_save(path, &seen));
    }
    return NEB_OK;
}

static enum neb_status start_wan(const char *wan, const char *dir, struct agent_child *child,
                                 int *fd, struct places *p) {
    char wanlink[NEB_PATH_MAX], log[NEB_PATH_MAX];
    json_t *ready = NULL, *site;
    size_t i;
    NEB_TRY(agent_helper_path("wanlink", wanlink, sizeof wanlink));
    NEB_TRY(neb_path(log, sizeof log, dir, "wanlink.log"));
    const char *const argv[] = {wanlink, "run", "--wan", wan, "--die-with-parent", NULL};
    NEB_TRY(agent_child_start(child, "wanlink", argv, log, fd));
    enum neb_status st = agent_child_read_json(*fd, 15 * NEB_S, &ready);
    if (st != NEB_OK)
        return neb_fail(NEB_ERR_STATE,
                        "bench link: no WAN can be emulated here, for which root is needed "
                        "(wanlink probe shows the reason)");
    json_array_foreach(json_object_get(ready, "sites"), i, site) {
        const char *ns = json_string_value(json_object_get(site, "netns")),
                   *addr = json_string_value(json_object_get(site, "addr"));
        if (i < SITES && ns && addr)
            snprintf(p->netns[i], sizeof p->netns[i], "%s", ns);
        if (i == 0 && addr)
            snprintf(p->endpoint, sizeof p->endpoint, "%.40s:%d", addr, PORT);
    }
    json_decref(ready);
    return p->netns[0][0] && p->netns[1][0]
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "bench link: wanlink reported no sites");
}

static enum neb_status start_end(const struct bench_link_options *o, const char *dir, int end,
                                 const struct places *p, struct agent_child *child, int *fd) {
    char exe[NEB_PATH_MAX], wanlink[NEB_PATH_MAX], log[NEB_PATH_MAX], number[16], stripes[16],
        seconds[32], name[32];
    const char *argv[24];
    int n = 0;
    NEB_TRY(agent_self_path(exe, sizeof exe));
    if (p->netns[end][0]) {
        NEB_TRY(agent_helper_path("wanlink", wanlink, sizeof wanlink));
        argv[n++] = wanlink;
        argv[n++] = "exec";
        argv[n++] = p->netns[end];
        argv[n++] = "--";
    }
    snprintf(name, sizeof name, "end%d.log", end);
    NEB_TRY(neb_path(log, sizeof log, dir, name));
    snprintf(number, sizeof number, "%d", end);
    snprintf(stripes, sizeof stripes, "%u", o->stripes);
    snprintf(seconds, sizeof seconds, "%g", o->seconds);
    const char *const rest[] = {exe, "bench",     "link",  "--end",     number, "--dir",
                                dir, "--stripes", stripes, "--seconds", seconds};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++)
        argv[n++] = rest[i];
    if (o->congestion) {
        argv[n++] = "--congestion";
        argv[n++] = o->congestion;
    }
    argv[n] = NULL;
    return agent_child_start(child, name, argv, log, fd);
}

// The rate in "100mbit:…", in bit/s; 0: no limit is known.
static double wan_rate(const char *wan) {
    struct agent_wan w;
    return wan && agent_wan_parse(wan, "--wan", &w) == NEB_OK ? w.bits_s : 0;
}

static void print_result(const struct bench_link_options *o, const json_t *r) {
    char name[128];
    const char *keys[] = {"socket_bps", "stripes", "window", "rtt_ms", "estimate_bps", "chunk"};
    struct bench_field more[6];
    for (size_t i = 0; i < 6; i++)
        more[i] = (struct bench_field){keys[i], json_number_value(json_object_get(r, keys[i]))};
    snprintf(name, sizeof name, "%s %s %s", o->wan ? o->wan : "loopback",
             json_string_value(json_object_get(r, "congestion")), o->stripes ? "pinned" : "auto");
    bench_line_with(o->json, "link", name,
                    json_number_value(json_object_get(r, "goodput_bps")) / 1e6, "Mbit/s",
                    wan_rate(o->wan) / 1e6, "rate of the link, headers included", more, 6);
}

static void print_log(const char *dir, int end) {
    struct neb_buf log = {0};
    char path[NEB_PATH_MAX], name[32];
    snprintf(name, sizeof name, "end%d.log", end);
    if (neb_path(path, sizeof path, dir, name) == NEB_OK &&
        neb_fs_read(path, 1 << 16, &log) == NEB_OK)
        neb_warn("bench link: log of end %d: %.*s", end, (int)log.len, (const char *)log.p);
    neb_buf_free(&log);
}

static enum neb_status run_both(const struct bench_link_options *o, const char *dir) {
    struct agent_child wan = {0}, ends[SITES] = {{0}};
    int wan_fd = -1, fd = -1;
    json_t *result = NULL;
    struct places p = {.endpoint = "127.0.0.1:17443"};
    enum neb_status st = o->wan ? start_wan(o->wan, dir, &wan, &wan_fd, &p) : NEB_OK;
    if (st == NEB_OK)
        st = make_sites(dir, &p);
    if (st == NEB_OK)
        st = start_end(o, dir, 0, &p, &ends[0], NULL);
    if (st == NEB_OK)
        st = start_end(o, dir, 1, &p, &ends[1], &fd);
    if (st == NEB_OK &&
        agent_child_read_json(fd, (neb_ns)((o->seconds + 40) * 1e9), &result) != NEB_OK) {
        for (int i = 0; i < SITES; i++)
            print_log(dir, i);
        st = neb_fail(NEB_ERR_STATE, "bench link: the sending end reported nothing");
    }
    if (st == NEB_OK)
        print_result(o, result);
    json_decref(result);
    for (int i = SITES; i-- > 0;)
        agent_child_stop(&ends[i], 3 * NEB_S);
    agent_child_stop(&wan, 5 * NEB_S);
    if (fd >= 0)
        close(fd);
    if (wan_fd >= 0)
        close(wan_fd);
    return st;
}

enum neb_status bench_link(const struct bench_link_options *given) {
    struct bench_link_options o = *given;
    char dir[NEB_PATH_MAX];
    o.seconds = o.seconds > 0 ? o.seconds : 30;
    if (o.end >= 0)
        return run_end(&o);
    NEB_TRY(bench_folder(NULL, dir));
    enum neb_status st = run_both(&o, dir);
    bench_folder_remove(dir);
    return st;
}
