// SPDX-License-Identifier: Apache-2.0
// Turns the tokens of a catalogue (po_lex.c) into entries, and entries into pairs.
#include "intra/data/po.h"
#include "intra/data/po_state.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NOWHERE = -1, CONTEXT, MSGID, PLURAL, DOMAIN, FORM, FIELDS = FORM + PO_FORMS };

struct entry {
    struct neb_buf fields[FIELDS];
    int at;           // field that the next string belongs to
    size_t line;      // of its msgid
    bool has[FIELDS]; // the field is there, perhaps empty
    bool strings;     // the field `at` has a string
    bool fuzzy, obsolete;
};

struct reader {
    const struct intra_po *po;
    struct po_lexer lexer;
    struct po_plurals plurals;
    struct entry e;
    struct neb_buf text; // the file converted to UTF-8, if it needs that
    char charset[INTRA_CHARSET_NAME_MAX + 1];
    bool header_only, header_seen;
};

static void clear(struct entry *e) {
    for (int i = 0; i < FIELDS; i++) {
        neb_buf_clear(&e->fields[i]);
        e->has[i] = false;
    }
    e->at = NOWHERE;
    e->line = 0;
    e->fuzzy = e->obsolete = e->strings = false;
}

// ---- pairs --------------------------------------------------------------------------------------

static bool is_utf8(const char *s, size_t n) {
    return intra_utf8_length((const uint8_t *)s, n) == n;
}

// Turns runs of white space and control characters into one space, and drops them at both ends.
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
           strcmp(source, target) && is_utf8(source, a) && is_utf8(target, b) &&
           has_letters(source) && has_letters(target);
}

static enum neb_status wrong(const struct reader *r, size_t line, const char *why) {
    if (r->header_only)
        return NEB_OK;
    return r->po->fault ? r->po->fault(r->po->user, line, why)
                        : neb_fail(NEB_ERR_FORMAT, "%s:%zu: %s", r->po->name, line, why);
}

static enum neb_status one_pair(const struct reader *r, int source, int target) {
    const struct neb_buf *from = &r->e.fields[source], *to = &r->e.fields[target];
    struct neb_buf both = {0};
    enum neb_status st = NEB_OK;
    neb_buf_add(&both, from->p, from->len);
    neb_buf_u8(&both, 0);
    neb_buf_add(&both, to->p, to->len);
    neb_buf_u8(&both, 0);
    NEB_TRY_GOTO(neb_buf_check(&both), out);
    char *a = (char *)both.p, *b = a + from->len + 1;
    if (intra_po_clean(a, b))
        st = r->po->each(r->po->user, a, b);
out:
    neb_buf_free(&both);
    return st;
}

static bool has_text(const struct entry *e, int field) { return e->fields[field].len > 0; }

// The translated form that most numbers take. -1: none.
static int plural_form(const struct reader *r) {
    const struct po_plurals *p = &r->plurals;
    int best = -1;
    if (!p->n_forms) // GNU gettext's default: form 0 for 1, form 1 for all others
        return has_text(&r->e, FORM + 1) ? 1 : r->e.has[FORM + 1] || r->e.has[FORM + 2] ? -1 : 0;
    for (int i = 0; i < p->n_forms; i++)
        if (p->counts[i] && has_text(&r->e, FORM + i) &&
            (best < 0 || p->counts[i] > p->counts[best]))
            best = i;
    return best;
}

static enum neb_status take_pairs(struct reader *r) {
    const struct entry *e = &r->e;
    int one = r->plurals.one, many;
    char why[160];
    for (int i = MSGID; i < FIELDS; i++)
        if (i != DOMAIN && !is_utf8((const char *)e->fields[i].p, e->fields[i].len)) {
            snprintf(why, sizeof why, "the text of this entry is not valid %s, which is %s",
                     r->charset[0] ? r->charset : "UTF-8",
                     r->po->encoding ? "the encoding of the source"
                     : r->charset[0] ? "the charset in the header"
                                     : "assumed because the header names no charset");
            return wrong(r, e->line, why);
        }
    if (!e->has[PLURAL])
        return has_text(e, FORM) ? one_pair(r, MSGID, FORM) : NEB_OK;
    if (has_text(e, FORM + one))
        NEB_TRY(one_pair(r, MSGID, FORM + one));
    many = plural_form(r);
    return many >= 0 && has_text(e, PLURAL) && has_text(e, FORM + many)
               ? one_pair(r, PLURAL, FORM + many)
               : NEB_OK;
}

