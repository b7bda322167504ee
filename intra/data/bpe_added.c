// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in text. As in Hugging Face tokenizers, the search for tokens that are not
// special comes before the text is split:
//
//     text ─► added tokens that are not normalized ─► NFC of the text between them
//          ─► added tokens that are normalized ─► pieces
//
// Each of the two searches takes the leftmost match, and the longest one there. A special token in
// a text stays text, but it hides a shorter token that begins inside it.
#include "intra/data/bpe_state.h"

#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

enum { CONTENT_MAX = 1024 }; // bytes; the search may look this far ahead at every position

// ---- the file -----------------------------------------------------------------------------------

static enum neb_status flag(const struct intra_bpe *b, const json_t *o, size_t i, const char *key,
                            bool otherwise, bool *out) {
    const json_t *v = json_object_get(o, key);
    *out = v && !json_is_null(v) ? json_is_true(v) : otherwise;
    return !v || json_is_null(v) || json_is_boolean(v)
               ? NEB_OK
               : neb_fail(NEB_ERR_FORMAT, "%s: added_tokens[%zu]: %s is neither true nor false",
                          b->path, i, key);
}

static const uint8_t *content_of(const struct intra_bpe *b, const struct bpe_added *a) {
    return b->added_text.p + a->at;
}

// The slot of a content in the hash table. A free slot holds a value of at least n_added.
static size_t *slot_of(const struct intra_bpe *b, size_t *table, size_t cap, const void *p,
                       size_t n) {
    size_t i = bpe_hash(b->seed, p, n) & (cap - 1);
    while (table[i] < b->n_added &&
           (b->added[table[i]].len != n || memcmp(content_of(b, &b->added[table[i]]), p, n) != 0))
        i = (i + 1) & (cap - 1);
    return &table[i];
}

// The id that Hugging Face's library gives: the id in the vocabulary, else the next free one. It
// ignores the id that the file states.
static int64_t id_of(const json_t *vocab, const char *content, int64_t *last) {
    const json_t *own = json_object_get(vocab, content);
    int64_t size = (int64_t)json_object_size(vocab);
    if (own)
        return json_integer_value(own);
    return *last >= size ? *last + 1 : size;
}

static enum neb_status take_one(struct intra_bpe *b, const json_t *vocab, const json_t *v, size_t i,
                                size_t *table, size_t cap, int64_t *last) {
    const json_t *content = json_object_get(v, "content");
    const char *name = json_string_value(content);
    size_t n = json_string_length(content);
    struct bpe_added a = {.len = (uint32_t)n, .at = (uint32_t)b->added_text.len};
    json_int_t said = json_integer_value(json_object_get(v, "id"));
    if (n > CONTENT_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: added_tokens[%zu] has a content of %zu bytes, more than %d", b->path,
                        i, n, CONTENT_MAX);
    NEB_TRY(flag(b, v, i, "special", false, &a.special));
    NEB_TRY(flag(b, v, i, "normalized", !a.special, &a.normalized));
    NEB_TRY(flag(b, v, i, "single_word", false, &a.single_word));
    NEB_TRY(flag(b, v, i, "lstrip", false, &a.lstrip));
    NEB_TRY(flag(b, v, i, "rstrip", false, &a.rstrip));
    if (!n)
        return NEB_OK;
    size_t *slot = slot_of(b, table, cap, name, n);
    if (*slot < b->n_added) { // a repeated token: the last entry counts, but special stays set
        struct bpe_added *was = &b->added[*slot];
        a.at = was->at;
        a.id = was->id;
        a.own = was->own;
        a.special = a.special || was->special;
        *was = a;
        return NEB_OK;
    }
    int64_t id = id_of(vocab, name, last);
    if (id >= BPE_IDS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: token '%.60s' has an id over %d", b->path, name,
                        BPE_IDS_MAX - 1);
    if (id != said)
        neb_warn("%s: added token '%.60s' has id %lld in this file; its id here is %lld, as in "
                 "Hugging Face tokenizers",
                 b->path, name, (long long)said, (long long)id);
    a.id = (int32_t)id;
    a.own = json_object_get(vocab, name) != NULL;
    *last = id > *last ? id : *last;
    b->vocab = id >= b->vocab ? (int32_t)id + 1 : b->vocab;
    neb_buf_add(&b->added_text, name, n);
    *slot = b->n_added;
    b->added[b->n_added++] = a;
    return neb_buf_check(&b->added_text);
}

