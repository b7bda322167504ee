// SPDX-License-Identifier: Apache-2.0
// The event loop of both engines (TUN devices, TCP proxy): signals, the end of the parent or of
// stdin, an optional child command, the control socket, and one timer with absolute deadlines. One
// thread.
#ifndef WANLINK_LOOP_H
#define WANLINK_LOOP_H
#include "agent/wan/ctl.h"

struct wan_engine_ops {
    // Called when a descriptor is ready that the engine has registered with data.u64 =
    // WAN_TAG_ENGINE + tag.
    void (*event)(void *ctx, uint64_t tag, uint32_t events);
    // Does all that is due at `now`. Returns the time of the next call; INT64_MAX: never.
    neb_ns (*advance)(void *ctx, neb_ns now);
    void *ctx;
};

enum { WAN_TAG_SIGNAL, WAN_TAG_TIMER, WAN_TAG_STDIN, WAN_TAG_CTL = 16, WAN_TAG_ENGINE = 64 };

struct wan_loop;
struct wan_loop_cfg {
    const char *ctl;                      // path or NULL
    bool die_with_parent, die_with_stdin; // end with the parent; end when stdin closes
};
NEB_MUST_CHECK enum neb_status wan_loop_create(const struct wan_loop_cfg *cfg,
                                               struct wan_mesh *mesh, struct wan_loop **out);
void wan_loop_destroy(struct wan_loop **l);
int wan_loop_epoll(const struct wan_loop *l);
// Runs a command as a child; the loop ends when the child ends. The caller has set the environment.
NEB_MUST_CHECK enum neb_status wan_loop_spawn(struct wan_loop *l, char *const argv[]);
// Runs until SIGTERM, SIGINT, SIGHUP, the end of the parent or the end of the child. With a child,
// the first stop signal goes to the child, and the second one ends the loop. *exit_code: the status
// of the child as a shell gives it, or 0.
NEB_MUST_CHECK enum neb_status wan_loop_run(struct wan_loop *l, const struct wan_engine_ops *ops,
                                            int *exit_code);

#endif
