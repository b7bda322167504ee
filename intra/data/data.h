// SPDX-License-Identifier: Apache-2.0
// Text as tokens on disk, and windows of it for training.
//
// A corpus is a folder that `nebula data build` makes:
//
//     tokenizer.model, tokenizer.vocab   or tokenizer.json and tokenizer_config.json
//                                        (see tokenizer_files.h)
//     corpus.json                        sources, splits, files, counts, digests
//     SOURCE/train-00000.bin             shards: a 64-byte header, then little-endian tokens (u16,
//     SOURCE/valid-00000.bin             or u32 for a vocabulary above 65,536 pieces)
//     SOURCE/test-00000.bin              only with holdout.test_per_mille
//
// Each document ends with the EOS token.
// A document of parallel text is a pair: | source | BOS | target | EOS |, see pairs.h.
//
// Shards are memory-mapped. A window is seq_len + 1 consecutive tokens of one source. Window k
// begins at token k x seq_len.
#ifndef INTRA_DATA_H
#define INTRA_DATA_H
#include "agent/base/bytes.h"

enum intra_split { INTRA_TRAIN, INTRA_VALID, INTRA_TEST, INTRA_SPLITS };
enum { INTRA_SOURCES_MAX = 64, INTRA_SHA_BYTES = 32, INTRA_SOURCE_NAME_MAX = 63 };
// The most shards of a corpus, over all sources and splits. Each shard is mapped while the corpus
// is open, so that reading stays safe if the folder is replaced. Linux allows a process 65,530 maps
// (vm.max_map_count). With shards of 64 Mi tokens, the default, that is 2.2e12 tokens.
enum { INTRA_SHARDS_MAX = 32768 };

struct intra_corpus;
// verify: also check the SHA-256 of every shard. An error names the missing, cut or damaged shard,
// and what was expected and found. NEB_ERR_NOT_FOUND: no corpus in dir, or a shard is missing;
// NEB_ERR_FORMAT, NEB_ERR_CORRUPT; NEB_ERR_LIMIT: more than INTRA_SHARDS_MAX; NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_corpus_open(const char *dir, bool verify,
                                                 struct intra_corpus **out);
// Checks that the vocabulary of the corpus exists, can be loaded, and has as many pieces as
// corpus.json says. NEB_ERR_NOT_FOUND, NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status intra_corpus_check_tokenizer(const struct intra_corpus *c);
void intra_corpus_close(struct intra_corpus **c);
int32_t intra_corpus_vocab(const struct intra_corpus *c);   // pieces
const char *intra_corpus_dir(const struct intra_corpus *c); // as given to open
// Digest of the vocabulary. If two corpora have the same one, ids mean the same in both.
NEB_MUST_CHECK enum neb_status intra_corpus_tokenizer_digest(const struct intra_corpus *c,
                                                             uint8_t out[INTRA_SHA_BYTES]);
// Digest of corpus.json. Two sites have the same one if tokenizer and shards are equal.
void intra_corpus_digest(const struct intra_corpus *c, uint8_t out[INTRA_SHA_BYTES]);
// Digest of the training text of these sources (ids, in order): their names and their training
// shards. It stays the same in a corpus that is rebuilt from the same text, whatever else that
// corpus holds.
NEB_MUST_CHECK enum neb_status intra_corpus_text_digest(const struct intra_corpus *c,
                                                        const int32_t *sources, int32_t n,
                                                        uint8_t out[INTRA_SHA_BYTES]);
int32_t intra_corpus_sources(const struct intra_corpus *c);
const char *intra_corpus_source_name(const struct intra_corpus *c, int32_t source);
int32_t intra_corpus_find(const struct intra_corpus *c, const char *name); // -1: no such source
uint64_t intra_corpus_tokens(const struct intra_corpus *c, int32_t source, enum intra_split split);

