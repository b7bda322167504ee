// SPDX-License-Identifier: Apache-2.0
// Splits text into pieces. Pairs are merged inside a piece only.
//
// The expressions of the file are written for Oniguruma, and PCRE2 runs them. So only syntax that
// means the same to both is accepted: characters and their escapes, general categories, \s and \d,
// classes without nested classes, groups, lookahead and lookbehind, repetition, alternatives. \s is
// rewritten, because the two disagree about U+180E. Matching is in UTF mode with Unicode
// properties.
#include "intra/data/bpe_state.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { PATTERN_MAX = 8192 };

// ---- the expression -----------------------------------------------------------------------------

struct pattern {
    const char *path, *from, *at; // at: position in from
    struct neb_buf out;
    bool in_class;
};

static enum neb_status refuse(const struct pattern *p, const char *what) {
    return neb_fail(NEB_ERR_UNSUPPORTED,
                    "%s: pre_tokenizer: %s at character %zu of the expression \"%.200s\" is not "
                    "supported, because PCRE2 and Oniguruma may read it differently",
                    p->path, what, (size_t)(p->at - p->from) + 1, p->from);
}

static void keep(struct pattern *p, size_t n) {
    neb_buf_add(&p->out, p->at, n);
    p->at += n;
}

static void put(struct pattern *p, size_t taken, const char *text) {
    neb_buf_add(&p->out, text, strlen(text));
    p->at += taken;
}

// \p{L}, \p{Lu}, \P{...}, \p{^...}
static enum neb_status category(struct pattern *p) {
    static const char *const known[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                        "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                        "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                        "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co"};
    const char *name = p->at + 3;
    if (p->at[2] != '{')
        return refuse(p, "a property without braces");
    name += *name == '^';
    size_t n = strcspn(name, "}");
    for (size_t i = 0; name[n] && i < sizeof known / sizeof *known; i++)
        if (strlen(known[i]) == n && !strncmp(known[i], name, n)) {
            keep(p, (size_t)(name - p->at) + n + 1);
            return NEB_OK;
        }
    return refuse(p, "a property that is not a general category");
}

// \x{10FFFF}
static enum neb_status code(struct pattern *p) {
    size_t n = p->at[2] == '{' ? strspn(p->at + 3, "0123456789abcdefABCDEF") : 0;
    if (!n || n > 6 || p->at[3 + n] != '}')
        return refuse(p, "an escaped number that is not \\x{...}");
    keep(p, n + 4);
    return NEB_OK;
}

static enum neb_status escape(struct pattern *p) {
    char c = p->at[1];
    switch (c) {
    case 's': put(p, 2, "\\p{WSpace}"); return NEB_OK;
    case 'S': put(p, 2, "\\P{WSpace}"); return NEB_OK;
    case 'p':
    case 'P': return category(p);
    case 'x': return code(p);
    case 'd':
    case 'D':
    case 'n':
    case 'r':
    case 't':
    case 'f': keep(p, 2); return NEB_OK;
    default:
        if (!c || (c & 0x80) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
            (c >= 'A' && c <= 'Z') || c < ' ')
            return refuse(p, "this escape");
        keep(p, 2);
        return NEB_OK;
    }
}

// {3}, {1,3}, {2,}; greedy only
static enum neb_status times(struct pattern *p) {
    static const char digits[] = "0123456789";
    size_t n = 1 + strspn(p->at + 1, digits);
    if (n > 1 && p->at[n] == ',') {
        n++;
        n += strspn(p->at + n, digits);
    }
    if (n == 1 || p->at[n] != '}' || (p->at[n + 1] && strchr("?+*{", p->at[n + 1])))
        return refuse(p, "this repetition");
    keep(p, n + 1);
    return NEB_OK;
}

static enum neb_status group(struct pattern *p) {
    static const char *const known[] = {"?:", "?i:", "?=", "?!", "?>", "?<=", "?<!"};
    if (p->at[1] != '?' && p->at[1] != '*') {
        keep(p, 1);
        return NEB_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(p->at + 1, known[i], strlen(known[i]))) {
            keep(p, 1 + strlen(known[i]));
            return NEB_OK;
        }
    return refuse(p, "this group");
}

