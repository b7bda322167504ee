// SPDX-License-Identifier: Apache-2.0
// Text as tokens on disk, and windows of it for training.
//
// A corpus is a folder that `nebula data build` makes:
//
//     tokenizer.model, tokenizer.vocab     or tokenizer.json, tokenizer_config.json: tokenizer_files.h
//     corpus.json                      sources, splits, files, counts, digests
//     SOURCE/train-00000.bin           shards: 64-byte header, then little-endian tokens (u16, or u32 above 65,535 pieces)
//     SOURCE/valid-00000.bin           documents end with the EOS token
//     SOURCE/test-00000.bin            with holdout.test_per_mille
//
// A document of parallel text is a pair: | source | BOS | target | EOS |, see pairs.h.
//
// Shards are memory-mapped. A window is seq_len + 1 consecutive tokens of one source; windows do not overlap.
#ifndef INTRA_DATA_H
#define INTRA_DATA_H
#include "agent/base/bytes.h"

enum intra_split { INTRA_TRAIN, INTRA_VALID, INTRA_TEST, INTRA_SPLITS };
enum { INTRA_SOURCES_MAX = 64, INTRA_SHA_BYTES = 32, INTRA_SOURCE_NAME_MAX = 63 };
// Of a corpus, all sources and splits together. Each is mapped as long as the corpus is open, which keeps what is read whole where the folder
// is replaced meanwhile; Linux allows a process 65,530 maps (vm.max_map_count). A shard as data build makes them has 64 Mi tokens, so that
// is 2.2e12 tokens; their list, corpus.json, then has 8 MB of the 16 that are read.
enum { INTRA_SHARDS_MAX = 32768 };

struct intra_corpus;
// verify: also the SHA-256 of every shard. A missing, cut or damaged shard is named with what was expected and found.
// NEB_ERR_NOT_FOUND: no corpus there; NEB_ERR_FORMAT, NEB_ERR_CORRUPT; NEB_ERR_LIMIT: more than INTRA_SHARDS_MAX.
NEB_MUST_CHECK enum neb_status intra_corpus_open(const char *dir, bool verify,
                                                 struct intra_corpus **out);
// Whether its vocabulary is there, can be loaded, and has as many pieces as the corpus. NEB_ERR_NOT_FOUND, NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status intra_corpus_check_tokenizer(const struct intra_corpus *c);
void intra_corpus_close(struct intra_corpus **c);
int32_t intra_corpus_vocab(const struct intra_corpus *c);   // pieces
const char *intra_corpus_dir(const struct intra_corpus *c); // as given to open
// Of its vocabulary: ids mean the same in two corpora where it is equal.
NEB_MUST_CHECK enum neb_status intra_corpus_tokenizer_digest(const struct intra_corpus *c,
                                                             uint8_t out[INTRA_SHA_BYTES]);
// Of corpus.json: equal on two sites when tokenizer and shards are.
void intra_corpus_digest(const struct intra_corpus *c, uint8_t out[INTRA_SHA_BYTES]);
// Of what windows of these sources (ids, in order) are drawn from: their names and their shards for training. Equal in a corpus that was
// built anew of the same text, whatever else it holds.
NEB_MUST_CHECK enum neb_status intra_corpus_text_digest(const struct intra_corpus *c,
                                                        const int32_t *sources, int32_t n,
                                                        uint8_t out[INTRA_SHA_BYTES]);
int32_t intra_corpus_sources(const struct intra_corpus *c);
const char *intra_corpus_source_name(const struct intra_corpus *c, int32_t source);
int32_t intra_corpus_find(const struct intra_corpus *c, const char *name); // -1: no such source
uint64_t intra_corpus_tokens(const struct intra_corpus *c, int32_t source, enum intra_split split);

// Draws windows: the source by weight, the window by a seeded permutation of the source's windows for every epoch. Of a source that n
// clusters share, the one with `index` takes the permuted positions p with p mod n = index, so that no two of them see the same window
// within an epoch. Where others draw from a source of this name in `parts` folders, which may hold the same text, those of each begin an epoch
// at a place of their own, `part` of them on. State is a few numbers: any position is reached in constant time.
struct intra_share {
    int32_t index, n;    // n 0: nobody else draws from it
    int32_t part, parts; // parts 0: there is one folder
};
struct intra_sampler_config {
    uint64_t seed;
    int32_t seq_len;
    int32_t cluster;   // clusters draw sources in orders of their own
    int32_t n_sources; // 0: all sources, weighted by their size
    int32_t sources[INTRA_SOURCES_MAX];
    float weights[INTRA_SOURCES_MAX];
    struct intra_share
        shares[INTRA_SOURCES_MAX]; // by place in sources, or in the corpus where n_sources is 0
};
struct intra_sampler;
// c is borrowed. NEB_ERR_INVALID: a source has too few tokens for a window of this cluster's own. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_sampler_create(const struct intra_corpus *c,
                                                    const struct intra_sampler_config *cfg,
                                                    struct intra_sampler **out);
