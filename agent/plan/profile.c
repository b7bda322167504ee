// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/profile.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/proc/gpus.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 7, FILE_MAX = 64 * 1024 };

// One table for both directions: name, place, and whether 0 is allowed (a link of 0: no second rank
// starts).
struct field {
    const char *name;
    size_t at;
    bool zero;
};
#define RATE(x)                                                                                    \
    { #x, offsetof(struct agent_profile, rates.x), false }
static const struct field fields[] = {
    RATE(update),
    {"link", offsetof(struct agent_profile, rates.link), true},
    {"link_s", offsetof(struct agent_profile, rates.link_s), true},
    RATE(memory),
    {"sync_s", offsetof(struct agent_profile, sync_s), false},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

// The same for a device.
#define DEVICE(x, zero)                                                                            \
    { #x, offsetof(struct agent_profile, rates.device.x), zero }
static const struct field device_fields[] = {DEVICE(memory, false), DEVICE(wait_s, false),
                                             DEVICE(up, false),     DEVICE(down, false),
                                             DEVICE(link, true),    DEVICE(link_s, true)};
enum { N_DEVICE_FIELDS = sizeof device_fields / sizeof *device_fields };
static const char *const types[] = {"fp32", "bf16"}; // by enum kern_type

static double *number_at(struct agent_profile *p, size_t at) {
    return (double *)(void *)((char *)p + at);
}

static json_t *numbers(const double *x, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_real(x[i]));
    return list;
}

// null: no device.
static json_t *device_json(struct agent_profile *p) {
    if (!p->rates.device.count)
        return json_null();
    json_t *o = json_pack("{s:s,s:i}", "name", p->device, "count", (int)p->rates.device.count);
    if (p->visible >= 0)
        json_object_set_new(o, "visible", json_integer(p->visible));
    for (int i = 0; i < N_DEVICE_FIELDS; i++)
        json_object_set_new(o, device_fields[i].name,
                            json_real(*number_at(p, device_fields[i].at)));
    for (int t = 0; t < 2; t++)
        json_object_set_new(o, types[t],
                            json_pack("{s:o,s:f}", "step",
                                      numbers(p->rates.device.step[t], INTRA_COST_STEPS), "update",
                                      p->rates.device.update[t]));
    return o;
}

// By enum inter_wan_place: where the exchange's state is.
static const char *const places[] = {"host", "device"};

static json_t *rates_json(const struct inter_wan_rates *r) {
    return json_pack("{s:f,s:f,s:f}", "encode", r->encode, "decode", r->decode, "settle",
                     r->settle);
}

json_t *agent_profile_device_to_json(const struct agent_profile *p) {
    struct agent_profile copy = *p;
    json_t *codecs = json_array();
    for (int i = 0; cmp_variant(i, CMP_PLANNED) && p->rates.device.count; i++)
        json_array_append_new(codecs, rates_json(&p->codecs[i].at[INTER_WAN_DEVICE]));
    return json_pack("{s:o,s:o}", "device", device_json(&copy), "codecs", codecs);
}

json_t *agent_profile_to_json(const struct agent_profile *p) {
    struct agent_profile copy = *p;
    json_t *codecs = json_array(),
           *o = json_pack("{s:i,s:s,s:s,s:i}", "nebula_profile", VERSION, "host", p->host, "isa",
                          p->isa, "processors", p->rates.processors);
    for (int i = 0; i < N_FIELDS; i++)
        json_object_set_new(o, fields[i].name, json_real(*number_at(&copy, fields[i].at)));
    for (int t = 0; t < 2; t++)
        json_object_set_new(o, types[t],
                            json_pack("{s:o,s:o}", "step",
                                      numbers(p->rates.step[t], INTRA_COST_WIDTHS), "one",
                                      numbers(p->rates.one[t], INTRA_COST_WIDTHS)));
    json_object_set_new(o, "device", device_json(&copy));
    for (int i = 0; cmp_variant(i, CMP_PLANNED); i++) {
        const struct inter_wan_codec *c = &p->codecs[i];
        json_t *x = json_pack("{s:s,s:f,s:f,s:f}", "name", c->name, "bits", c->bits, "rel_error",
                              c->rel_error, "density", c->density);
        for (int at = 0; at < (p->rates.device.count ? 2 : 1); at++)
            json_object_set_new(x, places[at], rates_json(&c->at[at]));
        json_array_append_new(codecs, x);
    }
    json_object_set_new(o, "codecs", codecs);
    return o;
}

// An impossible figure would give a plan that nobody can explain, so it is refused.
static enum neb_status take_figure(const json_t *v, const char *name, bool zero, const char *where,
                                   double *out) {
    double x = json_number_value(v);
    if (!json_is_number(v) || !(zero ? x >= 0 : x >= 1e-15) || !(x <= 1e21))
        return neb_fail(NEB_ERR_FORMAT,
                        "%s: %s is missing or impossible: make the file again with nebula plan "
                        "--profile",
                        where, name);
    *out = x;
    return NEB_OK;
}

static enum neb_status take_text(const json_t *o, const char *name, const char *where, char *out,
                                 size_t cap) {
    const char *s = json_string_value(json_object_get(o, name));
    if (!s || !*s || strlen(s) >= cap)
        return neb_fail(NEB_ERR_FORMAT, "%s: %s is missing or too long", where, name);
    for (const char *c = s; *c; c++) // the text is printed
        if ((unsigned char)*c < ' ' || *c == 127)
            return neb_fail(NEB_ERR_FORMAT, "%s: %s holds a control character", where, name);
    snprintf(out, cap, "%s", s);
    return NEB_OK;
}

static enum neb_status take_rates(const json_t *o, const char *where, struct inter_wan_rates *r) {
    NEB_TRY(take_figure(json_object_get(o, "encode"), "encode", false, where, &r->encode));
    NEB_TRY(take_figure(json_object_get(o, "decode"), "decode", false, where, &r->decode));
    return take_figure(json_object_get(o, "settle"), "settle", false, where, &r->settle);
}

static enum neb_status take_codecs(const json_t *list, const char *where,
                                   struct agent_profile *out) {
    int n = 0;
    while (cmp_variant(n, CMP_PLANNED))
        n++;
    if (json_array_size(list) != (size_t)n)
        return neb_fail(NEB_ERR_FORMAT, "%s: codecs: expected %d entries", where, n);
    for (int i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, (size_t)i);
        struct inter_wan_codec *c = &out->codecs[i];
        NEB_TRY(take_text(o, "name", where, c->name, sizeof c->name));
        NEB_TRY(take_figure(json_object_get(o, "bits"), "bits", false, where, &c->bits));
        NEB_TRY(
            take_figure(json_object_get(o, "rel_error"), "rel_error", true, where, &c->rel_error));
        NEB_TRY(take_figure(json_object_get(o, "density"), "density", true, where, &c->density));
        for (int at = 0; at < (out->rates.device.count ? 2 : 1); at++)
            NEB_TRY(take_rates(json_object_get(o, places[at]), where, &c->at[at]));
    }
    return NEB_OK;
}

static enum neb_status take_list(const json_t *list, const char *name, int n, bool zero,
                                 const char *where, double *out) {
    for (int k = 0; k < n; k++)
        NEB_TRY(take_figure(json_array_get(list, (size_t)k), name, zero, where, &out[k]));
    return NEB_OK;
}

static enum neb_status take_device(const json_t *o, const char *where, struct agent_profile *out) {
    json_int_t count = json_integer_value(json_object_get(o, "count"));
    const json_t *visible = json_object_get(o, "visible");
    out->visible = -1;
    if (json_is_null(o))
        return NEB_OK;
    if (!json_is_object(o) || count < 1 || count > 1024)
        return neb_fail(NEB_ERR_FORMAT, "%s: device is neither null nor has a count from 1 to 1024",
                        where);
    out->rates.device.count = (int32_t)count;
    if (json_is_integer(visible) && json_integer_value(visible) >= 0 &&
        json_integer_value(visible) <= AGENT_GPUS_MAX)
        out->visible = (int32_t)json_integer_value(visible);
    NEB_TRY(take_text(o, "name", where, out->device, sizeof out->device));
    for (int i = 0; i < N_DEVICE_FIELDS; i++)
        NEB_TRY(take_figure(json_object_get(o, device_fields[i].name), device_fields[i].name,
                            device_fields[i].zero, where, number_at(out, device_fields[i].at)));
    for (int t = 0; t < 2; t++) {
        const json_t *of = json_object_get(o, types[t]);
        NEB_TRY(take_list(json_object_get(of, "step"), "step", INTRA_COST_STEPS, false, where,
                          out->rates.device.step[t]));
        NEB_TRY(take_figure(json_object_get(of, "update"), "update", false, where,
                            &out->rates.device.update[t]));
    }
    return NEB_OK;
}

enum neb_status agent_profile_device_parse(const json_t *o, const char *where,
                                           struct agent_profile *p) {
    const json_t *codecs = json_object_get(o, "codecs");
    NEB_TRY(take_device(json_object_get(o, "device"), where, p));
    for (int i = 0; cmp_variant(i, CMP_PLANNED) && p->rates.device.count; i++)
        NEB_TRY(take_rates(json_array_get(codecs, (size_t)i), where,
                           &p->codecs[i].at[INTER_WAN_DEVICE]));
    return NEB_OK;
}

static enum neb_status from_json(const json_t *o, const char *where, struct agent_profile *out) {
    json_int_t processors = json_integer_value(json_object_get(o, "processors"));
    if (json_integer_value(json_object_get(o, "nebula_profile")) != VERSION)
        return neb_fail(NEB_ERR_FORMAT,
                        "%s: not a profile of this version: make it with nebula plan --profile",
                        where);
    if (processors < 1 || processors > 65536)
        return neb_fail(NEB_ERR_FORMAT, "%s: processors is not from 1 to 65536", where);
    out->rates.processors = (int32_t)processors;
    NEB_TRY(take_text(o, "host", where, out->host, sizeof out->host));
    NEB_TRY(take_text(o, "isa", where, out->isa, sizeof out->isa));
    for (int i = 0; i < N_FIELDS; i++)
        NEB_TRY(take_figure(json_object_get(o, fields[i].name), fields[i].name, fields[i].zero,
                            where, number_at(out, fields[i].at)));
    for (int t = 0; t < 2; t++) {
        const json_t *of = json_object_get(o, types[t]), *step = json_object_get(of, "step");
        bool none = t == KERN_BF16 && json_number_value(json_array_get(step, 0)) == 0;
        NEB_TRY(take_list(step, "step", INTRA_COST_WIDTHS, none, where, out->rates.step[t]));
        NEB_TRY(take_list(json_object_get(of, "one"), "one", INTRA_COST_WIDTHS, none, where,
                          out->rates.one[t]));
        for (int i = 0; none && i < INTRA_COST_WIDTHS; i++)
            out->rates.step[t][i] = out->rates.one[t][i] = 0;
    }
    NEB_TRY(take_device(json_object_get(o, "device"), where, out));
    return take_codecs(json_object_get(o, "codecs"), where, out);
}

enum neb_status agent_profile_parse(const char *text, size_t len, const char *where,
                                    struct agent_profile *out) {
    json_error_t e;
    *out = (struct agent_profile){0};
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!o)
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: not JSON: %s", where, e.line, e.text);
    enum neb_status st = from_json(o, where, out);
    json_decref(o);
    return st;
}

