#include "agent/progress.h"

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
    int64_t mark_step; // for the recent rate behind the ETA
    neb_ns mark_time;
    double steps_per_s;
};

static const neb_ns terminal_interval = 250 * NEB_MS, plain_interval = 5 * NEB_S;

enum neb_status agent_progress_create(enum agent_progress_kind kind, FILE *out, int n_clusters, int64_t total_steps,
                                      neb_ns now, struct agent_progress **out_p) {
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
    *out_p = p;
    return NEB_OK;
}

void agent_progress_destroy(struct agent_progress **pp) {
    if (*pp)
        free((*pp)->samples);
    free(*pp);
    *pp = NULL;
}

struct agent_sample *agent_progress_sample(struct agent_progress *p, int cluster) { return &p->samples[cluster]; }

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
    if (p->kind == AGENT_PROGRESS_JSON) {
        json_dumpf(line, p->out, JSON_COMPACT);
        fputc('\n', p->out);
        fflush(p->out);
    }
    if (!kind)
        return;
    if (!strcmp(kind, "step")) {
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
    snprintf(buf, cap, b >= 100 || u == 0 ? "%.0f %s" : b >= 10 ? "%.1f %s" : "%.2f %s", b, units[u]);
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
    for (int i = 0; i < p->n; i++)
        least = p->samples[i].step < least ? p->samples[i].step : least;
    double dt = neb_seconds(now - p->mark_time);
    if (dt > 2 && least > p->mark_step) {
        double rate = (double)(least - p->mark_step) / dt;
        p->steps_per_s = p->steps_per_s > 0 ? 0.6 * p->steps_per_s + 0.4 * rate : rate;
        p->mark_step = least;
        p->mark_time = now;
    }
    return p->steps_per_s > 0 ? (double)(p->total_steps - least) / p->steps_per_s : -1;
}

static void line_of(const struct agent_progress *p, const struct agent_sample *s, char *out, size_t cap) {
    char sent[32], recv[32], rate[32] = "-";
    if (s->goodput_bps > 0)
        agent_human_rate(s->goodput_bps, rate, sizeof rate);
    double busy = s->train_s + s->stall_s;
    snprintf(out, cap, "%-10.10s step %*lld/%lld  loss %6.3f  %7.0f tok/s  sent %8s  recv %8s  %11s  stall %4.1f%%  round %lld%s",
             s->name, p->total_steps > 9999 ? 7 : 4, (long long)s->step, (long long)p->total_steps, s->loss, s->tokens_per_s,
             agent_human_bytes((double)s->sent_bytes, sent, sizeof sent), agent_human_bytes((double)s->recv_bytes, recv, sizeof recv),
             rate, busy > 0 ? 100 * s->stall_s / busy : 0, (long long)s->round, s->link_known && !s->link_up ? "  LINK DOWN" : "");
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
        line_of(p, &p->samples[i], text, sizeof text);
        if (p->kind == AGENT_PROGRESS_PLAIN)
            fprintf(p->out, "[%s, %s left] %s\n", gone, left, text);
        else
            fprintf(p->out, "%.*s\n", width - 1, text);
    }
    if (p->kind == AGENT_PROGRESS_TERMINAL) {
        fprintf(p->out, "%s elapsed, %s left\n", gone, left);
        p->drawn_lines = p->n + 1;
    }
    fflush(p->out);
}

void agent_progress_note(struct agent_progress *p, const char *text) {
    if (p->kind == AGENT_PROGRESS_JSON)
        return;
    if (p->kind == AGENT_PROGRESS_TERMINAL)
        erase(p);
    fprintf(p->out, "%s\n", text);
    fflush(p->out);
}
