// SPDX-License-Identifier: Apache-2.0
// Decides which rank of a cluster owns which unit of the exchange (intra_units). The owner of a
// unit holds its θ, v, u and θ_m at the send, encodes it, and applies commits to it. As in ZeRO,
// every rank gets about the same number of elements.
//
//     unit      0      1   2   3   4      5      ranks 3
//     elements  ██████ ██  ██  ██  ████   ██
//     owner     0      1   2   2   1      2      (largest first, each to the lightest rank so far)
//
// This owner is not the owner of a mesh (intra_mesh_is_root), which is rank 0.
//
// The functions are pure: they depend on the sizes and fragments of the units and the number of
// ranks, so all ranks agree without a message. Updates, digests and checkpoints do not depend on
// the assignment.
#ifndef INTRA_SHARDS_H
#define INTRA_SHARDS_H
#include <stdint.h>

// elements, fragment: (n), one per unit. load: (ranks) scratch; on return the elements of each
// rank. owner: (n) ranks. It goes fragment by fragment, because one exchange is one fragment and
// all ranks shall work on it. No rank gets more of all than an equal share and the largest unit,
// nor more of a fragment than an equal share of it and the two largest units.
void intra_shards_assign(const uint64_t *elements, const int32_t *fragment, int32_t n, int ranks,
                         uint64_t *load, int32_t *owner);

// The fragment of each unit: whole layers in order, balanced by size. layer: (n), the layer of each
// unit's tensor (intra_tensor); layers: the number of layers. The embedding goes with the first
// fragment, the final norm and output with the last, adapters with their layer. No fragment is
// empty unless there are more fragments than layers that learn.
void intra_shards_fragments(const uint64_t *elements, const int32_t *layer, int32_t n,
                            int32_t layers, int32_t fragments, int32_t *fragment);

#endif