enum neb_status agent_profile_load(const char *path, struct agent_profile *out) {
    struct neb_buf b = {0};
    enum neb_status st = neb_fs_read(path, FILE_MAX, &b);
    if (st == NEB_OK)
        st = agent_profile_parse((const char *)b.p, b.len, path, out);
    neb_buf_free(&b);
    return st;
}

// ~/.cache/nebula/plan-VERSION-HOST-ISA-LIBRARY-PROCESSORS.json. Another machine, fewer processors
// in a job's cgroup or another library for products is measured again.
static enum neb_status kept_path(char *out, size_t cap) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char host[64] = "", library[64], dir[NEB_PATH_MAX], name[224];
    if (!(xdg && *xdg) && !(home && *home))
        return NEB_ERR_NOT_FOUND;
    (void)!gethostname(host, sizeof host - 1);
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '_';
    snprintf(library, sizeof library, "%s", kern_cpu_library());
    for (char *c = library; *c; c++)
        if (*c == '/' || *c == ' ')
            *c = '-';
    snprintf(name, sizeof name, "plan-%d-%s-%s-%s-%d.json", VERSION, host, kern_cpu_isa(), library,
             kern_pool_processors());
    NEB_TRY(xdg && *xdg ? neb_path(dir, sizeof dir, xdg, "nebula")
                        : neb_path(dir, sizeof dir, home, ".cache/nebula"));
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    return neb_path(out, cap, dir, name);
}

