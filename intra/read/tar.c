// SPDX-License-Identifier: Apache-2.0
#include "intra/read/tar.h"

#include <string.h>

enum { BLOCK = 512, EXTRA_MAX = 1 << 20 };

// What pax and GNU headers say about the file that follows.
struct extra {
    char name[INTRA_TAR_NAME_MAX];
    bool has_name, has_size, sparse;
    uint64_t size;
};

static enum neb_status bad(const struct intra_tar *t, const char *why) {
    return neb_fail(NEB_ERR_FORMAT, "%s: offset %llu of the tar archive: %s", t->path,
                    (unsigned long long)t->at, why);
}

static enum neb_status read_all(struct intra_tar *t, void *p, size_t n) {
    size_t got;
    NEB_TRY(intra_input_read(t->in, p, n, &got));
    t->at += got;
    return got == n ? NEB_OK
                    : neb_fail(NEB_ERR_CORRUPT,
                               "%s: the tar archive ends after %llu bytes, in the middle of a "
                               "file; it is cut short",
                               t->path, (unsigned long long)t->at);
}

static enum neb_status skip(struct intra_tar *t, uint64_t n) {
    uint8_t block[16 << 10];
    while (n) {
        size_t k = n < sizeof block ? (size_t)n : sizeof block;
        NEB_TRY(read_all(t, block, k));
        n -= k;
    }
    return NEB_OK;
}

// Octal digits, or GNU's binary form for large numbers. False: neither.
static bool number(const uint8_t *p, size_t n, uint64_t *out) {
    size_t i = 0;
    *out = 0;
    if (p[0] == 0x80) {
        for (i = 1; i < n; i++) {
            if (*out >> 55)
                return false;
            *out = *out << 8 | p[i];
        }
        return true;
    }
    while (i < n && p[i] == ' ')
        i++;
    size_t first = i;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) // at most 12 digits
        *out = *out << 3 | (uint64_t)(p[i] - '0');
    return i > first && (i == n || p[i] == 0 || p[i] == ' ');
}

static bool sum_is_good(const uint8_t *h) {
    uint64_t want, sum = 0;
    int64_t old = 0; // some old programs add signed bytes
    for (size_t i = 0; i < BLOCK; i++) {
        uint8_t c = i >= 148 && i < 156 ? ' ' : h[i];
        sum += c;
        old += (int8_t)c;
    }
    return number(h + 148, 8, &want) && (want == sum || (int64_t)want == old);
}

// Records of a pax header: "LENGTH KEY=VALUE\n".
static enum neb_status take_pax(const struct intra_tar *t, const struct neb_buf *b,
                                struct extra *e) {
    for (size_t at = 0; at < b->len;) {
        size_t n = 0, digits = at;
        for (; at < b->len && b->p[at] >= '0' && b->p[at] <= '9' && n < EXTRA_MAX; at++)
            n = 10 * n + (size_t)(b->p[at] - '0');
        const char *p = (const char *)b->p + at + 1;
        if (at == digits || at >= b->len || b->p[at] != ' ' || n < at - digits + 3 ||
            n > b->len - digits || b->p[digits + n - 1] != '\n')
            return bad(t, "a record of a pax header is damaged");
        size_t len = digits + n - 1 - (at + 1);
        if (len > 5 && !memcmp(p, "path=", 5)) {
            if (len - 5 >= sizeof e->name)
                return neb_fail(NEB_ERR_LIMIT, "%s: a name in the tar archive is too long",
                                t->path);
            memcpy(e->name, p + 5, len - 5);
            e->name[len - 5] = 0;
            e->has_name = true;
        } else if (len > 5 && !memcmp(p, "size=", 5)) {
            e->size = 0;
            for (size_t i = 5; i < len; i++) {
                if (p[i] < '0' || p[i] > '9' || e->size >> 58)
                    return bad(t, "a size in a pax header is not a number");
                e->size = 10 * e->size + (uint64_t)(p[i] - '0');
            }
            e->has_size = true;
        } else if (len > 11 && !memcmp(p, "GNU.sparse.", 11)) {
            e->sparse = true;
        }
        at = digits + n;
    }
    return NEB_OK;
}

