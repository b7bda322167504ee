// SPDX-License-Identifier: Apache-2.0
#include "security/members.h"

#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/sha256.h"
#include "security/files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 64 * 1024 };
static const char *const connect_names[] = {"auto", "out", "in"};
static const char *const role_names[] = {"data", "witness"};

const char *sec_role_name(enum sec_role r) { return role_names[r]; }

bool sec_role_parse(const char *text, enum sec_role *out) {
    for (int i = 0; i < 2; i++)
        if (!strcmp(text, role_names[i])) {
            *out = (enum sec_role)i;
            return true;
        }
    return false;
}

// ---- lists --------------------------------------------------------------------------------------

bool sec_endpoint_valid(const char *e) {
    const char *colon = strrchr(e, ':');
    size_t n = strlen(e);
    if (!colon || colon == e || n >= SEC_ENDPOINT_MAX)
        return false;
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits > 5 || colon[1 + digits] != 0)
        return false;
    long port = strtol(colon + 1, NULL, 10);
    if (port < 1 || port > 65535)
        return false;
    size_t host = (size_t)(colon - e);
    if (e[0] == '[') // IPv6
        return host > 3 && e[host - 1] == ']' &&
               1 + strspn(e + 1, "0123456789abcdefABCDEF:.%") == host - 1;
    return strspn(e, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") == host;
}

int sec_members_find(const struct sec_members *m, const char *name) {
    for (uint32_t i = 0; i < m->n; i++)
        if (!strcmp(m->m[i].pub.name, name))
            return (int)i;
    return -1;
}

const struct sec_member *sec_members_by_name(const struct sec_members *m, const char *name) {
    int i = sec_members_find(m, name);
    return i < 0 ? NULL : &m->m[i];
}

const struct sec_member *sec_members_by_curve(const struct sec_members *m,
                                              const uint8_t curve[SEC_KEY_BYTES]) {
    for (uint32_t i = 0; i < m->n; i++)
        if (!memcmp(m->m[i].pub.curve, curve, SEC_KEY_BYTES))
            return &m->m[i];
    return NULL;
}

// The member with this name and exactly these keys; NULL: none.
static const struct sec_member *same(const struct sec_members *m, const struct sec_public *p) {
    const struct sec_member *x = sec_members_by_curve(m, p->curve);
    return x && !strcmp(x->pub.name, p->name) && !memcmp(x->pub.sign, p->sign, SEC_KEY_BYTES)
               ? x
               : NULL;
}

bool sec_members_hold(const struct sec_members *m, const struct sec_public *p) {
    return same(m, p) != NULL;
}

uint32_t sec_members_voters(const struct sec_members *m) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++)
        n += !!(m->m[i].caps & SEC_CAP_VOTER);
    return n;
}

static bool clash(const struct sec_public *a, const struct sec_public *b) {
    return !strcmp(a->name, b->name) || !memcmp(a->curve, b->curve, SEC_KEY_BYTES) ||
           !memcmp(a->sign, b->sign, SEC_KEY_BYTES);
}

static bool member_valid(const struct sec_member *m) {
    return sec_name_valid(m->pub.name) && (!m->endpoint[0] || sec_endpoint_valid(m->endpoint)) &&
           (unsigned)m->connect <= SEC_CONNECT_IN && (unsigned)m->role <= SEC_ROLE_WITNESS &&
           !(m->caps & ~(uint32_t)SEC_CAP_ALL);
}

bool sec_members_valid(const struct sec_members *m) {
    if (!m->version || m->n > NEB_MEMBERS_MAX)
        return false;
    for (uint32_t i = 0; i < m->n; i++) {
        if (!member_valid(&m->m[i]) ||
            (i && memcmp(m->m[i - 1].pub.sign, m->m[i].pub.sign, SEC_KEY_BYTES) >= 0))
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (clash(&m->m[k].pub, &m->m[i].pub))
                return false;
    }
    return true;
}

enum neb_status sec_members_insert(struct sec_members *m, const struct sec_member *add) {
    if (!member_valid(add))
        return neb_fail(NEB_ERR_INVALID,
                        "member '%s': the name is not valid, or its endpoint '%s' is not HOST:PORT",
                        add->pub.name, add->endpoint);
    for (uint32_t i = 0; i < m->n; i++)
        if (clash(&m->m[i].pub, &add->pub))
            return neb_fail(NEB_ERR_EXISTS,
                            "member '%s': its name or one of its keys belongs to '%s'",
                            add->pub.name, m->m[i].pub.name);
    if (m->n == NEB_MEMBERS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "member list: it cannot have more than %d members",
                        NEB_MEMBERS_MAX);
    uint32_t i = m->n++;
    for (; i > 0 && memcmp(m->m[i - 1].pub.sign, add->pub.sign, SEC_KEY_BYTES) > 0; i--)
        m->m[i] = m->m[i - 1];
    m->m[i] = *add;
    return NEB_OK;
}

