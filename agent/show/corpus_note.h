// SPDX-License-Identifier: Apache-2.0
// Which corpus a run trained on: CHECKPOINT/corpus.sha256, beside the vocabulary. nebula eval then finds the held-out text by itself.
//
// One line as sha256sum writes it, "DIGEST  DIR/corpus.json", so that `sha256sum -c` checks it too. The digest is that of
// intra_corpus_digest().
#ifndef AGENT_CORPUS_NOTE_H
#define AGENT_CORPUS_NOTE_H
#include "agent/base/status.h"

#include <stddef.h>

// corpus: a folder of nebula data build. dir: the checkpoint's folder. A corpus that is not on this machine is left out: NEB_OK.
NEB_MUST_CHECK enum neb_status agent_corpus_note_write(const char *corpus, const char *dir);
// The corpus's folder into out. checkpoint: a folder, or a file beside the note. NEB_ERR_NOT_FOUND: no note, or no corpus where
// it says; NEB_ERR_FORMAT: not a note; NEB_ERR_CORRUPT: another corpus is there now. Each is logged with what to do.
NEB_MUST_CHECK enum neb_status agent_corpus_note_read(const char *checkpoint, char *out,
                                                      size_t cap);

#endif
