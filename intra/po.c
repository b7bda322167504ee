#include "intra/po.h"

#include <ctype.h>
#include <string.h>

enum { FORMS = 2, NOWHERE = -1, MSGID, PLURAL, FORM, OTHER = FORM + FORMS, FIELDS };

struct entry {
    struct neb_buf fields[FIELDS]; // message, plural, forms, what does not count
    int at;                        // field that a continued string belongs to
    bool fuzzy, has_plural;
};

static void clear(struct entry *e) {
    for (int i = 0; i < FIELDS; i++)
        neb_buf_clear(&e->fields[i]);
    e->at = NOWHERE;
    e->fuzzy = e->has_plural = false;
}

static bool utf8(const char *s) {
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int more = *p < 0x80 ? 0 : *p >> 5 == 6 ? 1 : *p >> 4 == 14 ? 2 : *p >> 3 == 30 ? 3 : -1;
        if (more < 0 || (more == 1 && *p < 0xc2))
            return false;
        for (p++; more > 0; more--, p++)
            if (*p >> 6 != 2)
                return false;
    }
    return true;
}

// Runs of white space and control characters become one space; none at the ends.
static size_t squeeze(char *s) {
    size_t n = 0;
    for (size_t i = 0; s[i]; i++) {
        bool space = (unsigned char)s[i] <= ' ' || s[i] == 127;
        if (!space)
            s[n++] = s[i];
        else if (n && s[n - 1] != ' ')
            s[n++] = ' ';
    }
    while (n && s[n - 1] == ' ')
        n--;
    s[n] = 0;
    return n;
}

static bool has_letters(const char *s) {
    int n = 0;
    for (; *s; s++)
        n += isalpha((unsigned char)*s) || (unsigned char)*s >= 0x80;
    return n >= 2;
}

bool intra_po_clean(char *source, char *target) {
    size_t a = squeeze(source), b = squeeze(target), longer = a > b ? a : b, less = a > b ? b : a;
    return less > 0 && longer <= INTRA_PO_BYTES_MAX && longer <= 5 * less + 20 &&
           strcmp(source, target) && utf8(source) && utf8(target) && has_letters(source) &&
           has_letters(target);
}

static enum neb_status one_pair(struct neb_buf *source, struct neb_buf *target, intra_po_pair *each,
                                void *user) {
    neb_buf_u8(source, 0);
    neb_buf_u8(target, 0);
    NEB_TRY(neb_buf_check(source));
    NEB_TRY(neb_buf_check(target));
    char *a = (char *)source->p, *b = (char *)target->p;
    return intra_po_clean(a, b) ? each(user, a, b) : NEB_OK;
}

static enum neb_status finish(struct entry *e, intra_po_pair *each, void *user) {
    enum neb_status st = NEB_OK;
    struct neb_buf *f = e->fields;
    if (!e->fuzzy && f[MSGID].len && f[FORM].len) {
        struct neb_buf only = {0}; // a language with one form uses it for the plural too
        if (e->has_plural && !f[FORM + 1].len)
            neb_buf_add(&only, f[FORM].p, f[FORM].len);
        st = one_pair(&f[MSGID], &f[FORM], each, user);
        if (st == NEB_OK && e->has_plural && f[PLURAL].len)
            st = one_pair(&f[PLURAL], f[FORM + 1].len ? &f[FORM + 1] : &only, each, user);
        neb_buf_free(&only);
    }
    clear(e);
    return st;
}

// "…" with C's escapes, appended to out. False: not such a string.
static bool take_string(const char *p, size_t n, struct neb_buf *out) {
    while (n && (p[n - 1] == ' ' || p[n - 1] == '\r'))
        n--;
    if (n < 2 || p[0] != '"' || p[n - 1] != '"')
        return false;
    for (size_t i = 1; i < n - 1; i++) {
        if (p[i] == '"')
            return false;
        if (p[i] != '\\') {
            neb_buf_u8(out, (uint8_t)p[i]);
            continue;
        }
        if (++i == n - 1)
            return false;
        neb_buf_u8(out, p[i] == '"' || p[i] == '\\' ? (uint8_t)p[i] : ' '); // \n, \t, \a, digits
    }
    return true;
}

static bool begins(const char *p, size_t n, const char *word, size_t *skip) {
    size_t k = strlen(word);
    if (n < k || memcmp(p, word, k))
        return false;
    while (k < n && p[k] == ' ')
        k++;
    *skip = k;
    return true;
}

static bool take_line(struct entry *e, const char *p, size_t n) {
    size_t skip = 0;
    if (p[0] != '"') {
        if (begins(p, n, "msgid_plural ", &skip)) {
            e->at = PLURAL;
            e->has_plural = true;
        } else if (begins(p, n, "msgid ", &skip)) {
            e->at = MSGID;
        } else if (begins(p, n, "msgstr[0] ", &skip) || begins(p, n, "msgstr ", &skip)) {
            e->at = FORM;
        } else if (begins(p, n, "msgstr[1] ", &skip)) {
            e->at = FORM + 1;
        } else if (begins(p, n, "msgctxt ", &skip) ||
                   (begins(p, n, "msgstr[", &skip) && n > 10 && p[8] == ']' && p[9] == ' ')) {
            skip = p[6] == '[' ? 10 : skip;
            e->at = OTHER;
        } else {
            return false;
        }
    }
    return e->at != NOWHERE && take_string(p + skip, n - skip, &e->fields[e->at]);
}

static bool starts_entry(const char *p, size_t n) {
    size_t skip;
    return begins(p, n, "msgid ", &skip) || begins(p, n, "msgctxt ", &skip);
}

// A blank line, a comment or the next entry's first line ends an entry that has a translation. "#, fuzzy" comes before its
// entry, "#~" is obsolete text.
static enum neb_status finish_before(struct entry *e, const char *p, size_t n, intra_po_pair *each,
                                     void *user) {
    if (e->fields[FORM].len || !n)
        NEB_TRY(finish(e, each, user));
    if (n > 2 && p[0] == '#' && p[1] == ',' && memmem(p, n, "fuzzy", 5))
        e->fuzzy = true;
    return NEB_OK;
}

enum neb_status intra_po_read(const char *text, size_t len, const char *name, intra_po_pair *each,
                              void *user) {
    struct entry e = {.at = NOWHERE};
    enum neb_status st = NEB_OK;
    size_t number = 0;
    for (size_t at = 0; at < len && st == NEB_OK;) {
        const char *p = text + at, *end = memchr(p, '\n', len - at);
        size_t n = end ? (size_t)(end - p) : len - at;
        at += n + 1;
        number++;
        while (n && (*p == ' ' || *p == '\t'))
            p++, n--;
        if (!n || *p == '\r' || *p == '#' || (starts_entry(p, n) && e.fields[FORM].len))
            st = finish_before(&e, p, n, each, user);
        if (n && *p != '\r' && *p != '#' && st == NEB_OK && !take_line(&e, p, n))
            st =
                neb_fail(NEB_ERR_FORMAT, "%s:%zu: not a line of a message catalogue", name, number);
    }
    if (st == NEB_OK)
        st = finish(&e, each, user);
    for (int i = 0; i < FIELDS; i++)
        neb_buf_free(&e.fields[i]);
    return st;
}
