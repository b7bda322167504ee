// SPDX-License-Identifier: Apache-2.0
// Parameters as text and control commands: see mesh.h.
#include "agent/wan/mesh.h"
#include "agent/base/number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void wan_buf_printf(struct neb_buf *b, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0)
        neb_buf_add(b, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

struct unit {
    const char *name;
    double factor;
};
static const struct unit rate_units[] = {{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3},
                                         {"bit", 1},    {"", 1},       {0}};
static const struct unit time_units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {0}};
static const struct unit share_units[] = {{"%", 0.01}, {"", 1}, {0}};
static const struct unit size_units[] = {{"KiB", 1024}, {"MiB", 1048576}, {"kB", 1e3}, {"KB", 1e3},
                                         {"MB", 1e6},   {"B", 1},         {"", 1},     {0}};
static const struct unit bdp_units[] = {{"bdp", 1}, {0}};

// A number, one of the units, and nothing else; the value is finite and in [0, max].
static bool quantity(const char *text, const struct unit *units, double max, double *out) {
    double v;
    const char *end = neb_number_prefix(text, &v);
    if (!end)
        return false;
    for (; units->name != NULL; units++) {
        if (strcmp(end, units->name) == 0 && v * units->factor <= max) {
            *out = v * units->factor;
            return true;
        }
    }
    // A bare zero needs no unit.
    if (*end == 0 && v == 0) {
        *out = 0;
        return true;
    }
    return false;
}

enum neb_status wan_param_set(struct wan_params *p, const char *name, const char *value,
                              char why[160]) {
    const char *expect = NULL;
    double v;
    if (strcmp(name, "rate") == 0) {
        if (quantity(value, rate_units, 100e9, &v) && (v == 0 || v >= 1000))
            p->rate_bps = (uint64_t)v;
        else
            expect = "1kbit to 100gbit (for example 100mbit), or 0 for unlimited";
    } else if (strcmp(name, "delay") == 0) {
        if (quantity(value, time_units, 60e9, &v))
            p->delay = (neb_ns)v;
        else
            expect = "0 to 60s with a unit (for example 40ms)";
    } else if (strcmp(name, "jitter") == 0) {
        if (quantity(value, time_units, 10e9, &v))
            p->jitter = (neb_ns)v;
        else
            expect = "0 to 10s with a unit (for example 2ms)";
    } else if (strcmp(name, "loss") == 0 || strcmp(name, "reorder") == 0) {
        if (quantity(value, share_units, 1, &v))
            *(name[0] == 'l' ? &p->loss : &p->reorder) = v;
        else
            expect = "0 to 100% (for example 0.1%, or 0.001)";
    } else if (strcmp(name, "queue") == 0) {
        if (quantity(value, bdp_units, 1000, &v) && v > 0)
            p->queue_bdp = v;
        else if (quantity(value, size_units, 1e9, &v) && v >= 1500)
            p->queue_bytes = (uint64_t)v, p->queue_bdp = 0;
        else
            expect = "1500 bytes to 1000 MB (for example 256KiB), or a multiple of bdp (2bdp)";
    } else {
        snprintf(why, 160,
                 "unknown parameter '%.40s' (known: rate, delay, jitter, loss, reorder, queue)",
                 name);
        return NEB_ERR_INVALID;
    }
    if (expect == NULL)
        return NEB_OK;
    snprintf(why, 160, "%s '%.40s': expected %s", name, value, expect);
    return NEB_ERR_INVALID;
}

