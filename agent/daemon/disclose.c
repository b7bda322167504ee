// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/disclose.h"

#include "agent/job/json.h"

#include <math.h>
#include <string.h>

void agent_disclosed_take(struct agent_disclosed *t, json_t *line) {
    json_t *s = json_object_get(line, "sums");
    if (!s)
        return;
    struct agent_disclosed_sums now = {
        json_number_value(json_array_get(s, 0)), json_number_value(json_array_get(s, 2)),
        json_integer_value(json_array_get(s, 1)), json_integer_value(json_array_get(s, 3)),
        json_integer_value(json_array_get(s, 4))};
    if (now.steps < t->now.steps) // the worker was restarted
        t->said = (struct agent_disclosed_sums){0};
    t->now = now;
    json_object_del(line, "sums");
}

double agent_disclosed_round(double x) {
    if (!isfinite(x) || x == 0)
        return x;
    double unit = pow(10, fmax(-3, floor(log10(fabs(x))) - 3));
    return round(x / unit) * unit;
}

static bool ends(const char *key, const char *with) {
    size_t n = strlen(key), m = strlen(with);
    return n >= m && !strcmp(key + n - m, with);
}

// Times and rates describe the machine, and lr is in the job.
static bool is_free(const char *key) {
    return ends(key, "_s") || ends(key, "_ms") || ends(key, "_bps") || !strcmp(key, "lr");
}

static json_t *coarse(const json_t *real, bool hide) {
    return hide ? json_null() : agent_json_number(agent_disclosed_round(json_real_value(real)));
}

// Rounds all fractions at any depth. hide: replaces them by null.
static void make_coarse(json_t *v, bool hide) {
    const char *key;
    json_t *x;
    size_t i;
    void *next;
    json_array_foreach(v, i, x) {
        if (json_is_real(x))
            json_array_set_new(v, i, coarse(x, hide));
        else
            make_coarse(x, hide);
    }
    json_object_foreach_safe(v, next, key, x) {
        if (!json_is_real(x))
            make_coarse(x, hide);
        else if (!is_free(key))
            json_object_set_new(v, key, coarse(x, hide));
    }
}

static json_t *mean(double sum, int64_t n) {
    return n > 0 ? agent_json_number(agent_disclosed_round(sum / (double)n)) : json_null();
}

// Puts the mean into the line if a stretch is complete, else null.
static void tell_step(struct agent_disclosed *t, const struct agent_disclosed_rules *r,
                      json_t *line) {
    struct agent_disclosed_sums *s = &t->said;
    bool due = r->losses != AGENT_LOSSES_NEVER && t->now.steps - s->steps >= r->every;
    json_t *loss = due ? mean(t->now.loss - s->loss, t->now.losses - s->losses) : json_null(),
           *norm =
               due ? mean(t->now.grad_norm - s->grad_norm, t->now.norms - s->norms) : json_null();
    json_object_set_new(line, "grad_norm", norm);
    json_object_set_new(line, "loss", loss);
    if (!due)
        return;
    *s = t->now;
    if (!json_is_real(loss))
        return;
    t->last = json_real_value(loss);
    t->first = t->any ? t->first : t->last;
    t->any = true;
}

static bool is_kind(const json_t *line, const char *kind) {
    const char *k = json_string_value(json_object_get(line, "kind"));
    return k && !strcmp(k, kind);
}

json_t *agent_disclosed_line(struct agent_disclosed *t, const struct agent_disclosed_rules *r,
                             const json_t *line) {
    bool step = is_kind(line, "step"), eval = is_kind(line, "eval"),
         hide = eval && (!r->held_out || r->losses == AGENT_LOSSES_NEVER);
    int64_t at = json_integer_value(json_object_get(line, "step"));
    if (r->losses == AGENT_LOSSES_EXACT)
        return json_deep_copy(line);
    if (eval && at < t->next_eval)
        return NULL;
    json_t *out = json_deep_copy(line);
    if (eval)
        t->next_eval = at + r->every;
    if (step)
        tell_step(t, r, out);
    make_coarse(out, hide);
    return out;
}

json_t *agent_disclosed_report(const struct agent_disclosed *t,
                               const struct agent_disclosed_rules *r, const json_t *report) {
    static const char *const held_out[] = {"eval_loss", "eval_by_source", "quality"};
    json_t *out = json_deep_copy(report);
    if (r->losses == AGENT_LOSSES_EXACT)
        return out;
    if (json_object_get(out, "loss_first")) {
        json_object_set_new(out, "loss_first", t->any ? json_real(t->first) : json_null());
        json_object_set_new(out, "loss_last", t->any ? json_real(t->last) : json_null());
    }
    for (size_t i = 0; i < sizeof held_out / sizeof *held_out; i++) {
        json_t *v = json_object_get(out, held_out[i]);
        if (r->held_out && r->losses != AGENT_LOSSES_NEVER)
            break;
        if (json_is_number(v))
            json_object_set_new(out, held_out[i], json_null());
        else
            make_coarse(v, true);
    }
    make_coarse(out, false);
    return out;
}
