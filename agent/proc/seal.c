// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/seal.h"
#include "agent/base/log.h"
#include "agent/proc/harden.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { SETTINGS_BYTES_MAX = 16 * 1024 };

// ---- settings -----------------------------------------------------------------------------------

enum neb_status agent_seal_settings_parse(const char *text, size_t len, const char *what,
                                          char *path, size_t cap) {
    json_error_t e;
    const char *key, *bad = NULL;
    json_t *v, *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(root)) {
        enum neb_status st = neb_fail(NEB_ERR_FORMAT, "%s:%d: %s", what, root ? 1 : e.line,
                                      root ? "expected an object" : e.text);
        json_decref(root);
        return st;
    }
    json_object_foreach(root, key, v) if (strcmp(key, "format") != 0 &&
                                          strcmp(key, "key_file") != 0) bad = "has an unknown key";
    const char *file = json_string_value(json_object_get(root, "key_file"));
    if (json_integer_value(json_object_get(root, "format")) != 1)
        bad = "expected \"format\": 1";
    else if (!file || file[0] != '/' || strlen(file) >= cap)
        bad = "\"key_file\" must be the absolute path of a key file";
    else
        memcpy(path, file, strlen(file) + 1);
    json_decref(root);
    return bad ? neb_fail(NEB_ERR_FORMAT, "%s: %s", what, bad) : NEB_OK;
}

enum neb_status agent_seal_settings_write(const char *home, const char *key_file) {
    char path[NEB_PATH_MAX], *full = realpath(key_file, NULL);
    if (!full)
        return neb_fail_errno("%s: the seal key (nebula seal init makes a first key; if files are "
                              "sealed already, restore "
                              "their key from its backup)",
                              key_file);
    json_t *o = json_pack("{s:i,s:s}", "format", 1, "key_file", full);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    enum neb_status st = text ? neb_path(path, sizeof path, home, "seal.json")
                              : neb_fail(NEB_ERR_NOMEM, "out of memory writing settings");
    if (st == NEB_OK)
        st = neb_fs_write(path, text, strlen(text), 0600);
    free(text);
    json_decref(o);
    free(full);
    return st;
}

// NEB_ERR_NOT_FOUND: there are no settings.
static enum neb_status read_settings(const char *home, char *key_file, size_t cap) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    NEB_TRY(neb_path(path, sizeof path, home, "seal.json"));
    if (!neb_fs_exists(path))
        return NEB_ERR_NOT_FOUND;
    enum neb_status st = neb_fs_read(path, SETTINGS_BYTES_MAX, &b);
    if (st == NEB_OK)
        st = agent_seal_settings_parse((const char *)b.p, b.len, path, key_file, cap);
    neb_buf_free(&b);
    if (st == NEB_ERR_FORMAT)
        st = neb_fail(st,
                      "%s is damaged: remove it, and name the key that seals this home again: "
                      "nebula seal init KEYFILE --home %s",
                      path, home);
    return st == NEB_ERR_NOT_FOUND ? NEB_ERR_IO : st;
}

enum neb_status agent_seal_settings_none(const char *home) {
    char key_file[NEB_PATH_MAX];
    enum neb_status st = read_settings(home, key_file, sizeof key_file);
    if (st == NEB_ERR_NOT_FOUND)
        return NEB_OK;
    NEB_TRY(st);
    return neb_fail(
        NEB_ERR_EXISTS,
        "%s/seal.json names the key %s, and only this key opens the files sealed here; to seal "
        "with another key from now on, keep the old one and remove seal.json first",
        home, key_file);
}

// ---- passphrases --------------------------------------------------------------------------------

static enum neb_status ask_terminal(const char *path, char *out, size_t cap) {
    int fd = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    struct termios was, quiet;
    if (fd < 0 || tcgetattr(fd, &was) != 0) {
        if (fd >= 0)
            close(fd);
        return neb_fail(NEB_ERR_DENIED,
                        "%s is protected by a passphrase, and there is no terminal to ask for it; "
                        "give it as the systemd credential nebula-seal-passphrase",
                        path);
    }
    quiet = was;
    quiet.c_lflag &= ~(tcflag_t)ECHO;
    tcsetattr(fd, TCSAFLUSH, &quiet);
    dprintf(fd, "passphrase of %s: ", path);
    size_t n = 0;
    char c;
    while (n + 1 < cap && read(fd, &c, 1) == 1 && c != '\n')
        out[n++] = c;
    out[n] = 0;
    tcsetattr(fd, TCSAFLUSH, &was);
    dprintf(fd, "\n");
    close(fd);
    return NEB_OK;
}

