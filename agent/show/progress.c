// SPDX-License-Identifier: Apache-2.0
#include "agent/show/progress.h"
#include "agent/base/member_set.h"
#include "agent/base/plain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct agent_progress {
    enum agent_progress_kind kind;
    FILE *out;
    int n;
    int64_t total_steps;
    neb_ns start, last_draw;
    int drawn_lines;
    struct agent_sample *samples;
    int64_t mark_step;         // start of the current rate for the remaining time; -1: no step yet
    struct member_set counted; // the clusters that the rate counts
    neb_ns mark_time;
    double steps_per_s;
};

static const neb_ns terminal_interval = 250 * NEB_MS, plain_interval = 5 * NEB_S;

enum neb_status agent_progress_create(enum agent_progress_kind kind, FILE *out, int n_clusters,
                                      int64_t total_steps, neb_ns now,
                                      struct agent_progress **out_p) {
    struct agent_progress *p = calloc(1, sizeof *p);
    if (!p || !(p->samples = calloc((size_t)n_clusters, sizeof *p->samples))) {
        free(p);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the progress display");
    }
    p->kind = kind;
    p->out = out;
    p->n = n_clusters;
    p->total_steps = total_steps;
    p->start = p->last_draw = p->mark_time = now;
    p->mark_step = -1;
    for (int i = 0; i < n_clusters; i++)
        p->samples[i].loss = NAN;
    *out_p = p;
    return NEB_OK;
}

void agent_progress_destroy(struct agent_progress **pp) {
    if (*pp)
        free((*pp)->samples);
    free(*pp);
    *pp = NULL;
}

struct agent_sample *agent_progress_sample(struct agent_progress *p, int cluster) {
    return &p->samples[cluster];
}

static void get_int(const json_t *o, const char *key, int64_t *out) {
    json_t *v = json_object_get(o, key);
    if (json_is_integer(v))
        *out = json_integer_value(v);
}

static void get_real(const json_t *o, const char *key, double *out) {
    json_t *v = json_object_get(o, key);
    if (json_is_number(v))
        *out = json_number_value(v);
}

void agent_progress_metrics(struct agent_progress *p, int cluster, const json_t *line) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    struct agent_sample *s = &p->samples[cluster];
    int64_t sent = (int64_t)s->sent_bytes, recv = (int64_t)s->recv_bytes;
    if (!kind)
        return;
    if (!strcmp(kind, "step")) {
        s->out = false;
        get_int(line, "step", &s->step);
        get_int(line, "tokens", &s->tokens);
        get_real(line, "loss", &s->loss);
        get_real(line, "tokens_per_s", &s->tokens_per_s);
        get_real(line, "stall_s", &s->stall_s);
        get_real(line, "train_s", &s->train_s);
    } else if (!strcmp(kind, "round")) {
        get_int(line, "round", &s->round);
    } else if (!strcmp(kind, "link")) {
        get_int(line, "sent_bytes", &sent);
        get_int(line, "recv_bytes", &recv);
        get_real(line, "goodput_bps", &s->goodput_bps);
        s->sent_bytes = (uint64_t)sent;
        s->recv_bytes = (uint64_t)recv;
        s->link_known = true;
        s->link_up = json_is_true(json_object_get(line, "up"));
    }
}

const char *agent_human_bytes(double b, char *buf, size_t cap) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (b >= 999.5 && u < 4)
        b /= 1000, u++;
    snprintf(buf, cap,
             b >= 100 || u == 0 ? "%.0f %s"
             : b >= 10          ? "%.1f %s"
                                : "%.2f %s",
             b, units[u]);
    return buf;
}

const char *agent_human_rate(double r, char *buf, size_t cap) {
    static const char *const units[] = {"bit/s", "kbit/s", "Mbit/s", "Gbit/s"};
    int u = 0;
    while (r >= 999.5 && u < 3)
        r /= 1000, u++;
    snprintf(buf, cap, r >= 100 || u == 0 ? "%.0f %s" : "%.1f %s", r, units[u]);
    return buf;
}

