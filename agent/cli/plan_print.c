// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/plan_print.h"
#include "agent/job/json.h"
#include "agent/plan/plan.h"
#include "agent/show/progress.h"

#include <math.h>
#include <stdio.h>

const char *plan_ms(double s, char *buf, size_t cap) {
    snprintf(buf, cap,
             !isfinite(s) ? "unknown"
             : s < 1      ? "%.3g ms"
                          : "%.3g s",
             s < 1 ? 1e3 * s : s);
    return buf;
}

static double tokens_of(const struct intra_cost_job *j) {
    return (double)j->batch * j->micros * j->seq_len;
}

static void print_machine(const char *name, const struct agent_site *s, bool kept) {
    const struct intra_rates *r = &s->profile.rates;
    char memory[32], link[48] = "no second rank starts: one rank", a[32], bf16[64] = "";
    if (r->step[KERN_BF16][0] > 0)
        snprintf(bf16, sizeof bf16, ", in bf16 %.3g to %.3g", r->step[KERN_BF16][0] * 1e-9,
                 r->step[KERN_BF16][INTRA_COST_WIDTHS - 1] * 1e-9);
    if (r->link > 0)
        snprintf(link, sizeof link, "%.2g GB/s between ranks", r->link * 1e-9);
    printf("machine %s (%s%s): %d x %s, steps at %.3g to %.3g GFLOP/s (width 64 to 1024)%s, %s, "
           "fsync %s, %s%s\n",
           name, s->profile.host,
           s->other ? ", from its file"
           : kept   ? ", measured before"
                    : "",
           r->processors, s->profile.isa, r->step[KERN_F32][0] * 1e-9,
           r->step[KERN_F32][INTRA_COST_WIDTHS - 1] * 1e-9, bf16, link,
           plan_ms(s->profile.sync_s, a, sizeof a),
           agent_human_bytes(r->memory, memory, sizeof memory), s->share < 1 ? ", shared" : "");
}

// Prints the rates at the largest size, where a device is busiest.
static void print_device(const struct agent_site *s) {
    const struct intra_device_rates *r = &s->profile.rates.device;
    char memory[32], link[48] = "one rank";
    enum { LAST = INTRA_COST_STEPS - 1 };
    if (!r->count)
        return;
    if (r->link > 0)
        snprintf(link, sizeof link, "%.3g GB/s between two", r->link * 1e-9);
    printf("        device %d x %s: steps at up to %.3g TFLOP/s in bf16, %.3g in fp32, copies %.3g "
           "GB/s up, %.3g down, %s, %s each%s\n",
           r->count, s->profile.device, r->step[KERN_BF16][LAST] * 1e-12,
           r->step[KERN_F32][LAST] * 1e-12, r->up * 1e-9, r->down * 1e-9, link,
           agent_human_bytes(r->memory, memory, sizeof memory),
           s->device_share > 0 && s->device_share < 1 ? ", shared" : "");
}

static const double BF16_PAYS = 1.05; // a gain that is worth a line
static bool bf16_pays(const struct agent_planned *x) {
    return x->job.type == KERN_F32 && x->bf16_gain > BF16_PAYS && !x->no_device;
}

const char *plan_on(const struct intra_cost_job *j, const struct agent_site *s, char *buf,
                    size_t cap) {
    buf[0] = '\0';
    if (j->device)
        snprintf(buf, cap, " on %s in %s", s->profile.device,
                 j->type == KERN_BF16 ? "bf16" : "fp32");
    return buf;
}

void plan_print_device_memory(const struct intra_cost_job *j, const struct intra_cost *c,
                              const char *acts) {
    char a[32], b[32], d[32], e[32], f[32], g[32];
    printf("\n    device memory of a rank %s: parameters%s%s %s, moments %s, %s %s, exchange %s, "
           "workspace %s",
           agent_human_bytes(c->device_bytes, a, sizeof a),
           j->type == KERN_BF16 ? " (in both types)" : "", j->frozen ? "" : " and gradients",
           agent_human_bytes(c->params_bytes, b, sizeof b),
           agent_human_bytes(c->optim_bytes, d, sizeof d), acts,
           agent_human_bytes(c->acts_bytes, e, sizeof e),
           agent_human_bytes(c->outer_bytes, f, sizeof f),
           agent_human_bytes(c->workspace_bytes, g, sizeof g));
    printf("\n    host memory of a rank %s, including %s for a checkpoint's copy",
           agent_human_bytes(c->rank_bytes, a, sizeof a),
           agent_human_bytes(c->copy_bytes, b, sizeof b));
}

