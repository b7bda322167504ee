// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/lines.h"
#include "agent/base/bucket.h"

#include <stdlib.h>
#include <string.h>

// replaced: how long a line is kept if its connection was replaced. Nobody reports any more which
// bytes of that connection were read.
static const neb_ns replaced = 30 * NEB_S, told_by = 10 * NEB_S;

enum { SPACING_MAX = 1 << 20 };

struct entry {
    json_t *line; // owned
    neb_ns at;
    int64_t n;
    size_t bytes;       // as text, including its number
    uint64_t way, sent; // connection on which it was sent, and the bytes sent there by then
    bool step;
};

// A ring: entries [first, first + count). Those from `next` on are due.
struct agent_lines {
    struct entry e[AGENT_LINES_MAX];
    int first, count, next; // next: relative to first
    int others;             // entries that are not steps
    int64_t last_n;
    int64_t late_n; // the last line that waited or may be sent twice
    size_t bytes;
    bool waits;                                   // for the link, or for agent_lines_had
    neb_ns up_at;                                 // 0: the link is down
    struct neb_bucket messages, sent, sent_bytes; // limits of what may be sent now
    // in an outage one step in `spacing` is kept, the next one after `due` more
    unsigned spacing, due;
};

static struct entry *at(struct agent_lines *l, int i) {
    return &l->e[(l->first + i) % AGENT_LINES_MAX];
}

enum neb_status agent_lines_create(bool up, neb_ns now, struct agent_lines **out) {
    struct agent_lines *l = calloc(1, sizeof *l);
    *out = l;
    if (!l)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for lines of metrics");
    l->waits = true;
    l->up_at = up ? now : 0;
    l->spacing = 1;
    return NEB_OK;
}

static void drop_first(struct agent_lines *l) {
    struct entry *e = at(l, 0);
    json_decref(e->line);
    l->bytes -= e->bytes;
    l->others -= !e->step;
    l->first = (l->first + 1) % AGENT_LINES_MAX;
    l->count--;
    l->next -= l->next > 0;
}

// Drops the oldest line; if other kinds have more than half of the space, the oldest of those.
static void drop_one(struct agent_lines *l) {
    int i = 0, next = l->next;
    while (l->others > AGENT_LINES_MAX / 2 && at(l, i)->step)
        i++;
    next -= i < next;
    for (; i > 0; i--) { // moves earlier lines up
        struct entry e = *at(l, i);
        *at(l, i) = *at(l, i - 1);
        *at(l, i - 1) = e;
    }
    drop_first(l);
    l->next = next;
}

void agent_lines_destroy(struct agent_lines **l) {
    while (*l && (*l)->count)
        drop_first(*l);
    free(*l);
    *l = NULL;
}

// Drops every second step. If that freed space while lines wait for the link, half as many new
// steps are kept from now on.
static void thin(struct agent_lines *l) {
    int kept = 0, next = l->next, was = l->count;
    bool odd = false;
    for (int i = 0; i < l->count; i++) {
        struct entry e = *at(l, i);
        odd ^= e.step;
        if (e.step && !odd) {
            json_decref(e.line);
            l->bytes -= e.bytes;
            next -= i < l->next;
        } else {
            *at(l, kept++) = e;
        }
    }
    l->count = kept;
    l->next = next;
    if (!l->waits || kept == was || l->spacing >= SPACING_MAX)
        return;
    l->spacing *= 2;
    l->due = l->spacing - 1;
}

static bool is_full(const struct agent_lines *l, size_t more) {
    return l->count == AGENT_LINES_MAX ||
           (l->count && l->bytes + more > (size_t)AGENT_LINES_BYTES_MAX);
}

static void make_room(struct agent_lines *l, size_t bytes) {
    while (!l->waits && l->next && is_full(l, bytes))
        drop_first(l); // it was sent
    if (is_full(l, bytes) && l->others <= AGENT_LINES_MAX / 2)
        thin(l);
    while (is_full(l, bytes))
        drop_one(l);
}

