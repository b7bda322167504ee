// SPDX-License-Identifier: Apache-2.0
// Reads a tokenizer.json into tables. A setting that would change ids and is not implemented is
// refused by name.
#include "intra/data/bpe_state.h"

#include "agent/base/fs.h"
#include "intra/data/tokenizer_files.h"
#include "intra/read/json.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FILE_MAX = 64 << 20, CHARS = 324 }; // CHARS: characters below this may stand for bytes

// Limits of one match of an expression: it takes some seconds at most.
enum { MATCH_MAX = 50 * 1000 * 1000, DEPTH_MAX = 1 << 20, HEAP_MAX_KB = 1 << 18 };

struct loading {
    struct intra_bpe *b;
    json_t *root, *vocab;   // vocab is borrowed from root
    int16_t byte_of[CHARS]; // -1: stands for no byte
    bool names_unk;         // the file has an unk_token
};

static enum neb_status malformed(const struct loading *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static enum neb_status malformed(const struct loading *l, const char *fmt, ...) {
    char what[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return neb_fail(NEB_ERR_FORMAT, "%s: %s", l->b->path, what);
}

static enum neb_status unsupported(const struct loading *l, const char *what, const char *value,
                                   const char *known) {
    return neb_fail(NEB_ERR_UNSUPPORTED, "%s: %s is '%.60s'; supported: %s", l->b->path, what,
                    value ? value : "not given", known);
}

static const char *type_of(const json_t *o) {
    return json_string_value(json_object_get(o, "type"));
}

static bool is_left_out(const json_t *o) { return !o || json_is_null(o); }

// ---- tokens -------------------------------------------------------------------------------------

// Inverts GPT-2's bytes_to_unicode: printable bytes are their own character, the others are
// characters from U+0100 on.
static void list_bytes(int16_t byte_of[CHARS]) {
    int16_t next = 256;
    for (int16_t c = 0; c < CHARS; c++)
        byte_of[c] = -1;
    for (int16_t c = 0; c < 256; c++)
        byte_of[(c > ' ' && c < 0x7f) || (c > 0xa0 && c != 0xad) ? c : next++] = c;
}

// Appends the bytes of a token to b->text. A token outside the alphabet of bytes keeps its
// spelling.
static enum neb_status add_token(struct loading *l, int32_t id, const char *name) {
    struct intra_bpe *b = l->b;
    struct bpe_token *t = &b->tokens[id];
    const uint8_t *p = (const uint8_t *)name;
    size_t n = strlen(name), at = b->text.len;
    uint32_t c;
    *t = (struct bpe_token){.at = (uint32_t)at, .known = true, .bytes = n > 0};
    for (size_t i = 0; i < n && t->bytes;) {
        i += bpe_char_take(p + i, n - i, &c);
        t->bytes = c < CHARS && l->byte_of[c] >= 0;
        if (t->bytes)
            neb_buf_u8(&b->text, (uint8_t)l->byte_of[c]);
    }
    if (!t->bytes) {
        b->text.len = at;
        neb_buf_add(&b->text, name, n);
    }
    t->len = (uint32_t)(b->text.len - at);
    return neb_buf_check(&b->text);
}

static enum neb_status check_id(const struct loading *l, const char *name, const json_t *id) {
    if (!json_is_integer(id) || json_integer_value(id) < 0)
        return malformed(l, "token '%.60s' has no id", name);
    if (json_integer_value(id) >= BPE_IDS_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: token '%.60s' has an id over %d", l->b->path, name,
                        BPE_IDS_MAX - 1);
    if (json_integer_value(id) >= l->b->vocab)
        l->b->vocab = (int32_t)json_integer_value(id) + 1;
    return NEB_OK;
}

static enum neb_status check_added(const struct loading *l, const json_t *added) {
    json_t *v;
    size_t i;
    if (!is_left_out(added) && !json_is_array(added))
        return malformed(l, "added_tokens is not a list");
    json_array_foreach(added, i, v) {
        const char *name = json_string_value(json_object_get(v, "content"));
        if (!name)
            return malformed(l, "added_tokens[%zu] has no content", i);
        NEB_TRY(check_id(l, name, json_object_get(v, "id")));
    }
    return NEB_OK;
}

static enum neb_status take_one(struct loading *l, const char *name, int32_t id) {
    if (l->b->tokens[id].known)
        return malformed(l, "two tokens have the id %d, one of them '%.60s'", id, name);
    return add_token(l, id, name);
}

// Adds a token that model.vocab lacks, with its spelling in text. No piece becomes it.
static enum neb_status take_added(struct loading *l, const struct bpe_added *a) {
    struct intra_bpe *b = l->b;
    struct bpe_token *t = &b->tokens[a->id];
    const uint8_t *p = b->added_text.p + a->at;
    size_t n = a->len;
    struct neb_buf composed = {0};
    if (a->own)
        return NEB_OK;
    if (t->known)
        return malformed(l, "two tokens have the id %d, one of them '%.*s'", a->id,
                         n < 60 ? (int)n : 60, (const char *)p);
    enum neb_status st = a->normalized && b->nfc ? bpe_text_compose(&p, &n, &composed) : NEB_OK;
    *t = (struct bpe_token){.at = (uint32_t)b->text.len, .len = (uint32_t)n, .known = true};
    if (st == NEB_OK) {
        neb_buf_add(&b->text, p, n);
        st = neb_buf_check(&b->text);
    }
    neb_buf_free(&composed);
    return st;
}

static enum neb_status take_tokens(struct loading *l) {
    json_t *v, *added = json_object_get(l->root, "added_tokens");
    struct intra_bpe *b = l->b;
    const char *name;
    if (!json_is_object(l->vocab))
        return malformed(l, "model.vocab is not an object");
    json_object_foreach(l->vocab, name, v) NEB_TRY(check_id(l, name, v));
    NEB_TRY(check_added(l, added));
    NEB_TRY(bpe_added_take(b, added, l->vocab));
    if (!b->vocab)
        return malformed(l, "it has no tokens");
    b->tokens = calloc((size_t)b->vocab, sizeof *b->tokens);
    if (!b->tokens)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", b->path);
    json_object_foreach(l->vocab, name, v)
        NEB_TRY(take_one(l, name, (int32_t)json_integer_value(v)));
    for (size_t i = 0; i < b->n_added; i++)
        NEB_TRY(take_added(l, &b->added[i]));
    return NEB_OK;
}

// Size of a hash table for n names; at least half of it stays free.
static size_t slots(size_t n) {
    size_t cap = 64;
    while (cap < 2 * n)
        cap *= 2;
    return cap;
}

static enum neb_status index_tokens(struct loading *l) {
    struct intra_bpe *b = l->b;
    b->names_cap = slots(json_object_size(l->vocab));
    b->names = malloc(b->names_cap * sizeof *b->names);
    if (!b->names)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", b->path);
    memset(b->names, 0xff, b->names_cap * sizeof *b->names);
    for (int32_t id = 0; id < b->vocab; id++) {
        const struct bpe_token *t = &b->tokens[id];
        if (!t->bytes)
            continue;
        size_t i = bpe_hash(b->seed, b->text.p + t->at, t->len) & (b->names_cap - 1);
        while (b->names[i] >= 0) // taken: no two tokens have the same bytes
            i = (i + 1) & (b->names_cap - 1);
        b->names[i] = id;
    }
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        b->byte_ids[i] = bpe_find(b, &byte, 1);
        bool of_text = i < 0xc0 || (i > 0xc1 && i < 0xf5); // UTF-8 has no other bytes
        if (b->byte_ids[i] < 0 && of_text && l->names_unk)
            return neb_fail(NEB_ERR_UNSUPPORTED,
                            "%s: model.unk_token stands for byte 0x%02x, which has no token; this "
                            "is not supported",
                            b->path, (unsigned)i);
    }
    return NEB_OK;
}

// ---- merges -------------------------------------------------------------------------------------

// The two names that a merge joins, each with its NUL, stored in `room`.
static enum neb_status names_of(const struct loading *l, size_t i, const json_t *v,
                                struct neb_buf *room, const char **left, const char **right) {
    const char *line = json_string_value(v), *a = json_string_value(json_array_get(v, 0)),
               *b = json_string_value(json_array_get(v, 1));
    size_t n = 0;
    neb_buf_clear(room);
    if (line) {
        n = strcspn(line, " ");
        if (!line[n] || strchr(line + n + 1, ' '))
            return malformed(l, "model.merges[%zu] is not two tokens", i);
        neb_buf_add(room, line, strlen(line) + 1);
    } else {
        if (json_array_size(v) != 2 || !a || !b)
            return malformed(l, "model.merges[%zu] is not two tokens", i);
        n = strlen(a);
        neb_buf_add(room, a, n + 1);
        neb_buf_add(room, b, strlen(b) + 1);
    }
    NEB_TRY(neb_buf_check(room));
    room->p[n] = 0;
    *left = (const char *)room->p;
    *right = *left + n + 1;
    return NEB_OK;
}

static enum neb_status take_merge(struct loading *l, size_t i, int32_t rank, const json_t *v,
                                  struct neb_buf *names, struct neb_buf *both) {
    const char *left = "", *right = "";
    NEB_TRY(names_of(l, i, v, names, &left, &right));
    neb_buf_clear(both);
    neb_buf_add(both, left, strlen(left));
    neb_buf_add(both, right, strlen(right) + 1);
    NEB_TRY(neb_buf_check(both));
    const char *parts[3] = {left, right, (const char *)both->p};
    int32_t ids[3];
    for (int k = 0; k < 3; k++) {
        json_t *id = json_object_get(l->vocab, parts[k]);
        if (!id)
            return malformed(l, "model.merges[%zu] needs a token '%.60s', which model.vocab lacks",
                             i, parts[k]);
        ids[k] = (int32_t)json_integer_value(id);
    }
    struct bpe_merge *m = bpe_merge_slot(l->b, ids[0], ids[1]);
    *m = (struct bpe_merge){(uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1], rank, ids[2]};
    return NEB_OK;
}

static enum neb_status take_merges(struct loading *l, const json_t *list) {
    struct neb_buf names = {0}, both = {0};
    struct intra_bpe *b = l->b;
    enum neb_status st = NEB_OK;
    int32_t rank = 0;
    json_t *v;
    size_t i;
    if (!json_is_array(list))
        return malformed(l, "model.merges is not a list");
    b->merges_cap = slots(json_array_size(list));
    b->merges = malloc(b->merges_cap * sizeof *b->merges);
    if (!b->merges)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", b->path);
    for (size_t k = 0; k < b->merges_cap; k++)
        b->merges[k].rank = -1;
    json_array_foreach(list, i, v) {
        const char *line = json_string_value(v);
        if (line && !strncmp(line, "#version", 8)) // the first line of a merges.txt
            continue;
        NEB_TRY_GOTO(take_merge(l, i, rank++, v, &names, &both), out);
    }
out:
    neb_buf_free(&names);
    neb_buf_free(&both);
    return st;
}

// Marks the tokens that merging produces from their own bytes. Most pieces are such a token, and
// need no merging.
static enum neb_status mark_whole(struct intra_bpe *b) {
    struct bpe_work w = {0};
    enum neb_status st = NEB_OK;
    for (int32_t id = 0; id < b->vocab; id++) {
        struct bpe_token *t = &b->tokens[id];
        if (!t->bytes)
            continue;
        w.n_ids = 0;
        t->whole = b->ignore_merges;
        if (!t->whole)
            NEB_TRY_GOTO(bpe_merge_piece(b, &w, b->text.p + t->at, t->len), out);
        t->whole = t->whole || (w.n_ids == 1 && w.ids[0] == id);
    }
out:
    bpe_work_free(&w);
    return st;
}

// ---- the model ----------------------------------------------------------------------------------

static enum neb_status take_flag(const struct loading *l, const json_t *o, const char *key,
                                 bool otherwise, bool *out) {
    const json_t *v = json_object_get(o, key);
    *out = is_left_out(v) ? otherwise : json_is_true(v);
    return is_left_out(v) || json_is_boolean(v) ? NEB_OK
                                                : malformed(l, "%s is neither true nor false", key);
}

static enum neb_status check_model(struct loading *l, const json_t *model) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = type_of(model);
    bool pieces;
    NEB_TRY(take_flag(l, model, "byte_fallback", false, &pieces));
    if (type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges"))
        return unsupported(l, "model.type", type,
                           "BPE (or a SentencePiece tokenizer.model instead of this file)");
    if (pieces)
        return unsupported(l, "model.byte_fallback", "true",
                           "false (use the SentencePiece tokenizer.model of this model instead)");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, affixes[i]);
        if (!is_left_out(v) && (!json_is_string(v) || json_string_length(v)))
            return unsupported(l, affixes[i], json_string_value(v), "null");
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0.0)
        return unsupported(l, "model.dropout", "a number", "null");
    l->names_unk = !is_left_out(json_object_get(model, "unk_token"));
    l->vocab = json_object_get(model, "vocab");
    return take_flag(l, model, "ignore_merges", false, &l->b->ignore_merges);
}

