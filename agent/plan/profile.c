// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/profile.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/proc/gpus.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 8, FILE_MAX = 64 * 1024, PROCESSORS_MAX = 65536 };

// ---- JSON ---------------------------------------------------------------------------------------

// One walk over the fields writes them all, or reads them all. After a failure it reads no more.
struct form {
    json_t *o; // the present object
    bool writes;
    const char *where;   // names the file that is read
    enum neb_status *st; // of the whole walk
};

static struct form inside(const struct form *f, const char *name) {
    struct form in = *f;
    in.o = f->writes ? json_object() : json_object_get(f->o, name);
    if (f->writes)
        json_object_set_new(f->o, name, in.o);
    return in;
}

// An impossible figure would give a plan that nobody can explain, so it is refused.
static void take(const struct form *f, const json_t *v, const char *name, bool zero, double *out) {
    double x = json_number_value(v);
    if (*f->st != NEB_OK)
        return;
    if (json_is_number(v) && (zero ? x >= 0 : x >= 1e-15) && x <= 1e21)
        *out = x;
    else
        *f->st = neb_fail(NEB_ERR_FORMAT,
                          "%s: %s is missing or impossible: make the file again with nebula plan "
                          "--profile",
                          f->where, name);
}

// zero: 0 is allowed.
static void number(const struct form *f, const char *name, bool zero, double *x) {
    if (f->writes)
        json_object_set_new(f->o, name, json_real(*x));
    else
        take(f, json_object_get(f->o, name), name, zero, x);
}

static void numbers(const struct form *f, const char *name, bool zero, double *x, int n) {
    json_t *list = f->writes ? json_array() : json_object_get(f->o, name);
    for (int i = 0; i < n; i++)
        if (f->writes)
            json_array_append_new(list, json_real(x[i]));
        else
            take(f, json_array_get(list, (size_t)i), name, zero, &x[i]);
    if (f->writes)
        json_object_set_new(f->o, name, list);
}

static void whole(const struct form *f, const char *name, int32_t most, int32_t *x) {
    json_int_t v = json_integer_value(json_object_get(f->o, name));
    if (f->writes)
        json_object_set_new(f->o, name, json_integer(*x));
    else if (*f->st == NEB_OK && v >= 1 && v <= most)
        *x = (int32_t)v;
    else if (*f->st == NEB_OK)
        *f->st = neb_fail(NEB_ERR_FORMAT, "%s: %s is not from 1 to %d", f->where, name, most);
}

static void text(const struct form *f, const char *name, char *x, size_t cap) {
    const char *s = json_string_value(json_object_get(f->o, name));
    if (f->writes) {
        json_object_set_new(f->o, name, json_string(x));
        return;
    }
    if (*f->st == NEB_OK && (!s || !*s || strlen(s) >= cap))
        *f->st = neb_fail(NEB_ERR_FORMAT, "%s: %s is missing or too long", f->where, name);
    for (const char *c = s; *f->st == NEB_OK && *c; c++) // the text is printed
        if ((unsigned char)*c < ' ' || *c == 127)
            *f->st = neb_fail(NEB_ERR_FORMAT, "%s: %s holds a control character", f->where, name);
    if (*f->st == NEB_OK)
        snprintf(x, cap, "%s", s);
}

static const char *const types[] = {"fp32", "bf16"}; // by enum kern_type

// A link of 0: a second rank did not start.
static void processors(const struct form *f, struct agent_profile *p) {
    struct intra_rates *r = &p->rates;
    number(f, "update", false, &r->update);
    number(f, "link", true, &r->link);
    number(f, "link_s", true, &r->link_s);
    number(f, "memory", false, &r->memory);
    number(f, "sync_s", false, &p->sync_s);
    for (int t = 0; t < 2; t++) {
        struct form of = inside(f, types[t]);
        const json_t *first = json_array_get(json_object_get(of.o, "step"), 0);
        bool none = t == KERN_BF16 && (f->writes || json_number_value(first) == 0);
        numbers(&of, "step", none, r->step[t], INTRA_COST_WIDTHS);
        numbers(&of, "one", none, r->one[t], INTRA_COST_WIDTHS);
        for (int i = 0; !f->writes && none && i < INTRA_COST_WIDTHS; i++)
            r->step[t][i] = r->one[t][i] = 0;
    }
}

