// SPDX-License-Identifier: Apache-2.0
// Tokens of a message catalogue, as GNU gettext and the editors of translators write them.
#include "intra/data/po_state.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

// ---- strings ------------------------------------------------------------------------------------

// Escaped bytes outside ASCII are in the file's encoding, although the text is UTF-8 by now.
static enum neb_status flush_escaped(struct po_lexer *l) {
    enum neb_status st = NEB_OK;
    if (!l->escaped.len)
        return NEB_OK;
    if (l->bytes)
        st = intra_charset_convert(l->bytes, l->escaped.p, l->escaped.len, true, &l->string);
    else
        neb_buf_add(&l->string, l->escaped.p, l->escaped.len);
    neb_buf_clear(&l->escaped);
    return st;
}

static int digit(char c, int base) {
    int v = c >= '0' && c <= '9'   ? c - '0'
            : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                   : 99;
    return v < base ? v : -1;
}

// At most three digits of \ooo, or two of \xhh, from l->at on.
static int number(struct po_lexer *l, int base) {
    int v = 0;
    for (int i = 0; i < (base == 8 ? 3 : 2) && l->at < l->n; i++, l->at++) {
        int d = digit(l->p[l->at], base);
        if (d < 0)
            break;
        v = v * base + d;
    }
    return v & 0xff;
}

static enum neb_status escape(struct po_lexer *l) {
    static const char letters[] = "ntrabfv", meant[] = "\n\t\r\a\b\f\v";
    char c = l->p[l->at];
    bool hex = c == 'x' && l->at + 1 < l->n && digit(l->p[l->at + 1], 16) >= 0;
    if (hex || digit(c, 8) >= 0) {
        l->at += hex;
        int v = number(l, hex ? 16 : 8);
        if (v >= 0x80 || (v && l->escaped.len)) {
            neb_buf_u8(&l->escaped, (uint8_t)v);
            return NEB_OK;
        }
        NEB_TRY(flush_escaped(l));
        neb_buf_u8(&l->string, v ? (uint8_t)v : ' ');
        return NEB_OK;
    }
    NEB_TRY(flush_escaped(l));
    const char *known = strchr(letters, c);
    neb_buf_u8(&l->string, (uint8_t)(known && c ? meant[known - letters] : c));
    l->at++;
    return NEB_OK;
}

// l->at is after the first quote.
static enum neb_status string(struct po_lexer *l, struct po_token *t) {
    neb_buf_clear(&l->string);
    neb_buf_clear(&l->escaped);
    t->kind = PO_STRING;
    while (l->at < l->n && l->p[l->at] != '\n') {
        char c = l->p[l->at++];
        if (c == '"') {
            NEB_TRY(flush_escaped(l));
            return neb_buf_check(&l->string);
        }
        if (c == '\\' && l->at < l->n && l->p[l->at] != '\n') {
            NEB_TRY(escape(l));
            continue;
        }
        NEB_TRY(flush_escaped(l));
        neb_buf_u8(&l->string, c ? (uint8_t)c : ' ');
    }
    t->kind = PO_WRONG;
    t->why = "a string does not end on its line";
    return NEB_OK;
}

// ---- tokens -------------------------------------------------------------------------------------

static void end_line(struct po_lexer *l) {
    l->line++;
    l->obsolete = l->previous = false;
}

static void comment(struct po_lexer *l, struct po_token *t) {
    const char *end = memchr(l->p + l->at, '\n', l->n - l->at);
    t->kind = PO_COMMENT;
    t->text = l->p + l->at;
    t->len = end ? (size_t)(end - t->text) : l->n - l->at;
    l->at += t->len;
}

static void keyword(struct po_lexer *l, struct po_token *t) {
    static const struct {
        const char *word;
        enum po_kind kind;
    } known[] = {{"msgctxt", PO_MSGCTXT},
                 {"msgid", PO_MSGID},
                 {"msgid_plural", PO_PLURAL},
                 {"msgstr", PO_MSGSTR},
                 {"domain", PO_DOMAIN}};
    const char *p = l->p + l->at;
    size_t n = 0;
    while (l->at < l->n && (isalnum((unsigned char)l->p[l->at]) || l->p[l->at] == '_'))
        l->at++, n++;
    t->kind = PO_WRONG;
    t->why = "an unknown keyword";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].word) == n && !memcmp(known[i].word, p, n))
            t->kind = known[i].kind;
}

// Reads the token that starts at l->at.
static enum neb_status begin(struct po_lexer *l, struct po_token *t) {
    char c = l->p[l->at];
    if (c == '"') {
        l->at++;
        return string(l, t);
    }
    if (isalpha((unsigned char)c)) {
        keyword(l, t);
        return NEB_OK;
    }
    if (c >= '0' && c <= '9') {
        t->kind = PO_NUMBER;
        for (; l->at < l->n && digit(l->p[l->at], 10) >= 0; l->at++)
            t->number = t->number < 1000 ? 10 * t->number + (uint32_t)digit(l->p[l->at], 10) : 1000;
        return NEB_OK;
    }
    t->kind = c == '[' ? PO_OPEN : c == ']' ? PO_CLOSE : PO_WRONG;
    t->why = "neither a keyword nor a string";
    l->at++;
    return NEB_OK;
}

