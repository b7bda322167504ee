// SPDX-License-Identifier: Apache-2.0
// Files of a folder that somebody else may have made: a model that was downloaded, an archive. Such
// a folder must not choose what is read on this machine. A file counts as its own where it is a
// regular file and lies
//
//     in the folder itself, links followed to their end
//     in ROOT/blobs, when the folder is ROOT/snapshots/REVISION or below: in a cache of Hugging
//     Face the files lie there
#ifndef INTRA_FOLDER_H
#define INTRA_FOLDER_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// out: DIR/NAME. *there (NULL: not asked for): a file, to be read by that path; what cannot be
// looked at is there too, and who opens it learns why. NEB_ERR_DENIED: a link to a file elsewhere;
// NEB_ERR_NOT_FOUND: a link to nothing; NEB_ERR_INVALID: a folder, a FIFO, a device; NEB_ERR_LIMIT:
// the path is too long.
NEB_MUST_CHECK enum neb_status intra_folder_file(const char *dir, const char *name, char *out,
                                                 size_t cap, bool *there);

#ifdef __cplusplus
}
#endif
#endif
