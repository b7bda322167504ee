// SPDX-License-Identifier: Apache-2.0
// Reads HOME/policy.json, and describes it on one line.
#include "agent/base/fs.h"
#include "agent/base/nearest.h"
#include "agent/base/number.h"
#include "agent/daemon/policy.h"
#include "security/seal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { POLICY_BYTES_MAX = 16 * 1024 };

static const struct choice {
    const char *name;
    int value;
} modes[] = {{"full", INTRA_TRAIN_FULL},
             {"lora", INTRA_TRAIN_LORA},
             {"bitfit", INTRA_TRAIN_BITFIT},
             {"last_layers", INTRA_TRAIN_LAST_LAYERS}},
  devices[] = {{"cpu", AGENT_DEVICE_CPU}, {"cuda", AGENT_DEVICE_CUDA}},
  gates[] = {{"trusted", AGENT_GATE_TRUSTED},
             {"robust", AGENT_GATE_ROBUST},
             {"private", AGENT_GATE_PRIVATE}},
  launchers[] = {{"local", AGENT_LAUNCHER_LOCAL},
                 {"mpirun", AGENT_LAUNCHER_MPIRUN},
                 {"slurm", AGENT_LAUNCHER_SLURM},
                 {"attach", AGENT_LAUNCHER_ATTACH}},
  row_counts[] = {{"exact", AGENT_ROWS_EXACT},
                  {"coarse", AGENT_ROWS_COARSE},
                  {"never", AGENT_ROWS_NEVER}},
  losses[] = {{"exact", AGENT_LOSSES_EXACT},
              {"rounded", AGENT_LOSSES_ROUNDED},
              {"never", AGENT_LOSSES_NEVER}};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

// A list of at most AGENT_POLICY_LIST strings, each in a row of `cap` bytes. *n -1: absent.
static bool strings(const json_t *a, char *rows, size_t cap, int *n) {
    *n = a ? (int)json_array_size(a) : -1;
    if (!a)
        return true;
    if (!json_is_array(a) || *n < 1 || *n > AGENT_POLICY_LIST)
        return false;
    for (int i = 0; i < *n; i++) {
        const char *s = json_string_value(json_array_get(a, (size_t)i));
        if (!s || !*s || strlen(s) >= cap)
            return false;
        memcpy(rows + (size_t)i * cap, s, strlen(s) + 1);
    }
    return true;
}

// A list of names out of `known`; *bits has a bit per value.
static bool choices(const json_t *a, const struct choice *known, int n_known, unsigned *bits) {
    char names[AGENT_POLICY_LIST][32];
    int n;
    if (!strings(a, names[0], sizeof names[0], &n))
        return false;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < n_known && strcmp(names[i], known[k].name) != 0)
            k++;
        if (k == n_known)
            return false;
        *bits |= 1u << known[k].value;
    }
    return true;
}

static bool count(const json_t *v, int64_t *out) {
    *out = json_integer_value(v);
    return !v || (json_is_integer(v) && *out > 0);
}

// A size in bytes: a number, or text such as "20G".
static bool size(const json_t *v, int64_t *out) {
    uint64_t bytes = 0;
    if (!json_is_string(v))
        return count(v, out);
    bool ok = neb_number_size(json_string_value(v), 1, INT64_MAX, &bytes);
    *out = (int64_t)bytes;
    return ok;
}

// One name out of `known`; if absent, *out stays.
static bool choice(const json_t *v, const struct choice *known, int n_known, int *out) {
    const char *name = json_string_value(v);
    for (int k = 0; name && k < n_known; k++)
        if (!strcmp(name, known[k].name)) {
            *out = known[k].value;
            return true;
        }
    return !v;
}

static bool flag(const json_t *v, bool *out) {
    *out = json_is_true(v);
    return !v || json_is_boolean(v);
}

static bool hours(const json_t *v, double *out) {
    if (v)
        *out = json_number_value(v);
    return !v || (json_is_number(v) && *out > 0 && *out < 1e9);
}

struct reader { // a key, what its value must be, and whether its value is good
    const char *key, *is;
    bool good;
};

