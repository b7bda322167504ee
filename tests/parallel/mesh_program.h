// SPDX-License-Identifier: Apache-2.0
// Shared by the test programs that run on a mesh (mesh_train.c, mesh_shards.c): arguments, the tiny
// model, and each rank's processors, communicator and device.
//
//     PROGRAM DP PP TP [key=value ...]     "0 0 0": one rank without a mesh
//
// If the product is above 1, start it with `nebula ranks` or mpirun.
#ifndef TESTS_MESH_PROGRAM_H
#define TESTS_MESH_PROGRAM_H
#include "intra/train/trainer.h"

enum { MESH_VOCAB = 131, MESH_LAYERS = 4, MESH_T = 16 };

struct mesh_option { // exactly one pointer is set, and gets the value. on: 1 means true
    const char *key;
    int *number;
    bool *on;
    const char **text;
};
// False if the arguments are wrong; then it has printed a usage line.
bool mesh_options(int argc, char **argv, struct intra_mesh_config *mesh,
                  const struct mesh_option *options, size_t n);

// Eight heads, four key-value heads; d_ff is 1.5 x width.
struct intra_model_config mesh_model(int width, bool tied, bool bias);
// `name`: full, lora, bitfit or last.
struct intra_trainable mesh_trainable(const char *name);

// The work of one rank. `world` is NULL without a mesh.
typedef enum neb_status mesh_run(const void *options, struct intra_comm *world, struct kern *K,
                                 struct kern *D);
// Runs `run` on every rank and returns the exit status. `device`: NULL for processors, else fp32 or
// bf16. `alone`: only rank 0 opens its device here. The others are ranks of a group, which opens
// their devices.
int mesh_main(const struct intra_mesh_config *mesh, const char *device, bool alone, mesh_run *run,
              const void *options);
static inline enum kern_type mesh_type(const char *name) {
    return name && name[0] == 'b' ? KERN_BF16 : KERN_F32;
}

#endif
