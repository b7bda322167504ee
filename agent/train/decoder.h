// SPDX-License-Identifier: Apache-2.0
// The model of a checkpoint, ready to decode: for commands that generate text or translate. On one
// rank, or on a mesh whose ranks a launcher (mpirun, srun, nebula ranks) has started:
//
//     agent_decoder_open    shape of the model; processors, device, ranks
//     agent_decoder_make    on rank 0: a group with the model's parameters (intra/train/decode.h)
//     agent_decoder_close
//
// On the other ranks `open` follows rank 0 until it closes, and agent_decoder_follows is true.
#ifndef AGENT_DECODER_H
#define AGENT_DECODER_H
#include "agent/base/vault.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/train/group.h"

struct agent_decoder_options {
    const char *checkpoint;        // a file
    const struct neb_vault *vault; // opens a sealed checkpoint; NULL: it must be in clear
    const char *device;            // cpu, cuda, or auto (NULL): a GPU if there is one
    enum kern_type precision;      // on a device; on processors that of products
    int threads;                   // 0: all, divided among the ranks of this host
    struct intra_mesh_config mesh; // 0: 1
    bool merge;                    // adds adapters to their base weights first
};

struct agent_decoder {
    struct agent_decoder_options o;
    struct intra_ckpt *ckpt;
    struct intra_model_config model; // of the checkpoint
    struct intra_trainable trainable;
    struct kern *K;
    struct intra_place at;
    struct intra_group *group;
    bool follows;
};

// True if a mesh needs ranks that no launcher has started.
bool agent_decoder_needs_ranks(const struct intra_mesh_config *mesh);
// *d is zero at first. NEB_ERR_NOT_FOUND and others: the checkpoint; NEB_ERR_UNSUPPORTED: the model
// predicts no next token, or there is no such device. After a failure call close.
NEB_MUST_CHECK enum neb_status agent_decoder_open(struct agent_decoder *d,
                                                  const struct agent_decoder_options *o);
static inline bool agent_decoder_follows(const struct agent_decoder *d) { return d->follows; }
// As intra_decode_group, with the parameters.
NEB_MUST_CHECK enum neb_status agent_decoder_make(struct agent_decoder *d, int32_t seq_len,
                                                  int32_t rows, int32_t soft_k);
void agent_decoder_close(struct agent_decoder *d);

#endif
