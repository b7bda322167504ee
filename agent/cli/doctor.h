// SPDX-License-Identifier: Apache-2.0
// nebula doctor: what of this machine, its agent and its links would slow a job down or stop it, and what to do about each.
//
// A check is a pure judgement of figures that doctor_*.c or the command has read: name, state, what was found, what to do.
#ifndef AGENT_DOCTOR_H
#define AGENT_DOCTOR_H
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum doctor_state { DOCTOR_OK, DOCTOR_WARN, DOCTOR_FAIL };

struct doctor {     // the checks so far
    json_t *checks; // owned: [{name, state, found, advice}]
    enum doctor_state worst;
};
// NEB_ERR_NOMEM.
enum neb_status doctor_init(struct doctor *d);
void doctor_free(struct doctor *d);
// advice: NULL or "" where there is nothing to do.
__attribute__((format(printf, 5, 6))) void doctor_add(struct doctor *d, const char *name,
                                                      enum doctor_state s, const char *advice,
                                                      const char *found, ...);

struct doctor_path { // to a peer, as it was measured; rtt_s 0: it was not
    double goodput_bps, rtt_s;
    int connections; // that the goodput was carried on
};

// Judgements; figures below 0: could not be read.
void doctor_congestion(struct doctor *d, const char *system, bool may_bbr);
// Largest socket buffers of the system in bytes, against what one of the path's connections has on its way: its bandwidth-delay product is
// shared by all that bulk travels on (inter/link/stripes.h).
void doctor_buffers(struct doctor *d, int64_t recv_max, int64_t send_max,
                    const struct doctor_path *path);
// setting: net.ipv4.tcp_mtu_probing, "": it cannot be read.
void doctor_mtu(struct doctor *d, const char *setting);
// Open files that the process may have, against what links to so many peers take.
void doctor_files(struct doctor *d, int64_t limit, int peers);
void doctor_disk(struct doctor *d, const char *dir, int64_t free_bytes, int64_t need_bytes);
void doctor_user(struct doctor *d, bool root);
// locked: the keys of the agent, or of one that were started here, are in memory that is not swapped. limit: of locked memory, bytes; -1: none is set.
void doctor_keys(struct doctor *d, bool locked, int64_t limit);
// synchronised: 1 when the system says that its clock is.
void doctor_clock(struct doctor *d, int synchronised);
// setting: /sys/kernel/mm/transparent_hugepage/enabled, "": not there. trains: this machine's processors may have to.
void doctor_pages(struct doctor *d, const char *setting, bool trains);
// One peer as `nebula status --json` describes it.
void doctor_peer(struct doctor *d, const json_t *peer);

// The path with the largest bandwidth-delay product a connection, of the peers in `nebula status --json` whose goodput and round trip are
// measured; only: that peer alone, NULL: all. False: none is, and *out is zeros.
bool doctor_path(const json_t *peers, const char *only, struct doctor_path *out);

// What is read here: kernel settings, limits, processors, GPUs, and the disk under `home`. path: of doctor_path.
void doctor_machine(struct doctor *d, const char *home, int peers, int64_t need_bytes,
                    const struct doctor_path *path);

#endif
