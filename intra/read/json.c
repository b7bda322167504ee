// SPDX-License-Identifier: Apache-2.0
// JSON that jansson rejects is rewritten, and jansson parses the result. Ordinary text needs no
// change; it is scanned once and not copied.
#include "intra/read/json.h"
#include "agent/base/fs.h"

#include <string.h>

// The first digits, and the exponent, of the least number that strtod rounds to infinity.
static const char infinite[] = "17976931348623158079";
enum { INFINITE_EXPONENT = 308, EXPONENT_CLAMP = 1 << 28 };

static const char bom[] = "\xef\xbb\xbf", largest[] = "9223372036854775807";
static const char replacement[] = "\\ufffd", blank[] = "\\u0020";

struct scan {
    const char *p;
    size_t n, at;
    bool quoted;     // inside a string
    const char *nul; // replaces \u0000
};
struct odd { // bytes [from, to) to replace
    size_t from, to;
    const char *instead;
};

// ---- strings ------------------------------------------------------------------------------------

// The UTF-16 unit of the \uXXXX at `at`; -1: no such escape there.
static int unit_at(const struct scan *s, size_t at) {
    int unit = 0;
    if (s->n - at < 6 || s->p[at] != '\\' || s->p[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        char c = s->p[i], low = (char)(c | 0x20);
        int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

// Skips the escape at s->at. True: the escape must be replaced.
static bool odd_escape(struct scan *s, struct odd *o) {
    size_t at = s->at;
    int unit = unit_at(s, at);
    if (unit < 0) {
        s->at = s->n - at < 2 ? s->n : at + 2;
        return false;
    }
    bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
    int next = high && s->n - at >= 12 ? unit_at(s, at + 6) : -1;
    bool pair = next >= 0xdc00 && next < 0xe000;
    s->at = at + (pair ? 12 : 6);
    *o = (struct odd){at, s->at, unit ? replacement : s->nul};
    return !unit || low || (high && !pair);
}

// ---- numbers ------------------------------------------------------------------------------------

static size_t digits(const struct scan *s, size_t at) {
    while (at < s->n && s->p[at] >= '0' && s->p[at] <= '9')
        at++;
    return at;
}

// Value of the exponent in [at, end), which begins with e or E.
static long exponent(const struct scan *s, size_t at, size_t end) {
    long e = 0;
    bool negative = s->p[at + 1] == '-';
    for (size_t i = at + 1; i < end; i++)
        if (s->p[i] >= '0' && s->p[i] <= '9' && e < EXPONENT_CLAMP)
            e = e * 10 + (s->p[i] - '0');
    return negative ? -e : e;
}

// `at`: the first digit of a number that is not zero. The number is this digit, a point and the
// digits after it, times ten to the power of e.
static bool is_infinite(const struct scan *s, size_t at, size_t end, long e) {
    if (e != INFINITE_EXPONENT)
        return e > INFINITE_EXPONENT;
    for (const char *d = infinite; *d; at++) {
        char c = at < end ? s->p[at] : '0';
        if (c == '.')
            continue;
        if (c != *d)
            return c > *d;
        d++;
    }
    return true;
}

// Skips the number, NaN or Infinity at s->at. True: it must be replaced, because it is not JSON or
// too large for the type that jansson would choose.
static bool odd_number(struct scan *s, struct odd *o) {
    static const struct {
        const char *name, *object;
    } words[] = {{"NaN", "{\"__float__\":\"NaN\"}"},
                 {"Infinity", "{\"__float__\":\"Infinity\"}"},
                 {"-Infinity", "{\"__float__\":\"-Infinity\"}"}};
    const char *p = s->p;
    size_t from = s->at, first = from + (p[from] == '-'), end;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t k = strlen(words[i].name);
        if (s->n - from >= k && !memcmp(p + from, words[i].name, k)) {
            s->at = from + k;
            *o = (struct odd){from, s->at, words[i].object};
            return true;
        }
    }
    size_t point = digits(s, first), power, behind;
    bool good = point > first && (p[first] != '0' || point == first + 1);
    end = point;
    if (end < s->n && p[end] == '.') {
        end = digits(s, behind = end + 1);
        good = good && end > behind;
    }
    power = end;
    if (end < s->n && (p[end] == 'e' || p[end] == 'E')) {
        behind = end + 1 + (s->n - end > 1 && (p[end + 1] == '-' || p[end + 1] == '+'));
        end = digits(s, behind);
        good = good && end > behind;
    }
    s->at = end > from ? end : from + 1;
    size_t lead = first; // first digit that is not zero
    while (lead < power && (p[lead] == '0' || p[lead] == '.'))
        lead++;
    if (!good || lead == power)
        return false; // zero, or malformed: jansson reports that
    long e = lead < point ? (long)(point - lead) - 1 : -(long)(lead - point);
    if (is_infinite(s, lead, power, e + (power < end ? exponent(s, power, end) : 0))) {
        *o = (struct odd){from, end, words[p[from] == '-' ? 2 : 1].object};
        return true;
    }
    size_t n = point - first;
    *o = (struct odd){end, end, ".0"};
    return end == point &&
           (n >= sizeof largest || (n == sizeof largest - 1 && memcmp(p + first, largest, n) > 0));
}

// ---- the text -----------------------------------------------------------------------------------

static struct scan scan_make(const char *text, size_t len, const char *nul) {
    size_t skip = len >= 3 && !memcmp(text, bom, 3) ? 3 : 0;
    return (struct scan){.p = text + skip, .n = len - skip, .nul = nul};
}

static bool next_odd(struct scan *s, struct odd *o) {
    while (s->at < s->n) {
        char c = s->p[s->at];
        bool digit = (c >= '0' && c <= '9') || c == '-' || c == 'N' || c == 'I';
        if (c == '\\' && s->quoted) {
            if (odd_escape(s, o))
                return true;
        } else if (digit && !s->quoted) {
            if (odd_number(s, o))
                return true;
        } else {
            s->quoted ^= c == '"';
            s->at++;
        }
    }
    return false;
}

static json_t *load(struct scan s, json_error_t *why) {
    struct neb_buf text = {0};
    struct odd o;
    size_t done = 0;
    while (next_odd(&s, &o)) {
        neb_buf_add(&text, s.p + done, o.from - done);
        neb_buf_add(&text, o.instead, strlen(o.instead));
        done = o.to;
    }
    json_t *v = NULL;
    if (!done) {
        v = json_loadb(s.p, s.n, JSON_DECODE_ANY, why);
    } else {
        neb_buf_add(&text, s.p + done, s.n - done);
        if (!text.oom)
            v = json_loadb((const char *)text.p, text.len, JSON_DECODE_ANY, why);
        else if (why)
            *why = (json_error_t){.line = 1, .text = "out of memory"};
    }
    neb_buf_free(&text);
    return v;
}

json_t *intra_json_line(const char *text, size_t len, json_error_t *why) {
    return load(scan_make(text, len, blank), why);
}

enum neb_status intra_json_parse(const char *text, size_t len, const char *file, json_t **out) {
    json_error_t e;
    *out = load(scan_make(text, len, replacement), &e);
    return *out ? NEB_OK : neb_fail(NEB_ERR_FORMAT, "%s:%d: %.160s", file, e.line, e.text);
}

enum neb_status intra_json_read(const char *path, size_t max, json_t **out) {
    struct neb_buf text = {0};
    *out = NULL;
    enum neb_status st = neb_fs_read(path, max, &text);
    if (st == NEB_OK)
        st = intra_json_parse((const char *)text.p, text.len, path, out);
    neb_buf_free(&text);
    return st;
}

// ---- a value in place of another ----------------------------------------------------------------

static size_t skip_string(const struct scan *s, size_t at) { // `at` is after its first quote
    while (at < s->n && s->p[at] != '"')
        at += s->p[at] == '\\' ? 2 : 1;
    return at + 1;
}

static size_t skip_blanks(const struct scan *s, size_t at) {
    while (at < s->n && strchr(" \t\r\n", s->p[at]))
        at++;
    return at;
}

// End of the value at `at`. The text is known to be valid JSON.
static size_t skip_value(const struct scan *s, size_t at) {
    for (int depth = 0; at < s->n; at++) {
        char c = s->p[at];
        if (c == '"')
            at = skip_string(s, at + 1) - 1;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']' || c == ',') && !depth)
            break;
        else if (c == '}' || c == ']')
            depth--;
    }
    while (at && strchr(" \t\r\n", s->p[at - 1]))
        at--;
    return at;
}

