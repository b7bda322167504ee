// SPDX-License-Identifier: Apache-2.0
// The key that seals a site's files: --seal-key FILE, else HOME/seal.json, else the systemd
// credential nebula-seal, else none.
//
//     HOME/seal.json   {"format": 1, "key_file": "/etc/nebula/seal.key"}
//
// A site that is configured to seal does so or does not start: a missing key is an error, never a
// reason to write in clear. A key's passphrase comes from the credential nebula-seal-passphrase,
// else from the terminal.
#ifndef AGENT_SEAL_H
#define AGENT_SEAL_H
#include "agent/base/status.h"
#include "security/vault.h"

// home NULL: ignores settings. *out NULL: this site does not seal.
NEB_MUST_CHECK enum neb_status agent_seal_open(const char *home, const char *key_file,
                                               struct sec_vault **out);
// Checks that v (NULL: no key) opens the sealed files of a job at this site: updates and
// checkpoints. Without this check, a file that the job cannot open would count as damaged.
// NEB_ERR_DENIED: the message names the missing key.
NEB_MUST_CHECK enum neb_status agent_seal_fits(const struct sec_vault *v, const char *home,
                                               const char *job_hex);
// For commands that read single files: only --seal-key. With a key, the process makes no more core
// dumps.
NEB_MUST_CHECK enum neb_status agent_seal_option(const char *key_file, struct sec_vault **out);
// Writes HOME/seal.json (0600), which names key_file by its absolute path.
NEB_MUST_CHECK enum neb_status agent_seal_settings_write(const char *home, const char *key_file);
// NEB_ERR_EXISTS: home has a seal.json; the message names its key and how to change it.
NEB_MUST_CHECK enum neb_status agent_seal_settings_none(const char *home);
// Parses the text of seal.json; path: NEB_PATH_MAX bytes. NEB_ERR_FORMAT: the message says what is
// wrong.
NEB_MUST_CHECK enum neb_status agent_seal_settings_parse(const char *text, size_t len,
                                                         const char *what, char *path, size_t cap);

#endif
