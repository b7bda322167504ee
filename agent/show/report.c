// SPDX-License-Identifier: Apache-2.0
#include "agent/show/report.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/job/config.h"
#include "agent/job/json.h"
#include "agent/show/about.h"
#include "agent/show/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- metrics.jsonl ------------------------------------------------------------------------------

enum { TAIL_BYTES = 1 << 20, LINK_PARTS = 600, LINK_RARE_S = 30 };

struct agent_metrics {
    int fd;
    off_t end; // after the last complete line
    neb_ns start;
    double offset_s; // the last t of the previous run
    struct link_line {
        double t; // of the last line written; 0: none
        bool up;
    } links[AGENT_CLUSTERS_MAX];
    FILE *show; // NULL: none
    char path[NEB_PATH_MAX];
};

// Thirty years: a larger t can only come from a damaged line, and no valid line could follow it.
static const double latest_s = 1e9;

// The largest t of the complete lines among n bytes.
static double newest(const char *p, size_t n) {
    double t = 0;
    for (const char *end = memrchr(p, '\n', n); end && p < end;) {
        const char *next = memchr(p, '\n', (size_t)(end - p) + 1);
        json_t *o = json_loadb(p, (size_t)(next - p), 0, NULL);
        const json_t *v = json_object_get(o, "t");
        if (json_number_value(v) > t && json_number_value(v) < latest_s)
            t = json_number_value(v);
        json_decref(o);
        p = next + 1;
    }
    return t;
}

// Finds the length of the complete lines and the largest t among the last TAIL_BYTES. A long run
// has millions of lines, and only lines delayed by a dead link are out of order. Skips a partial
// line at the start of the tail.
static enum neb_status find_end(const char *path, off_t *end, double *t) {
    struct neb_map map;
    *end = 0;
    *t = 0;
    if (!neb_fs_exists(path))
        return NEB_OK;
    NEB_TRY(neb_map_open(path, &map));
    const char *p = (const char *)map.p, *last = map.len ? memrchr(p, '\n', map.len) : NULL;
    if (last) {
        size_t whole = (size_t)(last - p) + 1, at = whole > TAIL_BYTES ? whole - TAIL_BYTES : 0;
        const char *from = at ? (const char *)memchr(p + at, '\n', whole - at) + 1 : p;
        *end = (off_t)whole;
        *t = newest(from, whole - (size_t)(from - p));
    }
    neb_map_close(&map);
    return NEB_OK;
}

enum neb_status agent_metrics_open(const char *path, bool resume, neb_ns now,
                                   struct agent_metrics **out) {
    enum neb_status st = NEB_OK;
    struct agent_metrics *m = calloc(1, sizeof *m);
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    m->fd = -1;
    m->start = now;
    if (strlen(path) >= sizeof m->path) {
        st = neb_fail(NEB_ERR_LIMIT, "%s: path too long", path);
        goto out;
    }
    memcpy(m->path, path, strlen(path));
    if (resume)
        NEB_TRY_GOTO(find_end(path, &m->end, &m->offset_s), out);
    m->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (m->fd < 0 || ftruncate(m->fd, m->end) != 0)
        st = neb_fail_errno("cannot write %s", path);
out:
    if (st == NEB_OK)
        *out = m;
    else
        agent_metrics_close(&m);
    return st;
}

void agent_metrics_close(struct agent_metrics **mp) {
    if (*mp && (*mp)->fd >= 0)
        close((*mp)->fd);
    free(*mp);
    *mp = NULL;
}

double agent_metrics_seconds(const struct agent_metrics *m, neb_ns now) {
    return m->offset_s + neb_seconds(now - m->start);
}

bool agent_metrics_wants(struct agent_metrics *m, int cluster, neb_ns now, const json_t *line) {
    struct link_line *last = &m->links[cluster];
    const char *kind = json_string_value(json_object_get(line, "kind"));
    bool up = json_is_true(json_object_get(line, "up"));
    double t = agent_metrics_seconds(m, now), apart = t / LINK_PARTS;
    if (!kind || strcmp(kind, "link") != 0)
        return true;
    // Lines come about once a second, not exactly.
    if (last->t > 0 && up == last->up && apart > 1 &&
        t - last->t < (apart < LINK_RARE_S ? apart : LINK_RARE_S))
        return false;
    *last = (struct link_line){t, up};
    return true;
}

// Writes at the known end: it continues a short write, and after a failure cuts off the partial
// line.
static enum neb_status append(struct agent_metrics *m, const char *text, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(m->fd, text + done, n - done, m->end + (off_t)done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0) {
            int why = errno;
            if (ftruncate(m->fd, m->end) != 0)
                neb_warn("%s: its last line may be incomplete", m->path);
            errno = k < 0 ? why : ENOSPC;
            return neb_fail_errno("cannot write %s", m->path);
        }
        done += (size_t)k;
    }
    m->end += (off_t)n;
    return NEB_OK;
}

