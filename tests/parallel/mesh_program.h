// SPDX-License-Identifier: Apache-2.0
// What the test programs that run on a mesh have in common (mesh_train.c, mesh_shards.c): arguments, the tiny model, a rank's processors,
// communicator and device.
//
//     PROGRAM DP PP TP [key=value ...]     under `nebula ranks` or mpirun when the product is above 1; "0 0 0": one rank, no mesh at all
#ifndef TESTS_MESH_PROGRAM_H
#define TESTS_MESH_PROGRAM_H
#include "intra/train/trainer.h"

enum { MESH_VOCAB = 131, MESH_LAYERS = 4, MESH_T = 16 };

struct mesh_option { // one of the three is where its value goes; on: 1 is true
    const char *key;
    int *number;
    bool *on;
    const char **text;
};
// False, with a line that names the program's source: not such arguments.
bool mesh_options(int argc, char **argv, struct intra_mesh_config *mesh,
                  const struct mesh_option *options, size_t n);

// Eight heads, four of keys; d_ff 1.5 x width.
struct intra_model_config mesh_model(int width, bool tied, bool bias);
// full, lora, bitfit or last
struct intra_trainable mesh_trainable(const char *name);

// What a rank has. world NULL: there is no mesh
typedef enum neb_status mesh_run(const void *options, struct intra_comm *world, struct kern *K,
                                 struct kern_device *D);
// device NULL: on processors, else fp32 or bf16. alone: only rank 0 opens its device; others follow in a group, which opens theirs. The exit status
int mesh_main(const struct intra_mesh_config *mesh, const char *device, bool alone, mesh_run *run,
              const void *options);
static inline enum kern_type mesh_type(const char *name) {
    return name && name[0] == 'b' ? KERN_BF16 : KERN_F32;
}

#endif