const char *agent_human_time(double s, char *buf, size_t cap) {
    long t = (long)(s + 0.5);
    if (s < 0 || s > 1e8)
        snprintf(buf, cap, "--:--");
    else if (t < 3600)
        snprintf(buf, cap, "%ld:%02ld", t / 60, t % 60);
    else
        snprintf(buf, cap, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
    return buf;
}

static double eta(struct agent_progress *p, neb_ns now) {
    int64_t least = p->total_steps;
    struct member_set counted = mset_none();
    for (int i = 0; i < p->n; i++) {
        if (p->samples[i].out)
            continue;
        mset_add(&counted, i);
        least = p->samples[i].step < least ? p->samples[i].step : least;
    }
    if (!mset_equal(counted, p->counted)) // another cluster may be the slowest now
        p->mark_step = -1;
    p->counted = counted;
    // Earlier steps do not show the current speed: the job may have been resumed.
    if (p->mark_step < 0 && least > 0) {
        p->mark_step = least;
        p->mark_time = now;
    }
    double dt = neb_seconds(now - p->mark_time);
    if (p->mark_step >= 0 && dt > 2 && least > p->mark_step) {
        double rate = (double)(least - p->mark_step) / dt;
        p->steps_per_s = p->steps_per_s > 0 ? 0.6 * p->steps_per_s + 0.4 * rate : rate;
        p->mark_step = least;
        p->mark_time = now;
    }
    if (least >= p->total_steps)
        return 0;
    return p->steps_per_s > 0 ? (double)(p->total_steps - least) / p->steps_per_s : -1;
}

enum { FIELDS = 9, FIELD_MAX = 48 };

// Fills the fields of a row in display order; returns their number.
static int fields_of(const struct agent_sample *s, int64_t total_steps, char f[FIELDS][FIELD_MAX]) {
    char buf[32];
    double busy = s->train_s + s->stall_s;
    int n = 0;
    snprintf(f[n++], FIELD_MAX, "%-10.10s step %*lld/%lld", s->name, total_steps > 9999 ? 7 : 4,
             (long long)s->step, (long long)total_steps);
    snprintf(f[n++], FIELD_MAX, s->step > 0 && isfinite(s->loss) ? "loss %6.3f" : "loss      -",
             s->loss);
    snprintf(f[n++], FIELD_MAX, "%7.0f tok/s", s->tokens_per_s);
    snprintf(f[n++], FIELD_MAX, "sent %8s",
             agent_human_bytes((double)s->sent_bytes, buf, sizeof buf));
    snprintf(f[n++], FIELD_MAX, "recv %8s",
             agent_human_bytes((double)s->recv_bytes, buf, sizeof buf));
    snprintf(f[n++], FIELD_MAX, "%11s",
             s->goodput_bps > 0 ? agent_human_rate(s->goodput_bps, buf, sizeof buf) : "-");
    snprintf(f[n++], FIELD_MAX, "stall %4.1f%%", busy > 0 ? 100 * s->stall_s / busy : 0);
    snprintf(f[n++], FIELD_MAX, "round %lld", (long long)s->round);
    if (s->link_known && !s->link_up)
        snprintf(f[n++], FIELD_MAX, "LINK DOWN");
    return n;
}

void agent_progress_line(const struct agent_sample *s, int64_t total_steps, int width, char *out,
                         size_t cap) {
    // Fields to drop on a narrow terminal, first to last: received, round, tokens/s, goodput,
    // stall, sent, loss.
    static const int dispensable[] = {4, 7, 2, 5, 6, 3, 1};
    char f[FIELDS][FIELD_MAX];
    int n = fields_of(s, total_steps, f), length = -2;
    for (int i = 0; i < n; i++)
        length += 2 + (int)strlen(f[i]);
    for (size_t i = 0; i < sizeof dispensable / sizeof dispensable[0] && length > width; i++) {
        length -= 2 + (int)strlen(f[dispensable[i]]);
        f[dispensable[i]][0] = 0;
    }
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < n && used < cap; i++)
        if (f[i][0])
            used += (size_t)snprintf(out + used, cap - used, "%s%s", used ? "  " : "", f[i]);
    if (width >= 0 && (size_t)width < cap && used > (size_t)width)
        out[width] = 0;
}

static void erase(struct agent_progress *p) {
    for (; p->drawn_lines > 0; p->drawn_lines--)
        fputs("\033[1A\033[2K", p->out);
}

static int width_of(FILE *f) {
    struct winsize w;
    return ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 200;
}

void agent_progress_draw(struct agent_progress *p, neb_ns now, bool force) {
    char text[512], left[32], gone[32];
    neb_ns interval = p->kind == AGENT_PROGRESS_TERMINAL ? terminal_interval : plain_interval;
    if (p->kind == AGENT_PROGRESS_JSON || (!force && now - p->last_draw < interval))
        return;
    p->last_draw = now;
    double remaining = eta(p, now);
    agent_human_time(neb_seconds(now - p->start), gone, sizeof gone);
    agent_human_time(remaining, left, sizeof left);
    if (p->kind == AGENT_PROGRESS_TERMINAL)
        erase(p);
    int width = p->kind == AGENT_PROGRESS_TERMINAL ? width_of(p->out) : 200;
    for (int i = 0; i < p->n; i++) {
        agent_progress_line(&p->samples[i], p->total_steps, width - 1, text, sizeof text);
        if (p->kind == AGENT_PROGRESS_PLAIN)
            fprintf(p->out, "[%s, %s left] %s\n", gone, left, text);
        else
            fprintf(p->out, "%s\n", text);
    }
    if (p->kind == AGENT_PROGRESS_TERMINAL) {
        fprintf(p->out, "%s elapsed, %s left\n", gone, left);
        p->drawn_lines = p->n + 1;
    }
    fflush(p->out);
}

void agent_progress_note(struct agent_progress *p, const char *text) {
    char plain[512];
    if (p->kind == AGENT_PROGRESS_JSON) {
        json_t *line = json_pack("{s:s, s:s}", "kind", "note", "text", text);
        json_dumpf(line, p->out, JSON_COMPACT);
        fputc('\n', p->out);
        json_decref(line);
    } else {
        erase(p); // the next drawing starts below the note
        snprintf(plain, sizeof plain, "%s", text);
        neb_plain(plain, false);
        fprintf(p->out, "%s\n", plain);
    }
    fflush(p->out);
}
