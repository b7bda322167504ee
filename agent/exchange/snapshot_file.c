// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange/snapshot_file.h"

#include <stdlib.h>

enum neb_status agent_snapshot_header(const struct neb_file *f, const char *path, uint64_t *header,
                                      struct inter_snapshot **out) {
    uint64_t len = neb_file_len(f),
             most = len < INTER_SNAPSHOT_HEADER_MAX ? len : INTER_SNAPSHOT_HEADER_MAX;
    struct inter_snapshot *s = calloc(1, sizeof *s);
    uint8_t *p = malloc(most ? most : 1);
    enum neb_status st = s && p ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a snapshot");
    if (st == NEB_OK)
        st = neb_file_read(f, 0, p, most);
    struct neb_rd r = neb_rd_make(p, st == NEB_OK ? most : 0);
    if (st == NEB_OK && !inter_snapshot_get(&r, s))
        st = neb_fail(NEB_ERR_FORMAT, "%s is not a snapshot", path);
    *header = r.off;
    uint64_t body = len - r.off;
    if (st == NEB_OK && body && body != 2 * s->elements * sizeof(float))
        st = neb_fail(NEB_ERR_FORMAT, "%s has %llu bytes of parameters, but its header says %llu",
                      path, (unsigned long long)body,
                      (unsigned long long)(2 * s->elements * sizeof(float)));
    free(p);
    if (st == NEB_OK)
        *out = s;
    else
        free(s);
    return st;
}
