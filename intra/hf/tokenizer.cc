// SPDX-License-Identifier: Apache-2.0
// In C++, because the library has no C interface. No exception leaves this file.
#include "intra/hf/tokenizer.h"
#include "intra/data/tokenizer_load.h"

#include <cstdio>

static void name(const sentencepiece::SentencePieceProcessor &p, int id, char out[64]) {
    std::snprintf(out, 64, "%s", id < 0 ? "" : p.IdToPiece(id).c_str());
}

enum neb_status intra_hf_special_ids(const char *path, struct intra_hf_special *out) try {
    sentencepiece::SentencePieceProcessor p;
    NEB_TRY(intra_tokenizer_load(path, &p));
    *out = {};
    out->vocab = p.GetPieceSize();
    out->bos = p.bos_id();
    out->eos = p.eos_id();
    out->unk = p.unk_id();
    out->pad = p.pad_id();
    name(p, out->bos, out->bos_text);
    name(p, out->eos, out->eos_text);
    name(p, out->unk, out->unk_text);
    return NEB_OK;
} catch (const std::exception &e) {
    return neb_fail(NEB_ERR_NOMEM, "cannot load the vocabulary %s: %s", path, e.what());
}
