// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/tensor_list.h"

#include <string.h>

void agent_tensors_clear(struct agent_tensor_list *t) {
    exchange_manifest_destroy(&t->own);
    *t = (struct agent_tensor_list){0};
}

enum neb_status agent_tensors_take(struct agent_tensor_list *t, struct exchange_manifest *m) {
    agent_tensors_clear(t);
    t->own = m;
    (void)exchange_manifest_tensors(m, &t->n);
    enum neb_status st = exchange_manifest_sha(m, t->sha);
    if (st != NEB_OK)
        agent_tensors_clear(t);
    return st;
}

// The manifest of the tensors [from, to) alone. NULL: out of memory.
static struct exchange_manifest *part(const struct agent_tensor_list *t, int32_t from, int32_t to) {
    struct exchange_manifest *m = NULL;
    int32_t n;
    const struct exchange_tensor *all = exchange_manifest_tensors(t->own, &n);
    NEB_ASSERT(from < to && to <= n);
    return exchange_manifest_create(all + from, to - from, &m) == NEB_OK ? m : NULL;
}

static bool prefix_sha(const struct agent_tensor_list *t, int32_t n,
                       char hex[2 * NEB_SHA256_BYTES + 1]) {
    uint8_t sha[NEB_SHA256_BYTES];
    struct exchange_manifest *m = n < t->n ? part(t, 0, n) : NULL;
    bool ok = n == t->n || (m && exchange_manifest_sha(m, sha) == NEB_OK);
    neb_hex(n == t->n ? t->sha : sha, NEB_SHA256_BYTES, hex);
    exchange_manifest_destroy(&m);
    return ok;
}

// The tensor before p and the tensor at p. A manifest has at least one tensor; at the end of a list
// only the tensor before p exists.
static struct exchange_manifest *around(const struct agent_tensor_list *t, int32_t p) {
    return part(t, p > 0 ? p - 1 : 0, p < t->n ? p + 1 : t->n);
}

static json_t *around_text(const struct agent_tensor_list *t, int32_t p) {
    struct neb_buf b = {0};
    struct exchange_manifest *m = around(t, p);
    json_t *text = m && exchange_manifest_write(m, &b) == NEB_OK
                       ? json_stringn((const char *)b.p, b.len)
                       : NULL;
    neb_buf_free(&b);
    exchange_manifest_destroy(&m);
    return text;
}

// Compares the tensors around p with the other cluster's.
static enum agent_tensors_result judge(const struct agent_tensor_list *t, int32_t p,
                                       const json_t *message, const char *own, const char *other,
                                       char text[AGENT_TENSORS_TEXT]) {
    const json_t *said = json_object_get(message, "tensors");
    struct exchange_manifest *a = around(t, p), *b = NULL;
    enum agent_tensors_result result = AGENT_TENSORS_OPEN;
    if (a && json_is_string(said) &&
        exchange_manifest_read(json_string_value(said), json_string_length(said), &b) == NEB_OK &&
        exchange_manifest_differ(a, own, b, other, text, AGENT_TENSORS_TEXT))
        result = AGENT_TENSORS_DIFFER;
    exchange_manifest_destroy(&a);
    exchange_manifest_destroy(&b);
    return result;
}

static bool number(const json_t *o, const char *key, int32_t least, int32_t *out) {
    const json_t *v = json_object_get(o, key);
    json_int_t n = json_integer_value(v);
    *out = (int32_t)n;
    return json_is_integer(v) && n >= least && n <= EXCHANGE_TENSORS_MAX;
}

static int32_t next(const struct agent_tensor_list *t) {
    return t->high ? t->low + (t->high - t->low) / 2 : t->n;
}

static bool is_found(const struct agent_tensor_list *t) { return t->high == t->low + 1; }

json_t *agent_tensors_question(const struct agent_tensor_list *t) {
    char sha[2 * NEB_SHA256_BYTES + 1];
    if (!t->own)
        return NULL;
    if (is_found(t))
        return json_pack("{s:i, s:i, s:o}", "n", t->n, "at", t->low, "tensors",
                         around_text(t, t->low));
    return prefix_sha(t, next(t), sha)
               ? json_pack("{s:i, s:i, s:s}", "n", t->n, "prefix", next(t), "sha", sha)
               : NULL;
}

json_t *agent_tensors_answer(const struct agent_tensor_list *t, const json_t *q, const char *own,
                             const char *other, enum agent_tensors_result *result,
                             char text[AGENT_TENSORS_TEXT]) {
    char sha[2 * NEB_SHA256_BYTES + 1];
    const char *said = json_string_value(json_object_get(q, "sha"));
    int32_t p, n;
    *result = AGENT_TENSORS_OPEN;
    if (!t->own || !number(q, "n", 1, &n))
        return NULL;
    if (number(q, "at", 0, &p)) {
        if (p > t->n)
            return NULL;
        *result = judge(t, p, q, own, other, text);
        return json_pack("{s:i, s:o, s:b}", "at", p, "tensors", around_text(t, p), "same", 0);
    }
    if (!number(q, "prefix", 1, &p) || !said || (p <= t->n && !prefix_sha(t, p, sha)))
        return NULL;
    bool same = p <= t->n && !strcmp(said, sha);
    if (same && p == n && n == t->n)
        *result = AGENT_TENSORS_SAME;
    return json_pack("{s:i, s:i, s:b}", "prefix", p, "n", t->n, "same", same);
}

bool agent_tensors_is_answer(const json_t *m) { return json_object_get(m, "same") != NULL; }

enum agent_tensors_result agent_tensors_learn(struct agent_tensor_list *t, const json_t *a,
                                              const char *own, const char *other,
                                              char text[AGENT_TENSORS_TEXT]) {
    int32_t p, n;
    if (!t->own)
        return AGENT_TENSORS_OPEN;
    if (is_found(t)) {
        if (!number(a, "at", 0, &p) || p != t->low)
            return AGENT_TENSORS_OPEN;
        enum agent_tensors_result result = judge(t, p, a, own, other, text);
        if (result == AGENT_TENSORS_OPEN) // the other's list has changed meanwhile
            t->low = t->high = 0;
        return result;
    }
    if (!number(a, "prefix", 1, &p) || p != next(t) || !number(a, "n", 1, &n))
        return AGENT_TENSORS_OPEN;
    bool same = json_is_true(json_object_get(a, "same"));
    if (same && p == t->n && n == t->n)
        return AGENT_TENSORS_SAME;
    if (!t->high) { // the first question is about the whole list
        t->low = same ? p : 0;
        t->high = same ? p + 1 : p;
    } else if (same) {
        t->low = p;
    } else {
        t->high = p;
    }
    return AGENT_TENSORS_OPEN;
}