enum neb_status bpe_added_take(struct intra_bpe *b, const json_t *list, const json_t *vocab) {
    size_t n = json_array_size(list), cap = 64, i;
    int64_t last = -1;
    json_t *v;
    while (cap < 2 * n)
        cap *= 2;
    size_t *table = malloc(cap * sizeof *table);
    b->added = calloc(n ? n : 1, sizeof *b->added);
    enum neb_status st =
        table && b->added ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", b->path);
    if (table)
        memset(table, 0xff, cap * sizeof *table);
    for (i = 0; st == NEB_OK && i < n; i++) {
        v = json_array_get(list, i);
        st = take_one(b, vocab, v, i, table, cap, &last);
    }
    free(table);
    return st;
}

const struct bpe_added *bpe_added_find(const struct intra_bpe *b, const char *content) {
    for (size_t i = 0; i < b->n_added; i++)
        if (b->added[i].len == strlen(content) &&
            !memcmp(content_of(b, &b->added[i]), content, b->added[i].len))
            return &b->added[i];
    return NULL;
}

// ---- patterns -----------------------------------------------------------------------------------

static int compare(const void *x, const void *y, void *text) {
    const struct bpe_pattern *a = x, *b = y;
    const uint8_t *p = text;
    size_t n = a->len < b->len ? a->len : b->len;
    int k = memcmp(p + a->at, p + b->at, n);
    return k ? k : a->len != b->len ? (a->len > b->len ? 1 : -1) : a->turn < b->turn ? -1 : 1;
}

// Makes a pattern of each token. `turn` is the order in which Hugging Face's library lists them,
// special tokens first. If two patterns are equal, the first one counts.
static enum neb_status list_patterns(struct intra_bpe *b, bool normalized) {
    struct bpe_patterns *s = &b->patterns[normalized];
    struct neb_buf composed = {0};
    enum neb_status st = NEB_OK;
    s->list = calloc(b->n_added ? b->n_added : 1, sizeof *s->list);
    if (!s->list)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", b->path);
    for (size_t i = 0; i < b->n_added; i++) {
        struct bpe_added *a = &b->added[i];
        if (a->normalized != normalized)
            continue;
        struct bpe_pattern t = {.at = a->at, .len = a->len, .added = (uint32_t)i};
        const uint8_t *p = content_of(b, a);
        size_t n = a->len;
        if (normalized && b->nfc)
            NEB_TRY_GOTO(bpe_text_compose(&p, &n, &composed), out);
        if (p != content_of(b, a)) {
            t.at = (uint32_t)b->added_text.len;
            t.len = (uint32_t)n;
            neb_buf_add(&b->added_text, p, n);
        }
        t.turn = (uint32_t)(a->special ? i : b->n_added + i);
        s->list[s->n++] = t;
    }
    st = neb_buf_check(&b->added_text);
out:
    neb_buf_free(&composed);
    return st;
}

static void sort_patterns(const struct intra_bpe *b, struct bpe_patterns *s) {
    const uint8_t *text = b->added_text.p;
    size_t n = 0;
    bool wanted = false;
    qsort_r(s->list, s->n, sizeof *s->list, compare, (void *)(uintptr_t)text);
    for (size_t i = 0; i < s->n; i++) {
        struct bpe_pattern *t = &s->list[i], *last = n ? &s->list[n - 1] : NULL;
        if (last && last->len == t->len && !memcmp(text + last->at, text + t->at, t->len))
            continue;
        s->first[text[t->at]] = true;
        wanted = wanted || !b->added[t->added].special;
        s->list[n++] = *t;
    }
    s->n = wanted ? n : 0; // special tokens alone do not change the result
}

enum neb_status bpe_added_index(struct intra_bpe *b) {
    bool words = false;
    NEB_TRY(list_patterns(b, false));
    NEB_TRY(list_patterns(b, true));
    sort_patterns(b, &b->patterns[false]);
    sort_patterns(b, &b->patterns[true]);
    for (size_t i = 0; i < b->n_added; i++)
        words = words || (b->added[i].single_word && !b->added[i].special);
    return words ? bpe_word_create(b->path, &b->word) : NEB_OK;
}

