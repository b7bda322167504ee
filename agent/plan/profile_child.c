// SPDX-License-Identifier: Apache-2.0
// Measurements in child processes: the link between two ranks, and devices. A CUDA context would
// hold device memory as long as its process lives (nebula pretrain --local lives as long as the
// job), and a driver that hangs or crashes would stop the command. So only a child with a time
// limit opens a device.
#include "agent/base/log.h"
#include "agent/job/json.h"
#include "agent/plan/profile.h"
#include "agent/proc/child.h"
#include "agent/proc/gpus.h"
#include "agent/proc/launch.h"
#include "intra/ranks/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINK_FLOATS = 1 << 20,
    // So many that the time of the call itself does not matter, even over NVLink.
    DEVICE_LINK_FLOATS = 16 << 20,
    LINK_TIMEOUT_S = 30,
    DEVICE_TIMEOUT_S = 120, // it needs some seconds, and the driver's start
    GRACE_S = 5,
};

// ---- the link between two ranks -----------------------------------------------------------------

static bool watch(void *ctx, bool first) {
    struct intra_comm *c = ctx;
    return c->ops->look(c, first) == NEB_OK;
}

// Makes n sums of one number. With D they are in its queue, each between two ops, as in tensor
// parallelism. Without D each is one call.
static enum neb_status small_sums(struct intra_comm *c, struct kern *D, float *x, int n) {
    for (int k = 0; k < n; k++) {
        if (!D) {
            NEB_TRY(c->ops->all_reduce(c, x, 1, INTRA_COMM_F32, INTRA_COMM_SUM));
            continue;
        }
        D->ops->scale(D, x, 1, 1);
        NEB_TRY(c->ops->enqueue(c, INTRA_COMM_ALL_REDUCE, x, 1, INTRA_COMM_F32, INTRA_COMM_SUM,
                                D->ops->queue(D)));
    }
    if (!D)
        return NEB_OK;
    NEB_TRY(D->ops->finish(D));
    return c->ops->look(c, true);
}

// x (LINK_FLOATS; on devices DEVICE_LINK_FLOATS) is in the memory that c reduces.
static enum neb_status time_link(struct intra_comm *c, struct kern *D, float *x) {
    double best = INFINITY, small = INFINITY;
    size_t n = D ? DEVICE_LINK_FLOATS : LINK_FLOATS;
    for (int i = 0; i < 8; i++) {
        enum { MANY = 50 };
        neb_ns from = neb_now();
        NEB_TRY(c->ops->all_reduce(c, x, n, INTRA_COMM_F32, INTRA_COMM_SUM));
        best = fmin(best, neb_seconds(neb_now() - from));
        from = neb_now();
        NEB_TRY(small_sums(c, D, x, MANY));
        small = fmin(small, neb_seconds(neb_now() - from) / MANY);
    }
    // Each of the two ranks sends the bytes of the array. A small sum is two messages over TCP, but
    // one call on devices.
    if (c->rank == 0)
        printf("{\"link\": %.6g, \"link_s\": %.6g}\n", 4.0 * (double)n / best,
               D ? small : small / 2);
    fflush(stdout);
    return NEB_OK;
}

static enum neb_status host_link(struct intra_comm *world) {
    float *x = calloc(LINK_FLOATS, sizeof *x);
    enum neb_status st =
        x ? time_link(world, NULL, x) : neb_fail(NEB_ERR_NOMEM, "out of memory measuring the link");
    free(x);
    return st;
}

// Each rank has its own device, joined by NCCL as in intra/train/group.c.
static enum neb_status device_link(struct intra_comm *world) {
    struct kern *D = NULL;
    struct intra_comm *nccl = NULL;
    void *x = NULL;
    int index;
    enum neb_status st = NEB_OK;
    NEB_TRY(kern_device_index(true, &index));
    NEB_TRY(kern_device_open(index, NULL, &D));
    NEB_TRY_GOTO(D->ops->alloc(D, DEVICE_LINK_FLOATS * sizeof(float), &x), out);
    D->ops->zero(D, x, DEVICE_LINK_FLOATS * sizeof(float));
    NEB_TRY_GOTO(D->ops->finish(D), out);
    NEB_TRY_GOTO(intra_comm_nccl(world, D->index, LINK_TIMEOUT_S * 1000, &nccl), out);
    D->watch = watch;
    D->watch_ctx = nccl;
    NEB_TRY_GOTO(time_link(nccl, D, x), out);
out:
    if (st != NEB_OK && nccl)
        nccl->ops->abort(nccl);
    D->watch = NULL;
    intra_comm_destroy(&nccl);
    D->ops->release(D, x);
    kern_destroy(&D);
    return st;
}

enum neb_status agent_profile_link_rank(bool devices) {
    struct intra_comm *world = NULL;
    agent_launch_environment();
    NEB_TRY(intra_comm_launched(&world));
    enum neb_status st = devices ? device_link(world) : host_link(world);
    if (st != NEB_OK)
        world->ops->abort(world);
    intra_comm_destroy(&world);
    return st;
}