// Reads all keys that are present. NULL: all are valid.
static const char *read_keys(const json_t *o, struct agent_policy *p, char *why, size_t cap) {
#define V(key) json_object_get(o, key)
    static const char number[] = "a whole number above 0",
                      bytes[] = "a number of bytes above 0, or text such as \"20G\"",
                      names[] = "a list of 1 to 16 names", yes[] = "true or false";
    int rows = (int)p->row_counts, loss = (int)p->losses;
    const struct reader all[] = {
        {"format", "1", json_integer_value(V("format")) == 1},
        {"members", names, strings(V("members"), p->members[0], SEC_NAME_MAX, &p->n_members)},
        {"data", "a list of 1 to 16 folders",
         strings(V("data"), p->data[0], NEB_PATH_MAX, &p->n_data)},
        {"attach", names, strings(V("attach"), p->attach[0], SEC_NAME_MAX, &p->n_attach)},
        {"trainable", "a list out of full, lora, bitfit, last_layers",
         choices(V("trainable"), modes, COUNT(modes), &p->trainable)},
        {"devices", "a list out of cpu, cuda",
         choices(V("devices"), devices, COUNT(devices), &p->devices)},
        {"gates", "a list out of trusted, robust, private",
         choices(V("gates"), gates, COUNT(gates), &p->gates)},
        {"launchers", "a list out of local, mpirun, slurm, attach",
         choices(V("launchers"), launchers, COUNT(launchers), &p->launchers)},
        {"row_counts", "exact, coarse or never",
         choice(V("row_counts"), row_counts, COUNT(row_counts), &rows)},
        {"losses", "exact, rounded or never", choice(V("losses"), losses, COUNT(losses), &loss)},
        {"push_text", yes, flag(V("push_text"), &p->push_text)},
        {"labels", yes, flag(V("labels"), &p->labels)},
        {"hours_without_progress", "a number above 0",
         hours(V("hours_without_progress"), &p->hours_without_progress)},
        {"tokens_per_update", number, count(V("tokens_per_update"), &p->tokens_per_update)},
        {"loss_every", number, count(V("loss_every"), &p->loss_every)},
        {"threads", number, count(V("threads"), &p->threads)},
        {"ranks", number, count(V("ranks"), &p->ranks)},
        {"steps", number, count(V("steps"), &p->steps)},
        {"parameters", number, count(V("parameters"), &p->parameters)},
        {"tokens_per_step", number, count(V("tokens_per_step"), &p->tokens_per_step)},
        {"jobs", number, count(V("jobs"), &p->jobs)},
        {"jobs_per_member", number, count(V("jobs_per_member"), &p->jobs_per_member)},
        {"memory", bytes, size(V("memory"), &p->memory)},
        {"device_memory", bytes, size(V("device_memory"), &p->device_memory)},
        {"disk", bytes, size(V("disk"), &p->disk)}};
#undef V
    const char *key;
    json_t *v;
    p->row_counts = (enum agent_row_counts)rows;
    p->losses = (enum agent_losses)loss;
    for (int i = 0; i < COUNT(all); i++)
        if (!all[i].good) {
            snprintf(why, cap, "\"%s\" must be %s", all[i].key, all[i].is);
            return why;
        }
    const char *known[COUNT(all)];
    for (int i = 0; i < COUNT(all); i++)
        known[i] = all[i].key;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        int i = 0;
        while (i < COUNT(all) && strcmp(known[i], key) != 0)
            i++;
        if (i < COUNT(all))
            continue;
        const char *meant = neb_nearest(key, known, COUNT(all));
        snprintf(why, cap,
                 "\"%.64s\" is not a key of a policy%s%s%s (security/README.md lists them)", key,
                 meant ? "; did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
        return why;
    }
    return NULL;
}

struct agent_policy agent_policy_none(void) {
    return (struct agent_policy){.n_members = -1,
                                 .n_data = -1,
                                 .n_attach = -1,
                                 .row_counts = AGENT_ROWS_COARSE,
                                 .losses = AGENT_LOSSES_ROUNDED,
                                 .hours_without_progress = 7 * 24};
}

enum neb_status agent_policy_parse(const char *text, size_t len, const char *what,
                                   struct agent_policy *out) {
    json_error_t e;
    char why[256];
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    *out = agent_policy_none();
    out->present = true;
    if (!json_is_object(root)) {
        json_decref(root);
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: %s", what, root ? 1 : e.line,
                        root ? "an object is expected" : e.text);
    }
    const char *bad = read_keys(root, out, why, sizeof why);
    json_decref(root);
    return bad ? neb_fail(NEB_ERR_FORMAT, "%s: %s", what, bad) : NEB_OK;
}

