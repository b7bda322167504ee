// SPDX-License-Identifier: Apache-2.0
// Steps and their figures. A loop on a device does not know the loss of a step when it reports the
// step, because the device still computes it. The step then counts at once, and its figures come
// from the hook `figures`, in the order of the steps. Only tokens are needed for the exchange, as
// the weight of an update, so a send waits for them.
#include "agent/base/log.h"
#include "agent/lib/state.h"

#include <math.h>
#include <string.h>

void lib_send_eval(struct agent_exchange *x, int64_t step, double loss) {
    json_t *sources = json_object();
    exchange_send_eval(x, step, loss, sources);
    json_decref(sources);
}

static void tell(struct nebula *n, const struct lib_late *l) {
    struct agent_exchange *x = &n->x;
    const struct nebula_step_stats *s = &l->stats;
    const struct exchange_figures f = {s->loss, (double)(float)s->lr, s->grad_norm};
    intra_loss_add(&x->loss_first, &x->loss_last, s->loss);
    exchange_told_step(x, l->step, l->tokens, &f,
                       l->seconds > 0 ? (double)s->tokens / l->seconds : 0);
    if (isfinite(s->eval_loss))
        lib_send_eval(x, l->step, s->eval_loss);
}

static enum neb_status add_tokens(struct nebula *n, struct lib_late *l) {
    uint64_t most = agent_job_step_tokens(&n->x.job);
    if (l->stats.tokens > most)
        return neb_fail(NEB_ERR_INVALID,
                        "step %lld has %llu tokens, but the job's data.batch x data.accumulate x "
                        "data.seq_len allow at most %llu: raise one of them",
                        (long long)l->step, (unsigned long long)l->stats.tokens,
                        (unsigned long long)most);
    n->x.all_tokens += l->stats.tokens;
    l->tokens = n->x.all_tokens;
    return NEB_OK;
}

// Takes the figures of the oldest step. *known: false: the hook does not know them yet.
static enum neb_status take_oldest(struct nebula *n, bool wait, bool *known) {
    struct lib_late *l = &n->late[0];
    struct nebula_step_stats s = l->stats;
    int answer = s.later ? n->hooks.figures(n->hooks.user, wait, &s) : 0;
    *known = answer == 0;
    if (answer == NEBULA_NOT_YET && !wait)
        return NEB_OK;
    if (answer != 0)
        return neb_fail(NEB_ERR_IO, "the figures hook failed at step %lld", (long long)l->step);
    bool tokens = l->stats.later & NEBULA_LATER_TOKENS;
    s.tokens = tokens ? s.tokens : l->stats.tokens;
    l->stats = s;
    if (tokens)
        NEB_TRY(add_tokens(n, l));
    tell(n, l);
    memmove(l, l + 1, (size_t)--n->n_late * sizeof *l);
    return NEB_OK;
}

enum neb_status lib_late_figures(struct nebula *n, bool wait) {
    for (bool known = true; n->n_late && known;)
        NEB_TRY(take_oldest(n, wait, &known));
    return NEB_OK;
}

enum neb_status lib_late_tokens(void *user) {
    struct nebula *n = user;
    int last = n->n_late;
    while (last > 0 && !(n->late[last - 1].stats.later & NEBULA_LATER_TOKENS))
        last--;
    for (bool known; last > 0; last--)
        NEB_TRY(take_oldest(n, true, &known));
    return NEB_OK;
}

enum neb_status lib_count_step(struct nebula *n, const struct nebula_step_stats *s) {
    struct agent_exchange *x = &n->x;
    bool known = false;
    NEB_TRY(lib_late_figures(n, false));
    if (n->n_late == LIB_LATE_MAX)
        NEB_TRY(take_oldest(n, true, &known));
    struct lib_late l = {.seconds = neb_seconds(neb_now() - n->step_end), .stats = *s};
    exchange_pass_step(x, l.seconds);
    l.step = x->step;
    if (!(s->later & NEBULA_LATER_TOKENS))
        x->all_tokens += s->tokens;
    l.tokens = x->all_tokens;
    if (!s->later && !n->n_late) {
        tell(n, &l);
        return NEB_OK;
    }
    n->late[n->n_late++] = l; // figures are told in the order of the steps
    return NEB_OK;
}