// A link that cannot be measured stays 0. Then the planner proposes one rank.
static void measure_link(const char *option, double *link_out, double *link_s_out) {
    struct agent_launch launch;
    struct agent_child child = {0};
    char exe[NEB_PATH_MAX];
    json_t *o = NULL;
    int fd = -1;
    *link_out = *link_s_out = 0;
    if (agent_self_path(exe, sizeof exe) != NEB_OK)
        return;
    agent_launch_pair(exe, "plan", option, &launch);
    if (agent_child_start(&child, "measuring ranks", launch.argv, NULL, &fd) != NEB_OK)
        return;
    if (agent_child_read_json(fd, LINK_TIMEOUT_S * NEB_S, &o) == NEB_OK)
        (void)agent_child_wait(&child, neb_now() + GRACE_S * NEB_S); // its ranks end by themselves
    double link = json_number_value(json_object_get(o, "link")),
           link_s = json_number_value(json_object_get(o, "link_s"));
    if (link > 0 && link_s > 0 && isfinite(link) && isfinite(link_s)) {
        *link_out = link;
        *link_s_out = link_s;
    } else {
        neb_warn("plan: the link between two ranks cannot be measured: meshes of several ranks are "
                 "not compared");
    }
    json_decref(o);
    close(fd);
    agent_child_stop(&child, GRACE_S * NEB_S);
}

void agent_profile_find_link(struct agent_profile *p) {
    measure_link("--measure-link", &p->rates.link, &p->rates.link_s);
}

// ---- devices ------------------------------------------------------------------------------------

static void forget_device(struct agent_profile *p) {
    p->rates.device = (struct intra_device_rates){0};
    for (int i = 0; i < CMP_PLANNED_MAX; i++)
        p->codecs[i].at[INTER_WAN_DEVICE] = (struct inter_wan_rates){0};
    p->device[0] = 0;
    p->visible = -1;
}

enum neb_status agent_profile_device_child(void) {
    static struct agent_profile p; // large
    struct kern *D = NULL;
    char why[KERN_WHY_MAX];
    if (kern_device_open(0, why, &D) == NEB_OK) {
        neb_info("measuring %s (some seconds)", D->name);
        enum neb_status st = agent_profile_device(D, &p.rates.device);
        const struct cmp_variant *v;
        for (int i = 0; (v = cmp_variant(i, CMP_PLANNED)) && st == NEB_OK; i++) {
            snprintf(p.codecs[i].name, sizeof p.codecs[i].name, "%s", v->name);
            st = agent_profile_codec_device(D, &p.codecs[i]);
        }
        snprintf(p.device, sizeof p.device, "%s", D->name);
        p.visible = agent_gpus_visible();
        kern_destroy(&D);
        NEB_TRY(st);
    }
    json_t *o = agent_profile_device_to_json(&p);
    if (!o)
        return neb_fail(NEB_ERR_NOMEM, "out of memory measuring a device");
    agent_json_print(o, JSON_COMPACT);
    json_decref(o);
    return NEB_OK;
}

// Warns why the child printed nothing readable: it has ended, or it was too slow.
static void tell_failure(struct agent_child *child, neb_ns timeout, neb_ns end) {
    char reason[96];
    int status = 0;
    bool ended = false;
    for (neb_ns grace = neb_now() + NEB_S; // a child that has closed its output ends soon
         neb_now() < end && neb_now() < grace && !(ended = agent_child_ended(child, &status));)
        neb_sleep(5 * NEB_MS);
    if (ended)
        agent_child_reason(status, reason, sizeof reason);
    else
        snprintf(reason, sizeof reason, "no answer in %.0f s", neb_seconds(timeout));
    neb_warn("the device cannot be measured: %s; plans use processors only (check that nvidia-smi "
             "answers, and who else uses the GPU)",
             reason);
}

void agent_profile_device_apart(const char *exe, neb_ns timeout, struct agent_profile *p) {
    const char *const argv[] = {exe, "plan", "--measure-device", NULL};
    struct agent_child child = {0};
    json_t *o = NULL;
    int fd = -1;
    forget_device(p);
    if (agent_child_start(&child, "measuring a device", argv, NULL, &fd) != NEB_OK)
        return;
    neb_ns end = neb_now() + timeout;
    enum neb_status st = agent_child_read_json(fd, timeout, &o);
    if (st != NEB_OK)
        tell_failure(&child, timeout, end);
    else if (agent_profile_device_parse(o, "nebula plan --measure-device", p) != NEB_OK)
        forget_device(p); // the parser has logged the reason
    json_decref(o);
    close(fd);
    agent_child_stop(&child, GRACE_S * NEB_S);
}

void agent_profile_find_device_link(struct agent_profile *p) {
    measure_link("--measure-device-link", &p->rates.device.link, &p->rates.device.link_s);
}

enum neb_status agent_profile_find_device(struct agent_profile *p) {
    char exe[NEB_PATH_MAX];
    forget_device(p);
    if (!kern_device_likely())
        return NEB_OK;
    NEB_TRY(agent_self_path(exe, sizeof exe));
    agent_profile_device_apart(exe, DEVICE_TIMEOUT_S * NEB_S, p);
    if (p->rates.device.count > 1)
        agent_profile_find_device_link(p);
    return NEB_OK;
}