void agent_metrics_show(struct agent_metrics *m, FILE *f) { m->show = f; }

enum neb_status agent_metrics_add(struct agent_metrics *m, neb_ns now, json_t *line) {
    enum neb_status st = NEB_OK;
    char *text = NULL;
    json_t *whole = json_object(); // t comes first, for people who read the file
    double t = round(fmax(agent_metrics_seconds(m, now), m->offset_s) * 1e3) / 1e3;
    if (!json_is_string(json_object_get(line, "kind"))) {
        st = neb_fail(NEB_ERR_INVALID, "%s: a line must be an object with a kind", m->path);
        goto out;
    }
    if (!whole || json_object_set_new(whole, "t", json_real(t)) != 0 ||
        json_object_update(whole, line) != 0 ||
        json_object_set_new(whole, "t", json_real(t)) != 0 || // replaces a t of the caller's line
        !(text = json_dumps(whole, JSON_COMPACT | JSON_REAL_PRECISION(9)))) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", m->path);
        goto out;
    }
    size_t n = strlen(text);
    text[n] = '\n'; // replaces the final 0: append() takes a length
    st = append(m, text, n + 1);
    if (m->show) { // even if the file could not be written
        fwrite(text, 1, n + 1, m->show);
        fflush(m->show);
    }
out:
    free(text);
    json_decref(whole);
    json_decref(line);
    return st;
}

enum neb_status agent_metrics_read(const char *path, agent_metrics_each *each, void *user,
                                   int64_t *bad) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t failed = 0;
    if (!f)
        return neb_fail_errno("cannot read %s", path);
    while ((n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n') {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        if (json_is_object(o))
            each(user, o);
        else
            failed++;
        json_decref(o);
    }
    free(line);
    fclose(f);
    if (bad)
        *bad = failed;
    return NEB_OK;
}

bool agent_report_is_former(const json_t *report, const json_t *line) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    return json_is_true(json_object_get(report, "stopped")) && kind && !strcmp(kind, "step") &&
           json_integer_value(json_object_get(line, "step")) >
               json_integer_value(json_object_get(report, "steps"));
}

// ---- summary.json -------------------------------------------------------------------------------

double agent_summary_bits_per_param(const struct agent_summary *s) {
    return s->payload_params ? 8.0 * (double)s->payload_bytes / (double)s->payload_params : NAN;
}

double agent_summary_reduction(const struct agent_summary *s) {
    double sent = 0, steps = 0;
    for (int32_t i = 0; i < s->n_clusters; i++) {
        sent += (double)s->clusters[i].wan_sent_bytes;
        steps += (double)(s->clusters[i].steps - s->clusters[i].steps_left_out);
    }
    // Both are means over the clusters, so their number cancels.
    return sent > 0 ? steps * (double)s->trainable_params * 4 / sent : NAN;
}

static json_t *cluster_json(const struct agent_cluster_summary *c) {
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:s}",
        "name", c->name, "device", c->device, "steps", (json_int_t)c->steps, "steps_left_out",
        (json_int_t)c->steps_left_out, "tokens", (json_int_t)c->tokens, "loss_first",
        agent_json_number(c->loss_first), "loss_last", agent_json_number(c->loss_last), "eval_loss",
        agent_json_number(c->eval_loss), "stall_s", agent_json_number(c->stall_s), "train_s",
        agent_json_number(c->train_s), "lost_steps", (json_int_t)c->lost_steps, "divergences",
        (json_int_t)c->divergences, "wan_sent_bytes", (json_int_t)c->wan_sent_bytes,
        "wan_recv_bytes", (json_int_t)c->wan_recv_bytes, "wan_payload_bytes",
        (json_int_t)c->wan_payload_bytes, "wan_protocol_bytes", (json_int_t)c->wan_protocol_bytes,
        "params_digest", c->params_digest);
}

static json_t *summary_json(const struct agent_summary *s) {
    json_t *clusters = json_array();
    for (int32_t i = 0; clusters && i < s->n_clusters; i++)
        if (json_array_append_new(clusters, cluster_json(&s->clusters[i])) != 0) {
            json_decref(clusters);
            clusters = NULL;
        }
    if (!clusters)
        return NULL;
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "job", s->job, "mode",
                  s->mode, "params", (json_int_t)s->params, "trainable_params",
                  (json_int_t)s->trainable_params, "rounds", (json_int_t)s->rounds, "wall_s",
                  agent_json_number(s->wall_s), "clusters", clusters, "wire_bits_per_param",
                  agent_json_number(agent_summary_bits_per_param(s)), "reduction_vs_sync_fp32",
                  agent_json_number(agent_summary_reduction(s)), "build", agent_about());
    json_t *privacy =
        s->privacy.text[0]
            ? json_pack("{s:o, s:f, s:I, s:f, s:f, s:i}", "epsilon",
                        agent_json_number(s->privacy.epsilon), "delta", s->privacy.delta,
                        "releases", (json_int_t)s->privacy.releases, "clip", s->privacy.clip,
                        "noise", s->privacy.noise, "colluders", (int)s->privacy.colluders)
            : NULL;
    bool whole = o && (!s->privacy.text[0] || json_object_set_new(o, "privacy", privacy) == 0) &&
                 (!s->quality || json_object_set(o, "quality", s->quality) == 0) &&
                 (!s->missing || json_object_set(o, "missing", s->missing) == 0);
    if (o && !whole) {
        json_decref(o);
        return NULL;
    }
    return o;
}

