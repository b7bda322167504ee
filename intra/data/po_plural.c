// SPDX-License-Identifier: Apache-2.0
// Reads the Plural-Forms of a header: the form of the number 1, and how many numbers from 2 on take
// each form. The expression is C, with the variable n.
#include "intra/data/po_state.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEPTH_MAX = 64, EXPRESSION_MAX = 1024, NUMBERS = 100 };

struct reading {
    const char *p;
    unsigned long n;
    int depth;
    bool bad;
};

static unsigned long ternary(struct reading *r, bool live);

static char peek(struct reading *r) {
    while (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r' || *r->p == '\\')
        r->p++;
    return *r->p;
}

static bool take(struct reading *r, const char *sign) {
    (void)peek(r);
    if (strncmp(r->p, sign, strlen(sign)) != 0)
        return false;
    r->p += strlen(sign);
    return true;
}

static unsigned long unary(struct reading *r, bool live) {
    unsigned long v = 0;
    char c = peek(r);
    if (r->bad || ++r->depth > DEPTH_MAX) {
        r->bad = true;
        return 0;
    }
    if (c == '!' && r->p[1] != '=') {
        r->p++;
        v = !unary(r, live);
    } else if (c == '(') {
        r->p++;
        v = ternary(r, live);
        r->bad = r->bad || !take(r, ")");
    } else if (c == 'n') {
        r->p++;
        v = r->n;
    } else if (c >= '0' && c <= '9') {
        char *end;
        v = strtoul(r->p, &end, 10);
        r->p = end;
    } else {
        r->bad = true;
    }
    r->depth--;
    return v;
}

static const struct {
    const char *sign;
    int level;
} operators[] = {{"||", 0}, {"&&", 1}, {"==", 2}, {"!=", 2}, {"<=", 3}, {">=", 3}, {"<", 3},
                 {">", 3},  {"+", 4},  {"-", 4},  {"*", 5},  {"/", 5},  {"%", 5}};
enum { LEVELS = 6, N_OPERATORS = sizeof operators / sizeof *operators };

static unsigned long apply(struct reading *r, int op, unsigned long a, unsigned long b, bool live) {
    switch (op) {
    case 0: return a || b;
    case 1: return a && b;
    case 2: return a == b;
    case 3: return a != b;
    case 4: return a <= b;
    case 5: return a >= b;
    case 6: return a < b;
    case 7: return a > b;
    case 8: return a + b;
    case 9: return a - b;
    case 10: return a * b;
    default:
        if (!b) {
            r->bad = r->bad || live; // a branch that is not taken may divide by zero
            return 0;
        }
        return op == 11 ? a / b : a % b;
    }
}

static unsigned long binary(struct reading *r, int level, bool live) {
    if (level == LEVELS)
        return unary(r, live);
    unsigned long a = binary(r, level + 1, live);
    while (!r->bad) {
        int op = 0;
        while (op < N_OPERATORS && (operators[op].level != level || !take(r, operators[op].sign)))
            op++;
        if (op == N_OPERATORS)
            break;
        bool asked = live && !(op == 0 && a) && !(op == 1 && !a);
        a = apply(r, op, a, binary(r, level + 1, asked), asked);
    }
    return a;
}

static unsigned long ternary(struct reading *r, bool live) {
    if (r->bad || ++r->depth > DEPTH_MAX) {
        r->bad = true;
        return 0;
    }
    unsigned long v = binary(r, 0, live);
    if (!r->bad && take(r, "?")) {
        unsigned long yes = ternary(r, live && v);
        r->bad = r->bad || !take(r, ":");
        unsigned long no = r->bad ? 0 : ternary(r, live && !v);
        v = v ? yes : no;
    }
    r->depth--;
    return v;
}

static int form_of(const char *expression, unsigned long n, int n_forms) {
    struct reading r = {.p = expression, .n = n};
    unsigned long v = ternary(&r, true);
    return r.bad || (peek(&r) && *r.p != ';') || v >= (unsigned long)n_forms ? -1 : (int)v;
}

void po_plurals_of(const char *header, struct po_plurals *out) {
    char line[EXPRESSION_MAX];
    *out = (struct po_plurals){0};
    const char *p = strcasestr(header, "plural-forms:");
    if (!p)
        return;
    size_t n = strcspn(p, "\n");
    if (n >= sizeof line)
        return;
    memcpy(line, p, n);
    line[n] = 0;
    const char *forms = strstr(line, "nplurals"), *plural = strstr(line, "plural=");
    while (plural && plural > line && plural[-1] == 'n')
        plural = strstr(plural + 1, "plural=");
    if (!plural) { // with blanks: "plural ="
        for (plural = line; (plural = strstr(plural, "plural")); plural++)
            if (plural[6 + strspn(plural + 6, " \t")] == '=')
                break;
    }
    if (!forms || !plural)
        return;
    forms += 8 + strspn(forms + 8, " \t=");
    plural += 6 + strspn(plural + 6, " \t");
    long n_forms = strtol(forms, NULL, 10);
    if (*plural != '=' || n_forms < 1 || n_forms > PO_FORMS)
        return;
    struct po_plurals made = {.n_forms = (int)n_forms, .one = form_of(plural + 1, 1, (int)n_forms)};
    if (made.one < 0)
        return;
    for (unsigned long k = 2; k <= NUMBERS; k++) {
        int form = form_of(plural + 1, k, made.n_forms);
        if (form < 0)
            return;
        made.counts[form]++;
    }
    *out = made;
}
