// On what a worker trains: the cluster's `device` and `precision`.
#include "agent/base/log.h"
#include "agent/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Which of the machine's devices: the launcher's LOCAL_RANK, else the first that this process sees.
static enum neb_status device_index(int *out) {
    const char *text = getenv("LOCAL_RANK");
    char *end = NULL;
    *out = 0;
    if (!text)
        return NEB_OK;
    long n = strtol(text, &end, 10);
    if (!*text || *end || n < 0 || n > 1023)
        return neb_fail(NEB_ERR_INVALID, "LOCAL_RANK is \"%s\", not a number in 0..1023", text);
    *out = (int)n;
    return NEB_OK;
}

enum neb_status worker_device_open(struct agent_worker *w) {
    const struct agent_cluster *c = &w->job.clusters[w->cluster];
    bool must = c->device == AGENT_DEVICE_CUDA;
    int index;
    if (c->device == AGENT_DEVICE_CPU || (!must && w->world))
        return NEB_OK;
    NEB_TRY(device_index(&index));
    enum neb_status st = kern_device_open(index, !must, &w->device);
    if (st != NEB_OK && must)
        return st;
    if (st != NEB_OK && c->precision == AGENT_PRECISION_BF16)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "cluster %s: precision bf16 needs a CUDA device, and there is none here; "
                        "set precision: fp32 (device: cuda says what is missing)",
                        c->name);
    if (st != NEB_OK)
        return NEB_OK;
    w->device_type = c->precision == AGENT_PRECISION_FP32 ? KERN_F32 : KERN_BF16;
    neb_info("training on %s in %s", w->device->name,
             w->device_type == KERN_BF16 ? "bf16" : "fp32");
    return NEB_OK;
}

void worker_device_name(const struct agent_worker *w, char *out, size_t cap) {
    if (w->device)
        snprintf(out, cap, "cuda (%s, %s)", w->device->name,
                 w->device_type == KERN_BF16 ? "bf16" : "fp32");
    else
        snprintf(out, cap, "cpu");
}
