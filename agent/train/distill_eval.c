// SPDX-License-Identifier: Apache-2.0
#include "agent/base/moved.h"
#include "agent/job/json.h"
#include "agent/train/distill.h"
#include "agent/train/translate.h"

#include <math.h>

enum { PASSES = 8 }; // whose batches are in memory at the same time

// NAN if no pair of the held-out split is short enough.
static enum neb_status held_out(struct agent_distill_side *s, double *loss) {
    struct intra_pairs *pairs = NULL;
    struct intra_pairs_config c = agent_distill_pairs(&s->job);
    double sum = 0;
    int64_t count = 0;
    c.seed = 1;
    c.may_be_empty = true;
    NEB_TRY(intra_pairs_create(s->corpus, INTRA_VALID, &c, &pairs));
    enum neb_status st = NEB_OK;
    for (uint64_t k = 0; k < intra_pairs_batches(pairs) && st == NEB_OK; k++) {
        double l = 0;
        int64_t n = 0;
        st = intra_pairs_draw(pairs, k, &s->batch);
        if (st == NEB_OK) {
            struct intra_batch b = distill_batch(s, NULL);
            intra_group_pass(s->group, &b, NULL);
        }
        if (st == NEB_OK && (k % PASSES == PASSES - 1 || k + 1 == intra_pairs_batches(pairs)))
            st = intra_group_passed(s->group, &l, &n);
        neb_moved_add(1); // a sign of progress
        sum += l;
        count += n;
    }
    intra_pairs_destroy(&pairs);
    *loss = count ? sum / (double)count : NAN;
    return st;
}

enum neb_status distill_evaluate(struct agent_distill_side *s, double *loss, json_t **quality) {
    struct agent_translate_options o = {.beam = s->job.distill.beam,
                                        .max_pairs = s->job.eval_windows,
                                        .longest = s->job.seq_len,
                                        .max_tokens = s->job.seq_len,
                                        .alpha = 1};
    struct agent_translate_result r = {.chrf = NAN, .bleu = NAN};
    NEB_TRY(held_out(s, loss));
    if (s->job.distill.task == AGENT_TASK_TRANSLATE)
        NEB_TRY(agent_translate(s->corpus, agent_translate_split(s->corpus), s->group, &o, &r));
    double rows = (double)s->s.label_rows;
    *quality = json_pack(
        "{s:o,s:o,s:o,s:I,s:i,s:f,s:o,s:f}", "chrf", agent_json_number(r.chrf), "bleu",
        agent_json_number(r.bleu), "eval_loss", agent_json_number(*loss), "pairs",
        (json_int_t)r.pairs, "beam", o.beam, "decode_s", r.seconds, "label_bytes_per_target_token",
        rows > 0 ? json_real((double)s->s.f.batch_bytes / rows) : json_null(), "taught_share",
        s->s.targets ? (double)s->s.taught / (double)s->s.targets : 0.0);
    return *quality ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory making a report");
}
