// SPDX-License-Identifier: Apache-2.0
// What a machine can do: the figures for `nebula plan`, measured in a few seconds and kept.
//
// The file is in ~/.cache/nebula (or $XDG_CACHE_HOME/nebula), one per machine, because clusters
// share home folders. Sites pass the same JSON to each other: `nebula plan --profile` prints it,
// `--site NAME=FILE` reads it.
#ifndef AGENT_PROFILE_H
#define AGENT_PROFILE_H
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "compress/codec.h"
#include "inter/round/wan_cost.h"
#include "intra/cost/cost.h"

#include <jansson.h>

struct agent_profile {
    char host[64], isa[16];
    char device[64]; // "": none
    int32_t visible; // visible GPUs (agent/proc/gpus.h) at the measurement; -1: not known
    struct intra_rates rates;
    double sync_s; // seconds of an fsync in /var/tmp
    // Every cmp_variant(i, CMP_PLANNED), in this order. at[INTER_WAN_DEVICE] is set if rates.device
    // has a device.
    struct inter_wan_codec codecs[CMP_PLANNED_MAX];
};

// Measures with all processors; takes about ten seconds. On a machine where ranks do not start, the
// link is 0.
NEB_MUST_CHECK enum neb_status agent_profile_measure(struct agent_profile *out);
// The link between two ranks of this machine; 0 if it cannot be measured. Part of
// agent_profile_measure.
void agent_profile_find_link(struct agent_profile *p);
// The same between two devices of this machine. Part of agent_profile_find_device.
void agent_profile_find_device_link(struct agent_profile *p);
// The devices of this machine, if there are any: sets p->device and its rates. Part of
// agent_profile_measure. A child opens the device (below), never this process. A device that cannot
// be measured counts as none, with a warning.
NEB_MUST_CHECK enum neb_status agent_profile_find_device(struct agent_profile *p);
// Starts `EXE plan --measure-device`, and kills it after `timeout`. Part of
// agent_profile_find_device.
void agent_profile_device_apart(const char *exe, neb_ns timeout, struct agent_profile *p);
// `nebula plan --measure-device`: prints one line, agent_profile_device_to_json. Without a device
// its "device" is null.
NEB_MUST_CHECK enum neb_status agent_profile_device_child(void);
// Measures a device in both types; takes some seconds. NEB_ERR_NOMEM, or the error of the device.
NEB_MUST_CHECK enum neb_status agent_profile_device(struct kern *D, struct intra_device_rates *r);
// Measures one codec: the size and error of an update, and its exchange on the processors of this
// machine. For codecs of a job that are not in the profile. pool: all processors; NULL: a pool is
// started.
NEB_MUST_CHECK enum neb_status agent_profile_codec(const char *name, struct kern_pool *pool,
                                                   struct inter_wan_codec *out);
// Encodes a sample: its bits per parameter and relative error. rel_error may be NULL.
NEB_MUST_CHECK enum neb_status agent_profile_sample(const struct cmp_codec *codec, double *bits,
                                                    double *rel_error);
// *bytes: of a unit of (rows, cols) elements in an update without row counts (compress/update.h),
// written by the codec for a sample of at most 2^16 elements.
NEB_MUST_CHECK enum neb_status agent_profile_unit(const struct cmp_codec *codec, int32_t rows,
                                                  int32_t cols, double *bytes);
// Memory of encoding an update and merging those of `members` clusters, from a small exchange. A
// process does it once for each codec. An allocator that does not report gives zeros.
NEB_MUST_CHECK enum neb_status agent_profile_frames(const struct cmp_codec *codec, int32_t members,
                                                    struct intra_cost_frames *out);
// The same exchange with its state on a device: sets out->at[INTER_WAN_DEVICE].
NEB_MUST_CHECK enum neb_status agent_profile_codec_device(struct kern *D,
                                                          struct inter_wan_codec *out);
// Gets the kept profile if it belongs to this machine and build, else measures and keeps one.
// *kept: nothing was measured. In a kept profile, devices and links that may have changed are
// measured again. measure: measure in any case.
NEB_MUST_CHECK enum neb_status agent_profile_get(bool measure, struct agent_profile *out,
                                                 bool *kept);

json_t *agent_profile_to_json(const struct agent_profile *p); // new reference; NULL: out of memory
// The device's part: {"device": …, "codecs": [rates, …]}. _parse reads it into a profile that has
// its other figures.
json_t *agent_profile_device_to_json(const struct agent_profile *p);
NEB_MUST_CHECK enum neb_status agent_profile_device_parse(json_t *o, const char *where,
                                                          struct agent_profile *p);
// Reads a profile of another site. NEB_ERR_FORMAT: a figure is missing, not finite or impossible.
// `where` names the file.
NEB_MUST_CHECK enum neb_status agent_profile_parse(const char *text, size_t len, const char *where,
                                                   struct agent_profile *out);
NEB_MUST_CHECK enum neb_status agent_profile_load(const char *path, struct agent_profile *out);

// `nebula plan --measure-link`, as one of two ranks; the first prints {"link": bytes/s, "link_s":
// s}. `nebula plan --measure-device-link` does the same between devices.
NEB_MUST_CHECK enum neb_status agent_profile_link_rank(bool devices);

#endif