void bpe_added_free(struct intra_bpe *b) {
    pcre2_code_free(b->word);
    for (int i = 0; i < 2; i++)
        free(b->patterns[i].list);
    free(b->added);
    neb_buf_free(&b->added_text);
}

// ---- the search ---------------------------------------------------------------------------------

// The longest pattern at the beginning of the text at p. NULL: none.
static const struct bpe_pattern *match(const struct intra_bpe *b, const struct bpe_patterns *s,
                                       const uint8_t *p, size_t n) {
    const struct bpe_pattern *found = NULL;
    const uint8_t *text = b->added_text.p;
    size_t from = 0, to = s->n; // patterns that match the first `depth` bytes
    for (size_t depth = 0; from < to; depth++) {
        if (s->list[from].len == depth)
            found = &s->list[from++];
        if (depth == n || from == to)
            break;
        size_t low = from, high = to;
        while (low < high) {
            size_t mid = low + (high - low) / 2;
            if (text[s->list[mid].at + depth] < p[depth])
                low = mid + 1;
            else
                high = mid;
        }
        from = low;
        high = to;
        while (low < high) {
            size_t mid = low + (high - low) / 2;
            if (text[s->list[mid].at + depth] <= p[depth])
                low = mid + 1;
            else
                high = mid;
        }
        to = low;
    }
    return found;
}

static size_t char_before(const uint8_t *p, size_t at) { // at > 0, UTF-8
    do
        at--;
    while (at && (p[at] & 0xc0) == 0x80);
    return at;
}

static bool is_space(uint32_t c) { // Unicode's White_Space, a set that does not grow
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

// *out: a word character stands directly before `from` or after `to`.
static enum neb_status in_word(struct bpe_split *s, const uint8_t *p, size_t n, size_t from,
                               size_t to, bool *out) {
    uint32_t c;
    *out = false;
    if (from) {
        size_t at = char_before(p, from);
        NEB_TRY(bpe_split_is_word(s, p + at, from - at, out));
    }
    if (!*out && to < n)
        NEB_TRY(bpe_split_is_word(s, p + to, bpe_char_take(p + to, n - to, &c), out));
    return NEB_OK;
}

// Extends [*from, *to) by the blanks that the token's lstrip and rstrip take. `done`: the text
// before it belongs to earlier tokens.
static void take_blanks(const struct bpe_added *a, const uint8_t *p, size_t n, size_t done,
                        size_t *from, size_t *to) {
    uint32_t c = 0;
    if (a->lstrip) {
        for (size_t at = *from; at; *from = at) {
            at = char_before(p, at);
            (void)bpe_char_take(p + at, *from - at, &c);
            if (!is_space(c))
                break;
        }
        *from = *from > done ? *from : done; // the previous token may have taken some blanks
    }
    for (size_t k; a->rstrip && *to < n; *to += k) {
        k = bpe_char_take(p + *to, n - *to, &c);
        if (!is_space(c))
            break;
    }
}

enum neb_status bpe_added_split(struct bpe_split *s, bool normalized, const uint8_t *p, size_t n,
                                bpe_added_text *between) {
    const struct intra_bpe *b = s->b;
    const struct bpe_patterns *set = &b->patterns[normalized];
    size_t done = 0;
    for (size_t at = 0; set->n && at < n;) {
        const struct bpe_pattern *t = set->first[p[at]] ? match(b, set, p + at, n - at) : NULL;
        if (!t) {
            at++;
            continue;
        }
        const struct bpe_added *a = &b->added[t->added];
        size_t from = at, to = at + t->len;
        bool not_one = false;
        at = to;
        if (a->special)
            continue;
        if (a->single_word)
            NEB_TRY(in_word(s, p, n, from, to, &not_one));
        if (not_one)
            continue;
        take_blanks(a, p, n, done, &from, &to);
        if (done < from)
            NEB_TRY(between(s, p + done, from - done));
        if (from < to) // else it is all blanks, taken by the previous token
            NEB_TRY(s->token(s->user, a->id));
        done = to;
    }
    return done < n ? between(s, p + done, n - done) : NEB_OK;
}
