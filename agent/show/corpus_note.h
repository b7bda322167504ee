// SPDX-License-Identifier: Apache-2.0
// Records which corpus a run trained on, in CHECKPOINT/corpus.sha256 beside the vocabulary. nebula
// eval finds the held-out text with it.
//
// It is one line in the format of sha256sum, "DIGEST  DIR/corpus.json", so `sha256sum -c` can check
// it too. The digest equals that of intra_corpus_digest().
#ifndef AGENT_CORPUS_NOTE_H
#define AGENT_CORPUS_NOTE_H
#include "agent/base/status.h"

#include <stddef.h>

// corpus: a folder of nebula data build. dir: the checkpoint's folder. Writes nothing for a corpus
// that is not on this machine (NEB_OK).
NEB_MUST_CHECK enum neb_status agent_corpus_note_write(const char *corpus, const char *dir);
// Writes the corpus's folder to out. checkpoint: a folder, or a file beside the note.
// NEB_ERR_NOT_FOUND: no note, or no corpus in that folder. NEB_ERR_FORMAT: not a note.
// NEB_ERR_CORRUPT: another corpus is there now. Each error is logged with the remedy.
NEB_MUST_CHECK enum neb_status agent_corpus_note_read(const char *checkpoint, char *out,
                                                      size_t cap);

#endif
