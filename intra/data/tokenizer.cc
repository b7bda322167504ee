// SPDX-License-Identifier: Apache-2.0
// SentencePiece behind a C interface, because it has only a C++ one. No exception leaves this file.
#include "intra/data/tokenizer.h"
#include "intra/data/bpe.h"
#include "intra/data/tokenizer_files.h"
#include "intra/data/tokenizer_load.h"

#include <sentencepiece_trainer.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <vector>

struct intra_tokenizer {
    sentencepiece::SentencePieceProcessor processor;
    struct intra_bpe *bpe = nullptr; // owned; if set, the processor is empty

    ~intra_tokenizer() { intra_bpe_close(&bpe); }
};

// Refuses a named pipe, which could block, and a device, which may have no end. A shell's pipe,
// "<(command)", has no name and is accepted.
static bool is_readable(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return true; // opening it reports what is wrong
    char *named = realpath(path, nullptr);
    std::free(named);
    return S_ISFIFO(info.st_mode) && !named;
}

// ---- character tables (tokenizer_load.h) --------------------------------------------------------

static bool take_varint(absl::string_view *p, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; shift < 64 && !p->empty(); shift += 7) {
        const uint64_t byte = static_cast<uint8_t>(p->front());
        p->remove_prefix(1);
        *out |= (byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

// Reads the next field of a protocol buffer. *bytes: its bytes, if it has a length. Groups are
// refused, because no model has any.
static bool take_field(absl::string_view *p, uint64_t *field, absl::string_view *bytes) {
    uint64_t tag, n;
    *bytes = absl::string_view();
    if (!take_varint(p, &tag) || tag > UINT32_MAX)
        return false;
    *field = tag >> 3;
    switch (tag & 7) {
    case 0: return take_varint(p, &n);
    case 1: n = 8; break;
    case 5: n = 4; break;
    case 2:
        if (take_varint(p, &n))
            break;
        return false;
    default: return false;
    }
    if (n > p->size())
        return false;
    *bytes = p->substr(0, n);
    p->remove_prefix(n);
    return true;
}

static uint32_t unit_at(absl::string_view units, size_t i) {
    uint32_t u;
    // in this machine's byte order, like the library
    std::memcpy(&u, units.data() + 4 * i, sizeof u);
    return u;
}

static bool charsmap_holds(absl::string_view map) {
    if (map.size() < 4)
        return map.empty();
    const size_t bytes = unit_at(map, 0);
    if (bytes < 4 || bytes >= map.size() - 4 || map.back())
        return false;
    const absl::string_view units = map.substr(4, bytes);
    const size_t n = bytes / 4, texts = map.size() - 4 - bytes;
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = unit_at(units, i);
        const size_t children = i ^ ((u >> 10) << ((u >> 9 & 1) * 8));
        if (i && u >> 31)
            continue; // a value: no byte leads to it
        if ((children | 0xff) >= n ||
            ((u >> 8 & 1) && (unit_at(units, children) & INT32_MAX) >= texts))
            return false;
    }
    return true;
}

static bool charsmaps_hold(absl::string_view model) {
    enum { NORMALIZER = 3, DENORMALIZER = 5, CHARSMAP = 2 };
    uint64_t field, inner;
    absl::string_view spec, bytes;
    while (!model.empty()) {
        if (!take_field(&model, &field, &spec))
            return false;
        while ((field == NORMALIZER || field == DENORMALIZER) && !spec.empty())
            if (!take_field(&spec, &inner, &bytes) || (inner == CHARSMAP && !charsmap_holds(bytes)))
                return false;
    }
    return true;
}

// ---- the interface ------------------------------------------------------------------------------

enum neb_status intra_tokenizer_load(const char *path,
                                     sentencepiece::SentencePieceProcessor *out) try {
    if (!is_readable(path))
        return neb_fail(NEB_ERR_FORMAT, "cannot load the vocabulary %s: not a regular file", path);
    std::ifstream file(path, std::ios::binary);
    const std::string model((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad())
        return neb_fail(NEB_ERR_FORMAT, "cannot load the vocabulary %s: %s", path,
                        std::strerror(errno));
    if (!charsmaps_hold(model))
        return neb_fail(
            NEB_ERR_FORMAT,
            "cannot load the vocabulary %s: it is damaged; restore it, or build its corpus again "
            "(nebula data build)",
            path);
    const auto status = out->LoadFromSerializedProto(model);
    return status.ok() ? NEB_OK
                       : neb_fail(NEB_ERR_FORMAT,
                                  "cannot load the vocabulary %s: it is damaged (%s); restore it, "
                                  "or build its corpus again (nebula data build)",
                                  path, status.ToString().c_str());
} catch (const std::bad_alloc &) {
    return neb_fail(NEB_ERR_NOMEM, "out of memory loading the vocabulary %s", path);
} catch (const std::exception &e) { // the library throws for some invalid pieces
    return neb_fail(NEB_ERR_FORMAT, "cannot load the vocabulary %s: %s", path, e.what());
}

enum neb_status intra_tokenizer_open(const char *path, struct intra_tokenizer **out) try {
    auto t = std::make_unique<intra_tokenizer>();
    if (intra_tokenizer_is_json(path))
        NEB_TRY(intra_bpe_open(path, &t->bpe));
    else
        NEB_TRY(intra_tokenizer_load(path, &t->processor));
    *out = t.release();
    return NEB_OK;
} catch (const std::bad_alloc &) {
    return neb_fail(NEB_ERR_NOMEM, "out of memory loading the vocabulary %s", path);
}

void intra_tokenizer_close(struct intra_tokenizer **t) {
    delete *t;
    *t = nullptr;
}

int32_t intra_tokenizer_vocab(const struct intra_tokenizer *t) {
    return t->bpe ? intra_bpe_vocab(t->bpe) : t->processor.GetPieceSize();
}
int32_t intra_tokenizer_bos(const struct intra_tokenizer *t) {
    return t->bpe ? intra_bpe_bos(t->bpe) : t->processor.bos_id();
}
int32_t intra_tokenizer_eos(const struct intra_tokenizer *t) {
    return t->bpe ? intra_bpe_eos(t->bpe) : t->processor.eos_id();
}

enum neb_status intra_tokenizer_encode(const struct intra_tokenizer *t, const char *text,
                                       size_t len, int32_t **ids, size_t *n) try {
    std::vector<int> v;
    if (t->bpe)
        return intra_bpe_encode(t->bpe, text, len, ids, n);
    auto status = t->processor.Encode(absl::string_view(text, len), &v);
    if (!status.ok())
        return neb_fail(NEB_ERR_FORMAT, "cannot tokenize: %s", status.ToString().c_str());
    *n = v.size();
    *ids = static_cast<int32_t *>(std::malloc(sizeof(int32_t) * (v.size() + 1)));
    if (!*ids)
        return neb_fail(NEB_ERR_NOMEM, "out of memory tokenizing %zu bytes", len);
    for (size_t i = 0; i < v.size(); i++)
        (*ids)[i] = v[i];
    return NEB_OK;
} catch (const std::exception &e) {
    return neb_fail(NEB_ERR_NOMEM, "cannot tokenize %zu bytes: %s", len, e.what());
}

enum neb_status intra_tokenizer_decode(const struct intra_tokenizer *t, const int32_t *ids,
                                       size_t n, char **text) try {
    std::vector<int> v;
    if (t->bpe)
        return intra_bpe_decode(t->bpe, ids, n, text);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < t->processor.GetPieceSize())
            v.push_back(ids[i]);
    std::string s;
    auto status = t->processor.Decode(v, &s);
    if (!status.ok())
        return neb_fail(NEB_ERR_FORMAT, "cannot decode tokens: %s", status.ToString().c_str());
    *text = static_cast<char *>(std::malloc(s.size() + 1));
    if (!*text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory decoding %zu tokens", n);
    std::memcpy(*text, s.c_str(), s.size() + 1);
    return NEB_OK;
} catch (const std::exception &e) {
    return neb_fail(NEB_ERR_NOMEM, "cannot decode %zu tokens: %s", n, e.what());
}

bool intra_tokenizer_is_listed(const struct intra_tokenizer *t, const char *list, size_t len) {
    absl::string_view left(list, len);
    if (t->bpe)
        return false;
    for (int i = 0; i < t->processor.GetPieceSize(); i++) {
        const std::string &piece = t->processor.IdToPiece(i);
        char score[32];
        const size_t n = static_cast<size_t>(std::snprintf(
            score, sizeof score, "\t%g\n", static_cast<double>(t->processor.GetScore(i))));
        if (left.substr(0, piece.size()) != piece ||
            left.substr(piece.size(), n) != absl::string_view(score, n))
            return false;
        left.remove_prefix(piece.size() + n);
    }
    return left.empty();
}

// SentencePiece takes a CSV list of files and stores that text in the model. Jobs know a vocabulary
// by the bytes of the model, so a path is quoted only if it must be.
static std::string as_csv(const char *path) {
    std::string quoted = "\"";
    if (*path != '"' && !std::strchr(path, ','))
        return path;
    for (; *path; path++)
        quoted.append(*path == '"' ? 2 : 1, *path);
    return quoted + '"';
}

enum neb_status intra_tokenizer_train(const char *lines_path, const char *prefix,
                                      const struct intra_tokenizer_train *c) try {
    auto status = sentencepiece::SentencePieceTrainer::Train(
        {{"input", as_csv(lines_path)},
         {"model_prefix", prefix},
         {"vocab_size", std::to_string(c->vocab)},
         {"model_type", c->type},
         {"character_coverage", std::to_string(c->character_coverage)},
         {"byte_fallback", c->byte_fallback ? "true" : "false"},
         {"num_threads", std::to_string(c->threads)},
         {"minloglevel", "2"},
         {"max_sentence_length", "16384"},
         {"hard_vocab_limit", "false"},
         {"remove_extra_whitespaces", "false"},
         {"user_defined_symbols", std::string("\n") + (c->symbols ? c->symbols : "")},
         {"normalization_rule_name", "identity"}});
    if (!status.ok())
        return neb_fail(NEB_ERR_INVALID, "cannot train a vocabulary of %d pieces: %s", c->vocab,
                        status.ToString().c_str());
    return NEB_OK;
} catch (const std::exception &e) {
    return neb_fail(NEB_ERR_NOMEM, "cannot train a vocabulary: %s", e.what());
}