void agent_lines_add(struct agent_lines *l, const json_t *line, neb_ns now, int64_t unix_ms) {
    const char *kind = json_string_value(json_object_get(line, "kind"));
    bool step = kind && !strcmp(kind, "step");
    size_t bytes = json_dumpb(line, NULL, 0, JSON_COMPACT) + 64;
    l->last_n = unix_ms > l->last_n ? unix_ms : l->last_n + 1;
    if (l->waits && step && l->due) {
        l->due--;
        return;
    }
    make_room(l, bytes);
    if (l->waits && step && !l->due)
        l->due = l->spacing - 1;
    json_t *copy = json_deep_copy(line);
    if (!copy)
        return;
    l->bytes += bytes;
    l->others += !step;
    *at(l, l->count++) = (struct entry){copy, now, l->last_n, bytes, 0, 0, step};
}

void agent_lines_link(struct agent_lines *l, bool up, neb_ns now) {
    l->up_at = up ? now : 0;
    if (up || l->waits)
        return;
    l->waits = true;
    l->spacing = 1;
    l->due = 0;
}

void agent_lines_had(struct agent_lines *l, int64_t had) {
    l->late_n = l->last_n;
    l->waits = false;
    while (l->count && at(l, 0)->n <= had)
        drop_first(l);
    l->next = 0;
}

static bool may_send(struct agent_lines *l, neb_ns now, size_t bytes) {
    bytes = bytes < AGENT_LINES_BYTES_MAX ? bytes : (size_t)AGENT_LINES_BYTES_MAX;
    if (neb_bucket_left(&l->sent_bytes, now, AGENT_LINES_BYTES_BURST, AGENT_LINES_BYTES_A_SECOND) <
            (double)bytes ||
        !neb_bucket_take(&l->sent, now, 1, AGENT_LINES_BURST, AGENT_LINES_A_SECOND))
        return false;
    neb_bucket_use(&l->sent_bytes, now, (double)bytes, AGENT_LINES_BYTES_BURST,
                   AGENT_LINES_BYTES_A_SECOND);
    return true;
}

static json_t *next(struct agent_lines *l, neb_ns now, size_t max_bytes, bool paced) {
    json_t *list = NULL;
    for (size_t bytes = 0; l->next < l->count; l->next++) {
        struct entry *e = at(l, l->next);
        int64_t age_ms = (now - e->at) / NEB_MS;
        if ((list && bytes + e->bytes > max_bytes) || (paced && !may_send(l, now, e->bytes)))
            break;
        bytes += e->bytes;
        e->way = 0;
        list = list ? list : json_array();
        json_t *o = json_pack("{s:I,s:O}", "n", (json_int_t)e->n, "line", e->line);
        if (e->n <= l->late_n)
            json_object_set_new(o, "late_s", json_real((double)(age_ms > 1 ? age_ms : 1) / 1e3));
        json_array_append_new(list, o);
    }
    return list;
}

json_t *agent_lines_next(struct agent_lines *l, neb_ns now, size_t max_bytes) {
    if (l->waits && l->up_at && now - l->up_at > told_by) // the other agent's message was lost
        agent_lines_had(l, 0);
    if (l->waits || l->next == l->count ||
        !neb_bucket_take(&l->messages, now, 1, AGENT_LINES_MESSAGES_BURST,
                         AGENT_LINES_MESSAGES_A_SECOND))
        return NULL;
    return next(l, now, max_bytes, true);
}

void agent_lines_back(struct agent_lines *l, int n) { l->next -= n < l->next ? n : l->next; }

void agent_lines_sent(struct agent_lines *l, uint64_t way, uint64_t sent) {
    for (int i = l->next - 1; i >= 0 && !at(l, i)->way; i--) {
        at(l, i)->way = way;
        at(l, i)->sent = sent;
    }
}

void agent_lines_acked(struct agent_lines *l, uint64_t way, uint64_t acked, neb_ns now) {
    for (const struct entry *e = at(l, 0); !l->waits && l->next; e = at(l, 0)) {
        if (e->way == way ? e->sent > acked : now - e->at <= replaced)
            return;
        drop_first(l);
    }
}

json_t *agent_lines_take(struct agent_lines *l, neb_ns now, size_t max_bytes) {
    l->next = 0;
    l->late_n = l->last_n;
    return next(l, now, max_bytes, false);
}

void agent_lines_stored(struct agent_lines *l) {
    while (l->next)
        drop_first(l);
}
