// SPDX-License-Identifier: Apache-2.0
#include "inter/link/rate_limit.h"
#include "agent/base/number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double depth_s = 0.02;
enum { DAY = 24 * 60 };
static const double bps_min = 8e3, bps_max = 1e12;

static enum neb_status parse_rate(const char *text, uint64_t *out) {
    double unit = 1, v = 0;
    const char *end = neb_number_prefix(text, &v);
    *out = 0;
    if (!strcmp(text, "none"))
        return NEB_OK;
    end = end ? end : text;
    if (!strcmp(end, "kbit"))
        unit = 1e3;
    else if (!strcmp(end, "mbit"))
        unit = 1e6;
    else if (!strcmp(end, "gbit"))
        unit = 1e9;
    if (end == text || (*end && unit == 1) || v * unit < bps_min || v * unit > bps_max)
        return neb_fail(
            NEB_ERR_INVALID,
            "rate \"%s\" is not valid: write none, or 8kbit to 1000gbit, for example 20mbit", text);
    *out = (uint64_t)(v * unit);
    return NEB_OK;
}

static bool two_digits(const char *p, int max, int *out) {
    if (!isdigit((unsigned char)p[0]) || !isdigit((unsigned char)p[1]))
        return false;
    *out = 10 * (p[0] - '0') + p[1] - '0';
    return *out <= max;
}

static bool parse_time(const char *p, int *minute) {
    int h, m;
    if (!two_digits(p, 24, &h) || p[2] != ':' || !two_digits(p + 3, 59, &m) || h * 60 + m > DAY)
        return false;
    *minute = h * 60 + m;
    return true;
}

static enum neb_status parse_window(const char *word, struct inter_rate_limit *l) {
    struct inter_rate_window *w = &l->windows[l->n];
    if (l->n == INTER_RATE_WINDOWS_MAX)
        return neb_fail(NEB_ERR_INVALID, "rate limit: more than %d windows",
                        INTER_RATE_WINDOWS_MAX);
    if (strlen(word) < 13 || word[5] != '-' || word[11] != '=' || !parse_time(word, &w->from_min) ||
        !parse_time(word + 6, &w->to_min) || w->from_min == w->to_min)
        return neb_fail(NEB_ERR_INVALID,
                        "rate limit: \"%s\" is not a window; write for example 08:00-18:00=20mbit",
                        word);
    NEB_TRY(parse_rate(word + 12, &w->bps));
    l->n++;
    return NEB_OK;
}

enum neb_status inter_rate_limit_parse(const char *text, struct inter_rate_limit *out) {
    char copy[INTER_RATE_TEXT_MAX], *save = NULL;
    bool first = true;
    *out = (struct inter_rate_limit){0};
    if (strlen(text) >= sizeof copy)
        return neb_fail(NEB_ERR_INVALID, "rate limit: longer than %zu bytes", sizeof copy - 1);
    memcpy(copy, text, strlen(text) + 1);
    for (char *w = strtok_r(copy, " ,", &save); w; w = strtok_r(NULL, " ,", &save), first = false)
        NEB_TRY(first && !strchr(w, '=') ? parse_rate(w, &out->bps) : parse_window(w, out));
    return NEB_OK;
}

uint64_t inter_rate_limit_at(const struct inter_rate_limit *l, int minute) {
    for (int i = 0; i < l->n; i++) {
        const struct inter_rate_window *w = &l->windows[i];
        bool in = w->from_min < w->to_min ? minute >= w->from_min && minute < w->to_min
                                          : minute >= w->from_min || minute < w->to_min;
        if (in)
            return w->bps;
    }
    return l->bps;
}

bool inter_rate_limit_any(const struct inter_rate_limit *l) {
    bool any = l->bps > 0;
    for (int i = 0; i < l->n; i++)
        any = any || l->windows[i].bps > 0;
    return any;
}

int inter_rate_minute(neb_ns wall) {
    time_t t = (time_t)(wall / NEB_S);
    struct tm tm;
    return localtime_r(&t, &tm) ? tm.tm_hour * 60 + tm.tm_min : 0;
}

static void refill(struct inter_bucket *b, neb_ns now) {
    double depth = (double)b->bps / 8 * depth_s;
    if (now > b->at)
        b->bytes += (double)b->bps / 8 * neb_seconds(now - b->at);
    b->bytes = b->bytes > depth ? depth : b->bytes;
    b->at = now > b->at ? now : b->at;
}

void inter_bucket_set(struct inter_bucket *b, neb_ns now, uint64_t bps) {
    if (bps == b->bps)
        return;
    if (b->bps)
        refill(b, now);
    else
        b->bytes = 0;
    b->at = now;
    b->bps = bps;
}

bool inter_bucket_ready(struct inter_bucket *b, neb_ns now) {
    if (!b->bps)
        return true;
    refill(b, now);
    return b->bytes >= 0 && b->backlog <= b->bps / 8;
}

void inter_bucket_take(struct inter_bucket *b, uint64_t bytes) {
    if (b->bps)
        b->bytes -= (double)bytes;
}

neb_ns inter_bucket_when(const struct inter_bucket *b) {
    if (!b->bps || b->bytes >= 0)
        return b->at;
    return b->at + (neb_ns)ceil(-b->bytes * 8e9 / (double)b->bps);
}

void inter_meter_add(struct inter_meter *m, struct inter_bucket *b, uint64_t bytes) {
    m->charged += bytes;
    b->backlog += bytes;
    inter_bucket_take(b, bytes);
}

void inter_bucket_settle(struct inter_bucket *b) { b->backlog = 0; }

void inter_meter_read(struct inter_meter *m, struct inter_bucket *b, uint64_t sent,
                      uint64_t queued) {
    uint64_t left = m->charged > sent ? m->charged - sent : 0;
    if (sent > m->charged)
        inter_bucket_take(b, sent - m->charged);
    left = left < queued ? left : queued;
    m->charged = sent + left;
    b->backlog += left;
}