void intra_sampler_destroy(struct intra_sampler **s);
// tokens, targets: (seq_len); targets are tokens shifted by one
void intra_sampler_next(struct intra_sampler *s, int32_t *tokens, int32_t *targets);
// Has the system begin to read the next n windows from the disk, for the caller that will draw them after a step: a corpus may be larger
// than the memory.
void intra_sampler_prefetch(const struct intra_sampler *s, int32_t n);
// As n calls of next, without reading: no token is touched. One source: at once. Several: which of them a draw takes is hashed from
// its number alone, so n hashes are computed (10^9 draws in seconds).
void intra_sampler_skip(struct intra_sampler *s, uint64_t n);
// Position: draws so far and windows taken of every source, as 64-bit words.
enum { INTRA_CURSOR_WORDS = 1 + INTRA_SOURCES_MAX };
void intra_sampler_save(const struct intra_sampler *s, uint64_t cursor[INTRA_CURSOR_WORDS]);
void intra_sampler_restore(struct intra_sampler *s, const uint64_t cursor[INTRA_CURSOR_WORDS]);

// Evaluation: how many whole windows a split of a source holds; and window k of them, in order, as the sampler gives it.
uint64_t intra_corpus_windows(const struct intra_corpus *c, int32_t source, enum intra_split split,
                              int32_t seq_len);
// n tokens of a split from `at` on, over the ends of its shards, all of which lie in it; and one.
void intra_corpus_copy(const struct intra_corpus *c, int32_t source, enum intra_split split,
                       uint64_t at, size_t n, int32_t *ids);
// Has the system begin to read them from the disk. Without, what is not in memory is read page by page as it is touched.
void intra_corpus_prefetch(const struct intra_corpus *c, int32_t source, enum intra_split split,
                           uint64_t at, uint64_t n);
int32_t intra_corpus_token(const struct intra_corpus *c, int32_t source, enum intra_split split,
                           uint64_t at);
void intra_corpus_window(const struct intra_corpus *c, int32_t source, enum intra_split split,
                         int32_t seq_len, uint64_t k, int32_t *tokens, int32_t *targets);

// ---- building -------------------------------------------------------------------------------------------------

enum intra_format { INTRA_TEXT, INTRA_JSONL, INTRA_TSV, INTRA_PO };
struct intra_source_spec {
    char name[INTRA_SOURCE_NAME_MAX + 1];
    enum intra_format format;
    // text: a folder (every regular file below is a document) or a file (documents are separated by blank lines); jsonl, tsv:
    // a file, a pipe of the shell, or a folder (the lines of every regular file below, in the order of names). "\r\n" ends a line, too.
    char path[4096];
    char field[64]; // jsonl: the text's key
    int32_t column; // tsv: the text's column, from 0
    // Parallel text. po: a catalogue or a folder of them (intra/data/po.h); tsv: a file with the translation in target_column.
    bool parallel; // tsv: target_column counts
    int32_t target_column;
    bool reverse; // from the translation to the message
    char tag[16]; // put before every source text, a piece of its own: "<de>"; empty: none
    // of its files (intra/read/charset.h); empty: UTF-8, of po what its header names
    char encoding[41];
    double max_bad_share; // of its lines, documents or entries that may be left out
};
struct intra_build_spec {
    char name[INTRA_SOURCE_NAME_MAX + 1];
    uint64_t seed;
    char tokenizer
        [4096]; // take over this vocabulary (intra_tokenizer_resolve), which has an EOS; empty: train one
    int32_t vocab;
    char type[16]; // "unigram" or "bpe"
    double character_coverage;
    bool byte_fallback;
    int32_t train_lines;       // sampled for the vocabulary
    int32_t holdout_per_mille; // of documents, by hash of their name (files) or text
    int32_t test_per_mille;    // likewise, apart from these: for the last measurement
    int32_t threads;
    int32_t shard_tokens; // 0: 64 Mi; fewer for tests
    int32_t n_sources;
    struct intra_source_spec sources[INTRA_SOURCES_MAX];
};
// done and total: bytes of the sources, for the stages "reading" and "encoding".
typedef void intra_build_progress(void *user, const char *stage, uint64_t done, uint64_t total);
// Builds the corpus in DIR.nebula-building, which then takes DIR's place: a crash leaves the old
// corpus or the new one, whole. An existing corpus of the same spec and inputs is kept (*skipped)
// if it is whole: its shards by their digests, a given vocabulary by its digest, one that was
// trained by the pieces and scores of tokenizer.vocab. Damage is logged, and mended; where that
// cannot be told (no memory, no permission, a failing disk), that is the build's failure.
// NEB_ERR_EXISTS: DIR is neither absent, nor empty, nor a corpus and nothing else; or it holds a
// source, or the working folder. NEB_ERR_INVALID: a vocabulary without an EOS piece. NEB_ERR_STATE:
// a source has changed between its two readings. NEB_ERR_LIMIT: more than INTRA_SHARDS_MAX shards,
// which is known once the first one is full. NEB_ERR_FORMAT: what is no text in the source's
// encoding, or a line that its format does not know; of lines, documents and entries more than
// max_bad_share. Then nothing was changed.
NEB_MUST_CHECK enum neb_status intra_corpus_build(const struct intra_build_spec *spec,
                                                  const char *dir, intra_build_progress *progress,
                                                  void *user, bool *skipped);

#endif
