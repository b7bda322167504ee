// SPDX-License-Identifier: Apache-2.0
// A kind of block: what stands between the embedding and the final norm. Every block reads the
// residual stream and adds to it. A model is a list of blocks, each of some kind
// (intra_layer.kind).
//
// A new kind needs: its file with the functions below, its number and its rows in the two tables,
// its tensors' names in the import and export map (intra/hf), and cases in tests/ops for ops that
// it adds. There are two tables because libnebula.so has the parameters without the passes.
#ifndef INTRA_BLOCK_H
#define INTRA_BLOCK_H
#include "intra/model/model.h"

struct intra_device;
struct device_acts;
struct device_carve;
struct pass_shape;

enum { INTRA_BLOCK_ATTN_MLP, INTRA_BLOCK_KINDS }; // intra_layer.kind

struct intra_block_params {
    // Adds the tensors of block l to the full model (intra_model_add), in canonical order.
    // adapters: those of LoRA, which come after the tensors of all blocks.
    void (*parameters)(struct intra_model *m, int32_t l);
    void (*adapters)(struct intra_model *m, int32_t l);
};

struct intra_block_kind {
    // ---- memory. Both structs hold pointers into device memory; take sets them (device_take).
    size_t acts_bytes;    // of the struct that holds a block's activations
    size_t scratch_bytes; // of the struct that holds scratch of backward; all blocks share it
    void (*take_acts)(struct device_carve *c, const struct intra_device *d, void *acts);
    void (*take_scratch)(struct device_carve *c, const struct intra_device *d, void *scratch);

    // ---- passes
    // Runs block l on the stream h (plus the last addition, if `added`). The block's input goes to
    // device_block.h1, its last addition to d->r or d->wide. Returns the stream before that
    // addition. If a->kept, its keys and values go into a cache; if a->follows, it runs over them.
    // again: recompute, which stops at what backward needs.
    const float *(*forward)(struct intra_device *d, struct device_acts *a, int32_t l,
                            const struct pass_shape *s, const float *h, bool added, bool again);
    // d->dh, and d->dht in T: on entry the gradient of the stream after block l, on return the
    // gradient before block l. below: something below this block learns. again: the block was
    // recomputed just now.
    void (*backward)(struct intra_device *d, struct device_acts *a, int32_t l,
                     const struct pass_shape *s, bool below, bool again);
};

// attn_mlp.c
extern const struct intra_block_params intra_block_attn_mlp_params;
extern const struct intra_block_kind intra_block_attn_mlp;
// pass.c: by number
extern const struct intra_block_kind *const intra_block_kinds[INTRA_BLOCK_KINDS];

// Adds the next tensor of the full model. Returns it, or NULL if it belongs to another stage.
// packed: directly after the previous one, without a gap.
__attribute__((format(printf, 7, 8))) struct intra_tensor *
intra_model_add(struct intra_model *m, int32_t layer, int32_t rows, int32_t cols,
                enum intra_cut cut, bool packed, const char *fmt, ...);

#endif
