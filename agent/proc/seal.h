// SPDX-License-Identifier: Apache-2.0
// Which key a site's files are sealed with: --seal-key FILE, else HOME/seal.json, else the systemd credential nebula-seal, else none.
//
//     HOME/seal.json   {"format": 1, "key_file": "/etc/nebula/seal.key"}
//
// A site that says that it seals does so or does not start: a key that is missing is an error, never a reason to write in clear.
// The passphrase of a key that has one comes from the credential nebula-seal-passphrase, else from the terminal.
#ifndef AGENT_SEAL_H
#define AGENT_SEAL_H
#include "agent/base/status.h"
#include "security/vault.h"

// home NULL: settings are not looked at. *out NULL: nothing is sealed here.
NEB_MUST_CHECK enum neb_status agent_seal_open(const char *home, const char *key_file,
                                               struct sec_vault **out);
// Whether v (NULL: no key) opens what is sealed here of a job: its updates and checkpoints. Without
// them it would take what it cannot read for damaged. NEB_ERR_DENIED says which key is missing.
NEB_MUST_CHECK enum neb_status agent_seal_fits(const struct sec_vault *v, const char *home,
                                               const char *job_hex);
// As agent_seal_open, for commands that read one thing: only --seal-key, and from then on the
// process takes no core dump.
NEB_MUST_CHECK enum neb_status agent_seal_option(const char *key_file, struct sec_vault **out);
// HOME/seal.json, 0600, naming key_file by its absolute path.
NEB_MUST_CHECK enum neb_status agent_seal_settings_write(const char *home, const char *key_file);
// NEB_ERR_EXISTS: home has a seal.json; says which key it names, and how another one is taken.
NEB_MUST_CHECK enum neb_status agent_seal_settings_none(const char *home);
// Parses the text of seal.json; path: NEB_PATH_MAX bytes. NEB_ERR_FORMAT says what is wrong with it.
NEB_MUST_CHECK enum neb_status agent_seal_settings_parse(const char *text, size_t len,
                                                         const char *what, char *path, size_t cap);

#endif
