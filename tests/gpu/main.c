// SPDX-License-Identifier: Apache-2.0
// gpu_check ops [small|few] [FROM] | train | graphs | epilogues | heads [ROWS [VOCAB [WIDTH]]]
//     | attn [HEAD_DIM [B T]] | codec [LOG2] | modes [small] | speed SHAPE [BATCH [STEPS]]
//     | nccl RANKS | device
// Exit status: 0 success; 1 a failure; 3 this process lost the device, and another process must
// continue `ops` with the case in the last line (next=FROM); 77 no GPU here (the reason is
// printed).
#include "tests/cuda/device_matrix.h"
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOST = 3 };

static enum neb_status reopen(struct kern **D) { return kern_device_open(0, NULL, D); }

// Sets an exit status. D: reopened after a failure, or NULL.
static int ops(struct kern **D, const char *size, int from) {
    struct device_checks c = {.D = *D,
                              .reopen = reopen,
                              .large = !*size,
                              .no_attention = !strcmp(size, "few"),
                              .report = stdout,
                              .from = from};
    int n = 0, m = 0;
    printf("| op | shape | type | error | allowed | |\n| --- | --- | --- | --- | --- | --- |\n");
    int failed = device_matrix_run(&c, &n);
    printf("\n%d cases, %d wrong. Error: largest difference / (1 + largest value) against the "
           "reference in double.\n\n",
           n, failed);
    printf("| codec and exact path | elements | bits |\n| --- | --- | --- |\n");
    int other = device_exact_run(&c, &m);
    printf("\n%d comparisons with the CPU's bits, %d differ.\n\n", m, other);
    *D = c.D;
    if (c.gone)
        printf("next=%d\n", c.next);
    return c.gone ? LOST : failed + other != 0;
}

static int run(struct kern *D, int argc, char **argv) {
    const char *what = argv[1];
    int number = argc > 3 ? atoi(argv[3]) : 0, steps = argc > 4 ? atoi(argv[4]) : 0;
    if (!strcmp(what, "device")) {
        printf("%s, %.1f GB\n", D->name, (double)D->total_bytes * 1e-9);
        return 0;
    }
    if (!strcmp(what, "train"))
        return gpu_train(D);
    if (!strcmp(what, "graphs"))
        return gpu_graphs(D);
    if (!strcmp(what, "epilogues"))
        return gpu_epilogues(D);
    if (!strcmp(what, "heads"))
        return gpu_heads(D, argc > 2 ? atoi(argv[2]) : 4096, number ? number : 50304,
                         steps ? steps : 768);
    if (!strcmp(what, "attn"))
        return gpu_attn(D, argc > 2 ? atoi(argv[2]) : 0, number, steps);
    if (!strcmp(what, "codec"))
        return gpu_codec(D, (size_t)1 << (argc > 2 ? atoi(argv[2]) : 28));
    if (!strcmp(what, "modes"))
        return gpu_modes(D, argc > 2 && !strcmp(argv[2], "small"));
    if (!strcmp(what, "speed") && argc > 2)
        return gpu_speed(D, argv[2], number, steps ? steps : 20);
    fprintf(stderr,
            "gpu_check: ops [small|few] [FROM], train, graphs, epilogues, heads [ROWS [VOCAB "
            "[WIDTH]]], attn [HEAD_DIM [B T]], codec [LOG2], modes [small], speed SHAPE [BATCH "
            "[STEPS]], nccl RANKS, device\n");
    return 1;
}

int main(int argc, char **argv) {
    struct kern *D = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0); // keeps the lines if the device ends the process
    if (argc < 2) {
        fprintf(stderr, "gpu_check: what to check?\n");
        return 1;
    }
    if (!strcmp(argv[1], "nccl"))
        return gpu_nccl(argc > 2 ? atoi(argv[2]) : 2);
    if (kern_device_open(0, NULL, &D) != NEB_OK)
        return 77;
    bool sized = argc > 2 && (!strcmp(argv[2], "small") || !strcmp(argv[2], "few")),
         all = !strcmp(argv[1], "ops");
    int status = all ? ops(&D, sized ? argv[2] : "", argc > 2 + sized ? atoi(argv[2 + sized]) : 0)
                     : run(D, argc, argv) != 0;
    if (D && D->ops->finish(D) != NEB_OK && !status)
        status = 1;
    kern_destroy(&D);
    return status;
}