static enum neb_status take_normalizer(struct loading *l, const json_t *o, bool within) {
    const char *type = type_of(o);
    json_t *v;
    size_t i;
    if (is_left_out(o))
        return NEB_OK;
    if (type && !strcmp(type, "Sequence") && !within) {
        const json_t *list = json_object_get(o, "normalizers");
        if (!json_is_array(list))
            return malformed(l, "normalizer is a Sequence without a list");
        json_array_foreach(list, i, v) NEB_TRY(take_normalizer(l, v, true));
        return NEB_OK;
    }
    if (!type || strcmp(type, "NFC"))
        return unsupported(l, "normalizer", type, "none, NFC");
    l->b->nfc = true;
    return NEB_OK;
}

static enum neb_status check_decoder(const struct loading *l, const json_t *o) {
    const char *type = type_of(o);
    return type && !strcmp(type, "ByteLevel") ? NEB_OK
                                              : unsupported(l, "decoder", type, "ByteLevel");
}

// ---- pieces -------------------------------------------------------------------------------------

static const char gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                 "|\\s+(?!\\S)|\\s+";

static enum neb_status take_bytes(struct loading *l, const json_t *o, struct bpe_stage *g) {
    bool regex;
    g->kind = BPE_BYTES;
    NEB_TRY(take_flag(l, o, "add_prefix_space", true, &g->space));
    NEB_TRY(take_flag(l, o, "use_regex", true, &regex));
    return regex ? bpe_regex_create(l->b->path, gpt2_regex, &g->regex) : NEB_OK;
}

