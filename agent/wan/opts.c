// SPDX-License-Identifier: Apache-2.0
// The command line: see opts.h and the head of main.c.
#include "agent/wan/opts.h"
#include "agent/base/number.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    PARAM, // the option has the name of a parameter
    BACK,  // the same with -back
    WAN,
    PAIR,
    NS,
    TEXT,   // const char *
    FLAG,   // bool; the option has no argument
    NUMBER, // uint64_t
    SMALL,  // unsigned
    LISTEN,
    CONNECT,
    BETWEEN,
};

static const struct row {
    const char *name;
    enum kind kind;
    const char *only; // the one command that has the option; NULL: both
    size_t at;        // in struct wan_opts
    uint64_t least, most;
} rows[] = {
    {"rate", PARAM, NULL, 0, 0, 0},
    {"delay", PARAM, NULL, 0, 0, 0},
    {"jitter", PARAM, NULL, 0, 0, 0},
    {"loss", PARAM, NULL, 0, 0, 0},
    {"reorder", PARAM, NULL, 0, 0, 0},
    {"queue", PARAM, NULL, 0, 0, 0},
    {"rate-back", BACK, NULL, 0, 0, 0},
    {"delay-back", BACK, NULL, 0, 0, 0},
    {"loss-back", BACK, NULL, 0, 0, 0},
    {"queue-back", BACK, NULL, 0, 0, 0},
    {"wan", WAN, NULL, 0, 0, 0},
    {"pair", PAIR, NULL, 0, 0, 0},
    {"sites", SMALL, NULL, offsetof(struct wan_opts, sites), 2, WAN_SITES_MAX},
    {"seed", NUMBER, NULL, offsetof(struct wan_opts, seed), 0, UINT64_MAX},
    {"ctl", TEXT, NULL, offsetof(struct wan_opts, ctl), 0, 0},
    {"stats", TEXT, NULL, offsetof(struct wan_opts, stats), 0, 0},
    {"die-with-parent", FLAG, NULL, offsetof(struct wan_opts, die_with_parent), 0, 0},
    {"die-with-stdin", FLAG, NULL, offsetof(struct wan_opts, die_with_stdin), 0, 0},
    {"ns", NS, "run", 0, 0, 0},
    {"mtu", SMALL, "run", offsetof(struct wan_opts, mtu), 576, 1500},
    {"listen", LISTEN, "proxy", 0, 0, 0},
    {"connect", CONNECT, "proxy", 0, 0, 0},
    {"between", BETWEEN, "proxy", 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

static enum neb_status set_number(const struct row *r, const char *text, void *at) {
    uint64_t v = 0;
    if (!neb_number_whole(text, r->least, r->most, &v))
        return neb_fail(NEB_ERR_INVALID, "wanlink: --%s '%s': expected %llu to %llu", r->name, text,
                        (unsigned long long)r->least, (unsigned long long)r->most);
    if (r->kind == NUMBER)
        *(uint64_t *)at = v;
    else
        *(unsigned *)at = (unsigned)v;
    return NEB_OK;
}

// Parses "0-1" (both directions) or "0>1" (one direction), which must end with `end`. *rest is the
// text after `end`.
static bool sites_pair(const char *text, char end, unsigned *from, unsigned *to, bool *oneway,
                       const char **rest) {
    char *at;
    if (text[0] < '0' || text[0] > '9')
        return false;
    unsigned long a = strtoul(text, &at, 10);
    if ((*at != '-' && *at != '>') || at[1] < '0' || at[1] > '9')
        return false;
    *oneway = *at == '>';
    unsigned long b = strtoul(at + 1, &at, 10);
    if (*at != end || a >= WAN_SITES_MAX || b >= WAN_SITES_MAX || a == b)
        return false;
    *from = (unsigned)a, *to = (unsigned)b;
    *rest = *at == 0 ? at : at + 1;
    return true;
}

static enum neb_status set_param(struct wan_params *p, const char *option, const char *name,
                                 const char *value) {
    char why[160];
    enum neb_status st = wan_param_set(p, name, value, why);
    return st == NEB_OK ? st : neb_fail(st, "wanlink: --%s: %s", option, why);
}

// RATE:ROUND-TRIP[:LOSS], as in `nebula --wan`: each direction has half of the round trip.
static enum neb_status set_wan(struct wan_params *p, const char *text) {
    char copy[96], *save = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    char *rate = strtok_r(copy, ":", &save), *delay = strtok_r(NULL, ":", &save),
         *loss = strtok_r(NULL, ":", &save);
    if (strlen(text) >= sizeof copy || rate == NULL || delay == NULL || strtok_r(NULL, ":", &save))
        return neb_fail(
            NEB_ERR_INVALID,
            "wanlink: --wan '%.80s': expected RATE:ROUNDTRIP[:LOSS], for example 100mbit:80ms",
            text);
    NEB_TRY(set_param(p, "wan", "rate", rate));
    NEB_TRY(set_param(p, "wan", "delay", delay));
    p->delay /= 2;
    return loss ? set_param(p, "wan", "loss", loss) : NEB_OK;
}

static enum neb_status add_pair(struct wan_opts *o, const char *text) {
    struct wan_override *v = &o->override[o->n_override];
    if (o->n_override == WAN_OVERRIDES_MAX)
        return neb_fail(NEB_ERR_LIMIT, "wanlink: --pair is given more than %d times",
                        WAN_OVERRIDES_MAX);
    if (!sites_pair(text, ':', &v->from, &v->to, &v->oneway, &v->list))
        return neb_fail(NEB_ERR_INVALID,
                        "wanlink: --pair '%s': expected I-J:NAME=VALUE,… (I>J:… for one direction)",
                        text);
    o->n_override++;
    return NEB_OK;
}

struct pending {
    const char *listen;
    unsigned from, to;
};

static enum neb_status add_proxy(struct wan_opts *o, struct pending *at, enum kind kind,
                                 const char *text) {
    bool oneway;
    const char *rest;
    if (kind == BETWEEN)
        return sites_pair(text, 0, &at->from, &at->to, &oneway, &rest)
                   ? NEB_OK
                   : neb_fail(NEB_ERR_INVALID, "wanlink: --between '%s': expected I-J", text);
    if (kind == LISTEN) {
        if (at->listen != NULL)
            return neb_fail(NEB_ERR_INVALID, "wanlink: --listen %s has no --connect", at->listen);
        at->listen = text;
        return NEB_OK;
    }
    if (at->listen == NULL)
        return neb_fail(NEB_ERR_INVALID, "wanlink: --connect %s needs a --listen before it", text);
    if (o->n_pair == WAN_PROXY_PAIRS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "wanlink: --listen is given more than %d times",
                        WAN_PROXY_PAIRS_MAX);
    o->pair[o->n_pair++] = (struct wan_proxy_pair){at->listen, text, at->from, at->to};
    at->listen = NULL;
    return NEB_OK;
}

struct back_option {
    const char *option, *value;
};

static enum neb_status take(struct wan_opts *o, const struct row *r, struct pending *proxy,
                            const char *value) {
    void *at = (char *)o + r->at;
    switch (r->kind) {
    case BACK: return NEB_OK; // the caller keeps it
    case PARAM: return set_param(&o->ahead, r->name, r->name, value);
    case WAN: return set_wan(&o->ahead, value);
    case PAIR: return add_pair(o, value);
    case NUMBER:
    case SMALL: return set_number(r, value, at);
    case TEXT: *(const char **)at = value; return NEB_OK;
    case FLAG: *(bool *)at = true; return NEB_OK;
    case LISTEN:
    case CONNECT:
    case BETWEEN: return add_proxy(o, proxy, r->kind, value);
    case NS:
        if (o->n_ns == WAN_SITES_MAX)
            return neb_fail(NEB_ERR_LIMIT, "wanlink: --ns is given more than %d times",
                            WAN_SITES_MAX);
        o->ns[o->n_ns++] = value;
    }
    return NEB_OK;
}

enum neb_status wan_opts_parse(int argc, char **argv, bool proxy, struct wan_opts *out) {
    struct wan_opts *o = out;
    struct back_option back[16];
    struct pending at = {.to = 1};
    unsigned n_back = 0;
    *o = (struct wan_opts){.sites = 2, .mtu = 1500, .seed = 1, .ahead = {.queue_bdp = 1}};
    struct option options[ROWS + 1] = {{0}};
    for (int i = 0; i < ROWS; i++)
        options[i] = (struct option){
            rows[i].name, rows[i].kind == FLAG ? no_argument : required_argument, NULL, 0};
    optind = 1;
    for (int index = 0, id; (id = getopt_long(argc, argv, "+", options, &index)) != -1;) {
        const struct row *r = &rows[index];
        if (id == '?') // getopt has printed the reason
            return neb_fail(NEB_ERR_INVALID, "wanlink: wrong option (see wanlink help)");
        if (r->only && strcmp(r->only, proxy ? "proxy" : "run") != 0)
            return neb_fail(NEB_ERR_INVALID, "wanlink: --%s is an option of wanlink %s", r->name,
                            r->only);
        NEB_TRY(take(o, r, &at, optarg));
        if (r->kind != BACK)
            continue;
        if (n_back == 16) // applied last, so that the order of options does not matter
            return neb_fail(NEB_ERR_LIMIT, "wanlink: too many -back options");
        back[n_back++] = (struct back_option){r->name, optarg};
    }
    if (optind < argc && strcmp(argv[optind - 1], "--") != 0)
        return neb_fail(NEB_ERR_INVALID, "wanlink: '%s' is not an option (a command follows --)",
                        argv[optind]);
    if (optind < argc)
        o->command = argv + optind;
    o->back = o->ahead;
    for (unsigned i = 0; i < n_back; i++) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)(strlen(back[i].option) - 5), back[i].option);
        NEB_TRY(set_param(&o->back, back[i].option, name, back[i].value));
    }
    if (o->n_ns != 0 && o->n_ns != o->sites)
        return neb_fail(NEB_ERR_INVALID, "wanlink: --ns is given %u times for %u sites", o->n_ns,
                        o->sites);
    if (proxy && (o->n_pair == 0 || at.listen != NULL))
        return neb_fail(NEB_ERR_INVALID,
                        "wanlink: proxy: needs at least one --listen, and a --connect after each");
    for (unsigned i = 0; i < o->n_pair; i++) {
        if (o->pair[i].from >= o->sites || o->pair[i].to >= o->sites)
            return neb_fail(NEB_ERR_INVALID, "wanlink: --between: there are only %u sites",
                            o->sites);
    }
    return NEB_OK;
}

enum neb_status wan_opts_mesh(const struct wan_opts *o, struct wan_mesh *m) {
    char why[160];
    *m = (struct wan_mesh){.sites = o->sites, .started = neb_now()};
    for (unsigned i = 0; i < o->sites; i++) {
        for (unsigned j = 0; j < o->sites; j++) {
            struct wan_params p = i < j ? o->ahead : o->back;
            for (unsigned k = 0; k < o->n_override; k++) {
                const struct wan_override *v = &o->override[k];
                bool hit = v->from == i && v->to == j, rev = v->from == j && v->to == i;
                if (v->from >= o->sites || v->to >= o->sites)
                    return neb_fail(NEB_ERR_INVALID, "wanlink: --pair: there are only %u sites",
                                    o->sites);
                if (!hit && (v->oneway || !rev))
                    continue;
                if (wan_params_parse(&p, v->list, why) != NEB_OK)
                    return neb_fail(NEB_ERR_INVALID, "wanlink: --pair: %s", why);
            }
            m->link[i][j] = wan_link_make(&p, o->seed, i, j);
        }
    }
    return NEB_OK;
}
