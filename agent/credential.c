#include "agent/credential.h"
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/harden.h"
#include "security/locked.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "nebwork2";

struct agent_credential { // in locked memory; what goes through the pipe, but for `unused`
    char magic[8];
    uint8_t secret[AGENT_SECRET_BYTES];
    uint8_t sealed; // 0 or 1: handed is the job's key
    uint8_t unused[7];
    uint8_t handed[SEC_SEAL_HANDED_BYTES];
    struct agent_ipc_remote remote;
};
// bytes alone, no padding, so that worker and agent of one build agree
static_assert(sizeof(struct agent_credential) == 8 + AGENT_SECRET_BYTES + 8 +
                                                     SEC_SEAL_HANDED_BYTES +
                                                     sizeof(struct agent_ipc_remote),
              "padding");

// NULL: out of memory, logged.
static struct agent_credential *new_credential(void) {
    struct agent_credential *c = sec_seal_init() == NEB_OK ? sec_locked_alloc(sizeof *c) : NULL;
    if (!c)
        return NULL;
    sodium_memzero(c, sizeof *c);
    memcpy(c->magic, magic, sizeof magic);
    return c;
}

static enum neb_status no_memory(void) {
    return neb_fail(NEB_ERR_NOMEM, "out of memory for a worker's credentials");
}

enum neb_status agent_credential_create(const struct sec_seal_key *site,
                                        const uint8_t job[INTER_ID_BYTES],
                                        struct agent_credential **out) {
    struct sec_seal_key *k = NULL;
    struct agent_credential *c = *out = new_credential();
    if (!c)
        return no_memory();
    randombytes_buf(c->secret, sizeof c->secret);
    if (crypto_box_keypair(c->remote.public, c->remote.secret) != 0) { // never
        agent_credential_destroy(out);
        return no_memory();
    }
    enum neb_status st = site ? sec_seal_key_derive(site, job, &k) : NEB_OK;
    if (k) {
        sec_seal_key_hand(k, c->handed);
        c->sealed = 1;
        sec_seal_key_destroy(&k);
    }
    if (st != NEB_OK)
        agent_credential_destroy(out);
    return st;
}

void agent_credential_destroy(struct agent_credential **c) {
    if (!*c)
        return;
    sodium_free(*c); // wipes
    *c = NULL;
}

bool agent_credential_is(const struct agent_credential *c, const void *secret, size_t len) {
    return c && len == sizeof c->secret && sodium_memcmp(c->secret, secret, len) == 0;
}

void agent_credential_reach(struct agent_credential *c, const struct agent_ipc *s) {
    agent_ipc_remote_tell(s, &c->remote);
}

const struct agent_ipc_remote *agent_credential_remote(const struct agent_credential *c) {
    return &c->remote;
}

enum neb_status agent_credential_pipe(const struct agent_credential *c, int *fd) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return neb_fail_errno("cannot create a pipe for a worker");
    ssize_t n = write(ends[1], c, sizeof *c); // fits a pipe's buffer: never blocks
    close(ends[1]);
    *fd = ends[0];
    if (n == (ssize_t)sizeof *c)
        return NEB_OK;
    close(ends[0]);
    return neb_fail_errno("cannot hand a worker its credentials");
}

enum neb_status agent_credential_read(int fd, struct agent_credential **out) {
    size_t got = 0;
    struct agent_credential *c = *out = new_credential();
    if (!c)
        return no_memory();
    while (got < sizeof *c) {
        ssize_t n = read(fd, (uint8_t *)c + got, sizeof *c - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    if (got == sizeof *c && !memcmp(c->magic, magic, sizeof magic) && c->sealed <= 1 &&
        memchr(c->remote.endpoint, 0, sizeof c->remote.endpoint))
        return NEB_OK;
    agent_credential_destroy(out);
    return neb_fail(NEB_ERR_DENIED,
                    "no credentials on standard input: a worker is started by its agent");
}

const uint8_t *agent_credential_secret(const struct agent_credential *c) { return c->secret; }

enum neb_status agent_credential_vault(const struct agent_credential *c, bool ranks,
                                       struct sec_vault **out) {
    struct sec_seal_key *k = NULL;
    *out = NULL;
    if (!c->sealed)
        return NEB_OK;
    agent_harden_keys(ranks);
    NEB_TRY(sec_seal_key_take(c->handed, &k));
    return sec_vault_create_take(&k, NULL, out);
}

// ---- attached trainers ----------------------------------------------------------------------------------------

enum neb_status agent_credential_leave(struct agent_credential *c, const char *dir) {
    char path[NEB_PATH_MAX];
    size_t n = 0;
    NEB_TRY(neb_path(path, sizeof path, dir, "trainer.key"));
    enum neb_status st = sec_secret_read(path, c->secret, sizeof c->secret, &n);
    if (st == NEB_ERR_NOT_FOUND || (st == NEB_OK && n != sizeof c->secret)) {
        randombytes_buf(c->secret, sizeof c->secret);
        st = sec_secret_write(path, c->secret, sizeof c->secret);
    }
    return st;
}

enum neb_status agent_credential_find(const char *socket_path, const char *job,
                                      struct agent_credential **out) {
    char path[NEB_PATH_MAX];
    size_t n = 0;
    const char *slash = strrchr(socket_path, '/');
    int k = snprintf(path, sizeof path, "%.*s/jobs/%s/trainer.key",
                     slash ? (int)(slash - socket_path) : 1, slash ? socket_path : ".", job);
    *out = NULL;
    if (k < 0 || (size_t)k >= sizeof path)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", socket_path);
    struct agent_credential *c = *out = new_credential();
    if (!c)
        return no_memory();
    enum neb_status st = sec_secret_read(path, c->secret, sizeof c->secret, &n);
    if (st == NEB_OK && n != sizeof c->secret)
        st = neb_fail(NEB_ERR_FORMAT, "%s is not a trainer's key", path);
    if (st == NEB_ERR_NOT_FOUND)
        st = neb_fail(st, "%s: not there; the agent makes it when a job waits for a trainer", path);
    if (st != NEB_OK)
        agent_credential_destroy(out);
    return st;
}

const uint8_t *agent_credential_seal(const struct agent_credential *c, size_t *len) {
    *len = c->sealed ? sizeof c->handed : 0;
    return c->handed;
}

enum neb_status agent_credential_take_seal(struct agent_credential *c, const void *p, size_t len) {
    if (len && len != sizeof c->handed)
        return neb_fail(NEB_ERR_FORMAT, "the agent gave a seal key of %zu bytes", len);
    c->sealed = len != 0;
    if (len)
        memcpy(c->handed, p, len);
    return NEB_OK;
}
