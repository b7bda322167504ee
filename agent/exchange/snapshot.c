// SPDX-License-Identifier: Apache-2.0
// A worker that continues from the state of other members.
//
//     behind, disk intact: fragments in which the snapshot is ahead come from the snapshot,
//                          the others from this worker's checkpoint
//     disk lost:           starts from a snapshot or from the first commit; merges commits as they
//                          come, without training, until the agent reports that it has caught up
//
// If a snapshot does not fit this job or its own digests, the member that sent it is at fault. The
// worker removes the snapshot and reports it to the agent. A new process starts without it.
//
// In both cases the data continues after this cluster's last committed step, so that nothing is
// learned twice. What was learned later and sent to nobody is lost: it counts in lost_steps.
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "agent/exchange/snapshot_file.h"
#include "kernels/quant.h"

#include <stdlib.h>
#include <string.h>

// A matching digest does not exclude NaN.
static enum neb_status check_finite(const struct neb_file *file, uint64_t at, uint64_t n,
                                    bool *finite) {
    enum { PIECE = 64 << 10 };
    float *x = malloc(PIECE * sizeof *x);
    enum neb_status st = x ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a snapshot");
    *finite = true;
    for (uint64_t i = 0; i < n && *finite && st == NEB_OK; i += PIECE) {
        size_t some = n - i < PIECE ? (size_t)(n - i) : PIECE;
        st = neb_file_read(file, at + i * sizeof *x, x, some * sizeof *x);
        if (st == NEB_OK)
            (void)kern_absmax(x, some, finite);
    }
    free(x);
    return st;
}

// The file has n values of θ after the header, then n of v. *bad: the digest does not match.
static enum neb_status take_fragments(struct agent_exchange *x, const struct inter_snapshot *s,
                                      const struct neb_file *file, uint64_t header,
                                      bool has_checkpoint, int64_t *cursor, bool *bad) {
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        const struct inter_snapshot_part *p = &s->parts[f];
        if (!(x->taken >> f & 1) && (has_checkpoint || !p->round))
            continue;
        struct kern_digest d;
        NEB_TRY(agent_shards_adopt(x->shards, f, p->version, file, header));
        NEB_TRY(agent_shards_digest(x->shards, f, &d));
        bool known = p->round || p->digest[0] || p->digest[1];
        *bad = known && (d.lo != p->digest[0] || d.hi != p->digest[1]);
        if (*bad)
            return neb_fail(NEB_ERR_CORRUPT,
                            "fragment %d of the snapshot does not match its digest", f);
        bool final = p->round > 0;
        for (uint8_t i = 0; p->round && i < p->last.n; i++)
            final = final && p->last.entries[i].flags & INTER_FINAL;
        x->frags[f] =
            (struct agent_fragment){.round = p->round, .send_step = -1, .finished = final};
        x->kept[f].counted_miss = -1;
        x->kept[f].last_digest = d;
        if (p->round)
            exchange_plan_taken(x, f, &p->last);
        if (p->round && (int64_t)p->last.cursors[x->cluster] > *cursor)
            *cursor = (int64_t)p->last.cursors[x->cluster];
        neb_info("fragment %d taken over from a snapshot, at round %u", f, p->round);
    }
    return NEB_OK;
}

// The agent has checked that the header fits the file. *bad: it is not a state of this job.
static enum neb_status check(const struct agent_exchange *x, const struct inter_snapshot *s,
                             const struct neb_file *file, uint64_t header, bool *bad) {
    uint64_t n = x->elements;
    bool finite = true;
    *bad = s->fragments != (uint32_t)exchange_fragments(x) || s->elements != n ||
           neb_file_len(file) - header != 2 * n * sizeof(float);
    if (*bad)
        return neb_fail(NEB_ERR_FORMAT, "the snapshot does not fit this job");
    NEB_TRY(check_finite(file, header, 2 * n, &finite));
    *bad = !finite;
    return finite ? NEB_OK
                  : neb_fail(NEB_ERR_CORRUPT, "the snapshot holds values that are not finite");
}

static enum neb_status refuse(struct agent_exchange *x, const char *path) {
    char text[512];
    neb_last_error(text, sizeof text);
    NEB_TRY(neb_fs_remove(path));
    if (x->link.ipc)
        NEB_TRY(agent_ipc_send(x->link.ipc, NULL,
                               json_pack("{s:s,s:s}", "op", "snapshot-bad", "text", text), NULL,
                               0));
    return NEB_ERR_AGAIN;
}

enum neb_status exchange_adopt_snapshot(struct agent_exchange *x, bool has_checkpoint) {
    struct neb_file *file = NULL;
    char path[NEB_PATH_MAX];
    int64_t cursor = x->step;
    NEB_TRY(neb_path(path, sizeof path, x->dir, "snapshot.bin"));
    if (!neb_fs_exists(path))
        return NEB_OK;
    uint64_t header = 0;
    struct inter_snapshot *s = NULL;
    bool bad = false;
    NEB_TRY(neb_file_open(path, exchange_vault(x), &file));
    enum neb_status st = agent_snapshot_header(file, path, &header, &s);
    if (st != NEB_OK)
        goto out;
    st = check(x, s, file, header, &bad);
    if (st == NEB_OK)
        st = take_fragments(x, s, file, header, has_checkpoint, &cursor, &bad);
out:
    free(s);
    neb_file_close(&file);
    if (bad)
        return refuse(x, path);
    NEB_TRY(st);
    if (cursor > x->step)
        NEB_TRY(exchange_skip_steps(x, cursor - x->step));
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        if (x->frags[f].send_step == -1)
            NEB_TRY(exchange_begin_counts(x, f));
    if (!has_checkpoint)
        x->incarnation = x->attempts;
    NEB_TRY(exchange_save(x));
    NEB_TRY(exchange_save_wait(x));
    // not earlier: after a crash before the checkpoint is on disk, the snapshot is adopted again
    return neb_fs_remove(path);
}
