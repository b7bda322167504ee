// SPDX-License-Identifier: Apache-2.0
// The command line of `wanlink run` and `wanlink proxy`.
#ifndef WANLINK_OPTS_H
#define WANLINK_OPTS_H
#include "agent/wan/mesh.h"

enum { WAN_PROXY_PAIRS_MAX = 64, WAN_OVERRIDES_MAX = 64 };

struct wan_override {
    unsigned from, to;
    bool oneway;
    const char *list; // "rate=…,delay=…"
};

struct wan_proxy_pair {
    const char *listen, *connect; // HOST:PORT
    // sites: the side that connects to the relay, the side that the relay connects to
    unsigned from, to;
};

struct wan_opts {
    struct wan_params ahead, back; // lower to higher site, higher to lower
    unsigned sites, mtu;
    uint64_t seed;
    const char *ctl, *stats;
    const char *ns[WAN_SITES_MAX]; // borrowed from argv
    unsigned n_ns;
    bool die_with_parent, die_with_stdin;
    struct wan_override override[WAN_OVERRIDES_MAX];
    unsigned n_override;
    struct wan_proxy_pair pair[WAN_PROXY_PAIRS_MAX]; // proxy only
    unsigned n_pair;
    char **command; // after "--"; NULL if there is none
};

// Parses the options of `wanlink run` or, with `proxy`, of `wanlink proxy`. Logs what is wrong.
NEB_MUST_CHECK enum neb_status wan_opts_parse(int argc, char **argv, bool proxy,
                                              struct wan_opts *out);
// Makes the mesh with the parameters of all links. Logs a bad --pair.
NEB_MUST_CHECK enum neb_status wan_opts_mesh(const struct wan_opts *o, struct wan_mesh *out);

#endif
