// SPDX-License-Identifier: Apache-2.0
// Reads the files in a tar archive in order: the formats ustar, pax and GNU, as tar(1), Python's
// tarfile and WebDataset write them.
//
//     | header, 512 bytes: name, size, type, sum | content, padded to 512 | header | ... | zeros |
//
// An archive is hostile input. Nothing is written to the disk, so a name such as "../x" is only a
// name. Links, devices and folders are passed over. Headers with a wrong sum, sparse files and
// archives without an end are errors.
#ifndef INTRA_TAR_H
#define INTRA_TAR_H
#include "intra/read/input.h"

enum { INTRA_TAR_NAME_MAX = 4096 };
struct intra_tar {
    struct intra_input *in; // borrowed
    const char *path;       // of the archive, for messages; borrowed
    char name[INTRA_TAR_NAME_MAX];
    uint64_t size, left, pad; // content of this file: all, not read yet, padding after it
    uint64_t at;              // offset in the archive
};
// The next regular file: *found, its name and size. The content of the one before may be unread.
// NEB_ERR_FORMAT, NEB_ERR_CORRUPT (cut short), NEB_ERR_LIMIT (a name is too long), all logged;
// errors of intra_input_read().
NEB_MUST_CHECK enum neb_status intra_tar_next(struct intra_tar *t, bool *found);
// The content of this file, of at most max bytes, with a NUL after it that is not counted.
NEB_MUST_CHECK enum neb_status intra_tar_content(struct intra_tar *t, size_t max,
                                                 struct neb_buf *out);

#endif
