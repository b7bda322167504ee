// SPDX-License-Identifier: Apache-2.0
#include "agent/job/groups.h"
#include "agent/job/config.h"

#include <math.h>
#include <string.h>

static const struct agent_group rest = {
    .match = "*", .exchange = AGENT_GROUP_EVERY, .every = 1, .owner = -1, .eta = NAN, .mu = NAN};

static bool has_rest(const struct agent_job *j) {
    return !j->n_groups || strcmp(j->groups[j->n_groups - 1].match, "*") != 0;
}

int32_t agent_job_groups(const struct agent_job *j) { return j->n_groups + has_rest(j); }

const struct agent_group *agent_job_group(const struct agent_job *j, int32_t g) {
    NEB_ASSERT(g >= 0 && g < agent_job_groups(j));
    return g < j->n_groups ? &j->groups[g] : &rest;
}

int32_t agent_job_group_of(const struct agent_job *j, const char *tensor) {
    int32_t g = 0;
    while (!agent_pattern_matches(agent_job_group(j, g)->match, tensor))
        g++;
    return g; // the last pattern is "*"
}

// ---- fragments ---------------------------------------------------------------------------------

int32_t agent_job_group_fragments(const struct agent_job *j, int32_t g) {
    const struct agent_group *x = agent_job_group(j, g);
    return x->exchange == AGENT_GROUP_NEVER ? 0 : x->fragments ? x->fragments : j->sync.fragments;
}

int32_t agent_job_group_first(const struct agent_job *j, int32_t g) {
    int32_t first = 0;
    for (int32_t i = 0; i < g; i++)
        first += agent_job_group_fragments(j, i);
    return first;
}

int32_t agent_job_fragments(const struct agent_job *j) {
    return agent_job_group_first(j, agent_job_groups(j));
}

int32_t agent_job_fragment_group(const struct agent_job *j, int32_t f) {
    NEB_ASSERT(f >= 0 && f < agent_job_fragments(j));
    int32_t g = 0;
    while (f >= agent_job_group_first(j, g + 1))
        g++;
    return g;
}

static const struct agent_group *group_of(const struct agent_job *j, int32_t f) {
    return agent_job_group(j, agent_job_fragment_group(j, f));
}

const char *agent_job_fragment_codec(const struct agent_job *j, int32_t f) {
    const char *own = group_of(j, f)->codec;
    return *own ? own : j->sync.codec;
}

float agent_job_fragment_eta(const struct agent_job *j, int32_t f) {
    float own = group_of(j, f)->eta;
    return isnan(own) ? j->sync.eta : own;
}

float agent_job_fragment_mu(const struct agent_job *j, int32_t f) {
    float own = group_of(j, f)->mu;
    return isnan(own) ? j->sync.mu : own;
}

int32_t agent_job_fragment_every(const struct agent_job *j, int32_t f) {
    return group_of(j, f)->every;
}

int32_t agent_job_fragment_owner(const struct agent_job *j, int32_t f) {
    return group_of(j, f)->owner;
}

// ---- patterns ----------------------------------------------------------------------------------

// The bytes after a set, "[a-z]"; NULL: it has no end. A "]" that comes first is in the set.
static const char *set_end(const char *p) {
    p += p[1] == '!' || p[1] == '^' ? 2 : 1;
    const char *end = *p ? strchr(p + 1, ']') : NULL;
    return end ? end + 1 : NULL;
}

static bool set_has(const char *p, unsigned char c) {
    const char *end = set_end(p) - 1;
    bool not = p[1] == '!' || p[1] == '^', has = false;
    for (p += not ? 2 : 1; p < end; p++) {
        unsigned char low = (unsigned char)*p, high = low;
        if (p[1] == '-' && p + 2 < end) {
            high = (unsigned char)p[2];
            p += 2;
        }
        has |= c >= low && c <= high;
    }
    return has != not ;
}

// fnmatch() depends on the locale of the process that calls it, and all sites must agree.
bool agent_pattern_matches(const char *pattern, const char *name) {
    const char *p = pattern, *s = name, *star = NULL, *retry = NULL;
    while (*s) {
        if (*p == '*') {
            star = ++p;
            retry = s;
        } else if (*p == '?') {
            p++;
            for (s++; ((unsigned char)*s & 0xc0) == 0x80;) // the rest of the character
                s++;
        } else if (*p == '[' ? set_has(p, (unsigned char)*s) : *p && *p == *s) {
            p = *p == '[' ? set_end(p) : p + 1;
            s++;
        } else if (star) { // the star takes one more byte
            p = star;
            s = ++retry;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return !*p;
}

const char *agent_pattern_wrong(const char *pattern) {
    if (!*pattern)
        return "is empty";
    for (const char *p = pattern; *p;) {
        const char *end = *p == '[' ? set_end(p) : p + 1;
        if (!end)
            return "has a [ without ]";
        for (const char *c = p; *p == '[' && c < end; c++)
            if ((unsigned char)*c >= 0x80)
                return "has a [ ] with characters beyond ASCII";
        p = end;
    }
    return NULL;
}