static enum neb_status ask(void *user, const char *path, char *out, size_t cap) {
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    char file[NEB_PATH_MAX];
    size_t n = 0;
    (void)user;
    if (!credentials)
        return ask_terminal(path, out, cap);
    NEB_TRY(neb_path(file, sizeof file, credentials, "nebula-seal-passphrase"));
    enum neb_status st = sec_secret_read(file, out, cap - 1, &n);
    if (st == NEB_ERR_NOT_FOUND)
        return ask_terminal(path, out, cap);
    NEB_TRY(st);
    out[n] = 0;
    out[strcspn(out, "\r\n")] = 0;
    return NEB_OK;
}

// ---- the vault ----------------------------------------------------------------------------------

static enum neb_status open_key(const char *key_file, struct sec_vault **out) {
    struct sec_seal_key *k = NULL;
    NEB_TRY(sec_seal_key_load(key_file, ask, NULL, &k));
    return sec_vault_create_take(&k, NULL, out);
}

enum neb_status agent_seal_open(const char *home, const char *key_file, struct sec_vault **out) {
    char path[NEB_PATH_MAX], id[2 * SEC_SEAL_ID_BYTES + 1];
    *out = NULL;
    enum neb_status st = NEB_ERR_NOT_FOUND;
    if (!key_file && home && (st = read_settings(home, path, sizeof path)) == NEB_OK)
        key_file = path;
    else if (!key_file && st != NEB_ERR_NOT_FOUND)
        return st;
    st = open_key(key_file, out);
    if (st == NEB_ERR_NOT_FOUND && !key_file)
        return NEB_OK; // and no credential either
    NEB_TRY(st);
    neb_hex(sec_seal_key_id(sec_vault_key(*out)), SEC_SEAL_ID_BYTES, id);
    neb_info("checkpoints and updates are sealed with key %s", id);
    return NEB_OK;
}

// The id of the key that sealed a file; false: it is not sealed, or not there.
static bool sealed_with(const char *path, uint8_t id[SEC_SEAL_ID_BYTES]) {
    uint8_t front[8 + SEC_SEAL_ID_BYTES];
    FILE *f = fopen(path, "re");
    bool sealed =
        f && fread(front, 1, sizeof front, f) == sizeof front && neb_is_sealed(front, sizeof front);
    if (f)
        fclose(f);
    if (sealed)
        memcpy(id, front + 8, SEC_SEAL_ID_BYTES);
    return sealed;
}

enum neb_status agent_seal_fits(const struct sec_vault *v, const char *home, const char *job_hex) {
    static const char *const where[] = {"%s/jobs/%s/checkpoint/*", "%s/blobs/%s-*.blob"};
    char pattern[NEB_PATH_MAX], other[NEB_PATH_MAX] = "", text[2 * SEC_SEAL_ID_BYTES + 1];
    uint8_t id[SEC_SEAL_ID_BYTES], others[SEC_SEAL_ID_BYTES];
    bool opens = false;
    for (int k = 0; k < 2 && !opens; k++) {
        glob_t g = {0};
        int n = snprintf(pattern, sizeof pattern, where[k], home, job_hex);
        if (n < 0 || n >= (int)sizeof pattern || glob(pattern, 0, NULL, &g) != 0)
            continue;
        for (size_t i = 0; i < g.gl_pathc && !opens; i++) {
            if (!sealed_with(g.gl_pathv[i], id))
                continue;
            opens = v && !memcmp(id, sec_seal_key_id(sec_vault_key(v)), sizeof id);
            if (!opens)
                snprintf(other, sizeof other, "%s", g.gl_pathv[i]);
            memcpy(others, id, sizeof others);
        }
        globfree(&g);
    }
    if (opens || !other[0])
        return NEB_OK;
    neb_hex(others, sizeof others, text);
    if (v && read_settings(home, pattern, sizeof pattern) == NEB_OK)
        return neb_fail(NEB_ERR_DENIED,
                        "the key in %s is not key %s, which sealed the job's files: bring that one "
                        "back and start the agent again; one of these files is %s",
                        pattern, text, other);
    return neb_fail(NEB_ERR_DENIED,
                    "%s/seal.json is gone, and the job's files are sealed with key %s: bring it "
                    "back (or nebula seal init KEYFILE --home %s) and start the agent again; "
                    "one of these files is %s",
                    home, text, home, other);
}

enum neb_status agent_seal_option(const char *key_file, struct sec_vault **out) {
    *out = NULL;
    if (!key_file)
        return NEB_OK;
    agent_harden_keys(false);
    return open_key(key_file, out);
}
