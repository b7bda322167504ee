// SPDX-License-Identifier: Apache-2.0
// What the agent hears of the training: metrics lines, and the report at the end.
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "agent/job/json.h"

#include <math.h>

void exchange_metrics(struct agent_exchange *x, json_t *line) {
    json_t *head = json_pack("{s:s,s:o}", "op", "metrics", "line", line);
    if (head && agent_ipc_send(x->link.ipc, NULL, head, NULL, 0) != NEB_OK)
        neb_debug("a metrics line was dropped");
}

void exchange_fault(struct agent_exchange *x, const char *text) {
    neb_warn("%s", text);
    exchange_metrics(x, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
}

static void send_step(struct agent_exchange *x, int64_t step, uint64_t tokens,
                      const struct exchange_figures *s, double tokens_per_s) {
    exchange_metrics(
        x, json_pack("{s:s,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:f,s:[f,I,f,I,I]}", "kind", "step",
                     "step", (json_int_t)step, "tokens", (json_int_t)tokens, "loss",
                     agent_json_number(s->loss), "lr", agent_json_number(s->lr), "grad_norm",
                     agent_json_number(s->grad_norm), "tokens_per_s", tokens_per_s, "stall_s",
                     x->stall_s, "train_s", x->train_s, "stalled_s",
                     x->stall_s - x->stall_told, // since the previous line
                     // for the report to other sites: agent/daemon/disclose.h
                     "sums", x->sums.loss, (json_int_t)x->sums.losses, x->sums.grad_norm,
                     (json_int_t)x->sums.norms, (json_int_t)x->sums.steps));
    x->stall_told = x->stall_s;
}

void exchange_send_step(struct agent_exchange *x, const struct exchange_figures *s,
                        double tokens_per_s) {
    send_step(x, x->step, x->all_tokens, s, tokens_per_s);
}

static void add_sums(struct agent_exchange *x, double loss, double grad_norm) {
    bool is_loss = isfinite(loss), is_norm = isfinite(grad_norm);
    x->sums.loss += is_loss ? loss : 0;
    x->sums.losses += is_loss;
    x->sums.grad_norm += is_norm ? grad_norm : 0;
    x->sums.norms += is_norm;
    x->sums.steps++;
}

void exchange_check_step(struct agent_exchange *x, const struct exchange_figures *s) {
    enum { FIRST = 8 }; // then at each doubling; a single one may be an overflow in bf16
    char text[256];
    x->stepped = true;
    add_sums(x, s->loss, s->grad_norm);
    x->idle_steps = isfinite(s->grad_norm) || x->link.foreign ? 0 : x->idle_steps + 1;
    if (x->idle_steps < FIRST || x->idle_steps & (x->idle_steps - 1))
        return;
    snprintf(text, sizeof text,
             "%u steps in a row have learned nothing: their gradients are not finite. Training has "
             "diverged: restart it with a lower optim.lr or weight_decay, or with optim.clip",
             x->idle_steps);
    exchange_fault(x, text);
}

void exchange_made_step(struct agent_exchange *x, const struct exchange_figures *s, uint64_t tokens,
                        double seconds) {
    exchange_pass_step(x, seconds);
    x->all_tokens += tokens;
    exchange_told_step(x, x->step, x->all_tokens, s, seconds > 0 ? (double)tokens / seconds : 0);
}

void exchange_pass_step(struct agent_exchange *x, double seconds) {
    x->train_s += seconds;
    exchange_step_took(x, seconds);
    x->step++;
    x->stepped = true;
}

void exchange_told_step(struct agent_exchange *x, int64_t step, uint64_t tokens,
                        const struct exchange_figures *s, double tokens_per_s) {
    int32_t every = x->job.log_every;
    exchange_check_step(x, s);
    bool passed = step / every != x->said_step / every; // steps may be skipped
    if (!passed && step != x->job.steps && step != 1)
        return;
    send_step(x, step, tokens, s, tokens_per_s);
    x->said_step = step;
}

enum neb_status exchange_count_tokens(struct agent_exchange *x) {
    return x->trainer.ops->tokens ? x->trainer.ops->tokens(x->trainer.user) : NEB_OK;
}

void exchange_send_eval(struct agent_exchange *x, int64_t step, double loss, json_t *by_source) {
    exchange_metrics(x, json_pack("{s:s,s:I,s:o,s:O}", "kind", "eval", "step", (json_int_t)step,
                                  "loss", agent_json_number(loss), "sources", by_source));
}

// How many sums may reveal something about this cluster: at most one per round of a fragment, and
// at most as many as updates were masked. After the loss of a disk only the rounds are known.
static uint64_t releases(const struct agent_exchange *x) {
    uint64_t rounds = 0;
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        rounds += x->frags[f].round + x->frags[f].in_flight;
    return rounds > x->masked_sent ? rounds : x->masked_sent;
}

enum neb_status exchange_results(const struct agent_exchange *x, const struct exchange_results *r,
                                 json_t **out) {
    struct kern_digest d = r->digest;
    char hex[33];
    if (x->federated)
        NEB_TRY(agent_shards_digest(x->shards, -1, &d));
    exchange_digest_hex(&d, hex);
    *out = json_pack(
        "{s:s,s:I,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:i}", "device",
        r->device, "steps", (json_int_t)x->step, "steps_left_out", (json_int_t)x->steps_left_out,
        "tokens", (json_int_t)x->all_tokens, "loss_first", agent_json_number(x->loss_first),
        "loss_last", agent_json_number(x->loss_last), "eval_loss", agent_json_number(r->eval_loss),
        "stall_s", x->stall_s, "train_s", x->train_s, "sync_s", x->sync_s, "params_digest", hex,
        "params", (json_int_t)r->params, "trainable_params", (json_int_t)r->trainable, "rounds",
        (json_int_t)x->rounds, "lost_steps", (json_int_t)x->lost_steps, "payload_bytes",
        (json_int_t)x->payload_bytes, "payload_params", (json_int_t)x->payload_params, "stopped",
        !r->done, "threads", kern_pool_threads(x->trainer.pool));
    if (x->sum && json_object_set_new(*out, "releases", json_integer((json_int_t)releases(x))) != 0)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
    return NEB_OK;
}

enum neb_status exchange_report(struct agent_exchange *x, json_t *results, json_t *more) {
    bool whole = results && (!more || json_object_update(results, more) == 0);
    json_decref(more);
    if (!whole) {
        json_decref(results);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
    }
    return agent_ipc_send(x->link.ipc, NULL,
                          json_pack("{s:s,s:o}", "op", "report", "report", results), NULL, 0);
}

void exchange_digest_hex(const struct kern_digest *d, char out[33]) {
    uint8_t b[16];
    neb_put_u64(b, d->lo);
    neb_put_u64(b + 8, d->hi);
    neb_hex(b, sizeof b, out);
}
