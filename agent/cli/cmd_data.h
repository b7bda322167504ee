// SPDX-License-Identifier: Apache-2.0
// The recipe of a corpus, as `nebula data build` reads it: for cmd_data.c and a test.
#ifndef AGENT_CMD_DATA_H
#define AGENT_CMD_DATA_H
#include "intra/data/data.h"

// Logs what is wrong, with its line. NEB_ERR_FORMAT: not YAML; NEB_ERR_INVALID; NEB_ERR_NOMEM;
// errors of reading a file.
NEB_MUST_CHECK enum neb_status agent_recipe_load(const char *path, struct intra_build_spec *out);

#endif