// Draws training windows: a source by weight, then a window by a seeded permutation of the source's
// windows, a new one each epoch. If n clusters share a source, cluster `index` takes the permuted
// positions p with p mod n = index, so no two clusters see the same window in an epoch. If clusters
// have this source in `parts` different folders, which may hold the same text, part k begins each
// epoch at k / parts of its windows. The state is a few numbers, and any position is reached
// directly. In a corpus that streams, each epoch has the shards in a new order, and the windows of
// so many of them at a time in a new order. No window crosses the end of a shard there.
struct intra_share {
    int32_t index, n;    // n 0: no other cluster draws from the source
    int32_t part, parts; // parts 0: one folder
};
struct intra_sampler_config {
    uint64_t seed;
    int32_t seq_len;
    int32_t cluster;   // each cluster draws sources in its own order
    int32_t n_sources; // 0: all sources, weighted by their size
    int32_t sources[INTRA_SOURCES_MAX];
    float weights[INTRA_SOURCES_MAX];
    // by index in `sources`; by source id if n_sources is 0
    struct intra_share shares[INTRA_SOURCES_MAX];
};
struct intra_sampler;
// c is borrowed. NEB_ERR_INVALID: a source has too few tokens for one window of this cluster;
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_sampler_create(const struct intra_corpus *c,
                                                    const struct intra_sampler_config *cfg,
                                                    struct intra_sampler **out);
void intra_sampler_destroy(struct intra_sampler **s);
// tokens, targets: (seq_len). targets are the tokens shifted by one.
void intra_sampler_next(struct intra_sampler *s, int32_t *tokens, int32_t *targets);
// Starts to read the next n windows from disk in the background, without drawing them. A corpus may
// be larger than the memory.
void intra_sampler_prefetch(const struct intra_sampler *s, int32_t n);
// Like n calls of next, but reads no token. One source: constant time. Several sources: one hash
// per draw.
void intra_sampler_skip(struct intra_sampler *s, uint64_t n);
// Position of a sampler: the number of draws, then the windows taken from each source.
enum { INTRA_CURSOR_WORDS = 1 + INTRA_SOURCES_MAX };
void intra_sampler_save(const struct intra_sampler *s, uint64_t cursor[INTRA_CURSOR_WORDS]);
void intra_sampler_restore(struct intra_sampler *s, const uint64_t cursor[INTRA_CURSOR_WORDS]);

// For evaluation: how many windows a split of a source holds, and window k of them, in order.
uint64_t intra_corpus_windows(const struct intra_corpus *c, int32_t source, enum intra_split split,
                              int32_t seq_len);
// Copies n tokens of a split from `at` on, across shards. All n must lie in the split.
void intra_corpus_copy(const struct intra_corpus *c, int32_t source, enum intra_split split,
                       uint64_t at, size_t n, int32_t *ids);
// Starts to read n tokens from disk in the background. Without it, each page is read when it is
// touched.
void intra_corpus_prefetch(const struct intra_corpus *c, int32_t source, enum intra_split split,
                           uint64_t at, uint64_t n);
void intra_corpus_window(const struct intra_corpus *c, int32_t source, enum intra_split split,
                         int32_t seq_len, uint64_t k, int32_t *tokens, int32_t *targets);

// True if the training shards of this corpus are made while training (intra/data/stream.h).
bool intra_corpus_streams(const struct intra_corpus *c);
// After a failure to make one, all tokens that were read since are 0, and this has the error, which
// is logged. Check it after each batch.
NEB_MUST_CHECK enum neb_status intra_corpus_failed(const struct intra_corpus *c);

// ---- building -----------------------------------------------------------------------------------