// null: no device.
static void device(const struct form *all, struct agent_profile *p) {
    struct intra_device_rates *r = &p->rates.device;
    if (!all->writes)
        p->visible = -1;
    if (all->writes ? !r->count : json_is_null(json_object_get(all->o, "device"))) {
        if (all->writes)
            json_object_set_new(all->o, "device", json_null());
        return;
    }
    struct form f = inside(all, "device");
    const json_t *visible = json_object_get(f.o, "visible");
    text(&f, "name", p->device, sizeof p->device);
    whole(&f, "count", 1024, &r->count);
    if (f.writes && p->visible >= 0)
        json_object_set_new(f.o, "visible", json_integer(p->visible));
    if (json_is_integer(visible) && json_integer_value(visible) >= 0 &&
        json_integer_value(visible) <= AGENT_GPUS_MAX)
        p->visible = (int32_t)json_integer_value(visible);
    number(&f, "memory", false, &r->memory);
    number(&f, "wait_s", false, &r->wait_s);
    number(&f, "up", false, &r->up);
    number(&f, "down", false, &r->down);
    number(&f, "link", true, &r->link);
    number(&f, "link_s", true, &r->link_s);
    for (int t = 0; t < 2; t++) {
        struct form of = inside(&f, types[t]);
        numbers(&of, "step", false, r->step[t], INTRA_COST_STEPS);
        number(&of, "update", false, &r->update[t]);
    }
}

static void codec_rates(const struct form *f, struct inter_wan_rates *r) {
    number(f, "encode", false, &r->encode);
    number(f, "decode", false, &r->decode);
    number(f, "settle", false, &r->settle);
}

// all: with the figures of processors; else only the rates of the device, if there is one.
static void codecs(const struct form *f, bool all, struct agent_profile *p) {
    json_t *list = f->writes ? json_array() : json_object_get(f->o, "codecs");
    int n = 0;
    while (cmp_variant(n, CMP_PLANNED) && (all || p->rates.device.count))
        n++;
    if (!f->writes && *f->st == NEB_OK && json_array_size(list) != (size_t)n)
        *f->st = neb_fail(NEB_ERR_FORMAT, "%s: codecs: expected %d entries", f->where, n);
    for (int i = 0; i < n; i++) {
        struct inter_wan_codec *c = &p->codecs[i];
        struct form x = *f;
        x.o = f->writes ? json_object() : json_array_get(list, (size_t)i);
        if (f->writes)
            json_array_append_new(list, x.o);
        if (!all) {
            codec_rates(&x, &c->at[INTER_WAN_DEVICE]);
            continue;
        }
        text(&x, "name", c->name, sizeof c->name);
        number(&x, "bits", false, &c->bits);
        number(&x, "rel_error", true, &c->rel_error);
        number(&x, "density", true, &c->density);
        struct form host = inside(&x, "host");
        codec_rates(&host, &c->at[INTER_WAN_HOST]);
        if (!p->rates.device.count)
            continue;
        struct form there = inside(&x, "device");
        codec_rates(&there, &c->at[INTER_WAN_DEVICE]);
    }
    if (f->writes)
        json_object_set_new(f->o, "codecs", list);
}

// all: the whole profile; else only the part that a child measures, of a device.
static void walk(const struct form *f, bool all, struct agent_profile *p) {
    if (all) {
        text(f, "host", p->host, sizeof p->host);
        text(f, "isa", p->isa, sizeof p->isa);
        whole(f, "processors", PROCESSORS_MAX, &p->rates.processors);
        processors(f, p);
    }
    device(f, p);
    codecs(f, all, p);
}

static json_t *written(const struct agent_profile *p, json_t *o, bool all) {
    struct agent_profile copy = *p;
    enum neb_status st = NEB_OK;
    walk(&(struct form){.o = o, .writes = true, .st = &st}, all, &copy);
    return o;
}

json_t *agent_profile_device_to_json(const struct agent_profile *p) {
    return written(p, json_object(), false);
}

json_t *agent_profile_to_json(const struct agent_profile *p) {
    return written(p, json_pack("{s:i}", "nebula_profile", VERSION), true);
}

enum neb_status agent_profile_device_parse(json_t *o, const char *where, struct agent_profile *p) {
    enum neb_status st = NEB_OK;
    walk(&(struct form){.o = o, .where = where, .st = &st}, false, p);
    return st;
}

enum neb_status agent_profile_parse(const char *text, size_t len, const char *where,
                                    struct agent_profile *out) {
    json_error_t e;
    *out = (struct agent_profile){0};
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!o)
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: not JSON: %s", where, e.line, e.text);
    enum neb_status st = NEB_OK;
    if (json_integer_value(json_object_get(o, "nebula_profile")) == VERSION)
        walk(&(struct form){.o = o, .where = where, .st = &st}, true, out);
    else
        st = neb_fail(NEB_ERR_FORMAT,
                      "%s: not a profile of this version: make it with nebula plan --profile",
                      where);
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
    // A device may be new: its driver did not run before, or a worker had the device. Other devices
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
