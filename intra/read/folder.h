// SPDX-License-Identifier: Apache-2.0
// Finds files of a folder that somebody else made, such as a downloaded model or an unpacked
// archive. Such a folder must not choose what is read on this machine. A file belongs to the folder
// if it is a regular file and lies, after links are followed,
//
//     in the folder itself, or
//     in ROOT/blobs, if the folder is ROOT/snapshots/REVISION or below it: a Hugging Face cache
//     keeps its files there
#ifndef INTRA_FOLDER_H
#define INTRA_FOLDER_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// out: DIR/NAME, the path to read. *there (NULL: not wanted): the file exists, or it cannot be
// looked at; opening it then gives the reason. NEB_ERR_DENIED: a link to a file elsewhere;
// NEB_ERR_NOT_FOUND: a link to nothing; NEB_ERR_INVALID: a folder, a FIFO, a device; NEB_ERR_LIMIT:
// the path is too long.
NEB_MUST_CHECK enum neb_status intra_folder_file(const char *dir, const char *name, char *out,
                                                 size_t cap, bool *there);

#ifdef __cplusplus
}
#endif
#endif