void sec_members_drop(struct sec_members *m, uint32_t i) {
    NEB_ASSERT(i < m->n);
    memmove(&m->m[i], &m->m[i + 1], (m->n - i - 1) * sizeof m->m[0]);
    memset(&m->m[--m->n], 0, sizeof m->m[0]);
}

void sec_members_diff(const struct sec_members *a, const struct sec_members *b,
                      struct sec_members_change *out) {
    *out = (struct sec_members_change){0};
    for (uint32_t i = 0; i < a->n; i++) {
        const struct sec_member *x = &a->m[i], *y = same(b, &x->pub);
        out->removed += !y;
        out->renewed += y && (strcmp(x->endpoint, y->endpoint) != 0 || x->connect != y->connect ||
                              x->role != y->role || x->caps != y->caps);
    }
    for (uint32_t i = 0; i < b->n; i++)
        out->added += !same(a, &b->m[i].pub);
}

// ---- members.json -------------------------------------------------------------------------------

static void federation_id(const struct sec_members *m, uint8_t out[SEC_FEDERATION_BYTES]) {
    static const char tag[] = "nebula federation v1";
    uint8_t all[sizeof tag + 2 * SEC_KEY_BYTES * NEB_MEMBERS_MAX], h[NEB_SHA256_BYTES];
    size_t n = sizeof tag;
    memcpy(all, tag, n);
    for (uint32_t i = 0; i < m->n; i++) {
        memcpy(all + n, m->m[i].pub.curve, SEC_KEY_BYTES);
        memcpy(all + n + SEC_KEY_BYTES, m->m[i].pub.sign, SEC_KEY_BYTES);
        n += 2 * SEC_KEY_BYTES;
    }
    neb_sha256(all, n, h);
    memcpy(out, h, SEC_FEDERATION_BYTES);
}

enum neb_status sec_members_add(struct sec_members *m, const struct sec_member *add) {
    struct sec_members next = *m;
    if (sec_members_hold(m, &add->pub)) // its entry is replaced
        sec_members_drop(&next, (uint32_t)sec_members_find(m, add->pub.name));
    NEB_TRY(sec_members_insert(&next, add));
    next.version++;
    federation_id(&next, next.federation);
    *m = next;
    return NEB_OK;
}

enum neb_status sec_members_remove(struct sec_members *m, const char *name) {
    int i = sec_members_find(m, name);
    if (i < 0)
        return neb_fail(NEB_ERR_NOT_FOUND, "member list: no member '%s'", name);
    sec_members_drop(m, (uint32_t)i);
    m->version++;
    federation_id(m, m->federation);
    return NEB_OK;
}

static bool only_keys(json_t *o, const char *const *keys) {
    const char *k;
    json_t *v;
    json_object_foreach(o, k, v) {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], k) != 0)
            i++;
        if (!keys[i])
            return false;
    }
    return true;
}

static enum neb_status parse_member(json_t *o, const char *what, size_t i,
                                    struct sec_members *out) {
    static const char *const keys[] = {"id", "endpoint", "connect", NULL};
    struct sec_member m = {.connect = SEC_CONNECT_AUTO};
    const char *id = json_string_value(json_object_get(o, "id"));
    json_t *endpoint = json_object_get(o, "endpoint"), *dial = json_object_get(o, "connect");
    if (!json_is_object(o) || !only_keys(o, keys) || !id)
        return neb_fail(
            NEB_ERR_FORMAT,
            "%s: member %zu must have id, may have endpoint and connect, and nothing else", what,
            i);
    NEB_TRY(sec_public_parse(id, &m.pub));
    if (endpoint) {
        const char *e = json_string_value(endpoint);
        if (!e || !sec_endpoint_valid(e))
            return neb_fail(NEB_ERR_FORMAT, "%s: member '%s': endpoint must be \"HOST:PORT\"", what,
                            m.pub.name);
        snprintf(m.endpoint, sizeof m.endpoint, "%s", e);
    }
    if (dial) {
        const char *d = json_string_value(dial);
        int k = 0;
        while (d && k < 3 && strcmp(connect_names[k], d) != 0)
            k++;
        if (!d || k == 3)
            return neb_fail(NEB_ERR_FORMAT, "%s: member '%s': connect must be auto, out or in",
                            what, m.pub.name);
        m.connect = (enum sec_connect)k;
    }
    return sec_members_insert(out, &m);
}

