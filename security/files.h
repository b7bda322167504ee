// SPDX-License-Identifier: Apache-2.0
// What the small files of a home share: JSON that appears completely or not at all, and locks by
// which the processes of one home take turns.
#ifndef SEC_FILES_H
#define SEC_FILES_H
#include "agent/base/status.h"

#include <jansson.h>

// Writes root with mode 0600, atomic and durable, and releases it. root NULL: NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status sec_json_save_take(const char *path, json_t *root, size_t indent);
// Reads a file of at most `most` bytes. *out: NULL if it is not JSON, or has a key twice.
NEB_MUST_CHECK enum neb_status sec_json_load(const char *path, size_t most, json_t **out);
// Waits for the lock DIR/lock. Close *fd to release it.
NEB_MUST_CHECK enum neb_status sec_dir_lock(const char *dir, int *fd);

#endif
