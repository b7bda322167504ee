// SPDX-License-Identifier: Apache-2.0
// The file of a snapshot, as the agent checks it and the worker reads it.
#ifndef AGENT_SNAPSHOT_FILE_H
#define AGENT_SNAPSHOT_FILE_H
#include "agent/base/file.h"
#include "inter/service/snapshot.h"

// The header of a snapshot file, which is freed by the caller, and where its parameters begin. NEB_ERR_FORMAT: none, or its length is
// another one than it says.
NEB_MUST_CHECK enum neb_status agent_snapshot_header(const struct neb_file *f, const char *path,
                                                     uint64_t *header, struct inter_snapshot **out);

#endif