void plan_print_not_reckoned(bool no_device, bool no_bf16) {
    if (no_device)
        printf("    device: cuda IS NOT IN THE FIGURES: times, meshes and memory are those of its "
               "processors, because no rates of a device are known (nebula plan --profile measures "
               "them there)\n");
    if (no_bf16)
        printf("    precision: bf16 IS NOT IN THE FIGURES: these processors have no bf16, or "
               "oneDNN is missing there; times and memory are those of fp32\n");
}

static void print_exchange_memory(const struct intra_cost *c) {
    char a[32], b[32], d[32];
    printf("exchange %s, its codec and frames %s, a checkpoint's copy %s",
           agent_human_bytes(c->exchange_bytes, a, sizeof a),
           agent_human_bytes(c->frames_bytes, b, sizeof b),
           agent_human_bytes(c->copy_bytes, d, sizeof d));
}

static void print_memory(const struct agent_planned *x) {
    const struct intra_cost *c = &x->cost;
    char a[32], b[32], d[32], e[32];
    if (x->job.device) {
        plan_print_device_memory(&x->job, c, "activations");
    } else {
        printf(
            "\n    memory of a rank %s: parameters and gradients %s, moments %s, activations %s, ",
            agent_human_bytes(c->rank_bytes, a, sizeof a),
            agent_human_bytes(c->params_bytes, b, sizeof b),
            agent_human_bytes(c->optim_bytes, d, sizeof d),
            agent_human_bytes(c->acts_bytes, e, sizeof e));
        print_exchange_memory(c);
    }
    if (c->owner_bytes > 0)
        printf("; the first rank needs %s more", agent_human_bytes(c->owner_bytes, a, sizeof a));
    printf("%s\n", x->fits ? "" : "; DOES NOT FIT");
}

// Prints what a step computes and sends between ranks, and what an exchange needs from them.
static void print_volumes(const struct agent_planned *x) {
    const struct intra_cost *c = &x->cost;
    char a[32], b[32];
    printf("    %.3g GFLOP per step and rank", c->flops * 1e-9);
    if (c->tp_bytes > 0)
        printf(", %s sent for tensors", agent_human_bytes(c->tp_bytes, a, sizeof a));
    if (c->pp_bytes > 0)
        printf(", %s for the pipeline", agent_human_bytes(c->pp_bytes, a, sizeof a));
    if (c->dp_bytes > 0)
        printf(", %s for gradients", agent_human_bytes(c->dp_bytes, a, sizeof a));
    if (c->owner_params > 0)
        printf("; in an exchange a rank owns up to %.4g M parameters, on its %s; gathering takes "
               "%s, scattering %s",
               c->owner_params * 1e-6, c->outer_bytes > 0 ? "device" : "host",
               plan_ms(c->gather_s, a, sizeof a), plan_ms(c->scatter_s, b, sizeof b));
    printf("\n");
}

// The trainer is another program, so its memory and mesh are not predicted.
static void print_attached(const char *name, const struct agent_planned *x) {
    const struct intra_cost *c = &x->cost;
    char step[32], a[32];
    printf("  %s: a trainer attaches: its memory, mesh and micro-batches are its own; step ", name);
    if (isnan(x->cost.step_s))
        printf("not known (give --step %s=SECONDS)\n", name);
    else
        printf("%s%s\n", plan_ms(x->cost.step_s, step, sizeof step),
               x->guessed
                   ? ", that of the slowest other cluster, because its own is not known (--step)"
                   : ", from --step");
    if (c->rank_bytes > 0) {
        printf("    planned is the exchange alone: libnebula takes %s in the trainer: parameters "
               "%s, ",
               agent_human_bytes(c->rank_bytes, step, sizeof step),
               agent_human_bytes(c->params_bytes, a, sizeof a));
        print_exchange_memory(c);
        printf("\n");
    }
}