// Without case, Oniguruma also matches "ss" with U+00DF, and a few similar pairs. PCRE2 does not.
static enum neb_status check_folds(struct pattern *p) {
    static const char *const folded[] = {"ff", "fi", "fl", "ss", "st"};
    if (!strstr(p->from, "(?i:"))
        return NEB_OK;
    for (size_t i = 0; i < sizeof folded / sizeof *folded; i++)
        if (strcasestr(p->from, folded[i]))
            return refuse(p, "(?i: with letters that can join into one (ss, ff, fi, fl, st)");
    for (const char *c = p->from; *c; c++)
        if (*c & 0x80)
            return refuse(p, "(?i: with letters outside ASCII");
    return NEB_OK;
}

static enum neb_status open_class(struct pattern *p) {
    keep(p, 1 + (p->at[1] == '^'));
    p->in_class = true;
    return *p->at == ']' ? refuse(p, "a class that begins with ]") : NEB_OK;
}

static enum neb_status one_of_class(struct pattern *p) {
    if (*p->at == '\\')
        return escape(p);
    if (*p->at == '[' || !strncmp(p->at, "&&", 2))
        return refuse(p, "a class in a class");
    p->in_class = *p->at != ']';
    keep(p, 1);
    return NEB_OK;
}

static enum neb_status one(struct pattern *p) {
    if (p->in_class)
        return one_of_class(p);
    switch (*p->at) {
    case '\\': return escape(p);
    case '[': return open_class(p);
    case '(': return group(p);
    case '{': return times(p);
    case '}': return refuse(p, "a brace");
    case '^':
    case '$': return refuse(p, "an anchor");
    default: keep(p, 1); return NEB_OK;
    }
}

static enum neb_status compile(struct pattern *p, pcre2_code **out) {
    PCRE2_UCHAR why[128];
    PCRE2_SIZE at;
    uint32_t empty = 0;
    int error;
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", p->path);
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    *out = pcre2_compile(p->out.p, p->out.len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                         &error, &at, c);
    pcre2_compile_context_free(c);
    if (!*out) {
        pcre2_get_error_message(error, why, sizeof why);
        return neb_fail(NEB_ERR_FORMAT, "%s: pre_tokenizer: the expression \"%.200s\": %s", p->path,
                        p->from, (const char *)why);
    }
    pcre2_pattern_info(*out, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(*out);
        *out = NULL;
        p->at = p->from;
        return refuse(p, "an empty match");
    }
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); // if this fails, PCRE2 interprets it
    return NEB_OK;
}

enum neb_status bpe_regex_create(const char *path, const char *pattern, pcre2_code **out) {
    struct pattern p = {.path = path, .from = pattern, .at = pattern};
    enum neb_status st = NEB_OK;
    *out = NULL;
    if (strlen(pattern) > PATTERN_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: pre_tokenizer: an expression of %zu bytes, more than %d", path,
                        strlen(pattern), PATTERN_MAX);
    st = check_folds(&p);
    while (*p.at && st == NEB_OK)
        st = one(&p);
    if (st == NEB_OK)
        st = neb_buf_check(&p.out);
    if (st == NEB_OK)
        st = compile(&p, out);
    neb_buf_free(&p.out);
    return st;
}

enum neb_status bpe_word_create(const char *path, pcre2_code **out) {
    static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
    struct pattern p = {.path = path, .from = word, .at = word};
    neb_buf_add(&p.out, word, sizeof word - 1);
    enum neb_status st = neb_buf_check(&p.out);
    if (st == NEB_OK)
        st = compile(&p, out);
    neb_buf_free(&p.out);
    return st;
}

// ---- pieces -------------------------------------------------------------------------------------

static enum neb_status stage(struct bpe_split *s, int k, const uint8_t *p, size_t n);

