// SPDX-License-Identifier: Apache-2.0
// The event loop that both engines (TUN devices, TCP proxy) share: signals, the end of the parent
// or of stdin, an optional child command, the control socket, and one timer with absolute
// deadlines. One thread.
#ifndef WANLINK_LOOP_H
#define WANLINK_LOOP_H
#include "agent/wan/ctl.h"

struct wan_engine_ops {
    // A descriptor that the engine registered with data.u64 = WAN_TAG_ENGINE + tag is ready.
    void (*event)(void *ctx, uint64_t tag, uint32_t events);
    // Does all that is due at `now`; returns when it wants to be called next (INT64_MAX: never).
    neb_ns (*advance)(void *ctx, neb_ns now);
    void *ctx;
};

enum { WAN_TAG_SIGNAL, WAN_TAG_TIMER, WAN_TAG_STDIN, WAN_TAG_CTL = 16, WAN_TAG_ENGINE = 64 };

struct wan_loop;
struct wan_loop_cfg {
    const char *ctl;                      // path or NULL
    bool die_with_parent, die_with_stdin; // how the end of the parent is noticed
};
NEB_MUST_CHECK enum neb_status wan_loop_create(const struct wan_loop_cfg *cfg,
                                               struct wan_mesh *mesh, struct wan_loop **out);
void wan_loop_destroy(struct wan_loop **l);
int wan_loop_epoll(const struct wan_loop *l);
// Runs a command as a child, which ends the loop when it ends. The caller set up the environment.
NEB_MUST_CHECK enum neb_status wan_loop_spawn(struct wan_loop *l, char *const argv[]);
// Until SIGTERM, SIGINT, SIGHUP, the end of the parent or the end of the child (a stop signal is
// then passed on to the child, a second one ends at once). *exit_code: the child's status as a
// shell gives it, else 0.
NEB_MUST_CHECK enum neb_status wan_loop_run(struct wan_loop *l, const struct wan_engine_ops *ops,
                                            int *exit_code);

#endif