static void print_step(const char *name, const struct agent_site *site,
                       const struct agent_planned *x) {
    const struct intra_cost *c = &x->cost;
    char step[32], a[32], on[96];
    if (x->attached) {
        print_attached(name, x);
        return;
    }
    if (x->no_mesh) {
        printf("  %s: NO MESH OF %d RANKS divides the model and the %d sequences of a step\n", name,
               x->no_mesh, x->job.micros * x->job.batch);
        return;
    }
    printf("  %s%s: mesh {dp: %d, pp: %d, tp: %d}, %d x %d sequences%s: step %s", name,
           plan_on(&x->job, site, on, sizeof on), x->job.mesh.dp, x->job.mesh.pp, x->job.mesh.tp,
           x->job.micros, x->job.batch, x->job.recompute ? ", recomputing" : "",
           plan_ms(c->step_s, step, sizeof step));
    if (isfinite(c->step_s)) {
        printf(", %.0f tokens/s (compute %s", tokens_of(&x->job) / c->step_s,
               plan_ms(c->compute_s, a, sizeof a));
        if (c->tp_s > 0)
            printf(", tensor %s", plan_ms(c->tp_s, a, sizeof a));
        if (c->pp_s > 0)
            printf(", pipeline %s", plan_ms(c->pp_s, a, sizeof a));
        if (c->dp_s > 0)
            printf(", data %s", plan_ms(c->dp_s, a, sizeof a));
        printf(", update %s)", plan_ms(c->update_s, a, sizeof a));
    }
    print_memory(x);
    plan_print_not_reckoned(x->no_device, x->no_bf16);
    if (x->job.type == KERN_BF16 && x->bf16_gain > 0)
        printf("    its products are in bf16: steps %.2f times as fast as in fp32%s\n",
               x->bf16_gain, x->bf16_gain < 1 ? "; SLOWER: set precision: fp32" : "");
    else if (bf16_pays(x))
        printf("    precision: bf16 would make its steps %.2f times as fast (its products are "
               "rounded: nebula help tuning)\n",
               x->bf16_gain);
    if (x->job.device && x->job.ranks_a_host > site->profile.rates.device.count)
        printf("    %d ranks need a device each: there are %d\n", x->job.ranks_a_host,
               site->profile.rates.device.count);
    print_volumes(x);
}

// With three clusters or more, a round commits without a cluster that is late.
static bool too_late(const struct agent_job *job, const struct agent_planner *p) {
    return p->n > 2 && p->wan.interval && !job->sync.commit_all &&
           p->wan.encode_s + p->wan.travel_s > (double)job->sync.grace_s;
}

void plan_print_exchange(const struct agent_job *job, const struct agent_planner *p) {
    const struct inter_wan_plan *w = &p->wan;
    char a[32], b[32], c[32], d[32], e[32], f[32], bits[80];
    if (!w->interval)
        return;
    printf("  exchange every %d steps with %s (%s), merged %d steps later: "
           "encode %s | transfer %s | agree %s | merge %s; waits %s per interval\n",
           w->interval, p->codecs[w->codec].name,
           agent_bits_text(p->codecs[w->codec].bits, p->bits_most[w->codec], bits, sizeof bits),
           w->overlap, plan_ms(w->encode_s, a, sizeof a), plan_ms(w->travel_s, b, sizeof b),
           plan_ms(w->agree_s, c, sizeof c), plan_ms(w->merge_s, d, sizeof d),
           plan_ms(w->stall_s, e, sizeof e));
    printf("    %s per interval and cluster, %.0f %% of the link%s\n",
           agent_human_bytes(w->bytes, f, sizeof f), 100 * w->busy,
           p->carried ? "" : ": MORE THAN IT CARRIES");
    if (job->mode == AGENT_MODE_REPLICAS && job->trainable.mode == INTRA_TRAIN_FULL)
        printf("    known cost in loss: that of about %.0f %% more steps\n", 100 * (w->slower - 1));
    if (too_late(job, p))
        printf("    AN UPDATE ARRIVES AFTER %s, BUT THE OTHERS WAIT %g s FOR IT (sync.grace_s): if "
               "theirs are earlier, it is left out\n",
               plan_ms(w->encode_s + w->travel_s, d, sizeof d), (double)job->sync.grace_s);
}

static const double TUNING_PAYS = 0.9; // of the run's time without tuning
static bool tuning_pays(const struct agent_planner *p) {
    return p->wan.interval && !p->tuning.on && p->tuning.possible &&
           p->tuning.wall_s < TUNING_PAYS * p->wall_s;
}

