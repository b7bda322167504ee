// SPDX-License-Identifier: Apache-2.0
#include "security/seal.h"

#include "agent/base/fs.h"
#include "security/locked.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CODE_BYTES = 20, CODE_CHARS = 32, NONCE = crypto_secretbox_NONCEBYTES };
static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

enum neb_status sec_seal_init(void) {
    sec_locked_init();
    return sodium_init() < 0 ? neb_fail(NEB_ERR_UNSUPPORTED,
                                        "cannot start libsodium: no source of random numbers")
                             : NEB_OK;
}

// True for a systemd credential. systemd puts it into a folder that only this service can enter.
// The file may belong to root and be readable by its group, since an ACL for the service's user
// shows as group permission.
static bool is_credential(const char *path) {
    const char *dir = getenv("CREDENTIALS_DIRECTORY");
    size_t n = dir ? strlen(dir) : 0;
    while (n > 1 && dir[n - 1] == '/')
        n--;
    return n && dir[0] == '/' && !strncmp(path, dir, n) && path[n] == '/' &&
           !strchr(path + n + 1, '/');
}

static enum neb_status read_all(int fd, const char *path, uint8_t *buf, size_t cap, size_t *len) {
    struct stat sb;
    bool credential = is_credential(path);
    if (fstat(fd, &sb) != 0)
        return neb_fail_errno("%s", path);
    if (!S_ISREG(sb.st_mode) || (sb.st_uid != geteuid() && !(credential && sb.st_uid == 0)))
        return neb_fail(NEB_ERR_DENIED, "%s must be a plain file of this user", path);
    if (sb.st_mode & (credential ? 007 : 077))
        return neb_fail(NEB_ERR_DENIED,
                        "%s is open to others (mode %03o): chmod 600 it. If it holds a secret, "
                        "make a new one, because others may have read it",
                        path, (unsigned)(sb.st_mode & 0777));
    if ((uint64_t)sb.st_size > cap)
        return neb_fail(NEB_ERR_FORMAT, "%s is larger than a file of this kind", path);
    size_t got = 0;
    while (got < (size_t)sb.st_size) {
        ssize_t n = read(fd, buf + got, (size_t)sb.st_size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return neb_fail(NEB_ERR_IO, "%s: cannot read all of it", path);
        got += (size_t)n;
    }
    *len = got;
    return NEB_OK;
}

enum neb_status sec_secret_read(const char *path, void *buf, size_t cap, size_t *len) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return NEB_ERR_NOT_FOUND;
    if (fd < 0 && errno == ELOOP)
        return neb_fail(NEB_ERR_DENIED, "%s is a symbolic link, but a key must be a plain file",
                        path);
    if (fd < 0)
        return neb_fail_errno("%s", path);
    enum neb_status st = read_all(fd, path, buf, cap, len);
    close(fd);
    return st;
}

enum neb_status sec_secret_write(const char *path, const void *p, size_t n) {
    return neb_fs_write(path, p, n, 0600);
}

void sec_seal(const uint8_t key[SEC_SEAL_KEY_BYTES], const void *plain, size_t len, uint8_t *out) {
    randombytes_buf(out, NONCE);
    crypto_secretbox_easy(out + NONCE, plain, len, out, key);
}

enum neb_status sec_unseal(const uint8_t key[SEC_SEAL_KEY_BYTES], const uint8_t *sealed, size_t len,
                           void *plain) {
    if (len < SEC_SEAL_EXTRA ||
        crypto_secretbox_open_easy(plain, sealed + NONCE, len - NONCE, sealed, key) != 0)
        return NEB_ERR_DENIED;
    return NEB_OK;
}

void sec_code_make(char code[SEC_CODE_TEXT]) {
    uint8_t r[CODE_CHARS];
    size_t n = 0;
    randombytes_buf(r, sizeof r);
    for (size_t i = 0; i < CODE_CHARS; i++) {
        if (i && i % 4 == 0)
            code[n++] = '-';
        code[n++] = alphabet[r[i] & 31];
    }
    code[n] = 0;
    sodium_memzero(r, sizeof r);
}

enum neb_status sec_code_key(const char *code, const uint8_t salt[SEC_SEAL_SALT_BYTES],
                             uint8_t key[SEC_SEAL_KEY_BYTES]) {
    char plain[CODE_CHARS];
    size_t n = 0;
    for (const char *c = code; *c; c++) {
        char u = (char)(*c >= 'a' && *c <= 'z' ? *c - 32 : *c);
        if (u == '-' || u == ' ' || u == '\n' || u == '\r')
            continue;
        if (n == CODE_CHARS || !strchr(alphabet, u))
            n = CODE_CHARS + 1;
        if (n > CODE_CHARS)
            break;
        plain[n++] = u;
    }
    enum neb_status st = NEB_OK;
    if (n != CODE_CHARS)
        st = neb_fail(NEB_ERR_INVALID,
                      "not a recovery code: expected eight groups of four characters");
    else if (crypto_pwhash(key, SEC_SEAL_KEY_BYTES, plain, CODE_CHARS, salt,
                           crypto_pwhash_OPSLIMIT_INTERACTIVE, crypto_pwhash_MEMLIMIT_INTERACTIVE,
                           crypto_pwhash_ALG_ARGON2ID13) != 0)
        st = neb_fail(NEB_ERR_NOMEM, "out of memory: 64 MiB are needed for the recovery code");
    sodium_memzero(plain, sizeof plain);
    return st;
}
