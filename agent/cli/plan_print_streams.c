// SPDX-License-Identifier: Apache-2.0
// The result of `nebula plan` for modes rtd and distill, as text and as JSON.
#include "agent/cli/plan_print.h"
#include "agent/job/json.h"
#include "agent/job/sides.h"
#include "agent/show/progress.h"

#include <math.h>
#include <stdio.h>

static const char *verb(const struct agent_planned_side *s) {
    switch (s->role) {
    case AGENT_ROLE_GENERATOR: return "generates";
    case AGENT_ROLE_DISCRIMINATOR: return "discriminates";
    case AGENT_ROLE_TEACHER: return s->learns ? "teaches and learns" : "teaches";
    default: return "learns";
    }
}

static void print_memory(const struct agent_planned_side *s) {
    const struct intra_cost *c = &s->cost;
    char a[32], b[32], d[32], e[32], f[32];
    if (s->job.device)
        plan_print_device_memory(&s->job, c, "activations and labels");
    else
        printf("\n    memory %s: parameters%s %s, moments %s, activations and labels %s, a "
               "checkpoint's copy %s",
               agent_human_bytes(c->host_bytes, a, sizeof a), s->learns ? " and gradients" : "",
               agent_human_bytes(c->params_bytes, b, sizeof b),
               agent_human_bytes(c->optim_bytes, d, sizeof d),
               agent_human_bytes(c->acts_bytes, e, sizeof e),
               agent_human_bytes(c->copy_bytes, f, sizeof f));
    printf("%s\n", s->fits ? "" : "; DOES NOT FIT");
}

static void print_side(const struct agent_job *job, const struct plan_machines *m,
                       const struct agent_planner_streams *x, int32_t i) {
    const struct agent_planned_side *s = &x->sides[i];
    const struct intra_cost *c = &s->cost;
    char a[32], b[32], d[32], on[96];
    printf("  %s %s%s: step %s (%s %s", job->clusters[i].name, verb(s),
           plan_on(&s->job, &m->sites[i], on, sizeof on), plan_ms(c->step_s, a, sizeof a),
           s->learns ? "compute" : "forward only", plan_ms(c->compute_s, b, sizeof b));
    if (s->learns)
        printf(", update %s", plan_ms(c->update_s, d, sizeof d));
    printf(")%s", s->job.recompute && s->learns ? ", recomputing" : "");
    if (x->travels)
        printf(", %.3g batches/s by itself, %.3g with the others, waits %.0f %% of its time",
               1 / s->batch_s, s->rate, 100 * s->wait);
    print_memory(s);
    plan_print_not_reckoned(s->no_device, s->no_bf16);
}

static void print_bound(const struct agent_job *job, const struct agent_planner_streams *x) {
    const struct inter_stream_flow *f = &x->flow;
    const char *who = job->clusters[x->producer].name;
    switch (f->bound) {
    case INTER_STREAM_BOUND_PRODUCER: printf("%s is the bottleneck", who); break;
    case INTER_STREAM_BOUND_CONSUMER:
        printf("a side that learns from %s is the bottleneck", who);
        break;
    case INTER_STREAM_BOUND_LINK: printf("THE LINK is the bottleneck"); break;
    case INTER_STREAM_BOUND_WINDOW: printf("THE WINDOW is the bottleneck: it is too short"); break;
    }
}

static void print_stream(const struct agent_job *job, const struct agent_planner_streams *x) {
    const struct inter_stream_flow *f = &x->flow;
    bool rtd = job->mode == AGENT_MODE_RTD;
    char a[32], b[32], d[32];
    if (!x->travels) {
        printf("  no stream between clusters\n");
        return;
    }
    printf("  stream: %s per batch (%.3g bytes per %s), %.3g batches/s; possible: %.3g made, %.3g "
           "taken, %.3g on the link, %.3g in a window of %.0f: ",
           agent_human_bytes(x->batch_bytes, a, sizeof a), x->batch_bytes / x->unit,
           rtd ? "token" : "target token", f->rate, f->producer_rate, f->consumer_rate,
           f->link_rate, f->window_rate, f->window);
    print_bound(job, x);
    printf("\n  WAN: %s, %.2g %% of the link, from %s",
           agent_human_rate(8 * f->sent_s, a, sizeof a), 100 * f->busy,
           job->clusters[x->producer].name);
    if (x->served > 1)
        printf(" to each of %d", x->served);
    printf(", %s back; a batch is in flight for %s\n", agent_human_rate(8 * f->back_s, b, sizeof b),
           plan_ms(f->travel_s, d, sizeof d));
    if (job->rtd.share_embeddings && rtd)
        printf("  embeddings: exchanged every %d events, with a wait of %s each time\n",
               job->rtd.share_embeddings, plan_ms(x->exchange_wait_s, a, sizeof a));
}

static void print_one(const char *title, const struct agent_job *job, const struct plan_machines *m,
                      const struct agent_planner_streams *x) {
    char a[32], b[32], d[32];
    printf("%s\n", title);
    for (int32_t i = 0; i < x->n; i++)
        print_side(job, m, x, i);
    print_stream(job, x);
    if (x->rounds.n)
        plan_print_exchange(job, &x->rounds);
    printf("  whole run: %s for %lld batches",
           isfinite(x->wall_s) ? agent_human_time(x->wall_s, a, sizeof a) : "unknown",
           (long long)x->batches);
    if (x->travels)
        printf(", %s sent, %s back", agent_human_bytes(x->sent_bytes, b, sizeof b),
               agent_human_bytes(x->came_bytes, d, sizeof d));
    printf("\n");
}