enum neb_status sec_members_parse(const char *text, size_t len, const char *what,
                                  struct sec_members *out) {
    static const char *const keys[] = {"format", "federation", "version", "members", NULL};
    enum neb_status st = NEB_OK;
    json_error_t err;
    struct sec_members m = {.n = 0};
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &err);
    if (!root)
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: %s", what, err.line, err.text);
    json_t *list = json_object_get(root, "members"), *version = json_object_get(root, "version");
    const char *fed = json_string_value(json_object_get(root, "federation"));
    json_int_t v = json_integer_value(version);
    if (!json_is_object(root) || !only_keys(root, keys) || !json_is_array(list) ||
        json_integer_value(json_object_get(root, "format")) != 1 || !json_is_integer(version) ||
        v < 1 || !fed || !neb_unhex(fed, m.federation, SEC_FEDERATION_BYTES)) {
        st = neb_fail(
            NEB_ERR_FORMAT,
            "%s must have exactly format (1), federation (32 hex), version (1 or more) and members",
            what);
        goto out;
    }
    m.version = (uint64_t)v;
    for (size_t i = 0; i < json_array_size(list); i++)
        NEB_TRY_GOTO(parse_member(json_array_get(list, i), what, i, &m), out);
    *out = m;
out:
    json_decref(root);
    return st;
}

// Whoever can write this file decides who may link to this node.
static enum neb_status ours_alone(const char *path) {
    struct stat sb;
    if (lstat(path, &sb) != 0)
        return neb_fail_errno("%s", path);
    bool owned = sb.st_uid == geteuid() || sb.st_uid == 0 || geteuid() == 0;
    if (S_ISREG(sb.st_mode) && owned && !(sb.st_mode & 022))
        return NEB_OK;
    return neb_fail(NEB_ERR_DENIED,
                    "%s: %s. This file decides who may link to this node, so it is refused (chmod "
                    "600, and own it)",
                    path,
                    !S_ISREG(sb.st_mode) ? "it is not a plain file"
                    : owned              ? "others may write it"
                                         : "it belongs to another user");
}

enum neb_status sec_members_load(const char *path, uint64_t at_least, struct sec_members *out) {
    enum neb_status st;
    struct neb_buf b = {0};
    struct sec_members m;
    if (!neb_fs_exists(path))
        return NEB_ERR_NOT_FOUND;
    NEB_TRY(ours_alone(path));
    NEB_TRY_GOTO(neb_fs_read(path, FILE_MAX, &b), out);
    NEB_TRY_GOTO(sec_members_parse((const char *)b.p, b.len, path, &m), out);
    if (m.version < at_least)
        st = neb_fail(NEB_ERR_DENIED,
                      "%s: version %llu is older than version %llu, which was in use: refused",
                      path, (unsigned long long)m.version, (unsigned long long)at_least);
    else
        *out = m;
out:
    neb_buf_free(&b);
    return st;
}

enum neb_status sec_members_save(const char *path, const struct sec_members *m) {
    struct sec_members old;
    enum neb_status st = sec_members_load(path, 0, &old);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    if (m->version == 0 || (st == NEB_OK && m->version <= old.version))
        return neb_fail(
            NEB_ERR_DENIED, "%s holds version %llu, and version %llu does not replace it", path,
            (unsigned long long)(st == NEB_OK ? old.version : 0), (unsigned long long)m->version);
    char fed[2 * SEC_FEDERATION_BYTES + 1], id[SEC_ID_TEXT];
    neb_hex(m->federation, SEC_FEDERATION_BYTES, fed);
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->n; i++) {
        st = sec_public_format(&m->m[i].pub, id, sizeof id);
        if (st != NEB_OK) {
            json_decref(list);
            return st;
        }
        json_t *o = json_pack("{s:s, s:s}", "id", id, "connect", connect_names[m->m[i].connect]);
        if (m->m[i].endpoint[0])
            json_object_set_new(o, "endpoint", json_string(m->m[i].endpoint));
        json_array_append_new(list, o);
    }
    json_t *root = json_pack("{s:i, s:s, s:I, s:o}", "format", 1, "federation", fed, "version",
                             (json_int_t)m->version, "members", list);
    return sec_json_save_take(path, root, 2);
}
