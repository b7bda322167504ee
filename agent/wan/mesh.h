// SPDX-License-Identifier: Apache-2.0
// All links between the sites of one emulator, their parameters as text, and the commands of the
// control socket. Has no clock: the caller passes the time.
//
// Units as text: rate 2mbit 1.5gbit 300kbit 0 (= unlimited); time 40ms 500us 1.5s;
// share 0.1% or 0.001; queue 256KiB 64kB 2MiB 2bdp (bdp = rate × 2·delay, at least 64 KiB).
#ifndef WANLINK_MESH_H
#define WANLINK_MESH_H
#include "agent/base/bytes.h"
#include "agent/wan/link.h"

enum { WAN_SITES_MAX = 16 };

struct wan_mesh {
    unsigned sites;
    struct wan_link link[WAN_SITES_MAX][WAN_SITES_MAX]; // [from][to]; the diagonal is unused
    // Called after a command has changed the parameters of a direction. May be NULL.
    void (*changed)(void *ctx, unsigned from, unsigned to);
    // Bytes accepted but not yet delivered in a direction. May be NULL.
    uint64_t (*in_flight)(void *ctx, unsigned from, unsigned to);
    void *ctx;
    neb_ns started;
};

// Sets one parameter by name: rate, delay, jitter, loss, reorder, queue. NEB_ERR_INVALID: the name
// or the value is wrong; `why` has the message, nothing is logged, and *p is unchanged.
NEB_MUST_CHECK enum neb_status wan_param_set(struct wan_params *p, const char *name,
                                             const char *value, char why[160]);
// Sets several parameters: "rate=10mbit,delay=20ms". Errors as above.
NEB_MUST_CHECK enum neb_status wan_params_parse(struct wan_params *p, const char *list,
                                                char why[160]);

// Runs one command of the control socket. The answer is one line ("ok", "error: …" or JSON) with
// its '\n'.
//     stats | help
//     down | up | rate V | delay V | jitter V | loss V | reorder V | queue V    [I J]
//     the same with -oneway and I J: only the direction from I to J
// A command without I J changes all links. With I J it changes both directions between sites I and
// J.
void wan_mesh_command(struct wan_mesh *m, const char *line, neb_ns now, struct neb_buf *answer);
// Appends {"uptime_s":…,"links":[{"from":0,"to":1,…}…]} without a line end.
void wan_mesh_stats(const struct wan_mesh *m, neb_ns now, struct neb_buf *out);
void wan_buf_printf(struct neb_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