// The next match from `at` on. *from = *to = n: none.
static enum neb_status next(struct bpe_split *s, const pcre2_code *regex, const uint8_t *p,
                            size_t n, size_t at, size_t *from, size_t *to) {
    const uint32_t how = PCRE2_NO_UTF_CHECK; // the text was checked before
    if (!s->match && !(s->match = pcre2_match_data_create(1, NULL)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory tokenizing");
    int rc = pcre2_match(regex, p, n, at, how, s->match, s->b->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(regex, p, n, at, how | PCRE2_NO_JIT, s->match, s->b->limits);
    *from = *to = n;
    if (rc == PCRE2_ERROR_NOMATCH)
        return NEB_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return neb_fail(NEB_ERR_NOMEM, "out of memory tokenizing %zu bytes", n);
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(s->match);
    if (rc < 0 || found[1] <= found[0] || found[0] < at)
        return neb_fail(
            NEB_ERR_LIMIT,
            "%s: an expression of its pre_tokenizer takes too many steps on a text of %zu bytes",
            s->b->path, n);
    *from = found[0];
    *to = found[1];
    return NEB_OK;
}

// Gives the matches, and the text between them, to stage k.
static enum neb_status split(struct bpe_split *s, int k, const pcre2_code *regex, const uint8_t *p,
                             size_t n) {
    size_t from = n, to = n;
    for (size_t at = 0; at < n; at = to) {
        NEB_TRY(next(s, regex, p, n, at, &from, &to));
        if (from > at)
            NEB_TRY(stage(s, k, p + at, from - at));
        if (to > from)
            NEB_TRY(stage(s, k, p + from, to - from));
    }
    return NEB_OK;
}

static bool is_number(uint32_t c) {
    if (c < 0x80)
        return c >= '0' && c <= '9';
    utf8proc_category_t is = utf8proc_category((utf8proc_int32_t)c);
    return is == UTF8PROC_CATEGORY_ND || is == UTF8PROC_CATEGORY_NL || is == UTF8PROC_CATEGORY_NO;
}

static enum neb_status split_numbers(struct bpe_split *s, int k, bool each, const uint8_t *p,
                                     size_t n) {
    size_t from = 0, i = 0;
    bool numbers = false; // whether [from, i) holds numbers
    while (i < n) {
        uint32_t c;
        size_t bytes = bpe_char_take(p + i, n - i, &c);
        bool number = is_number(c);
        if (i > from && (number != numbers || (number && each))) {
            NEB_TRY(stage(s, k, p + from, i - from));
            from = i;
        }
        numbers = number;
        i += bytes;
    }
    return stage(s, k, p + from, i - from);
}

static enum neb_status stage(struct bpe_split *s, int k, const uint8_t *p, size_t n) {
    if (n == 0)
        return NEB_OK;
    if (k == s->b->n_stages)
        return s->piece(s->user, p, n);
    const struct bpe_stage *g = &s->b->stages[k];
    if (g->kind == BPE_DIGIT || g->kind == BPE_DIGITS)
        return split_numbers(s, k + 1, g->kind == BPE_DIGIT, p, n);
    if (g->space && *p != ' ') { // only the last stage does this, so one buffer is enough
        neb_buf_clear(&s->space);
        neb_buf_u8(&s->space, ' ');
        neb_buf_add(&s->space, p, n);
        NEB_TRY(neb_buf_check(&s->space));
        p = s->space.p;
        n = s->space.len;
    }
    return g->regex ? split(s, k + 1, g->regex, p, n) : stage(s, k + 1, p, n);
}

enum neb_status bpe_split_is_word(struct bpe_split *s, const uint8_t *p, size_t n, bool *out) {
    size_t from = n, to = n;
    NEB_TRY(next(s, s->b->word, p, n, 0, &from, &to));
    *out = from == 0;
    return NEB_OK;
}

static enum neb_status first_stage(struct bpe_split *s, const uint8_t *p, size_t n) {
    return stage(s, 0, p, n);
}

static enum neb_status normalize(struct bpe_split *s, const uint8_t *p, size_t n) {
    if (s->b->nfc)
        NEB_TRY(bpe_text_compose(&p, &n, &s->composed));
    return bpe_added_split(s, true, p, n, first_stage);
}

enum neb_status bpe_split(struct bpe_split *s, const uint8_t *p, size_t n) {
    return bpe_added_split(s, false, p, n, normalize);
}

void bpe_split_end(struct bpe_split *s) {
    pcre2_match_data_free(s->match);
    neb_buf_free(&s->space);
    neb_buf_free(&s->composed);
}