// Prints interval, overlap and codec of each cluster at the middle of the run.
static void print_tuning(const struct agent_job *job, const struct agent_planner *p) {
    const struct agent_tuning *t = &p->tuning;
    char a[32], b[32];
    if (!p->wan.interval || !(t->on || tuning_pays(p)))
        return;
    printf("  %s sync.tune: auto, in the middle of a run of %s:\n", t->on ? "by" : "with",
           agent_human_time(t->wall_s, a, sizeof a));
    for (int32_t i = 0; i < p->n; i++)
        printf("    %s: %.3g of %u steps, with %s, merged %u steps later; waits %s per interval, "
               "sends %s in total\n",
               job->clusters[i].name, t->of[i].steps, t->of[i].plan.interval,
               p->codecs[t->of[i].codec].name, t->of[i].plan.overlap,
               plan_ms(t->of[i].wait_s, a, sizeof a),
               agent_human_bytes(t->of[i].sent_bytes, b, sizeof b));
}

static void print_one(const char *title, const struct agent_job *job, const struct plan_machines *m,
                      const struct agent_planner *p) {
    char a[32], b[32];
    printf("%s\n", title);
    for (int32_t i = 0; i < p->n; i++) {
        print_step(job->clusters[i].name, &m->sites[i], &p->clusters[i]);
    }
    plan_print_exchange(job, p);
    print_tuning(job, p);
    printf("  whole run: %s for %lld steps, %s sent per cluster\n",
           isfinite(p->wall_s) && p->wall_s > 0 ? agent_human_time(p->wall_s, a, sizeof a)
                                                : "unknown",
           (long long)job->steps, agent_human_bytes(p->sent_bytes, b, sizeof b));
}

static void print_yaml(const struct agent_job *job, const struct agent_planner *p) {
    char time[32];
    const struct intra_cost_job *j = agent_planner_first(p);
    bool own = true; // all trainers attach and choose their own micro-batches
    for (int32_t i = 0; i < p->n; i++)
        own = own && p->clusters[i].attached;
    if (own && !p->wan.interval)
        return;
    printf("to use it:\n");
    if (!own)
        printf("  data.batch: %d\n  data.accumulate: %d\n  recompute: %s\n", j->batch, j->micros,
               j->recompute ? "true" : "false");
    if (p->wan.interval)
        printf("  sync.interval: %d\n  sync.overlap: %d\n  sync.codec: %s\n", p->wan.interval,
               p->wan.overlap, p->codecs[p->wan.codec].name);
    for (int32_t i = 0; i < p->n; i++) {
        const struct intra_cost_job *x = &p->clusters[i].job;
        if (p->clusters[i].attached)
            continue;
        printf("  %s: mesh: {dp: %d, pp: %d, tp: %d}", job->clusters[i].name, x->mesh.dp,
               x->mesh.pp, x->mesh.tp);
        if (x->batch != j->batch)
            printf(", batch: %d", x->batch);
        if (x->recompute != j->recompute)
            printf(", recompute: %s", x->recompute ? "true" : "false");
        printf("\n");
    }
    if (tuning_pays(p)) // clusters that skip steps learn from fewer tokens
        printf("  sync.tune: auto (a run of %s, without waits for slow machines and links; not in "
               "the figures above)\n",
               agent_human_time(p->tuning.wall_s, time, sizeof time));
    for (int32_t i = 0; i < p->n; i++) // not in the figures: it changes what training computes
        if (bf16_pays(&p->clusters[i]))
            printf("  %s: precision: bf16 (steps %.2f times as fast, not in the figures above)\n",
                   job->clusters[i].name, p->clusters[i].bf16_gain);
}

void plan_print_machines(const struct agent_job *job, const struct plan_machines *m, int32_t n) {
    char rate[32], rtt[32];
    for (int32_t i = 0; i < n; i++) {
        print_machine(job->clusters[i].name, &m->sites[i], m->kept);
        print_device(&m->sites[i]);
    }
    struct agent_wan worst = agent_planner_worst(m->sites, n, &m->link);
    printf("link    %s, %s, %.3g %% loss%s\n", agent_human_rate(worst.bits_s, rate, sizeof rate),
           plan_ms(worst.rtt_s, rtt, sizeof rtt), 100 * worst.loss,
           m->assumed    ? " (assumed: set --wan or sync.link)"
           : m->measured ? " (measured by the agent)"
                         : "");
    for (int32_t i = 0; i < n; i++) {
        struct agent_wan own = agent_planner_link(&m->sites[i], &m->link);
        if (own.bits_s > worst.bits_s || own.rtt_s < worst.rtt_s || own.loss < worst.loss)
            printf("        of %s alone: %s, %s, %.3g %% loss\n", job->clusters[i].name,
                   agent_human_rate(own.bits_s, rate, sizeof rate),
                   plan_ms(own.rtt_s, rtt, sizeof rtt), 100 * own.loss);
    }
    if (m->vocab_assumed)
        printf("text    a vocabulary of %d pieces (assumed: no corpus of the job is on this "
               "machine; set model.vocab)\n",
               m->vocab_assumed);
}