static enum neb_status finish(struct reader *r) {
    struct entry *e = &r->e;
    enum neb_status st = NEB_OK;
    bool header = e->has[MSGID] && !has_text(e, MSGID) && !e->has[CONTEXT] && !e->obsolete;
    if (header && r->header_only) {
        neb_buf_u8(&e->fields[FORM], 0);
        st = neb_buf_check(&e->fields[FORM]);
        if (st == NEB_OK)
            po_plurals_of((const char *)e->fields[FORM].p, &r->plurals);
        r->header_seen = true;
    } else if (!r->header_only && !e->fuzzy && !e->obsolete && has_text(e, MSGID)) {
        st = take_pairs(r);
    }
    clear(e);
    return st;
}

// ---- the grammar --------------------------------------------------------------------------------

static bool has_form(const struct entry *e) {
    for (int i = 0; i < PO_FORMS; i++)
        if (e->has[FORM + i])
            return true;
    return false;
}

static bool is_fuzzy(const struct po_token *t) {
    static const char word[] = "fuzzy", gaps[] = ", \t\r";
    if (!t->len || !strchr(",=!", t->text[0]))
        return false;
    for (size_t i = 1; i < t->len;) {
        size_t n = 0;
        while (i < t->len && strchr(gaps, t->text[i]))
            i++;
        while (i + n < t->len && !strchr(gaps, t->text[i + n]))
            n++;
        if (n == sizeof word - 1 && !memcmp(t->text + i, word, n))
            return true;
        i += n;
    }
    return false;
}

// Reads msgstr or msgstr[2]. *why: the fault, or NULL.
static enum neb_status take_form(struct reader *r, const char **why) {
    struct po_lexer before = r->lexer;
    struct po_token t;
    uint32_t form;
    NEB_TRY(po_next(&r->lexer, &t));
    if (t.kind != PO_OPEN) {
        before.string = r->lexer.string; // may have been reallocated
        before.escaped = r->lexer.escaped;
        r->lexer = before;
        r->e.at = FORM;
        return NEB_OK;
    }
    NEB_TRY(po_next(&r->lexer, &t));
    form = t.number;
    *why = t.kind == PO_NUMBER ? NULL : "msgstr[ has no number";
    if (!*why) {
        NEB_TRY(po_next(&r->lexer, &t));
        *why = t.kind == PO_CLOSE ? NULL : "msgstr[ has no ]";
    }
    // a form above the limit goes to a field that nobody reads
    r->e.at = form < PO_FORMS ? FORM + (int)form : DOMAIN;
    return NEB_OK;
}

static const char *begin_field(struct entry *e, int field) {
    static const char *const twice[] = {"a second msgctxt", "a second msgid",
                                        "a second msgid_plural", NULL};
    if (e->at != NOWHERE && !e->strings)
        return "the previous keyword has no string";
    if (field != DOMAIN && e->has[field])
        return field < DOMAIN ? twice[field] : "a second msgstr with this number";
    e->at = field;
    e->has[field] = true;
    e->strings = false;
    return NULL;
}

// Drops an entry that is followed by another one before its msgstr. same_kind: the fuzzy flag may
// belong to the new entry, so it is kept.
static enum neb_status cut_off(struct reader *r, bool same_kind) {
    struct entry *e = &r->e;
    bool fuzzy = e->fuzzy, lost = !e->obsolete && !e->fuzzy;
    size_t line = e->line;
    clear(e);
    e->fuzzy = same_kind && fuzzy;
    return lost ? wrong(r, line, "an entry without a msgstr") : NEB_OK;
}

static enum neb_status take_keyword(struct reader *r, const struct po_token *t, const char **why) {
    struct entry *e = &r->e;
    bool begins = t->kind == PO_MSGCTXT || t->kind == PO_MSGID || t->kind == PO_DOMAIN;
    if (begins && has_form(e) && e->strings)
        NEB_TRY(finish(r));
    else if (begins && e->has[MSGID])
        NEB_TRY(cut_off(r, !e->obsolete || t->obsolete));
    if (t->kind != PO_MSGSTR) {
        *why = begin_field(e, t->kind == PO_MSGCTXT  ? CONTEXT
                              : t->kind == PO_MSGID  ? MSGID
                              : t->kind == PO_PLURAL ? PLURAL
                                                     : DOMAIN);
        if (t->kind == PO_PLURAL && !e->has[MSGID])
            *why = "a msgid_plural without a msgid";
    } else if (!e->has[MSGID]) {
        *why = "a msgstr without a msgid";
    } else {
        int was = e->at;
        NEB_TRY(take_form(r, why));
        int form = e->at;
        e->at = was;
        if (!*why)
            *why = begin_field(e, form);
    }
    e->line = t->kind == PO_MSGID ? t->line : e->line;
    e->obsolete = e->obsolete || t->obsolete;
    return NEB_OK;
}