static void print_yaml(const struct agent_job *was, const struct agent_job *job) {
    printf("to use it:\n");
    for (int32_t i = 0; i < job->n_clusters; i++)
        printf("  %s: role: %s\n", job->clusters[i].name, agent_role_name(job->clusters[i].role));
    if (job->recompute != was->recompute)
        printf("  recompute: true\n");
    if (job->mode != AGENT_MODE_DISTILL)
        return;
    if (job->distill.k != was->distill.k)
        printf("  distill.k: %d\n", job->distill.k);
    if (job->distill.ahead != was->distill.ahead)
        printf("  distill.ahead: %d\n", job->distill.ahead);
}

void plan_streams_print(const struct plan_streams *p) {
    plan_print_machines(p->job, p->machines, p->written.n);
    if (!p->text.known)
        printf("corpus  not on this machine: %s\n", p->job->mode == AGENT_MODE_RTD
                                                        ? "its vocabulary is taken from model.vocab"
                                                        : "half of each sequence counts as target");
    if (p->job->mode == AGENT_MODE_DISTILL && p->job->distill.source != AGENT_TEXT_CORPUS)
        printf("samples the time to write text (distill.source) is not in these figures\n");
    if (p->job->distill.teacher[0] && !p->text.teacher.vocab)
        printf("teacher its checkpoint is not on this machine: the shape in distill.teacher is "
               "used\n");
    print_one("as written", p->job, p->machines, &p->written);
    print_one("proposed", p->best, p->machines, &p->proposed);
    print_yaml(p->job, p->best);
}

// ---- JSON ---------------------------------------------------------------------------------------

static json_t *side_json(const struct agent_job *job, const struct agent_site *site,
                         const struct agent_planned_side *s, int32_t i) {
    json_t *o = json_pack("{s:s,s:s,s:b,s:b,s:b}", "name", job->clusters[i].name, "role",
                          agent_role_name(s->role), "learns", s->learns, "fits", s->fits,
                          "recompute", s->job.recompute && s->learns);
    plan_cost_json(&s->cost, o);
    plan_where_json(&s->job, site, s->no_device, s->no_bf16, o);
    json_object_set_new(o, "batch_s", agent_json_number(s->batch_s));
    json_object_set_new(o, "rate", agent_json_number(s->rate));
    json_object_set_new(o, "wait", agent_json_number(s->wait));
    return o;
}

static json_t *one_json(const struct agent_job *job, const struct plan_machines *m,
                        const struct agent_planner_streams *x) {
    const struct inter_stream_flow *f = &x->flow;
    json_t *sides = json_array(), *stream = json_null();
    for (int32_t i = 0; i < x->n; i++)
        json_array_append_new(sides, side_json(job, &m->sites[i], &x->sides[i], i));
    if (x->travels)
        stream = json_pack(
            "{s:s,s:i,s:f,s:f,s:f,s:f,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "from",
            job->clusters[x->producer].name, "served", x->served, "batch_bytes", x->batch_bytes,
            "back_bytes", x->back_bytes, "bytes_per_unit", x->batch_bytes / x->unit, "rate",
            f->rate, "bound", inter_stream_bound_name(f->bound), "producer_rate", f->producer_rate,
            "consumer_rate", f->consumer_rate, "link_rate", f->link_rate, "window_rate",
            f->window_rate, "window", f->window, "travel_s", f->travel_s, "sent_bytes_per_s",
            f->sent_s, "back_bytes_per_s", f->back_s, "busy", f->busy, "back_busy", f->back_busy,
            "exchange_wait_s", x->exchange_wait_s);
    return json_pack("{s:o,s:o,s:o,s:I,s:o,s:o,s:o}", "clusters", sides, "stream", stream,
                     "exchange", plan_exchange_json(job, &x->rounds), "batches",
                     (json_int_t)x->batches, "wall_s", agent_json_number(x->wall_s), "sent_bytes",
                     agent_json_number(x->sent_bytes), "came_bytes",
                     agent_json_number(x->came_bytes));
}

void plan_streams_print_json(const struct plan_streams *p) {
    const struct agent_job *best = p->best;
    json_t *roles = json_object(), *proposed = one_json(best, p->machines, &p->proposed);
    for (int32_t i = 0; i < best->n_clusters; i++)
        json_object_set_new(roles, best->clusters[i].name,
                            json_string(agent_role_name(best->clusters[i].role)));
    json_object_set_new(proposed, "roles", roles);
    if (best->mode == AGENT_MODE_DISTILL) {
        json_object_set_new(proposed, "k", json_integer(best->distill.k));
        json_object_set_new(proposed, "ahead", json_integer(best->distill.ahead));
    }
    json_t *o = json_pack("{s:s,s:s,s:b,s:o,s:o,s:o,s:o}", "job", p->job->name, "mode",
                          best->mode == AGENT_MODE_RTD ? "rtd" : "distill", "corpus_known",
                          p->text.known, "machines", plan_machines_json(p->machines, p->written.n),
                          "link", plan_link_json(p->machines, p->written.n), "written",
                          one_json(p->job, p->machines, &p->written), "proposed", proposed);
    json_object_set_new(o, "vocab_assumed", plan_vocab_json(p->machines));
    agent_json_print(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
}