// Measures again what may have changed since the profile was kept. *changed: something has.
static enum neb_status renew(struct agent_profile *p, bool *changed) {
    struct intra_rates *r = &p->rates;
    bool had = r->device.count > 0;
    *changed = false;
    // A device may have appeared: its driver did not run, or a worker had the device. Other devices
    // may be visible now (CUDA_VISIBLE_DEVICES, another allocation).
    if (!had || p->visible != agent_gpus_visible()) {
        NEB_TRY(agent_profile_find_device(p));
        *changed = had || r->device.count;
    } else if (r->device.count > 1 && !(r->device.link > 0)) {
        agent_profile_find_device_link(p);
        *changed = r->device.link > 0;
    }
    if (r->processors > 1 && !(r->link > 0)) { // ranks did not start
        agent_profile_find_link(p);
        *changed = *changed || r->link > 0;
    }
    return NEB_OK;
}

enum neb_status agent_profile_get(bool measure, struct agent_profile *out, bool *kept) {
    char path[NEB_PATH_MAX];
    bool place = kept_path(path, sizeof path) == NEB_OK;
    *kept = place && !measure && neb_fs_exists(path) && agent_profile_load(path, out) == NEB_OK;
    if (*kept) {
        bool changed;
        NEB_TRY(renew(out, &changed));
        *kept = !changed;
    } else {
        neb_info("measuring this machine (about ten seconds)");
        NEB_TRY(agent_profile_measure(out));
    }
    if (*kept)
        return NEB_OK;
    json_t *o = agent_profile_to_json(out);
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!place || !text || neb_fs_write(path, text, strlen(text), 0644) != NEB_OK)
        neb_warn("the measured rates cannot be saved: they are measured again next time");
    free(text);
    json_decref(o);
    return NEB_OK;
}
