// SPDX-License-Identifier: Apache-2.0
// Reads a file of other programs from its beginning to its end: a regular file, a pipe, a named
// pipe, or the output of a converter process. Data packed by gzip, zstd or xz is unpacked; its
// first bytes decide, not its name. Several packed parts may follow each other.
//
// A packed file is hostile input. It may give at most INTRA_UNPACK_RATIO bytes for each of its
// bytes, and INTRA_UNPACK_FREE bytes more. Its window may take at most INTRA_UNPACK_MEMORY bytes.
#ifndef INTRA_INPUT_H
#define INTRA_INPUT_H
#include "agent/base/bytes.h"

#include <stdio.h>
#include <sys/types.h>

enum {
    INTRA_UNPACK_RATIO = 256,
    INTRA_UNPACK_FREE = 64 << 20,
    INTRA_UNPACK_MEMORY = 256 << 20,
};

struct intra_input;
// Errors are logged and name the file. NEB_ERR_IO; NEB_ERR_INVALID: a folder, a device or a socket;
// NEB_ERR_FORMAT: damaged packed data; NEB_ERR_NOMEM. A named pipe without a writer makes this
// wait.
NEB_MUST_CHECK enum neb_status intra_input_open(const char *path, struct intra_input **out);
// Takes f, also after an error. child: the process that writes into it; 0: none. said: what it
// writes to its standard error; NULL: none. Both are of intra_convert_start().
NEB_MUST_CHECK enum neb_status intra_input_take(FILE *f, const char *path, pid_t child, FILE *said,
                                                struct intra_input **out);
// *got < n: the end. Errors as open; NEB_ERR_CORRUPT: the packed data ends too early;
// NEB_ERR_LIMIT: it is larger than the limits above allow; NEB_ERR_FORMAT also: the converter
// failed, and its last line is logged.
NEB_MUST_CHECK enum neb_status intra_input_read(struct intra_input *in, void *p, size_t n,
                                                size_t *got);
// Appends all bytes. NEB_ERR_LIMIT (logged): more than max.
NEB_MUST_CHECK enum neb_status intra_input_whole(struct intra_input *in, size_t max,
                                                 struct neb_buf *out);
uint64_t intra_input_taken(const struct intra_input *in); // bytes of the file that are used up
void intra_input_close(struct intra_input **in);
// Goes on at this offset, if the file is a regular one that is not packed. False: it stays where it
// is.
bool intra_input_seek(struct intra_input *in, uint64_t offset);
// Length of a name without the suffix of a packer: .gz, .zst or .xz.
size_t intra_input_name(const char *name);

#endif