static enum neb_status take_extra(struct intra_tar *t, uint8_t type, uint64_t size,
                                  struct extra *e) {
    struct neb_buf b = {0};
    enum neb_status st = NEB_OK;
    if (size > EXTRA_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: a header of the tar archive has %llu bytes", t->path,
                        (unsigned long long)size);
    NEB_TRY_GOTO(neb_buf_reserve(&b, (size_t)size + 1), out);
    NEB_TRY_GOTO(read_all(t, b.p, (size_t)size), out);
    b.len = (size_t)size;
    b.p[b.len] = 0;
    if (type == 'x') {
        st = take_pax(t, &b, e);
    } else if (strlen((const char *)b.p) >= sizeof e->name) {
        st = neb_fail(NEB_ERR_LIMIT, "%s: a name in the tar archive is too long", t->path);
    } else { // 'L': GNU's long name
        snprintf(e->name, sizeof e->name, "%s", (const char *)b.p);
        e->has_name = true;
    }
    if (st == NEB_OK)
        st = skip(t, (BLOCK - size % BLOCK) % BLOCK);
out:
    neb_buf_free(&b);
    return st;
}

static void take_name(struct intra_tar *t, const uint8_t *h, const struct extra *e) {
    if (e->has_name) {
        memcpy(t->name, e->name, sizeof t->name);
        return;
    }
    bool prefix = !memcmp(h + 257, "ustar\0", 6) && h[345];
    snprintf(t->name, sizeof t->name, "%.*s%s%.100s", prefix ? 155 : 0, (const char *)h + 345,
             prefix ? "/" : "", (const char *)h);
}

static bool is_zero(const uint8_t *h) {
    for (size_t i = 0; i < BLOCK; i++)
        if (h[i])
            return false;
    return true;
}

enum neb_status intra_tar_next(struct intra_tar *t, bool *found) {
    struct extra e = {0};
    uint8_t h[BLOCK];
    *found = false;
    NEB_TRY(skip(t, t->left + t->pad));
    t->left = t->pad = 0;
    for (;;) {
        uint64_t size;
        NEB_TRY(read_all(t, h, sizeof h));
        if (is_zero(h))
            return NEB_OK; // nobody reads what follows
        if (!sum_is_good(h))
            return bad(t, "the header before it has a wrong sum");
        uint8_t type = h[156];
        bool file = type == '0' || type == 0 || type == '7';
        if (!number(h + 124, 12, &size))
            return bad(t, "the header before it has no size");
        if (type == 'x' || type == 'L') {
            NEB_TRY(take_extra(t, type, size, &e));
            continue;
        }
        if (type == 'S' || e.sparse)
            return bad(t, "a sparse file; write the archive without --sparse");
        size = e.has_size ? e.size : size;
        if (type >= '1' && type <= '6') // links, devices and folders have no content
            size = 0;
        if (size >> 60)
            return bad(t, "a file is too large");
        t->pad = (BLOCK - size % BLOCK) % BLOCK;
        take_name(t, h, &e);
        e = (struct extra){0};
        size_t n = strlen(t->name);
        if (file && n && t->name[n - 1] != '/') { // old programs mark folders so
            t->size = t->left = size;
            *found = true;
            return NEB_OK;
        }
        NEB_TRY(skip(t, size + t->pad));
        t->pad = 0;
    }
}

enum neb_status intra_tar_content(struct intra_tar *t, size_t max, struct neb_buf *out) {
    if (t->size > max)
        return neb_fail(NEB_ERR_LIMIT, "%s: %s has %llu bytes, at most %zu are accepted", t->path,
                        t->name, (unsigned long long)t->size, max);
    neb_buf_clear(out);
    NEB_TRY(neb_buf_reserve(out, (size_t)t->left + 1));
    size_t n = (size_t)t->left;
    NEB_TRY(read_all(t, out->p, n));
    out->len = n;
    out->p[n] = 0;
    t->left = 0;
    return NEB_OK;
}
