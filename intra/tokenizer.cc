// The one C++ file: SentencePiece has no C interface. Exceptions do not leave it.
#include "intra/tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <string>
#include <vector>

struct intra_tokenizer {
    sentencepiece::SentencePieceProcessor processor;
};

// A named pipe would be waited for, and a device read without end. The pipe of a shell, "<(command)", has no name.
static bool is_readable(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode))
        return true; // what is wrong with it is said by who opens it
    char *named = realpath(path, nullptr);
    std::free(named);
    return S_ISFIFO(info.st_mode) && !named;
}

enum neb_status intra_tokenizer_open(const char *model_path, struct intra_tokenizer **out) try {
    if (!is_readable(model_path))
        return neb_fail(NEB_ERR_FORMAT, "cannot load the vocabulary %s: not a regular file", model_path);
    auto *t = new intra_tokenizer;
    auto status = t->processor.Load(model_path);
    if (!status.ok()) {
        delete t;
        return neb_fail(NEB_ERR_FORMAT, "cannot load the vocabulary %s: %s", model_path, status.ToString().c_str());
    }
    *out = t;
    return NEB_OK;
} catch (const std::exception &e) {
    return neb_fail(NEB_ERR_NOMEM, "cannot load the vocabulary %s: %s", model_path, e.what());
}

void intra_tokenizer_close(struct intra_tokenizer **t) {
    delete *t;
    *t = nullptr;
}

int32_t intra_tokenizer_vocab(const struct intra_tokenizer *t) { return t->processor.GetPieceSize(); }
int32_t intra_tokenizer_bos(const struct intra_tokenizer *t) { return t->processor.bos_id(); }
int32_t intra_tokenizer_eos(const struct intra_tokenizer *t) { return t->processor.eos_id(); }

enum neb_status intra_tokenizer_encode(const struct intra_tokenizer *t, const char *text, size_t len, int32_t **ids, size_t *n) try {
    std::vector<int> v;
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

enum neb_status intra_tokenizer_decode(const struct intra_tokenizer *t, const int32_t *ids, size_t n, char **text) try {
    std::vector<int> v;
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

enum neb_status intra_tokenizer_train(const char *lines_path, const char *prefix, const struct intra_tokenizer_train *c) try {
    auto status = sentencepiece::SentencePieceTrainer::Train(
        {{"input", lines_path}, {"model_prefix", prefix}, {"vocab_size", std::to_string(c->vocab)}, {"model_type", c->type},
         {"character_coverage", std::to_string(c->character_coverage)}, {"byte_fallback", c->byte_fallback ? "true" : "false"},
         {"num_threads", std::to_string(c->threads)}, {"minloglevel", "2"}, {"max_sentence_length", "16384"},
         {"hard_vocab_limit", "false"}, {"remove_extra_whitespaces", "false"}, {"user_defined_symbols", std::string("\n") + (c->symbols ? c->symbols : "")},
         {"normalization_rule_name", "identity"}});
    if (!status.ok())
        return neb_fail(NEB_ERR_INVALID, "cannot train a vocabulary of %d pieces: %s", c->vocab, status.ToString().c_str());
    return NEB_OK;
} catch (const std::exception &e) {
    return neb_fail(NEB_ERR_NOMEM, "cannot train a vocabulary: %s", e.what());
}