// On the job as written, or else on what is proposed for it. NULL: none.
static const char *advice(const struct agent_job *job, const struct agent_planner *written,
                          const struct agent_planner *proposed) {
    static struct agent_job as; // large
    const struct agent_planner *plans[] = {written, proposed};
    const char *text = NULL;
    for (int i = 0; i < 2 && !text; i++) {
        as = *job;
        if (plans[i]->wan.interval)
            agent_planner_apply(plans[i], as.autos, &as);
        text = agent_plan_advice(&as);
    }
    return text;
}

void plan_print(const struct agent_job *job, const struct plan_machines *m,
                const struct agent_planner *written, const struct agent_planner *proposed) {
    const char *text = advice(job, written, proposed);
    plan_print_machines(job, m, written->n);
    print_one("as written", job, m, written);
    print_one("proposed", job, m, proposed);
    print_yaml(job, proposed);
    if (text)
        printf("advice: %s (configs/COMPARE.md)\n", text);
}

// ---- JSON ---------------------------------------------------------------------------------------

void plan_cost_json(const struct intra_cost *c, json_t *o) {
    const struct {
        const char *name;
        double value;
    } figures[] = {{"step_s", c->step_s},
                   {"flops", c->flops},
                   {"compute_s", c->compute_s},
                   {"tp_s", c->tp_s},
                   {"pp_s", c->pp_s},
                   {"dp_s", c->dp_s},
                   {"update_s", c->update_s},
                   {"tp_bytes", c->tp_bytes},
                   {"pp_bytes", c->pp_bytes},
                   {"dp_bytes", c->dp_bytes},
                   {"params_bytes", c->params_bytes},
                   {"optim_bytes", c->optim_bytes},
                   {"acts_bytes", c->acts_bytes},
                   {"exchange_bytes", c->exchange_bytes},
                   {"frames_bytes", c->frames_bytes},
                   {"copy_bytes", c->copy_bytes},
                   {"owner_bytes", c->owner_bytes},
                   {"outer_bytes", c->outer_bytes},
                   {"workspace_bytes", c->workspace_bytes},
                   {"device_bytes", c->device_bytes},
                   {"owner_params", c->owner_params},
                   {"gather_s", c->gather_s},
                   {"scatter_s", c->scatter_s},
                   {"rank_bytes", c->rank_bytes},
                   {"host_bytes", c->host_bytes}};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        json_object_set_new(o, figures[i].name, agent_json_number(figures[i].value));
}

void plan_where_json(const struct intra_cost_job *j, const struct agent_site *s, bool no_device,
                     bool no_bf16, json_t *o) {
    json_object_set_new(o, "rates_of", json_string(j->device ? s->profile.device : "processors"));
    json_object_set_new(o, "device_reckoned", json_boolean(!no_device));
    json_object_set_new(o, "precision_reckoned", json_boolean(!no_bf16));
    json_object_set_new(o, "precision", json_string(j->type == KERN_BF16 ? "bf16" : "fp32"));
}

static json_t *step_json(const char *name, const struct agent_planned *x) {
    if (x->attached)
        return json_pack("{s:s,s:b,s:b,s:o,s:b,s:o,s:f,s:f,s:f}", "name", name, "attached", 1,
                         "fits", 1, "step_s", agent_json_number(x->cost.step_s), "step_guessed",
                         x->guessed, "wait_s", agent_json_number(x->wait_s), "rank_bytes",
                         x->cost.rank_bytes, "exchange_bytes", x->cost.exchange_bytes,
                         "frames_bytes", x->cost.frames_bytes);
    json_t *o = json_pack("{s:s,s:[i,i,i],s:i,s:i,s:b,s:b}", "name", name, "mesh", x->job.mesh.dp,
                          x->job.mesh.pp, x->job.mesh.tp, "batch", x->job.batch, "accumulate",
                          x->job.micros, "recompute", x->job.recompute, "fits", x->fits);
    plan_cost_json(&x->cost, o);
    json_object_set_new(o, "tokens_per_s", agent_json_number(tokens_of(&x->job) / x->cost.step_s));
    json_object_set_new(o, "wait_s", agent_json_number(x->wait_s));
    return o;
}