enum neb_status wan_params_parse(struct wan_params *p, const char *list, char why[160]) {
    struct wan_params q = *p;
    char text[256], *save = NULL;
    if (strlen(list) >= sizeof text) {
        snprintf(why, 160, "the parameter list is longer than %zu bytes", sizeof text - 1);
        return NEB_ERR_INVALID;
    }
    snprintf(text, sizeof text, "%s", list);
    for (char *item = strtok_r(text, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(item, '=');
        if (eq == NULL) {
            snprintf(why, 160, "'%.60s': expected name=value", item);
            return NEB_ERR_INVALID;
        }
        *eq = 0;
        NEB_TRY(wan_param_set(&q, item, eq + 1, why));
    }
    *p = q;
    return NEB_OK;
}

void wan_mesh_stats(const struct wan_mesh *m, neb_ns now, struct neb_buf *out) {
    wan_buf_printf(out, "{\"uptime_s\":%.3f,\"links\":[", neb_seconds(now - m->started));
    const char *comma = "";
    for (unsigned i = 0; i < m->sites; i++) {
        for (unsigned j = 0; j < m->sites; j++) {
            if (i == j)
                continue;
            const struct wan_link *l = &m->link[i][j];
            const struct wan_stats *s = &l->stats;
            wan_buf_printf(out,
                           "%s{\"from\":%u,\"to\":%u,\"rate_bps\":%" PRIu64
                           ",\"delay_ms\":%.3f,\"jitter_ms\":%.3f,\"loss\":%g,\"reorder\":%g,"
                           "\"queue_limit_bytes\":%" PRIu64 ",\"down\":%s,",
                           comma, i, j, l->p.rate_bps, (double)l->p.delay * 1e-6,
                           (double)l->p.jitter * 1e-6, l->p.loss, l->p.reorder,
                           l->p.rate_bps ? wan_link_queue_limit(&l->p) : 0,
                           l->p.down ? "true" : "false");
            wan_buf_printf(out,
                           "\"offered_packets\":%" PRIu64 ",\"offered_bytes\":%" PRIu64
                           ",\"delivered_packets\":%" PRIu64 ",\"delivered_bytes\":%" PRIu64
                           ",\"lost_packets\":%" PRIu64 ",\"queue_dropped_packets\":%" PRIu64,
                           s->offered_packets, s->offered_bytes, s->delivered_packets,
                           s->delivered_bytes, s->lost_packets, s->queue_dropped_packets);
            wan_buf_printf(out,
                           ",\"down_dropped_packets\":%" PRIu64 ",\"reordered_packets\":%" PRIu64
                           ",\"dropped_bytes\":%" PRIu64 ",\"queued_bytes\":%" PRIu64
                           ",\"in_flight_bytes\":%" PRIu64 "}",
                           s->down_dropped_packets, s->reordered_packets, s->dropped_bytes,
                           wan_link_backlog_bytes(l, now),
                           m->in_flight ? m->in_flight(m->ctx, i, j) : 0);
            comma = ",";
        }
    }
    wan_buf_printf(out, "]}");
}

static bool site_number(const char *text, unsigned sites, unsigned *out) {
    uint64_t v;
    if (!neb_number_whole(text, 0, sites - 1, &v))
        return false;
    *out = (unsigned)v;
    return true;
}

static const char usage[] =
    "stats | down|up [I J] | rate|delay|jitter|loss|reorder|queue VALUE [I J]; add -oneway to a "
    "command (with I J) to change only the direction from I to J";

void wan_mesh_command(struct wan_mesh *m, const char *line, neb_ns now, struct neb_buf *answer) {
    char text[256], why[160], *word[6], *save = NULL;
    unsigned n = 0, from = 0, to = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " \t\r\n", &save); w && n < 6;
         w = strtok_r(NULL, " \t\r\n", &save))
        word[n++] = w;
    if (n == 1 && strcmp(word[0], "stats") == 0) {
        wan_mesh_stats(m, now, answer);
        wan_buf_printf(answer, "\n");
        return;
    }
    if (n == 0 || strcmp(word[0], "help") == 0) {
        wan_buf_printf(answer, "%s%s\n", n == 0 ? "error: empty command: " : "", usage);
        return;
    }
    size_t len = strlen(word[0]);
    bool oneway = len > 7 && strcmp(word[0] + len - 7, "-oneway") == 0;
    if (oneway)
        word[0][len - 7] = 0;
    bool updown = strcmp(word[0], "down") == 0 || strcmp(word[0], "up") == 0;
    unsigned args = updown ? 1 : 2; // words before I J
    bool pair = n == args + 2;
    if (n < args || (n != args && !pair) || (oneway && !pair)) {
        wan_buf_printf(answer, "error: %s\n", usage);
        return;
    }
    if (pair && (!site_number(word[args], m->sites, &from) ||
                 !site_number(word[args + 1], m->sites, &to) || from == to)) {
        wan_buf_printf(answer, "error: '%.20s %.20s': expected two different sites from 0 to %u\n",
                       word[args], word[args + 1], m->sites - 1);
        return;
    }
    struct wan_params probe = {0}; // a bad value must not change the first of several links
    if (!updown && wan_param_set(&probe, word[0], word[1], why) != NEB_OK) {
        wan_buf_printf(answer, "error: %s\n", why);
        return;
    }
    for (unsigned i = 0; i < m->sites; i++) {
        for (unsigned j = 0; j < m->sites; j++) {
            bool hit = i == from && j == to, back = i == to && j == from;
            if (i == j || (pair && !hit && (oneway || !back)))
                continue;
            struct wan_params p = m->link[i][j].p;
            if (updown)
                p.down = word[0][0] == 'd';
            else if (wan_param_set(&p, word[0], word[1], why) != NEB_OK)
                continue; // checked above
            wan_link_set(&m->link[i][j], &p, now);
            if (m->changed)
                m->changed(m->ctx, i, j);
        }
    }
    wan_buf_printf(answer, "ok\n");
}
