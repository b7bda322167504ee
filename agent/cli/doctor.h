// SPDX-License-Identifier: Apache-2.0
// nebula doctor: what would slow a job down or stop it, in this machine, its agent and its links,
// and what to do.
//
// A check is a pure judgement of values that doctor.c or the command has read: name, state, what
// was found, what to do.
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
// advice: NULL or "" if there is nothing to do.
__attribute__((format(printf, 5, 6))) void doctor_add(struct doctor *d, const char *name,
                                                      enum doctor_state s, const char *advice,
                                                      const char *found, ...);

struct doctor_path { // a measured path to a peer; rtt_s 0: not measured
    double goodput_bps, rtt_s;
    int connections; // that carried the goodput
};

// Judgements. A value below 0 could not be read.
void doctor_congestion(struct doctor *d, const char *system, bool may_bbr);
// Compares the system's largest socket buffers (bytes) with the bytes in flight on one connection
// of the path. The connections for bulk data share its bandwidth-delay product
// (inter/link/stripes.h).
void doctor_buffers(struct doctor *d, int64_t recv_max, int64_t send_max,
                    const struct doctor_path *path);
// setting: net.ipv4.tcp_mtu_probing; "": it cannot be read.
void doctor_mtu(struct doctor *d, const char *setting);
// Compares the limit of open files with what links to so many peers need.
void doctor_files(struct doctor *d, int64_t limit, int peers);
void doctor_disk(struct doctor *d, const char *dir, int64_t free_bytes, int64_t need_bytes);
void doctor_user(struct doctor *d, bool root);
// locked: the keys of the agent (or of one started here) are in memory that is never swapped.
// limit: of locked memory, bytes; -1: none.
void doctor_keys(struct doctor *d, bool locked, int64_t limit);
// synchronised: 1 if the system says that its clock is.
void doctor_clock(struct doctor *d, int synchronised);
// setting: /sys/kernel/mm/transparent_hugepage/enabled; "": there is none. trains: the processors
// of this machine may have to train.
void doctor_pages(struct doctor *d, const char *setting, bool trains);
// A peer in the form of `nebula status --json`.
void doctor_peer(struct doctor *d, const json_t *peer);

// The measured path with the largest bandwidth-delay product per connection, among the peers of
// `nebula status --json`. only: just this peer; NULL: all. False: nothing is measured, and *out is
// zeros.
bool doctor_path(const json_t *peers, const char *only, struct doctor_path *out);

// Reads and judges kernel settings, limits, processors, GPUs, and the disk under `home`. path: from
// doctor_path.
void doctor_machine(struct doctor *d, const char *home, int peers, int64_t need_bytes,
                    const struct doctor_path *path);

#endif
