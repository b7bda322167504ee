// SPDX-License-Identifier: Apache-2.0
// Which GPUs of a host a worker gets where there are several. Its process sees no others (CUDA_VISIBLE_DEVICES, CUDA's programming
// guide), so that two jobs, or two clusters of `--local`, do not both begin at the first.
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
    char id[AGENT_GPUS_MAX][AGENT_GPU_ID_MAX]; // a number or an UUID, as in the variable
    int users[AGENT_GPUS_MAX];
};

// Those of `visible`, the variable's value, or where it is NULL all that the driver lists in that folder.
void agent_gpus_find(const char *visible, const char *driver, struct agent_gpus *out);
// How many that are for this process.
int agent_gpus_visible(void);
// The `want` that fewest use, bit each; they have one user more. 0: nothing is to be chosen, as there is one alone or fewer than that.
uint64_t agent_gpus_take(struct agent_gpus *g, int want);
void agent_gpus_give_back(struct agent_gpus *g, uint64_t taken);
// "CUDA_VISIBLE_DEVICES=0,3"; "" for none.
void agent_gpus_text(const struct agent_gpus *g, uint64_t taken, char out[AGENT_GPUS_TEXT]);

#endif
