// SPDX-License-Identifier: Apache-2.0
// Parquet and Arrow files as lines of JSON, by Apache Arrow's Python package in a process of its
// own:
//
//     file --> python3 rows.py (pyarrow) --> {"COLUMN": "text"}\n ...
//
// The file is hostile input to a large library. So the process has no network where the kernel
// allows that, no descriptor but its pipes, and limits on memory, written files and core dumps. It
// dies with its parent. NEBULA_PYTHON names another interpreter than python3.
#ifndef INTRA_CONVERT_H
#define INTRA_CONVERT_H
#include "intra/read/input.h"

// kind: "parquet" or "arrow". column: its name, or a path of names with points into a struct.
// NEB_ERR_IO (logged): the process cannot be started. Other faults show while reading.
NEB_MUST_CHECK enum neb_status intra_convert_open(const char *kind, const char *path,
                                                  const char *column, struct intra_input **out);
// For input.c. Waits for the process, which has closed its output. NEB_ERR_FORMAT (logged).
NEB_MUST_CHECK enum neb_status intra_convert_end(pid_t *child, FILE *said, const char *path);
void intra_convert_stop(pid_t *child);

#endif
