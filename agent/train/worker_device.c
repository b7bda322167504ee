// SPDX-License-Identifier: Apache-2.0
// Where a worker trains: the cluster's `device` and `precision`.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/train/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A file in the job's folder with the name of the device that the job last trained on. No file: it
// has trained on none, or on the CPU since.
static const char TRAINED_ON[] = "device";

static bool device_had(const struct agent_worker *w) {
    char path[NEB_PATH_MAX];
    return neb_path(path, sizeof path, w->x.dir, TRAINED_ON) == NEB_OK && neb_fs_exists(path);
}

static void keep_name(const struct agent_worker *w) {
    char path[NEB_PATH_MAX], text[1024];
    enum neb_status st = neb_path(path, sizeof path, w->x.dir, TRAINED_ON);
    if (st == NEB_OK && !w->device)
        st = neb_fs_remove(path);
    else if (st == NEB_OK && !neb_fs_exists(path))
        st = neb_fs_write(path, w->device->name, strlen(w->device->name), 0600);
    if (st != NEB_OK) {
        neb_last_error(text, sizeof text);
        neb_warn("cannot record the device of this job: %s", text);
    }
}

// A job that has trained on a device does not continue on the CPU, many times slower: a restart
// of the worker, or the operator, may bring the device back.
static enum neb_status gone(struct agent_worker *w, const char *why) {
    w->device_gone = true;
    return neb_fail(NEB_ERR_IO,
                    "this job has trained on a GPU before, and now: %s. Set `device: cpu` to "
                    "continue on the CPU",
                    why);
}

enum neb_status worker_device_open(struct agent_worker *w) {
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    bool must = c->device == AGENT_DEVICE_CUDA, had = device_had(w);
    char why[KERN_WHY_MAX];
    int index;
    w->device_type = c->precision == AGENT_PRECISION_BF16 ? KERN_BF16 : KERN_F32;
    if (c->device == AGENT_DEVICE_CPU)
        return NEB_OK;
    NEB_TRY(kern_device_index(w->world, &index));
    enum neb_status st = kern_device_open(index, must && !had ? NULL : why, &w->device);
    if (had && st != NEB_OK && st != NEB_ERR_NOMEM)
        return gone(w, why);
    if (st != NEB_OK && must && !had)
        return st;
    if (st == NEB_ERR_NOMEM) // the same status as when training runs out of device memory
        return neb_fail(st, "%s. Set `device: cpu` to train without a GPU", why);
    if (st == NEB_ERR_IO)
        snprintf(w->no_device, sizeof w->no_device, "the GPU of this machine cannot be opened: %s",
                 why);
    else if (st != NEB_OK)
        snprintf(w->no_device, sizeof w->no_device, "there is no GPU");
    if (st == NEB_ERR_IO)
        neb_warn("training on the CPU, because the GPU of this machine cannot be opened: %s. With "
                 "`device: cuda` the job fails instead",
                 why);
    else if (st != NEB_OK)
        neb_info("training on the CPU, because there is no device: %s", why);
    else if (c->precision == AGENT_PRECISION_AUTO)
        w->device_type = KERN_BF16;
    return NEB_OK;
}

bool worker_device_optional(const struct agent_worker *w) {
    const struct agent_cluster *c = &w->x.job.clusters[w->x.cluster];
    return c->device == AGENT_DEVICE_AUTO && c->precision != AGENT_PRECISION_BF16 && !device_had(w);
}

enum neb_status worker_device_joined(struct agent_worker *w, enum neb_status st) {
    char why[1024];
    if (st == NEB_OK || st == NEB_ERR_NOMEM || !w->device || !device_had(w))
        return st;
    neb_last_error(why, sizeof why);
    return gone(w, why);
}

static bool in_bf16(const struct agent_worker *w) {
    return strcmp(kern_cpu_products(w->K), "fp32") != 0;
}

void worker_device_name(const struct agent_worker *w, char *out, size_t cap) {
    if (w->device)
        snprintf(out, cap, "cuda (%s, %s)", w->device->name,
                 w->device_type == KERN_BF16 ? "bf16" : "fp32");
    else
        snprintf(out, cap, "%s", in_bf16(w) ? "cpu, bf16" : "cpu");
}

static void say_products(struct agent_worker *w) {
    if (!in_bf16(w)) {
        neb_info("matrix products by %s", kern_cpu_library());
        return;
    }
    w->x.products = kern_cpu_products(w->K);
    double gain = kern_cpu_bf16_gain(w->K);
    neb_info("training on the CPU, with matrix products in %s, %.1f times as fast as in fp32",
             w->x.products, gain);
    if (gain < 1)
        neb_warn("this CPU is faster without `precision: bf16`");
}

static void say_device(struct agent_worker *w) {
    char device[96], text[sizeof device + sizeof w->no_device + 32];
    worker_device_name(w, device, sizeof device);
    snprintf(text, sizeof text, w->no_device[0] ? "trains on %s, because %s" : "trains on %s",
             device, w->no_device);
    exchange_metrics(&w->x,
                     json_pack("{s:s,s:s,s:s}", "kind", "note", "device", device, "text", text));
}

void worker_device_settle(struct agent_worker *w, const struct intra_group *group) {
    if (w->device && !intra_group_device(group)) { // the group has logged why
        kern_destroy(&w->device);
        snprintf(w->no_device, sizeof w->no_device,
                 "not all ranks can use a device (see the worker's log)");
    }
    keep_name(w);
    if (w->device)
        neb_info("training on %s in %s", w->device->name,
                 w->device_type == KERN_BF16 ? "bf16" : "fp32");
    else
        say_products(w);
    say_device(w);
}
