// SPDX-License-Identifier: Apache-2.0
#include "agent/show/corpus_note.h"
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"

#include <string.h>

enum { DIGEST_BYTES = 32, DIGEST_CHARS = 2 * DIGEST_BYTES, CORPUS_JSON_MAX = 16 << 20 };
static const char file_name[] = "corpus.sha256", index_name[] = "corpus.json";

static enum neb_status digest_of(const char *path, uint8_t out[DIGEST_BYTES]) {
    struct neb_buf text = {0};
    NEB_TRY(neb_fs_read(path, CORPUS_JSON_MAX, &text));
    neb_sha256(text.p, text.len, out);
    neb_buf_free(&text);
    return NEB_OK;
}

enum neb_status agent_corpus_note_write(const char *corpus, const char *dir) {
    char index[NEB_PATH_MAX], path[NEB_PATH_MAX], line[DIGEST_CHARS + NEB_PATH_MAX + 4];
    char hex[DIGEST_CHARS + 1];
    uint8_t digest[DIGEST_BYTES];
    NEB_TRY(neb_path(index, sizeof index, corpus, index_name));
    if (!neb_fs_exists(index))
        return NEB_OK;
    snprintf(path, sizeof path, "%s", corpus);
    NEB_TRY(neb_path_absolute(path, sizeof path, "corpus"));
    NEB_TRY(neb_path(index, sizeof index, path, index_name));
    NEB_TRY(digest_of(index, digest));
    neb_hex(digest, sizeof digest, hex);
    NEB_TRY(neb_path(path, sizeof path, dir, file_name));
    int n = snprintf(line, sizeof line, "%s  %s\n", hex, index);
    return neb_fs_write(path, line, (size_t)n, 0644);
}

static enum neb_status note_path(const char *checkpoint, char *out, size_t cap) {
    char folder[NEB_PATH_MAX];
    NEB_TRY(neb_path(folder, sizeof folder, checkpoint, "."));
    if (neb_fs_exists(folder))
        return neb_path(out, cap, checkpoint, file_name);
    neb_path_folder(folder, sizeof folder, checkpoint);
    return neb_path(out, cap, folder, file_name);
}

// Parses "DIGEST  DIR/corpus.json\n". *dir points into text.
static bool parse(char *text, size_t n, uint8_t digest[DIGEST_BYTES], char **dir) {
    static const char end[] = "/corpus.json\n";
    size_t tail = sizeof end - 1;
    if (n <= DIGEST_CHARS + 2 + tail || memcmp(text + DIGEST_CHARS, "  ", 2) ||
        memchr(text, 0, n) || memcmp(text + n - tail, end, tail))
        return false;
    text[DIGEST_CHARS] = 0;
    text[n - tail] = 0;
    *dir = text + DIGEST_CHARS + 2;
    return neb_unhex(text, digest, DIGEST_BYTES);
}

enum neb_status agent_corpus_note_read(const char *checkpoint, char *out, size_t cap) {
    char note[NEB_PATH_MAX], index[NEB_PATH_MAX], *dir = NULL;
    uint8_t was[DIGEST_BYTES], is[DIGEST_BYTES];
    struct neb_buf text = {0};
    enum neb_status st = NEB_OK;
    NEB_TRY(note_path(checkpoint, note, sizeof note));
    if (!neb_fs_exists(checkpoint))
        return neb_fail(NEB_ERR_NOT_FOUND, "there is no %s", checkpoint);
    if (!neb_fs_exists(note))
        return neb_fail(
            NEB_ERR_NOT_FOUND,
            "give --corpus DIR: there is no %s, which would name the corpus of the model", note);
    NEB_TRY_GOTO(neb_fs_read(note, DIGEST_CHARS + NEB_PATH_MAX + 4, &text), out);
    if (!parse((char *)text.p, text.len, was, &dir)) {
        st = neb_fail(NEB_ERR_FORMAT, "%s is damaged; give --corpus DIR", note);
        goto out;
    }
    NEB_TRY_GOTO(neb_path(index, sizeof index, dir, index_name), out);
    if (!neb_fs_exists(index)) {
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "%s names the corpus %s, which does not exist; give --corpus DIR", note, dir);
        goto out;
    }
    NEB_TRY_GOTO(digest_of(index, is), out);
    if (memcmp(is, was, sizeof is)) {
        st = neb_fail(NEB_ERR_CORRUPT,
                      "%s was rebuilt after the model learned from it (%s has another digest); to "
                      "evaluate on it anyway, give --corpus %s",
                      dir, note, dir);
        goto out;
    }
    if (snprintf(out, cap, "%s", dir) >= (int)cap)
        st = neb_fail(NEB_ERR_LIMIT, "%s: path too long", note);
out:
    neb_buf_free(&text);
    return st;
}