static enum neb_status take_split(struct loading *l, const json_t *o, struct bpe_stage *g) {
    const char *behavior = json_string_value(json_object_get(o, "behavior")),
               *regex = json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
    bool invert;
    g->kind = BPE_SPLIT;
    NEB_TRY(take_flag(l, o, "invert", false, &invert));
    if (!behavior || strcmp(behavior, "Isolated"))
        return unsupported(l, "pre_tokenizer Split: behavior", behavior, "Isolated");
    if (invert)
        return unsupported(l, "pre_tokenizer Split: invert", "true", "false");
    if (!regex)
        return unsupported(l, "pre_tokenizer Split: pattern", "no Regex", "Regex");
    return bpe_regex_create(l->b->path, regex, &g->regex);
}

static enum neb_status take_stage(struct loading *l, const json_t *o) {
    struct intra_bpe *b = l->b;
    const char *type = type_of(o);
    bool each;
    if (b->n_stages == BPE_STAGES_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: pre_tokenizer has more than %d parts", b->path,
                        BPE_STAGES_MAX);
    if (b->n_stages && b->stages[b->n_stages - 1].kind == BPE_BYTES)
        return unsupported(l, "pre_tokenizer after ByteLevel", type, "nothing");
    struct bpe_stage *g = &b->stages[b->n_stages++];
    if (type && !strcmp(type, "ByteLevel"))
        return take_bytes(l, o, g);
    if (type && !strcmp(type, "Split"))
        return take_split(l, o, g);
    if (!type || strcmp(type, "Digits"))
        return unsupported(l, "pre_tokenizer", type, "ByteLevel, Split, Digits, Sequence of these");
    NEB_TRY(take_flag(l, o, "individual_digits", false, &each));
    g->kind = each ? BPE_DIGIT : BPE_DIGITS;
    return NEB_OK;
}

