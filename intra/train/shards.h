// SPDX-License-Identifier: Apache-2.0
// Which rank of a cluster owns which unit of the exchange (intra_units): holds its θ, v, u and θ_m at the send, encodes it, and applies
// commits to it. ZeRO-style: every rank has about the same number of elements.
//
//     unit      0      1   2   3   4      5      ranks 3
//     elements  ██████ ██  ██  ██  ████   ██
//     owner     0      1   2   2   1      2      (largest first, each to the lightest rank so far)
//
// Not to be mixed up with the owner of a mesh (intra_mesh_is_root), which is its rank 0.
//
// Pure: a function of the units' sizes and fragments and the number of ranks, so that all ranks come to the same without a message. Nothing
// outside the cluster depends on it: updates, digests and checkpoints do not say who owned what.
#ifndef INTRA_SHARDS_H
#define INTRA_SHARDS_H
#include <stdint.h>

// elements, fragment: (n) of the units; load: (ranks) room, afterwards the elements of each rank; owner: (n) ranks. Fragment by fragment, as one
// exchange is one fragment and all ranks shall work on it: no rank gets more of everything than an equal share and the largest unit,
// nor more of a fragment than an equal share of it and the two largest.
void intra_shards_assign(const uint64_t *elements, const int32_t *fragment, int32_t n, int ranks,
                         uint64_t *load, int32_t *owner);

// Fragment of each unit: whole layers in order, balanced by size. layer: (n) of the units' tensors (intra_tensor), of `layers`. The embedding goes with
// the first fragment, final norm and output with the last; adapters travel with their layer. With no more fragments than of these learn, none is empty.
void intra_shards_fragments(const uint64_t *elements, const int32_t *layer, int32_t n,
                            int32_t layers, int32_t fragments, int32_t *fragment);

#endif
