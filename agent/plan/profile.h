// SPDX-License-Identifier: Apache-2.0
// What a machine can do, measured in a few seconds and kept: the figures that nebula plan reckons with.
//
// Kept under ~/.cache/nebula (or $XDG_CACHE_HOME/nebula), one file a machine: home folders are shared on clusters. The same
// JSON goes from site to site: `nebula plan --profile` prints it, `--site NAME=FILE` takes it.
#ifndef AGENT_PROFILE_H
#define AGENT_PROFILE_H
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "inter/round/wan_cost.h"
#include "intra/cost/cost.h"

#include <jansson.h>

enum { AGENT_PROFILE_CODECS = 8 };

struct agent_profile {
    char host[64], isa[16];
    char device[64]; // "": none
    int32_t
        visible; // GPUs that were to be seen (agent/proc/gpus.h) when it was measured; -1: not known
    struct intra_rates rates;
    double sync_s; // of an fsync where the agent's home is likely to be
    // at: of the device where rates.device has one
    // bf16, int8, int4, int3, int2, topk of 512, 256, 64
    struct inter_wan_codec codecs[AGENT_PROFILE_CODECS];
};

// Measures with all processors; about ten seconds. Logs what it measures when it takes long. A machine where ranks do not start has
// link 0.
NEB_MUST_CHECK enum neb_status agent_profile_measure(struct agent_profile *out);
// Those of logits: logits, soft, draws, labels. Part of agent_profile_measure.
NEB_MUST_CHECK enum neb_status agent_profile_logits(struct kern *K, struct intra_rates *r);
// The link between two ranks of this machine; 0 where none can be measured. Part of agent_profile_measure.
void agent_profile_find_link(struct agent_profile *p);
// The same between two of its devices. Part of agent_profile_find_device.
void agent_profile_find_device_link(struct agent_profile *p);
// This machine's devices, if it has any: sets p->device and its rates. Part of agent_profile_measure. The device is opened by a child
// (below), never in this process. One that cannot be measured is as none: that is said in the log.
NEB_MUST_CHECK enum neb_status agent_profile_find_device(struct agent_profile *p);
// Its part that starts `EXE plan --measure-device`, and kills it after `timeout`.
void agent_profile_device_apart(const char *exe, neb_ns timeout, struct agent_profile *p);
// `nebula plan --measure-device`: prints one line, agent_profile_device_to_json. Without a device its "device" is null.
NEB_MUST_CHECK enum neb_status agent_profile_device_child(void);
// Of a device, in both types; some seconds. NEB_ERR_NOMEM, or what the device says.
NEB_MUST_CHECK enum neb_status agent_profile_device(struct kern_device *D,
                                                    struct intra_device_rates *r);
// What one codec makes of an update, and what an exchange by it takes on this machine's processors: for those that a job names
// otherwise. pool: all of them; NULL: started for it.
NEB_MUST_CHECK enum neb_status agent_profile_codec(const char *name, struct kern_pool *pool,
                                                   struct inter_wan_codec *out);
// The same exchange with its state on a device: out->at[INTER_WAN_DEVICE].
NEB_MUST_CHECK enum neb_status agent_profile_codec_device(struct kern_device *D,
                                                          struct inter_wan_codec *out);
// Those of all profiles: AGENT_PROFILE_CODECS names.
extern const char *const agent_profile_codecs[AGENT_PROFILE_CODECS];
// The kept one, if it is of this machine and build; else measured and kept. *kept: which of the two. Of the kept one is measured anew what may
// be otherwise by now: devices where there was none or other GPUs are visible, links that could not be measured.
NEB_MUST_CHECK enum neb_status agent_profile_get(bool anew, struct agent_profile *out, bool *kept);

json_t *agent_profile_to_json(const struct agent_profile *p); // new reference; NULL: out of memory
// What is of the device in it: {"device": …, "codecs": [rates, …]}; and back, into a profile with its other figures.
json_t *agent_profile_device_to_json(const struct agent_profile *p);
NEB_MUST_CHECK enum neb_status agent_profile_device_parse(const json_t *o, const char *where,
                                                          struct agent_profile *p);
// From another site: NEB_ERR_FORMAT unless every figure is there, finite and possible; `where` names the file.
NEB_MUST_CHECK enum neb_status agent_profile_parse(const char *text, size_t len, const char *where,
                                                   struct agent_profile *out);
NEB_MUST_CHECK enum neb_status agent_profile_load(const char *path, struct agent_profile *out);

// `nebula plan --measure-link`, one of two ranks; the first prints {"link": bytes/s, "link_s": s}. `nebula plan
// --measure-device-link`: the same between devices.
NEB_MUST_CHECK enum neb_status agent_profile_link_rank(bool devices);

#endif