static enum neb_status take_stages(struct loading *l, const json_t *o) {
    const char *type = type_of(o);
    const struct intra_bpe *b = l->b;
    json_t *v;
    size_t i;
    if (type && !strcmp(type, "Sequence")) {
        const json_t *list = json_object_get(o, "pretokenizers");
        if (!json_is_array(list))
            return malformed(l, "pre_tokenizer is a Sequence without a list");
        json_array_foreach(list, i, v) NEB_TRY(take_stage(l, v));
    } else if (!is_left_out(o)) {
        NEB_TRY(take_stage(l, o));
    }
    return b->n_stages && b->stages[b->n_stages - 1].kind == BPE_BYTES
               ? NEB_OK
               : neb_fail(NEB_ERR_UNSUPPORTED,
                          "%s: pre_tokenizer does not end with ByteLevel; supported: byte-level "
                          "BPE (or a SentencePiece tokenizer.model instead of this file)",
                          b->path);
}

// ---- tokens that begin and end documents --------------------------------------------------------

static enum neb_status find_special(const struct loading *l, const char *file, const json_t *config,
                                    const char *key, int32_t *out) {
    const json_t *v = json_object_get(config, key), *id;
    const char *name = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    if (is_left_out(v))
        return NEB_OK;
    if (!name)
        return neb_fail(NEB_ERR_FORMAT, "%s: %s is not a token", file, key);
    id = json_object_get(l->vocab, name);
    const struct bpe_added *a = bpe_added_find(l->b, name);
    if (!id && !a)
        return neb_fail(NEB_ERR_FORMAT, "%s: %s '%.60s' is not in %s", file, key, name, l->b->path);
    *out = a ? a->id : (int32_t)json_integer_value(id);
    return NEB_OK;
}