enum neb_status agent_policy_load(const char *home, struct agent_policy *out) {
    char path[NEB_PATH_MAX];
    *out = agent_policy_none();
    NEB_TRY(neb_path(path, sizeof path, home, "policy.json"));
    enum neb_status st = agent_policy_read(path, out);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status agent_policy_read(const char *path, struct agent_policy *out) {
    size_t len = 0;
    char *text = malloc(POLICY_BYTES_MAX);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: %s", path);
    enum neb_status st = sec_secret_read(path, text, POLICY_BYTES_MAX, &len);
    if (st == NEB_OK)
        st = agent_policy_parse(text, len, path, out);
    free(text);
    return st;
}

// ---- describe ----

struct words {
    char *p;
    size_t at, cap;
};

__attribute__((format(printf, 2, 3))) static void put(struct words *w, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = w->at < w->cap ? vsnprintf(w->p + w->at, w->cap - w->at, fmt, ap) : 0;
    va_end(ap);
    w->at += n > 0 ? (size_t)n : 0;
}

static void put_names(struct words *w, const char *what, const char *rows, size_t cap, int n,
                      const char *all) {
    put(w, "%s", what);
    for (int i = 0; i < n; i++)
        put(w, "%s %s", i ? "," : "", rows + (size_t)i * cap);
    put(w, "%s; ", n < 0 ? all : "");
}

static void put_choices(struct words *w, const char *what, const struct choice *known, int n,
                        unsigned bits) {
    bool any = false;
    put(w, "%s", what);
    for (int i = 0; i < n && bits; i++)
        if (bits >> known[i].value & 1) {
            put(w, "%s %s", any ? "," : "", known[i].name);
            any = true;
        }
    put(w, "%s; ", bits ? "" : " any");
}

static void put_most(struct words *w, const char *what, int64_t most) {
    if (most)
        put(w, "%s at most %lld; ", what, (long long)most);
}

static const char *name_of(const struct choice *known, int n, int value) {
    for (int i = 0; i < n; i++)
        if (known[i].value == value)
            return known[i].name;
    return "?";
}

void agent_policy_describe(const struct agent_policy *p, char *out, size_t cap) {
    struct words w = {out, 0, cap};
    out[0] = 0;
    if (!p->present) {
        put(&w, "jobs of every member, whatever data they read here and whatever their updates "
                "reveal of it: if an update rests on few tokens, its readers can read them. Losses "
                "are rounded. {\"format\": 1, \"data\": [FOLDERS]} in policy.json limits both");
        return;
    }
    put_names(&w, "jobs of", p->members[0], SEC_NAME_MAX, p->n_members, " every member");
    put_names(&w, "data below", p->data[0], NEB_PATH_MAX, p->n_data, " any folder");
    put_choices(&w, "trainable", modes, COUNT(modes), p->trainable);
    put_choices(&w, "devices", devices, COUNT(devices), p->devices);
    put_choices(&w, "launchers", launchers, COUNT(launchers), p->launchers);
    put_most(&w, "threads", p->threads);
    put_most(&w, "ranks", p->ranks);
    put_most(&w, "steps", p->steps);
    put_most(&w, "parameters", p->parameters);
    put_most(&w, "tokens per step", p->tokens_per_step);
    put_most(&w, "bytes of memory", p->memory);
    put_most(&w, "bytes of a device's memory", p->device_memory);
    put_most(&w, "bytes on disk", p->disk);
    put_most(&w, "jobs at a time", p->jobs);
    put_most(&w, "jobs at a time per member", p->jobs_per_member);
    put(&w, "stopped after %g hours without progress; ", p->hours_without_progress);
    put_choices(&w, "gates", gates, COUNT(gates), p->gates);
    put(&w, "an update rests on at least %lld tokens%s; ",
        p->tokens_per_update ? (long long)p->tokens_per_update : (long long)AGENT_UPDATE_TOKENS,
        p->tokens_per_update ? "" : " and on four times the widest layer's input");
    put(&w, "row counts %s; ", name_of(row_counts, COUNT(row_counts), (int)p->row_counts));
    put(&w, "text %s, labels %s; ", p->push_text ? "may leave" : "stays",
        p->labels ? "may leave" : "stay");
    put(&w, "losses %s", name_of(losses, COUNT(losses), (int)p->losses));
    if (p->losses == AGENT_LOSSES_ROUNDED && p->loss_every)
        put(&w, ", one in %lld steps", (long long)p->loss_every);
    else if (p->losses == AGENT_LOSSES_ROUNDED)
        put(&w, ", one in %d steps at most", AGENT_DISCLOSED_STEPS);
    put(&w, "; ");
    put_names(&w, "waiting trainers for jobs of", p->attach[0], SEC_NAME_MAX, p->n_attach,
              " this site");
    if (w.at >= 2 && w.at < cap)
        out[w.at - 2] = 0;
}
