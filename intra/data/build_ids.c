// SPDX-License-Identifier: Apache-2.0
// Reads files of token ids: NAME.bin of nanoGPT or llm.c, which is a plain list, and NAME.idx with
// NAME.bin of Megatron. Ids stay as they are. Each is checked against the vocabulary.
#include "intra/data/build_state.h"
#include "intra/read/input.h"
#include "intra/read/megatron.h"
#include "intra/read/text_kind.h"

#include <string.h>

enum {
    PIECE_TOKENS = 1 << 20, // a longer document is taken in pieces; only the last one gets an EOS
    BLOCK_BYTES = 1 << 20,
    HEADER_BYTES = 1024, // of llm.c: 256 words, magic, version, number of tokens
    SURE_BYTES = 6,
    LLMC_U16 = 20240520,
    LLMC_U32 = 20240801,
};

struct ids {
    struct neb_buf piece; // u32 ids of the document so far, without EOS
    uint32_t width;       // bytes per id in the file
    uint64_t seen;        // ids of the file
};

bool build_is_ids(const struct build *b) {
    enum intra_format f = b->spec->sources[b->source].format;
    return f == INTRA_NANOGPT || f == INTRA_MEGATRON;
}

static enum neb_status put_piece(struct build *b, struct ids *s, bool open) {
    NEB_TRY(neb_buf_check(&s->piece));
    enum neb_status st = s->piece.len
                             ? build_add(b, &(struct build_text){.text = (const char *)s->piece.p,
                                                                 .len = s->piece.len,
                                                                 .open = open})
                             : NEB_OK;
    neb_buf_clear(&s->piece);
    return st;
}

static enum neb_status outside(const struct build *b, const struct ids *s, uint64_t id) {
    return neb_fail(NEB_ERR_FORMAT,
                    "%s: token %llu is %llu, but the vocabulary %s has only %d pieces; name the "
                    "vocabulary that these ids are of (ids are read as %u bytes each)",
                    b->file, (unsigned long long)s->seen, (unsigned long long)id,
                    b->vocabulary_file, b->given_vocab, s->width);
}

// n: a multiple of the width.
static enum neb_status take_ids(struct build *b, struct ids *s, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i += s->width) {
        uint64_t id = 0;
        for (uint32_t k = 0; k < s->width; k++)
            id |= (uint64_t)p[i + k] << 8 * k;
        if (id >= (uint64_t)b->given_vocab)
            return outside(b, s, id);
        s->seen++;
        if (id == (uint64_t)b->given_eos) {
            NEB_TRY(put_piece(b, s, false));
            continue;
        }
        uint32_t word = (uint32_t)id;
        if (s->piece.len >= PIECE_TOKENS * sizeof word)
            NEB_TRY(put_piece(b, s, true));
        neb_buf_add(&s->piece, &word, sizeof word);
    }
    return NEB_OK;
}

// ---- nanoGPT, llm.c -----------------------------------------------------------------------------

static size_t header(const uint8_t *p, size_t n, struct ids *s) {
    struct neb_rd r = neb_rd_make(p, n);
    uint32_t magic = neb_rd_u32(&r);
    if (n < HEADER_BYTES || (magic != LLMC_U16 && magic != LLMC_U32))
        return 0;
    s->width = magic == LLMC_U16 ? 2 : 4;
    return HEADER_BYTES;
}

static enum neb_status take_list(struct build *b, struct ids *s, struct intra_input *in,
                                 uint8_t *block) {
    size_t got = BLOCK_BYTES;
    for (bool first = true; got == BLOCK_BYTES; first = false) {
        struct intra_text_kind kind;
        uint64_t before = intra_input_taken(in);
        NEB_TRY(intra_input_read(in, block, BLOCK_BYTES, &got));
        b->done += intra_input_taken(in) - before;
        size_t skip = first ? header(block, got, s) : 0;
        // a list may begin with a short mark by chance
        if (first && !skip && intra_text_kind_of(block, got, &kind) && kind.n >= SURE_BYTES)
            return neb_fail(NEB_ERR_FORMAT, "%s: this is %s, not a list of token ids", b->file,
                            kind.name);
        if ((got - skip) % s->width)
            return neb_fail(NEB_ERR_FORMAT, "%s: its size is not a multiple of %u bytes, an id",
                            b->file, s->width);
        NEB_TRY(take_ids(b, s, block + skip, got - skip));
    }
    return put_piece(b, s, false);
}

static enum neb_status read_list(struct build *b, struct ids *s, const char *path) {
    struct intra_input *in = NULL;
    struct neb_buf block = {0};
    enum neb_status st = build_input_file(b, path, &in);
    s->width = b->given_vocab <= 65536 ? 2 : 4;
    if (st == NEB_OK)
        st = neb_buf_reserve(&block, BLOCK_BYTES);
    if (st == NEB_OK)
        st = take_list(b, s, in, block.p);
    neb_buf_free(&block);
    intra_input_close(&in);
    return st;
}

// ---- Megatron -----------------------------------------------------------------------------------

static enum neb_status take_documents(struct build *b, struct ids *s, const char *path,
                                      const struct neb_map *index, const struct neb_map *bin) {
    struct intra_megatron m;
    NEB_TRY(intra_megatron_open(index->p, index->len, bin->len, path, &m));
    s->width = m.width;
    for (uint64_t k = 0; k < m.documents; k++) {
        uint64_t first, end, at;
        size_t n;
        intra_megatron_document(&m, k, &first, &end);
        for (; first < end; first++) {
            intra_megatron_sequence(&m, first, &at, &n);
            NEB_TRY(take_ids(b, s, bin->p + at, n));
            b->done += n;
        }
        NEB_TRY(put_piece(b, s, false));
    }
    return NEB_OK;
}

static enum neb_status read_indexed(struct build *b, struct ids *s, const char *path) {
    char file[NEB_PATH_MAX];
    struct neb_map index = {0}, bin = {0};
    size_t n = strlen(path);
    if (n < 5 || strcmp(path + n - 4, ".idx") != 0 || n >= sizeof file)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: the path of format megatron is a file NAME.idx, or a "
                        "folder of them",
                        path);
    snprintf(file, sizeof file, "%.*s.bin", (int)(n - 4), path);
    NEB_TRY(neb_map_open(path, &index));
    enum neb_status st = neb_map_open(file, &bin);
    if (st == NEB_OK)
        st = take_documents(b, s, path, &index, &bin);
    neb_map_close(&bin);
    neb_map_close(&index);
    return st;
}

enum neb_status build_read_ids(struct build *b, const char *path) {
    struct ids s = {0};
    b->file = path;
    b->chunk.has_file = false;
    enum neb_status st = b->spec->sources[b->source].format == INTRA_MEGATRON
                             ? read_indexed(b, &s, path)
                             : read_list(b, &s, path);
    neb_buf_free(&s.piece);
    b->file = NULL;
    return st;
}
