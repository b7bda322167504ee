// SPDX-License-Identifier: Apache-2.0
// Assigns the GPUs of a host to workers. A worker's process sees only its own GPUs
// (CUDA_VISIBLE_DEVICES, CUDA's programming guide). Otherwise two jobs, or two clusters of
// `--local`, would both start at the first GPU.
#ifndef AGENT_GPUS_H
#define AGENT_GPUS_H
#include <stddef.h>
#include <stdint.h>

enum {
    AGENT_GPUS_MAX = 64,
    AGENT_GPU_ID_MAX = 64,
    AGENT_GPUS_TEXT = 32 + AGENT_GPUS_MAX * AGENT_GPU_ID_MAX
};
#define AGENT_GPUS_DRIVER "/proc/driver/nvidia/gpus"

struct agent_gpus {
    int n;
    char id[AGENT_GPUS_MAX][AGENT_GPU_ID_MAX]; // a number or a UUID, as in the variable
    int users[AGENT_GPUS_MAX];
};

// The GPUs of `visible`, the variable's value; if it is NULL, all that the driver lists in the
// folder `driver`.
void agent_gpus_find(const char *visible, const char *driver, struct agent_gpus *out);
// The number of GPUs that this process may use.
int agent_gpus_visible(void);
// Takes the `want` GPUs with the fewest users and counts one more user for each. Returns one bit
// for each; 0: no choice, since there is only one GPU, or fewer than `want`.
uint64_t agent_gpus_take(struct agent_gpus *g, int want);
void agent_gpus_give_back(struct agent_gpus *g, uint64_t taken);
// "CUDA_VISIBLE_DEVICES=0,3"; "" for none.
void agent_gpus_text(const struct agent_gpus *g, uint64_t taken, char out[AGENT_GPUS_TEXT]);

#endif
