// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/divergence.h"

#include <string.h>

struct agent_divergence agent_divergence_of(const struct inter_record *r, int self,
                                            int contributors) {
    struct agent_divergence d = {0};
    int agree = r->n, most = 0; // a record without this member proves nothing about it
    for (uint8_t i = 0; i < r->n; i++) {
        int same = 0;
        for (uint8_t k = 0; k < r->n; k++)
            same +=
                !memcmp(r->entries[i].digest, r->entries[k].digest, sizeof r->entries[i].digest);
        d.others = d.others || 2 * same < r->n;
        agree = r->entries[i].member == self ? same : agree;
        most = same > most ? same : most;
    }
    d.own = 2 * agree < r->n || (2 * agree == r->n && r->n >= contributors);
    d.all = 2 * most <= r->n;
    return d;
}
