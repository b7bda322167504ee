// SPDX-License-Identifier: Apache-2.0
// The file of a snapshot: the agent checks it, the worker reads it.
#ifndef AGENT_SNAPSHOT_FILE_H
#define AGENT_SNAPSHOT_FILE_H
#include "agent/base/file.h"
#include "inter/service/snapshot.h"

// Reads the header of a snapshot file. The caller frees *out. *header: the offset of the
// parameters. NEB_ERR_FORMAT: the file is no snapshot, or its length does not match its header.
NEB_MUST_CHECK enum neb_status agent_snapshot_header(const struct neb_file *f, const char *path,
                                                     uint64_t *header, struct inter_snapshot **out);

#endif
