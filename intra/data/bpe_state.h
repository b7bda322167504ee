// SPDX-License-Identifier: Apache-2.0
// Shared by the files of byte-level BPE. No other file includes this.
#ifndef INTRA_BPE_STATE_H
#define INTRA_BPE_STATE_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include "agent/base/bytes.h"
#include "intra/data/bpe.h"

#include <jansson.h>
#include <pcre2.h>
#include <stdbool.h>

enum { BPE_STAGES_MAX = 16, BPE_IDS_MAX = 1 << 22 };

struct bpe_token {
    uint32_t at, len; // its bytes in `text`
    bool known;       // false: no token has this id
    bool bytes;       // spelt in the alphabet of bytes only, so a piece can become it
    bool whole;       // a piece of these bytes becomes this token without merging
};

struct bpe_merge { // slot of a hash table (open addressing); rank -1: free
    uint64_t pair; // left << 32 | right
    int32_t rank, id;
};

// One step from text to pieces. The last step is always BPE_BYTES, and no other step is.
struct bpe_stage {
    enum bpe_stage_kind { BPE_SPLIT, BPE_DIGIT, BPE_DIGITS, BPE_BYTES } kind;
    pcre2_code *regex; // owned; BPE_SPLIT, and BPE_BYTES if it splits, else NULL
    bool space;        // BPE_BYTES: puts a space before a piece that has none
};

struct bpe_added { // an entry of added_tokens
    int32_t id;
    uint32_t at, len; // its content, in added_text
    bool own;         // model.vocab has it, too
    bool special, normalized, single_word, lstrip, rstrip;
};

struct bpe_pattern {  // what the search looks for in text
    uint32_t at, len; // in added_text
    uint32_t added, turn;
};
struct bpe_patterns {
    struct bpe_pattern *list; // (n) sorted by their bytes, without duplicates
    size_t n;
    bool first[256]; // by byte: a pattern begins with it
};

struct intra_bpe {
    char *path;
    int32_t vocab, bos, eos;
    bool nfc, ignore_merges;
    uint64_t seed;            // of the hash tables; random, so that no file can force collisions
    struct bpe_token *tokens; // (vocab)
    struct neb_buf text;
    int32_t *names; // (names_cap) hash table (open addressing): bytes to id; -1: free
    size_t names_cap;
    struct bpe_merge *merges; // (merges_cap)
    size_t merges_cap;
    int32_t byte_ids[256]; // -1: the byte has no token
    struct bpe_stage stages[BPE_STAGES_MAX];
    int n_stages;
    struct bpe_added *added; // (n_added)
    size_t n_added;
    struct neb_buf added_text;
    struct bpe_patterns patterns[2]; // [0]: searched in the text as given; [1]: in normalized text
    pcre2_code *word;                // matches a word character; NULL: no token needs it
    pcre2_match_context *limits;
};

// ---- bpe_text.c ---------------------------------------------------------------------------------

// Reads the character at p (n > 0 bytes left) and returns its length. Invalid UTF-8 gives U+FFFD,
// and the length of its longest part that could begin a character, at least 1.
size_t bpe_char_take(const uint8_t *p, size_t n, uint32_t *c);
// Replaces invalid UTF-8 by U+FFFD. *p and *n then point into `room`; valid text is not copied.
NEB_MUST_CHECK enum neb_status bpe_text_to_utf8(const uint8_t **p, size_t *n, struct neb_buf *room);
// Canonical composition (NFC) of valid UTF-8. *p and *n point into `room` if the text may change.
NEB_MUST_CHECK enum neb_status bpe_text_compose(const uint8_t **p, size_t *n, struct neb_buf *room);

// ---- bpe_split.c --------------------------------------------------------------------------------

// NEB_ERR_UNSUPPORTED: a part of the pattern may mean something else to Oniguruma, for which the
// file was written; NEB_ERR_FORMAT, NEB_ERR_LIMIT, NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status bpe_regex_create(const char *path, const char *pattern,
                                                pcre2_code **out);
// Matches one word character, as Hugging Face tokenizers defines it.
NEB_MUST_CHECK enum neb_status bpe_word_create(const char *path, pcre2_code **out);
struct bpe_split {
    const struct intra_bpe *b;
    enum neb_status (*piece)(void *user, const uint8_t *p, size_t n); // n > 0
    enum neb_status (*token)(void *user, int32_t id);                 // an added token
    void *user;
    pcre2_match_data *match;
    struct neb_buf space;    // a piece with a space before it
    struct neb_buf composed; // NFC of the text between two tokens
};
NEB_MUST_CHECK enum neb_status bpe_split_is_word(struct bpe_split *s, const uint8_t *p, size_t n,
                                                 bool *out);
// Calls piece and token for all pieces and added tokens of a text, in order.
NEB_MUST_CHECK enum neb_status bpe_split(struct bpe_split *s, const uint8_t *p, size_t n);
void bpe_split_end(struct bpe_split *s);

// ---- bpe_added.c --------------------------------------------------------------------------------

// Reads added_tokens into b->added, with the ids that Hugging Face's library gives, and grows
// b->vocab. vocab: model.vocab; its size and ids were checked before. NEB_ERR_FORMAT,
// NEB_ERR_LIMIT, NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status bpe_added_take(struct intra_bpe *b, const json_t *list,
                                              const json_t *vocab);
const struct bpe_added *bpe_added_find(const struct intra_bpe *b, const char *content); // or NULL
// Makes the search patterns of the added tokens. The normalizer must be known.
NEB_MUST_CHECK enum neb_status bpe_added_index(struct intra_bpe *b);
void bpe_added_free(struct intra_bpe *b);
typedef enum neb_status bpe_added_text(struct bpe_split *s, const uint8_t *p, size_t n); // n > 0
// Runs one of the two searches: calls s->token for each token and `between` for the text between
// them, in order.
NEB_MUST_CHECK enum neb_status bpe_added_split(struct bpe_split *s, bool normalized,
                                               const uint8_t *p, size_t n, bpe_added_text *between);

// ---- bpe.c --------------------------------------------------------------------------------------

uint64_t bpe_hash(uint64_t seed, const uint8_t *p, size_t n);
// -1: no token has these bytes
int32_t bpe_find(const struct intra_bpe *b, const uint8_t *p, size_t n);
struct bpe_merge *bpe_merge_slot(const struct intra_bpe *b, int32_t left, int32_t right);
// Turns a piece into ids by merging only; the ids are appended to w->ids.
struct bpe_symbol {
    int32_t id, prev, next; // prev, next -1: no neighbour; id -1: merged into its left neighbour
};
struct bpe_candidate {
    int32_t rank, at, id;
};
struct bpe_work {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t cap, n_heap;
    int32_t *ids; // (n_ids)
    size_t n_ids, ids_cap;
};
NEB_MUST_CHECK enum neb_status bpe_merge_piece(const struct intra_bpe *b, struct bpe_work *w,
                                               const uint8_t *p, size_t n);
void bpe_work_free(struct bpe_work *w);

#endif