enum intra_format {
    INTRA_TEXT,
    INTRA_JSONL,
    INTRA_TSV,
    INTRA_PO,
    INTRA_TAR,
    INTRA_PARQUET,
    INTRA_ARROW,
    INTRA_NANOGPT,
    INTRA_MEGATRON
};
struct intra_source_spec {
    char name[INTRA_SOURCE_NAME_MAX + 1];
    enum intra_format format;
    // text: a file with blank lines between documents, or a folder in which every regular file is
    // one document. jsonl, tsv: read line by line. po: a catalogue. Lines may end in "\r\n", too.
    // tar: each member with the suffix `member` is a document. parquet, arrow: each row is one.
    // nanogpt: token ids, u16 for a vocabulary of at most 65,536 pieces, else u32; megatron: the
    // .idx file, whose .bin file is beside it. Ids stay as they are; EOS ends a document.
    // A path may be a folder: its files are read in the order of names, and of the last five
    // formats only those with the usual suffix. It may be a pipe, except for parquet, arrow and
    // megatron. Files packed by gzip, zstd or xz are unpacked, except for these three.
    char path[4096];
    // jsonl: key of the text; parquet, arrow: its column; tar: key of the text in a member of JSON,
    // or empty: the member is text
    char field[64];
    char member[32]; // tar: suffix of the members, without the point
    int32_t column;  // tsv: column of the text, from 0
    // Parallel text. po: always (intra/data/po.h); tsv: the translation is in target_column.
    bool parallel; // tsv: target_column is used
    int32_t target_column;
    bool reverse; // source: the translation, target: the message
    char tag[16]; // put before every source text, as one piece: "<de>"; empty: none
    // Encoding of the files (intra/read/charset.h). Empty: UTF-8; po: the one in the file's header.
    char encoding[41];
    double max_bad_share; // share of lines, documents or entries that may be left out
};
struct intra_build_spec {
    char name[INTRA_SOURCE_NAME_MAX + 1];
    uint64_t seed;
    // vocabulary to copy (intra_tokenizer_resolve), with an EOS; empty: train one. The formats
    // nanogpt and megatron need one.
    char tokenizer[4096];
    int32_t vocab;
    char type[16]; // "unigram" or "bpe"
    double character_coverage;
    bool byte_fallback;
    int32_t train_lines; // lines sampled to train the vocabulary
    // documents for validation, chosen by hash of their name (files) or text
    int32_t holdout_per_mille;
    int32_t test_per_mille; // further documents, for the final test
    int32_t threads;
    int32_t shard_tokens; // 0: 64 Mi, or 4 Mi in a corpus that streams; tests set less
    // Above 0: the corpus streams (intra/data/stream.h), and its training windows are drawn from so
    // many shards at a time.
    int32_t shuffle;
    int32_t n_sources;
    struct intra_source_spec sources[INTRA_SOURCES_MAX];
};
// stage: "reading", "encoding" or another stage. In these two, done and total count bytes of the
// sources.
typedef void intra_build_progress(void *user, const char *stage, uint64_t done, uint64_t total);
// Builds the corpus in DIR.nebula-building, then replaces DIR with it, so that a crash leaves
// either the old corpus or the new one. An existing corpus of the same spec and inputs is kept
// (*skipped) if its shards and its vocabulary are intact. A damaged corpus is logged and rebuilt.
// If the check itself fails (no memory, no permission, a failing disk), the build fails and changes
// nothing. NEB_ERR_EXISTS: DIR holds a source, the working folder, or files that are not part of
// a corpus; NEB_ERR_INVALID: a vocabulary without an EOS piece; NEB_ERR_STATE: a source changed
// between its two readings; NEB_ERR_LIMIT: more than INTRA_SHARDS_MAX shards, estimated from the
// first full shard; NEB_ERR_FORMAT: text that is not in the source's encoding or format, above
// max_bad_share, or ids outside the vocabulary; NEB_ERR_AGAIN: another process builds the same
// corpus. After an error DIR is unchanged.
NEB_MUST_CHECK enum neb_status intra_corpus_build(const struct intra_build_spec *spec,
                                                  const char *dir, intra_build_progress *progress,
                                                  void *user, bool *skipped);

#endif
