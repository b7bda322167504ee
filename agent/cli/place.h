// SPDX-License-Identifier: Apache-2.0
// Where a command that decodes runs its model (--device, --precision, --tp, --dp, --pp), and lists
// of token ids on the command line.
#ifndef AGENT_PLACE_H
#define AGENT_PLACE_H
#include "agent/cli/cmd_options.h"
#include "agent/train/decoder.h"
#include "security/vault.h"

struct agent_place { // options of a command, as `place` in its struct options
    const char *device, *precision;
    int dp, pp, tp;
};
#define AGENT_PLACE_HERE                                                                           \
    { .dp = 1, .pp = 1, .tp = 1 }
// clang-format off
#define AGENT_PLACE_OPTIONS                                                                        \
    OPT_CHECKED("device", 'd', "DEVICE", "cpu, cuda, or auto: a GPU if there is one (default)",    \
                AT(place.device), agent_place_is_device, "cpu, cuda or auto"),                     \
    OPT_CHECKED("precision", 0, "TYPE", "bf16 or fp32 (default)", AT(place.precision),             \
                agent_option_is_type, "bf16 or fp32"),                                             \
    OPT_INT("tp", 0, "N", "tensor-parallel ranks on this machine", AT(place.tp), 1, 1024),         \
    OPT_INT("dp", 0, "N", "replicas, which share the prompts", AT(place.dp), 1, 1024),             \
    OPT_INT("pp", 0, "N", "pipeline stages", AT(place.pp), 1, 1024)
// clang-format on
bool agent_place_is_device(const char *text, void *options);
bool agent_place_given(const struct agent_place *p); // something differs from AGENT_PLACE_HERE
// Starts this command again as the ranks of the mesh. Returns only on failure, or if one rank is
// enough, or if a launcher has started the ranks.
NEB_MUST_CHECK enum neb_status agent_place_ranks(const struct agent_place *p);

struct agent_placed { // zero at first. The caller destroys the vault, after a failure too
    char file[NEB_PATH_MAX];
    struct sec_vault *vault;
    struct agent_decoder_options o; // points into the same struct
};
// The checkpoint that is the first argument, with its key.
NEB_MUST_CHECK enum neb_status agent_place_take(const struct agent_options *common,
                                                const struct agent_place *p, bool merge,
                                                struct agent_placed *out);

bool agent_ids_are(const char *text, void *options);
// Reads "1 2 3" into *ids (n), owned by the caller, after a failure too. NEB_ERR_INVALID: no ids,
// or one that is not in the vocabulary.
NEB_MUST_CHECK enum neb_status agent_ids_parse(const char *text, int32_t vocab, int32_t **ids,
                                               size_t *n);

#endif
