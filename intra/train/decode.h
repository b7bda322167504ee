// SPDX-License-Identifier: Apache-2.0
// Decoding: a group continues prompts with its model, on its mesh and its device. The most likely
// token at each step, draws, or a beam search.
//
//     rank 0                                       every replica
//     prompts ─► sequences, each of one replica
//       pass over the prompts ── tokens ─────────►   keys and values ─► slots (intra/model/cache.c)
//                             ◄── draws, top k ──
//       pass over one token of each sequence ────►   attention over the slots
//                             ◄── draws, top k ──   … until all sequences have ended
//
// A sequence that ends makes room for the next prompt. The tokens of a sequence do not depend on
// the others: in fp32 they are equal for any mesh and any number of prompts, unless two candidates
// differ by less than rounding.
#ifndef INTRA_DECODE_H
#define INTRA_DECODE_H
#include "intra/train/group.h"

enum {
    INTRA_BEAM_MAX = 16,
    INTRA_DECODE_ROWS = 256 // hypotheses of a replica at once, at most
};

struct intra_prompt {
    const int32_t *tokens; // (n) borrowed; at least one
    int32_t n;
    int32_t most; // tokens to make
    int32_t *out; // (most) borrowed
    int32_t got;  // result: tokens in out, without eos
    bool ended;   // result: at eos, not at `most` or at the longest sequence
};

struct intra_decode_config { // all zero: greedy, until `most` or the longest sequence
    float temperature;       // 0: the most likely token, a tie to the lower id; else draws
    int32_t top_k;           // draws are among these; 0: all tokens
    uint64_t seed;           // prompt i draws from stream i of it
    // 2 to INTRA_BEAM_MAX: beam search. A score is log-probability / length^alpha.
    int32_t beam;
    float alpha;
    int32_t eos;     // a sequence ends before it; -1: none
    int32_t longest; // tokens of prompt and continuation; 0: seq_len of the group
    bool prefix;     // all positions of a prompt see each other, if the model's mask is prefix
    bool slides;     // a sequence goes on beyond `longest`, from its last tokens (not with a beam)
    bool uncached;   // computes all positions again for each token (for comparisons)
};
static inline bool intra_decode_draws(const struct intra_decode_config *c) {
    return c->temperature > 0;
}

// Continues n prompts. Rank 0 calls it, between steps. It logs no progress, but counts each pass
// (agent/base/moved.h). It needs no parameters on the host.
// NEB_ERR_UNSUPPORTED: the model predicts no next token, or soft_k of the group is below what
// `top_k` or `beam` needs (intra_decode_soft_k); NEB_ERR_INVALID: a prompt is empty or (unless it
// slides) not shorter than `longest`, a token is not in the vocabulary, or the configuration is out
// of range; NEB_ERR_NOMEM; failures of a collective.
NEB_MUST_CHECK enum neb_status intra_decode(struct intra_group *group,
                                            const struct intra_decode_config *c,
                                            struct intra_prompt *prompts, int32_t n);
// What intra_trainer_config.soft_k must be, at least.
int32_t intra_decode_soft_k(const struct intra_decode_config *c);

// A group for decoding alone: frozen, with room for `rows` sequences of seq_len tokens, or fewer of
// them. The caller gives it parameters (intra_group_push).
NEB_MUST_CHECK enum neb_status intra_decode_group(const struct intra_model_config *m,
                                                  const struct intra_trainable *t,
                                                  const struct intra_place *at, int32_t seq_len,
                                                  int32_t rows, int32_t soft_k,
                                                  struct intra_group **out);

#endif
