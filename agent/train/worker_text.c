// SPDX-License-Identifier: Apache-2.0
// Compares the text that a checkpoint's cursors count with the corpus. Not in libnebula: an
// attached trainer chooses its own data.
#include "agent/job/model.h"
#include "agent/train/worker.h"

#include <string.h>

enum neb_status worker_text_save(const struct agent_worker *w, struct intra_ckpt_writer *out) {
    uint8_t sha[INTRA_SHA_BYTES];
    NEB_TRY(agent_job_text_digest(&w->x.job, w->x.cluster, w->corpus, sha));
    return intra_ckpt_add(out, "data.text", INTRA_BYTES, sizeof sha, 1, sha);
}

enum neb_status worker_text_compare(struct agent_worker *w, const struct intra_ckpt *c) {
    uint8_t was[INTRA_SHA_BYTES], is[INTRA_SHA_BYTES];
    char text[NEB_PATH_MAX + 320];
    NEB_TRY(intra_ckpt_read(c, "data.text", INTRA_BYTES, sizeof was, 1, was));
    NEB_TRY(agent_job_text_digest(&w->x.job, w->x.cluster, w->corpus, is));
    if (!memcmp(was, is, sizeof is))
        return NEB_OK;
    snprintf(text, sizeof text,
             "the corpus %s no longer holds the text of the newest checkpoint: training continues, "
             "but in this epoch it repeats some text and skips some. If this is not intended, stop "
             "the job now, restore the previous corpus, and resume",
             intra_corpus_dir(w->corpus));
    exchange_fault(&w->x, text);
    return NEB_OK;
}
