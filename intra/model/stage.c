// SPDX-License-Identifier: Apache-2.0
// A pipeline stage on a device. Data from and to the neighbours has its own buffers, so that
// a message can be in flight while the queue computes:
//
//     recv ──► came ──copy──► hf (stream), dh (gradient) ── half pass
//                   ▲mark: came may be filled again          │
//                                                            ▼
//     send ◄── leaving ◄──────────copy────────────── wide (stream), dh (gradient)
//                      ▲mark: leaving may be sent
#include "intra/model/pipe_schedule.h"
#include "intra/model/state.h"

static void forward(void *ctx, int slot, const struct intra_batch *b, float grad_scale,
                    int64_t *count) {
    struct intra_device *d = ctx;
    *count += device_send_batch(d, &d->acts[slot], b, grad_scale);
    device_run(d, grad_scale > 0 ? DEVICE_FORWARD : DEVICE_EVAL, &d->acts[slot], b->B);
    d->passed_on = b->B;
}

static void backward(void *ctx, int slot, const struct intra_batch *b) { // uploaded in forward
    struct intra_device *d = ctx;
    device_run(d, DEVICE_BACKWARD, &d->acts[slot], b->B);
}

static enum neb_status pick(void *ctx, const struct intra_picks *p) {
    return intra_device_pick(ctx, p);
}

static void *room(void *ctx, int slot, enum intra_pipe_way way) {
    struct intra_device *d = ctx;
    (void)slot;
    if (d->came_used[way])
        device_ops(d)->wait(d->c.D, MARK_CAME + (int)way);
    return d->came[way];
}

static void came(void *ctx, enum intra_pipe_way way, size_t floats) {
    struct intra_device *d = ctx;
    device_ops(d)->copy(d->c.D, way == INTRA_PIPE_DOWN ? d->hf : d->dh, d->came[way],
                        floats * sizeof(float));
    device_ops(d)->mark(d->c.D, MARK_CAME + (int)way);
    d->came_used[way] = true;
}

static const void *leaving(void *ctx, int slot, enum intra_pipe_way way, size_t floats) {
    struct intra_device *d = ctx;
    const struct device_acts *a = &d->acts[slot];
    device_ops(d)->copy(d->c.D, d->leaving[way],
                        way == INTRA_PIPE_DOWN ? device_out(d, a, d->passed_on) : d->dh,
                        floats * sizeof(float));
    device_ops(d)->mark(d->c.D, MARK_LEAVING + (int)way);
    device_ops(d)->wait(d->c.D, MARK_LEAVING + (int)way);
    return d->leaving[way];
}

static void destroy(void *ctx) { (void)ctx; } // the engine owns nothing

struct intra_pipe_engine intra_device_pipe(struct intra_device *d) {
    return (struct intra_pipe_engine){.ctx = d,
                                      .forward = forward,
                                      .backward = backward,
                                      .pick = pick,
                                      .room = room,
                                      .came = came,
                                      .leaving = leaving,
                                      .destroy = destroy};
}
