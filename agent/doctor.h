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

// Judgements; figures below 0: could not be read.
void doctor_congestion(struct doctor *d, const char *system, bool may_bbr);
// Largest socket buffers of the system in bytes, against the path's bandwidth-delay product.
void doctor_buffers(struct doctor *d, int64_t recv_max, int64_t send_max, double goodput_bps,
                    double rtt_s);
// Open files that the process may have, against what links to so many peers take.
void doctor_files(struct doctor *d, int64_t limit, int peers);
void doctor_disk(struct doctor *d, const char *dir, int64_t free_bytes, int64_t need_bytes);
void doctor_user(struct doctor *d, bool root);
// synchronised: 1 when the system says that its clock is.
void doctor_clock(struct doctor *d, int synchronised);
// One peer as `nebula status --json` describes it.
void doctor_peer(struct doctor *d, const json_t *peer);

// The path with the largest bandwidth-delay product, of the peers in `nebula status --json` whose goodput and round trip are measured;
// only: that peer alone, NULL: all. False: none is, and both are 0.
bool doctor_path(const json_t *peers, const char *only, double *goodput_bps, double *rtt_s);

// What is read here: kernel settings, limits, processors, GPUs, and the disk under `home`. goodput_bps, rtt_s: of doctor_path.
void doctor_machine(struct doctor *d, const char *home, int peers, int64_t need_bytes,
                    double goodput_bps, double rtt_s);

#endif