enum neb_status agent_summary_write(const struct agent_summary *s, const char *dir) {
    char path[NEB_PATH_MAX];
    json_t *o = summary_json(s);
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    enum neb_status st =
        text ? neb_path(path, sizeof path, dir, "summary.json")
             : neb_fail(NEB_ERR_NOMEM, "out of memory writing %s/summary.json", dir);
    if (st == NEB_OK) {
        size_t n = strlen(text);
        text[n] = '\n';
        st = neb_fs_write(path, text, n + 1, 0644);
    }
    free(text);
    json_decref(o);
    return st;
}

enum neb_status agent_summary_print_json(const struct agent_summary *s, FILE *f) {
    json_t *o = summary_json(s), *line = json_pack("{s:s}", "kind", "summary");
    enum neb_status st = NEB_OK;
    if (!o || !line || json_object_update(line, o) != 0)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory printing the summary");
    else if (json_dumpf(line, f, JSON_COMPACT | JSON_REAL_PRECISION(12)) != 0 ||
             fputc('\n', f) == EOF || fflush(f) != 0)
        st = neb_fail_errno("cannot print the summary");
    json_decref(line);
    json_decref(o);
    return st;
}

const char *agent_loss_text(double v, char *buf, size_t cap) {
    snprintf(buf, cap, isfinite(v) ? "%.4f" : "-", v);
    return buf;
}

void agent_summary_print(const struct agent_summary *s, FILE *f) {
    char a[32], b[32], c[32];
    double bits = agent_summary_bits_per_param(s), reduction = agent_summary_reduction(s);
    fprintf(f, "%s (%s): %lld parameters, %lld trained, %lld rounds, %s\n", s->job, s->mode,
            (long long)s->params, (long long)s->trainable_params, (long long)s->rounds,
            agent_human_time(s->wall_s, a, sizeof a));
    if (isfinite(bits))
        fprintf(f, "%.2f bits per parameter and exchange", bits);
    if (isfinite(reduction))
        fprintf(f, "%s%.0f times fewer bytes than synchronous fp32", isfinite(bits) ? ", " : "",
                reduction);
    if (isfinite(bits) || isfinite(reduction))
        fputc('\n', f);
    if (s->privacy.text[0])
        fprintf(f, "%s\n", s->privacy.text);
    int width = 7; // of the names, which are ASCII: bytes are columns
    for (int32_t i = 0; i < s->n_clusters; i++)
        if ((int)strlen(s->clusters[i].name) > width)
            width = (int)strlen(s->clusters[i].name);
    fprintf(f, "%-*s  %9s %14s %8s %8s %8s %7s %9s %9s  %s\n", width, "cluster", "steps", "tokens",
            "first", "last", "held out", "stall", "sent", "received", "digest");
    for (int32_t i = 0; i < s->n_clusters; i++) {
        const struct agent_cluster_summary *k = &s->clusters[i];
        double busy = k->train_s + k->stall_s;
        fprintf(f, "%-*s  %9lld %14lld", width, k->name, (long long)k->steps, (long long)k->tokens);
        fprintf(f, " %8s %8s %8s", agent_loss_text(k->loss_first, a, sizeof a),
                agent_loss_text(k->loss_last, b, sizeof b),
                agent_loss_text(k->eval_loss, c, sizeof c));
        fprintf(f, " %6.1f%% %9s %9s  %.12s\n", busy > 0 ? 100 * k->stall_s / busy : 0,
                agent_human_bytes((double)k->wan_sent_bytes, a, sizeof a),
                agent_human_bytes((double)k->wan_recv_bytes, b, sizeof b),
                k->params_digest[0] ? k->params_digest : "-");
    }
    for (int32_t i = 0; i < s->n_clusters; i++) {
        const struct agent_cluster_summary *k = &s->clusters[i];
        if (k->steps_left_out)
            fprintf(f, "%s is slower than the fastest cluster and skipped %lld of its steps\n",
                    k->name, (long long)k->steps_left_out);
        if (k->lost_steps)
            fprintf(f,
                    "%s continued from the state of other clusters and skipped %lld steps, which "
                    "were committed before or lost with its disk\n",
                    k->name, (long long)k->lost_steps);
        if (k->divergences)
            fprintf(f,
                    "ERROR: the parameters of %s diverged from those of the others %lld times and "
                    "were replaced by theirs: check its memory\n",
                    k->name, (long long)k->divergences);
    }
}