enum neb_status intra_json_set(const char *text, size_t len, const char *file, const char *key,
                               const char *value, struct neb_buf *out) {
    struct scan s = scan_make(text, len, replacement);
    size_t done = 0, at, end;
    bool set = false, any = false;
    json_t *root;
    NEB_TRY(intra_json_parse(text, len, file, &root));
    json_decref(root);
    at = skip_blanks(&s, 0);
    if (s.p[at] != '{') // the root value: intra_json_parse turns NaN into an object, too
        return neb_fail(NEB_ERR_FORMAT, "%s: not a JSON object", file);
    neb_buf_clear(out);
    at = skip_blanks(&s, at + 1);
    while (at < s.n && s.p[at] == '"') {
        size_t name = at + 1, behind = skip_string(&s, name);
        any = true;
        at = skip_blanks(&s, skip_blanks(&s, behind) + 1); // after the colon
        end = skip_value(&s, at);
        if (behind - 1 - name == strlen(key) && !memcmp(s.p + name, key, strlen(key))) {
            neb_buf_add(out, s.p + done, at - done);
            neb_buf_add(out, value, strlen(value));
            done = end;
            set = true;
        }
        at = skip_blanks(&s, end);
        at += at < s.n && s.p[at] == ',';
        at = skip_blanks(&s, at);
    }
    neb_buf_add(out, s.p + done, at - done); // up to the closing brace
    if (!set) {
        const char *parts[] = {any ? ",\"" : "\"", key, "\": ", value};
        for (size_t i = 0; i < 4; i++)
            neb_buf_add(out, parts[i], strlen(parts[i]));
    }
    neb_buf_add(out, s.p + at, s.n - at);
    return neb_buf_check(out);
}
