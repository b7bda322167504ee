// SPDX-License-Identifier: Apache-2.0
// Decides which rank of a cluster owns which unit of the exchange (intra_units). The owner of a
// unit holds its θ, v, u and θ_m at the send, encodes it, and applies commits to it. As in ZeRO,
// every rank gets about the same number of elements.
//
//     unit      0      1   2   3   4      5      ranks 3
//     elements  ██████ ██  ██  ██  ████   ██
//     owner     0      1   2   2   1      2      (largest first, each to the lightest rank so far)
//
// Where ranks hold parts of units, a rank that holds most of a unit owns it. Of equal holders it is
// the one with the lowest load. Some units then move to lighter ranks, so that loads are even.
//
// This owner is not the owner of a mesh (intra_mesh_is_root), which is rank 0.
//
// The functions are pure: they depend on the sizes and fragments of the units, the number of ranks
// and what each holds, so all ranks agree without a message. Updates, digests and checkpoints do
// not depend on the assignment.
#ifndef INTRA_SHARDS_H
#define INTRA_SHARDS_H
#include <stdint.h>

// Elements of a unit that a rank holds: the same answers on all ranks.
typedef uint64_t intra_shards_held(void *user, int32_t unit, int rank);

// elements, fragment: (n), one per unit. held: NULL if all ranks hold the same. load: (ranks)
// scratch; on return the elements of each rank. owner: (n) ranks. Units are assigned fragment by
// fragment, because one exchange covers one fragment and all ranks should work on it. Two ranks
// differ by at most the largest unit, or 5 % of a share if that is more; without held never by more
// than the largest unit. This is true after each fragment, so it bounds the share of each, too.
void intra_shards_assign(const uint64_t *elements, const int32_t *fragment, int32_t n, int ranks,
                         intra_shards_held *held, void *user, uint64_t *load, int32_t *owner);

// The fragment of each unit: whole layers in order, balanced by size. layer: (n), the layer of each
// unit's tensor (intra_tensor); layers: the number of layers. The embedding goes with the first
// fragment, the final norm and output with the last, adapters with their layer. No fragment is
// empty unless there are more fragments than layers that learn.
void intra_shards_fragments(const uint64_t *elements, const int32_t *layer, int32_t n,
                            int32_t layers, int32_t fragments, int32_t *fragment);

#endif