static enum neb_status take_token(struct reader *r, const struct po_token *t, const char **why) {
    struct entry *e = &r->e;
    switch (t->kind) {
    case PO_COMMENT:
        if (has_form(e) && e->strings)
            NEB_TRY(finish(r));
        e->fuzzy = e->fuzzy || is_fuzzy(t);
        return NEB_OK;
    case PO_STRING:
        if (e->at == NOWHERE) {
            *why = "a string without a keyword";
            return NEB_OK;
        }
        e->strings = true;
        neb_buf_add(&e->fields[e->at], r->lexer.string.p, r->lexer.string.len);
        return neb_buf_check(&e->fields[e->at]);
    case PO_WRONG: *why = t->why; return NEB_OK;
    case PO_NUMBER:
    case PO_OPEN:
    case PO_CLOSE: *why = "neither a keyword nor a string"; return NEB_OK;
    default: return take_keyword(r, t, why);
    }
}

static enum neb_status take_end(struct reader *r) {
    const struct entry *e = &r->e;
    if (has_form(e) && e->strings)
        return finish(r);
    return (e->has[MSGID] || e->has[CONTEXT]) && !e->obsolete
               ? wrong(r, r->lexer.line, "the last entry is incomplete")
               : NEB_OK;
}

// Reads all entries; with header_only, up to the header.
static enum neb_status read_entries(struct reader *r) {
    struct po_token t;
    clear(&r->e);
    r->lexer.at = 0;
    r->lexer.line = 1;
    r->lexer.obsolete = r->lexer.previous = false;
    for (;;) {
        const char *why = NULL;
        NEB_TRY(po_next(&r->lexer, &t));
        if (t.kind == PO_END)
            return take_end(r);
        if (t.previous) { // the previous msgid, which stands before its entry
            if (has_form(&r->e) && r->e.strings)
                NEB_TRY(finish(r));
            continue;
        }
        NEB_TRY(take_token(r, &t, &why));
        if (r->header_seen && r->header_only)
            return NEB_OK;
        if (!why)
            continue;
        if (!t.obsolete)
            NEB_TRY(wrong(r, t.line, why));
        clear(&r->e);
        po_skip_entry(&r->lexer);
    }
}

// ---- the encoding -------------------------------------------------------------------------------

static enum neb_status no_charset(const struct reader *r, enum neb_status st) {
    if (st == NEB_ERR_FORMAT)
        return neb_fail(NEB_ERR_FORMAT, "%s: the byte order of %s is unknown; use %sLE or %sBE",
                        r->po->name, r->charset, r->charset, r->charset);
    return st != NEB_ERR_INVALID ? st
                                 : neb_fail(NEB_ERR_FORMAT,
                                            "%s: its header names the charset '%s', which is not "
                                            "known; set the encoding of the source",
                                            r->po->name, r->charset);
}

// The encoding is the source's, or else the one that the header names.
static enum neb_status into_utf8(struct reader *r, const char **text, size_t *len) {
    const uint8_t *p = (const uint8_t *)*text;
    if (*len >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) {
        *text += 3;
        *len -= 3;
    }
    if (r->po->encoding)
        snprintf(r->charset, sizeof r->charset, "%s", r->po->encoding);
    else
        po_find_charset(*text, *len, r->charset);
    if (!strcmp(r->charset, "CHARSET")) // a template that nobody has filled in
        r->charset[0] = 0;
    if (!r->charset[0] || intra_charset_is_utf8(r->charset))
        return NEB_OK;
    if (!r->po->encoding && !intra_charset_is_common(r->charset))
        return no_charset(r, NEB_ERR_INVALID);
    enum neb_status st =
        intra_charset_open(r->charset, (const uint8_t *)*text, *len, &r->lexer.bytes);
    if (st != NEB_OK)
        return no_charset(r, st);
    NEB_TRY(intra_charset_convert(r->lexer.bytes, (const uint8_t *)*text, *len, true, &r->text));
    *text = (const char *)r->text.p;
    *len = r->text.len;
    if (*len >= 3 && !memcmp(*text, "\xef\xbb\xbf", 3)) {
        *text += 3;
        *len -= 3;
    }
    return NEB_OK;
}

enum neb_status intra_po_read(const struct intra_po *po, const char *text, size_t len) {
    struct reader r = {.po = po, .header_only = true};
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(into_utf8(&r, &text, &len), out);
    r.lexer.p = text;
    r.lexer.n = len;
    NEB_TRY_GOTO(read_entries(&r), out);
    r.header_only = false;
    st = read_entries(&r);
out:
    for (int i = 0; i < FIELDS; i++)
        neb_buf_free(&r.e.fields[i]);
    intra_charset_close(&r.lexer.bytes);
    neb_buf_free(&r.lexer.string);
    neb_buf_free(&r.lexer.escaped);
    neb_buf_free(&r.text);
    return st;
}