static enum neb_status parse(const char *path, const struct neb_buf *text, json_t **out) {
    NEB_TRY(intra_json_parse((const char *)text->p, text->len, path, out));
    return json_is_object(*out) ? NEB_OK
                                : neb_fail(NEB_ERR_FORMAT, "%s is not a JSON object", path);
}

static enum neb_status take_special(struct loading *l) {
    char file[NEB_PATH_MAX];
    struct neb_buf text = {0};
    json_t *config = NULL;
    enum neb_status st = NEB_OK;
    NEB_TRY(intra_tokenizer_config(l->b->path, file, sizeof file));
    if (!neb_fs_exists(file))
        return NEB_OK;
    NEB_TRY_GOTO(neb_fs_read(file, FILE_MAX, &text), out);
    NEB_TRY_GOTO(parse(file, &text, &config), out);
    NEB_TRY_GOTO(find_special(l, file, config, "bos_token", &l->b->bos), out);
    st = find_special(l, file, config, "eos_token", &l->b->eos);
out:
    json_decref(config);
    neb_buf_free(&text);
    return st;
}

// ---- the interface ------------------------------------------------------------------------------

static enum neb_status load(struct loading *l) {
    const json_t *model = json_object_get(l->root, "model");
    if (!json_is_object(model))
        return malformed(l, "it has no model; is it a tokenizer.json of Hugging Face tokenizers?");
    NEB_TRY(check_model(l, model));
    NEB_TRY(take_normalizer(l, json_object_get(l->root, "normalizer"), false));
    NEB_TRY(take_stages(l, json_object_get(l->root, "pre_tokenizer")));
    NEB_TRY(check_decoder(l, json_object_get(l->root, "decoder")));
    NEB_TRY(take_tokens(l));
    NEB_TRY(index_tokens(l));
    NEB_TRY(bpe_added_index(l->b));
    NEB_TRY(take_merges(l, json_object_get(model, "merges")));
    NEB_TRY(mark_whole(l->b));
    return take_special(l);
}

static enum neb_status create(const char *path, struct intra_bpe **out) {
    struct intra_bpe *b = calloc(1, sizeof *b);
    *out = b;
    if (!b || !(b->path = strdup(path)) || !(b->limits = pcre2_match_context_create(NULL)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    b->bos = b->eos = -1;
    pcre2_set_match_limit(b->limits, MATCH_MAX);
    pcre2_set_depth_limit(b->limits, DEPTH_MAX);
    pcre2_set_heap_limit(b->limits, HEAP_MAX_KB);
    return getrandom(&b->seed, sizeof b->seed, 0) == sizeof b->seed
               ? NEB_OK
               : neb_fail_errno("cannot draw a random number");
}

enum neb_status intra_bpe_open(const char *path, struct intra_bpe **out) {
    struct loading l = {0};
    struct neb_buf text = {0};
    enum neb_status st;
    *out = NULL;
    list_bytes(l.byte_of);
    NEB_TRY_GOTO(create(path, &l.b), out);
    NEB_TRY_GOTO(neb_fs_read(path, FILE_MAX, &text), out);
    NEB_TRY_GOTO(parse(path, &text, &l.root), out);
    neb_buf_free(&text);
    st = load(&l);
out:
    json_decref(l.root);
    neb_buf_free(&text);
    if (st != NEB_OK)
        intra_bpe_close(&l.b);
    *out = l.b;
    return st;
}

void intra_bpe_close(struct intra_bpe **bp) {
    struct intra_bpe *b = *bp;
    if (!b)
        return;
    for (int i = 0; i < b->n_stages; i++)
        pcre2_code_free(b->stages[i].regex);
    bpe_added_free(b);
    pcre2_match_context_free(b->limits);
    free(b->path);
    free(b->tokens);
    free(b->names);
    free(b->merges);
    neb_buf_free(&b->text);
    free(b);
    *bp = NULL;
}
