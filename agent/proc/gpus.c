// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/gpus.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct agent_gpus *g, const char *id, size_t len) {
    if (g->n < AGENT_GPUS_MAX && len < AGENT_GPU_ID_MAX)
        snprintf(g->id[g->n++], AGENT_GPU_ID_MAX, "%.*s", (int)len, id);
}

void agent_gpus_find(const char *visible, const char *driver, struct agent_gpus *out) {
    char number[16];
    memset(out, 0, sizeof *out);
    for (const char *at = visible; at && *at;) {
        size_t len = strcspn(at, ",");
        if (len == 0 || *at == '-') // like CUDA, ignore what follows an invalid entry
            return;
        add(out, at, len);
        at += len + (at[len] == ',');
    }
    DIR *d = visible ? NULL : opendir(driver);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            add(out, number, (size_t)snprintf(number, sizeof number, "%d", out->n));
    if (d)
        closedir(d);
}

int agent_gpus_visible(void) {
    struct agent_gpus g;
    agent_gpus_find(getenv("CUDA_VISIBLE_DEVICES"), AGENT_GPUS_DRIVER, &g);
    return g.n;
}

uint64_t agent_gpus_take(struct agent_gpus *g, int want) {
    uint64_t taken = 0;
    if (g->n < 2 || want > g->n)
        return 0;
    for (; want > 0; want--) {
        int best = -1;
        for (int i = 0; i < g->n; i++)
            if (!(taken >> i & 1) && (best < 0 || g->users[i] < g->users[best]))
                best = i;
        taken |= 1ull << best;
        g->users[best]++;
    }
    return taken;
}

void agent_gpus_give_back(struct agent_gpus *g, uint64_t taken) {
    for (int i = 0; i < g->n; i++)
        g->users[i] -= (int)(taken >> i & 1);
}

void agent_gpus_text(const struct agent_gpus *g, uint64_t taken, char out[AGENT_GPUS_TEXT]) {
    size_t len = 0;
    out[0] = 0;
    for (int i = 0; i < g->n; i++)
        if (taken >> i & 1)
            len += (size_t)snprintf(out + len, AGENT_GPUS_TEXT - len, "%s%s",
                                    len ? "," : "CUDA_VISIBLE_DEVICES=", g->id[i]);
}