json_t *plan_exchange_json(const struct agent_job *job, const struct agent_planner *p) {
    const struct inter_wan_plan *w = &p->wan;
    if (!w->interval)
        return json_null();
    return json_pack("{s:i,s:i,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b,s:b}",
                     "interval", w->interval, "overlap", w->overlap, "codec",
                     p->codecs[w->codec].name, "bits_per_param", p->codecs[w->codec].bits,
                     "bits_most", p->bits_most[w->codec], "encode_s", w->encode_s, "travel_s",
                     w->travel_s, "agree_s", w->agree_s, "merge_s", w->merge_s, "stall_s",
                     w->stall_s, "bytes", w->bytes, "busy", w->busy, "step_s", w->step_s, "slower",
                     w->slower, "carried", p->carried, "late", too_late(job, p));
}

static json_t *tuning_json(const struct agent_job *job, const struct agent_planner *p) {
    const struct agent_tuning *t = &p->tuning;
    if (!p->wan.interval || !(t->on || t->possible))
        return json_null();
    json_t *each = json_array();
    for (int32_t i = 0; i < p->n; i++) {
        const struct agent_tuned *x = &t->of[i];
        json_array_append_new(
            each, json_pack("{s:s,s:i,s:f,s:i,s:s,s:f,s:f}", "name", job->clusters[i].name,
                            "interval", (int)x->plan.interval, "steps", x->steps, "overlap",
                            (int)x->plan.overlap, "codec", p->codecs[x->codec].name, "wait_s",
                            x->wait_s, "sent_bytes", x->sent_bytes));
    }
    return json_pack("{s:b,s:o,s:o}", "on", t->on, "wall_s", agent_json_number(t->wall_s),
                     "clusters", each);
}

static json_t *plan_json(const struct agent_job *job, const struct plan_machines *m,
                         const struct agent_planner *p) {
    json_t *clusters = json_array();
    for (int32_t i = 0; i < p->n; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        json_t *o = step_json(c->name, &p->clusters[i]);
        const struct agent_planned *x = &p->clusters[i];
        if (!x->attached) {
            plan_where_json(&x->job, &m->sites[i], x->no_device, x->no_bf16, o);
            json_object_set_new(o, "bf16_gain",
                                x->bf16_gain > 0 ? json_real(x->bf16_gain) : json_null());
        }
        json_array_append_new(clusters, o);
    }
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "clusters", clusters, "exchange",
                     plan_exchange_json(job, p), "tuning", tuning_json(job, p), "wall_s",
                     agent_json_number(p->wall_s), "sent_bytes", agent_json_number(p->sent_bytes));
}

json_t *plan_machines_json(const struct plan_machines *m, int32_t n) {
    json_t *machines = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(machines, agent_profile_to_json(&m->sites[i].profile));
    return machines;
}

json_t *plan_link_json(const struct plan_machines *m, int32_t n) {
    struct agent_wan w = agent_planner_worst(m->sites, n, &m->link);
    json_t *each = json_array();
    for (int32_t i = 0; i < n; i++) {
        struct agent_wan own = agent_planner_link(&m->sites[i], &m->link);
        json_array_append_new(each, json_pack("{s:f,s:f,s:f}", "bits_per_s", own.bits_s, "rtt_s",
                                              own.rtt_s, "loss", own.loss));
    }
    return json_pack("{s:f,s:f,s:f,s:b,s:b,s:o}", "bits_per_s", w.bits_s, "rtt_s", w.rtt_s, "loss",
                     w.loss, "assumed", m->assumed, "measured", m->measured, "clusters", each);
}

json_t *plan_vocab_json(const struct plan_machines *m) {
    return m->vocab_assumed ? json_integer(m->vocab_assumed) : json_null();
}

void plan_print_json(const struct agent_job *job, const struct plan_machines *m,
                     const struct agent_planner *written, const struct agent_planner *proposed) {
    json_t *o =
        json_pack("{s:s,s:s,s:o,s:o,s:o,s:o}", "job", job->name, "mode", "replicas", "machines",
                  plan_machines_json(m, written->n), "link", plan_link_json(m, written->n),
                  "written", plan_json(job, m, written), "proposed", plan_json(job, m, proposed));
    json_object_set_new(o, "vocab_assumed", plan_vocab_json(m));
    const char *text = advice(job, written, proposed);
    json_object_set_new(o, "advice", text ? json_string(text) : json_null());
    agent_json_print(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
}
