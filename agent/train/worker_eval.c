// SPDX-License-Identifier: Apache-2.0
// Held-out loss of the built-in trainer. At the end it is the loss of the parameters that all
// clusters share; with eval.every_steps it is also measured in between, for this cluster's own
// parameters. It does not change the training state, and its time is not part of train_s.
#include "agent/job/json.h"
#include "agent/train/worker.h"

#include <math.h>
#include <stdlib.h>

// Takes the same windows each time, spread over the whole split. A source with 0 windows has no
// entry.
static enum neb_status evaluate_source(struct agent_worker *w, int32_t i, uint64_t n,
                                       double *loss) {
    int32_t T = w->x.job.seq_len;
    uint64_t have = intra_corpus_windows(w->corpus, i, INTRA_VALID, T);
    size_t tokens = n * (size_t)T;
    int32_t *x = calloc(2 * tokens, sizeof *x);
    if (!x)
        return neb_fail(NEB_ERR_NOMEM, "out of memory evaluating %llu windows",
                        (unsigned long long)n);
    for (uint64_t k = 0; k < n; k++)
        intra_corpus_window(w->corpus, i, INTRA_VALID, T, k * have / n, x + k * (size_t)T,
                            x + tokens + k * (size_t)T);
    enum neb_status st = intra_group_eval(w->group, x, x + tokens, (int)n, loss);
    free(x);
    return st;
}

enum neb_status worker_evaluate(struct agent_worker *w, double *loss, json_t *by_source) {
    double sum = 0;
    int32_t counted = 0;
    for (int32_t i = 0; i < intra_corpus_sources(w->corpus); i++) {
        uint64_t n = intra_corpus_windows(w->corpus, i, INTRA_VALID, w->x.job.seq_len),
                 most = (uint64_t)w->x.job.eval_windows;
        double l = 0;
        n = most && most < n ? most : n;
        if (!n)
            continue;
        exchange_heartbeat(&w->x, false, (double)n / w->x.job.batch / w->x.job.accumulate);
        NEB_TRY(evaluate_source(w, i, n, &l));
        if (json_object_set_new(by_source, intra_corpus_source_name(w->corpus, i),
                                agent_json_number(l)) != 0)
            return neb_fail(NEB_ERR_NOMEM, "out of memory evaluating");
        sum += l;
        counted++;
    }
    *loss = counted ? sum / counted : NAN;
    return NEB_OK;
}

enum neb_status worker_eval_when_due(struct agent_worker *w) {
    double loss;
    if (!w->x.job.eval_every || w->x.step % w->x.job.eval_every || w->x.step >= w->x.job.steps)
        return NEB_OK; // the loss of the last step is taken after the last exchange is merged
    json_t *by_source = json_object();
    enum neb_status st = worker_evaluate(w, &loss, by_source);
    if (st == NEB_OK)
        exchange_send_eval(&w->x, w->x.step, loss, by_source);
    json_decref(by_source);
    return st;
}