// "#~", "#|" and "#~|" mark lines of an old entry. Every other "#" begins a comment.
static bool take_mark(struct po_lexer *l) {
    char next = l->at + 1 < l->n ? l->p[l->at + 1] : '\n';
    if (next != '~' && next != '|')
        return false;
    l->obsolete = l->obsolete || next == '~';
    l->previous = l->previous || next == '|';
    l->at += 2;
    if (next == '~' && l->at < l->n && l->p[l->at] == '|') {
        l->previous = true;
        l->at++;
    }
    return true;
}

enum neb_status po_next(struct po_lexer *l, struct po_token *t) {
    for (; l->at < l->n;) {
        char c = l->p[l->at];
        if (c == '\n')
            end_line(l);
        else if (c == '#' && !take_mark(l))
            break;
        else if (c == '#')
            continue;
        else if (!isspace((unsigned char)c))
            break;
        l->at++;
    }
    *t = (struct po_token){.line = l->line, .obsolete = l->obsolete, .previous = l->previous};
    if (l->at == l->n)
        return NEB_OK;
    if (l->p[l->at] == '#') {
        l->at++;
        comment(l, t);
        return NEB_OK;
    }
    NEB_TRY(begin(l, t));
    if (t->kind == PO_WRONG && (t->obsolete || t->previous)) // nobody reads old entries
        comment(l, t);
    return NEB_OK;
}

void po_skip_entry(struct po_lexer *l) {
    static const char *const begins[] = {"#", "msgid \"", "msgid\t", "msgid\"", "msgctxt"};
    for (;;) {
        const char *end = memchr(l->p + l->at, '\n', l->n - l->at);
        if (!end) {
            l->at = l->n;
            return;
        }
        l->at = (size_t)(end - l->p) + 1;
        end_line(l);
        size_t k = l->at;
        while (k < l->n && (l->p[k] == ' ' || l->p[k] == '\t'))
            k++;
        for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
            if (l->n - k >= strlen(begins[i]) && !memcmp(l->p + k, begins[i], strlen(begins[i])))
                return;
    }
}

// ---- the encoding -------------------------------------------------------------------------------

// Finds the value of charset= in one line of the header.
static bool charset_in(const char *p, size_t n, char out[INTRA_CHARSET_NAME_MAX + 1]) {
    static const char key[] = "charset=";
    for (size_t i = 0, k = 0; i + sizeof key - 1 <= n; i++) {
        if (strncasecmp(p + i, key, sizeof key - 1))
            continue;
        for (i += sizeof key - 1;
             i < n && k < INTRA_CHARSET_NAME_MAX && p[i] > ' ' && !strchr("\\\";", p[i]);)
            out[k++] = p[i++];
        out[k] = 0;
        return true;
    }
    return false;
}

// Looks at lines, not tokens: as long as the encoding is unknown, bytes of characters may look like
// quotes and escapes. The header is the msgstr of an empty msgid, up to the next keyword or
// comment.
void po_find_charset(const char *p, size_t n, char out[INTRA_CHARSET_NAME_MAX + 1]) {
    enum { ELSEWHERE, EMPTY, HEADER } where = ELSEWHERE;
    bool context = false;
    *out = 0;
    for (size_t at = 0; at < n;) {
        const char *line = p + at, *end = memchr(line, '\n', n - at);
        size_t len = end ? (size_t)(end - line) : n - at, i = 0;
        at += len + 1;
        while (i < len && isspace((unsigned char)line[i]))
            i++;
        const char *word = line + i;
        size_t left = len - i;
        if (!left)
            continue;
        if (left > 5 && !memcmp(word, "msgid", 5) && word[5] != '_') {
            where = context ? ELSEWHERE : EMPTY;
            context = false;
        } else if (left > 6 && !memcmp(word, "msgstr", 6)) {
            where = where == EMPTY ? HEADER : ELSEWHERE;
        } else if (*word != '"') {
            where = ELSEWHERE;
            context = context || (left > 7 && !memcmp(word, "msgctxt", 7));
        }
        const char *form = where == EMPTY ? memmem(word, left, "msgstr", 6) : NULL;
        size_t id = form ? (size_t)(form - word) : left;
        if (where == EMPTY) // a string that is not empty: this msgid is not the header's
            for (size_t k = 0; k + 1 < id; k++)
                if (word[k] == '"' && word[k + 1] != '"' && (k == 0 || word[k - 1] != '"'))
                    where = ELSEWHERE;
        if (where == EMPTY && form)
            where = HEADER;
        if (where == HEADER && charset_in(word, left, out))
            return;
    }
}
