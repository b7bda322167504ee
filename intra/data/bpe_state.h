// SPDX-License-Identifier: Apache-2.0
// What the files of byte-level BPE share; nobody else includes this.
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
    uint32_t at, len; // its bytes in text
    bool known;       // false: no token has this id
    bool bytes;       // spelt in the alphabet of bytes alone: pieces can be it
    bool whole;       // a piece of these bytes is this token
};

struct bpe_merge { // open addressing; rank -1: free
    uint64_t pair; // left << 32 | right
    int32_t rank, id;
};

// One step from text to pieces. The last one, and no other, is ByteLevel.
struct bpe_stage {
    enum bpe_stage_kind { BPE_SPLIT, BPE_DIGIT, BPE_DIGITS, BPE_BYTES } kind;
    pcre2_code *regex; // owned; BPE_SPLIT, and BPE_BYTES where it splits
    bool space;        // BPE_BYTES: one in front of a piece that has none
};

struct bpe_added { // a token of added_tokens
    int32_t id;
    uint32_t at, len; // its content, in added_text
    bool own;         // model.vocab has it
    bool special, normalized, single_word, lstrip, rstrip;
};

struct bpe_pattern {  // what is looked for in text
    uint32_t at, len; // in added_text
    uint32_t added, turn;
};
struct bpe_patterns {
    struct bpe_pattern *list; // (n) sorted by their bytes; none is there twice
    size_t n;
    bool first[256]; // bytes that one begins with
};

struct intra_bpe {
    char *path;
    int32_t vocab, bos, eos;
    bool nfc, ignore_merges;
    uint64_t seed;            // of the tables: nobody can make a file of names that fall together
    struct bpe_token *tokens; // (vocab)
    struct neb_buf text;
    int32_t *names; // (names_cap) ids by bytes, open addressing; -1: free
    size_t names_cap;
    struct bpe_merge *merges; // (merges_cap)
    size_t merges_cap;
    int32_t byte_ids[256]; // -1: none
    struct bpe_stage stages[BPE_STAGES_MAX];
    int n_stages;
    struct bpe_added *added; // (n_added)
    size_t n_added;
    struct neb_buf added_text;
    struct bpe_patterns patterns[2]; // of text as it is written; of text that is normalized
    pcre2_code *word;                // a character of a word; NULL: no token asks for it
    pcre2_match_context *limits;
};

// ---- bpe_text.c -------------------------------------------------------------------------------------------------

// The character at p, of n > 0 bytes: how many bytes it is. U+FFFD for what is none, as many bytes of it as could begin one.
size_t bpe_char_take(const uint8_t *p, size_t n, uint32_t *c);
void bpe_char_add(struct neb_buf *b, uint32_t c);
// What is no UTF-8 becomes U+FFFD: into `room`, if there is any.
NEB_MUST_CHECK enum neb_status bpe_text_to_utf8(const uint8_t **p, size_t *n, struct neb_buf *room);
// Canonical composition: into `room`, where the text may not be composed already. *p is UTF-8.
NEB_MUST_CHECK enum neb_status bpe_text_compose(const uint8_t **p, size_t *n, struct neb_buf *room);

// ---- bpe_split.c ------------------------------------------------------------------------------------------------

// NEB_ERR_UNSUPPORTED: what means something else, or nothing, to the library that the file was written for.
NEB_MUST_CHECK enum neb_status bpe_regex_create(const char *path, const char *pattern,
                                                pcre2_code **out);
// A character as the library of tokenizers takes it for one of a word.
NEB_MUST_CHECK enum neb_status bpe_word_create(const char *path, pcre2_code **out);
struct bpe_split {
    const struct intra_bpe *b;
    enum neb_status (*piece)(void *user, const uint8_t *p, size_t n); // n > 0
    enum neb_status (*token)(void *user, int32_t id);                 // an added one
    void *user;
    pcre2_match_data *match;
    struct neb_buf space;    // a piece with a space in front
    struct neb_buf composed; // NFC of what lies between two tokens
};
NEB_MUST_CHECK enum neb_status bpe_split_is_word(struct bpe_split *s, const uint8_t *p, size_t n,
                                                 bool *out);
// All pieces and added tokens of a text, in order.
NEB_MUST_CHECK enum neb_status bpe_split(struct bpe_split *s, const uint8_t *p, size_t n);
void bpe_split_end(struct bpe_split *s);

// ---- bpe_added.c --------------------------------------------------------------------------------

// added_tokens, with the ids that tokenizers gives them: into b->added; b->vocab grows with them.
// vocab: of the model, whose size and ids are known to be good. NEB_ERR_FORMAT, NEB_ERR_LIMIT,
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status bpe_added_take(struct intra_bpe *b, const json_t *list,
                                              const json_t *vocab);
const struct bpe_added *bpe_added_find(const struct intra_bpe *b, const char *content); // or NULL
// Patterns of them. The normalizer is known.
NEB_MUST_CHECK enum neb_status bpe_added_index(struct intra_bpe *b);
void bpe_added_free(struct intra_bpe *b);
typedef enum neb_status bpe_added_text(struct bpe_split *s, const uint8_t *p, size_t n); // n > 0
// The tokens of one of the searches, and the text between them, in order.
NEB_MUST_CHECK enum neb_status bpe_added_split(struct bpe_split *s, bool normalized,
                                               const uint8_t *p, size_t n, bpe_added_text *between);

// ---- bpe.c ------------------------------------------------------------------------------------------------------

uint64_t bpe_hash(uint64_t seed, const uint8_t *p, size_t n);
int32_t bpe_find(const struct intra_bpe *b, const uint8_t *p,
                 size_t n); // -1: no token has these bytes
struct bpe_merge *bpe_merge_slot(const struct intra_bpe *b, int32_t left, int32_t right);
// Ids of a piece by merges alone.
struct bpe_symbol {
    int32_t id, prev, next; // -1: no neighbour; id -1: gone
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
