// SPDX-License-Identifier: Apache-2.0
#include "agent/base/repeats.h"

#include <stdio.h>

static const neb_ns minute = 60 * NEB_S;

// FNV-1a. With `alike`, all numbers hash the same.
static uint64_t hash_of(const char *text, bool alike) {
    uint64_t h = 14695981039346656037u ^ (alike ? 0x5bd1e995u : 0);
    bool before = false;
    for (; *text; text++) {
        bool digit = alike && *text >= '0' && *text <= '9';
        if (!(digit && before))
            h = (h ^ (digit ? (uint8_t)'#' : (uint8_t)*text)) * 1099511628211u;
        before = digit;
    }
    return h ? h : 1;
}

// Finds or makes the entry of this hash. A new entry starts its first minute.
static struct neb_repeat *place(struct neb_repeats *r, neb_ns now, uint64_t hash) {
    struct neb_repeat *best = &r->e[0]; // a free entry, else the oldest
    for (int i = 0; i < NEB_REPEATS; i++) {
        struct neb_repeat *e = &r->e[i];
        if (e->hash == hash)
            return e;
        if (best->hash && (!e->hash || e->since < best->since))
            best = e;
    }
    *best = (struct neb_repeat){.hash = hash, .since = now};
    return best;
}

static bool says(struct neb_repeats *r, neb_ns now, int level, const char *text, bool alike,
                 unsigned few) {
    struct neb_repeat *e = place(r, now, hash_of(text, alike));
    if (now - e->since >= minute && !e->n) {
        e->since = now;
        e->said = 0;
    }
    e->alike = alike;
    e->level = level;
    if (e->said >= few) {
        e->n++;
        if (!e->text[0])
            snprintf(e->text, sizeof e->text, "%s", text);
        return false;
    }
    e->said++;
    return true;
}

bool neb_repeats_says(struct neb_repeats *r, neb_ns now, int level, const char *text) {
    return says(r, now, level, text, false, 1) &&
           says(r, now, level, text, true, NEB_REPEATS_ALIKE);
}

bool neb_repeats_due(struct neb_repeats *r, neb_ns now, int *level, char *out, size_t cap) {
    for (int i = 0; i < NEB_REPEATS; i++) {
        struct neb_repeat *e = &r->e[i];
        if (!e->hash || !e->n || now - e->since < minute)
            continue;
        snprintf(out, cap, "%llu more %s %s in %lld s: %s", (unsigned long long)e->n,
                 e->alike ? "similar" : "identical", e->n == 1 ? "line" : "lines",
                 (long long)((now - e->since) / NEB_S), e->text);
        *level = e->level;
        e->n = 0;
        e->since = now;
        e->said = 1; // the line that this call returns
        e->text[0] = 0;
        return true;
    }
    return false;
}
