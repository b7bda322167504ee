// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/credential.h"
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/proc/harden.h"
#include "security/locked.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "nebwork2", ticket_magic[8] = "nebtick1";

struct payload { // what a worker receives
    char magic[8];
    uint8_t secret[AGENT_SECRET_BYTES];
    uint8_t sealed; // 0 or 1: handed is the job's seal key
    uint8_t unused[7];
    uint8_t handed[SEC_SEAL_HANDED_BYTES];
    struct agent_ipc_remote remote;
};
// no padding: the struct crosses the pipe as bytes
static_assert(sizeof(struct payload) == 8 + AGENT_SECRET_BYTES + 8 + SEC_SEAL_HANDED_BYTES +
                                            sizeof(struct agent_ipc_remote),
              "padding");

struct ticket { // identifies one start of a worker; not secret
    char magic[8];
    uint8_t nonce[32];
};
// worker.box: ticket of the agent | public key of the worker | payload, sealed by the agent to that
// key
enum {
    HELLO_AT = sizeof(struct ticket),
    BOX_AT = HELLO_AT + crypto_box_PUBLICKEYBYTES,
    BOX_BYTES = sizeof(struct payload) + crypto_box_SEALBYTES,
    BOX_END = BOX_AT + BOX_BYTES,
};

struct agent_credential { // in locked memory
    struct payload w;
    struct ticket ticket;
    bool offered; // and not answered yet
};

// NULL: out of memory, logged.
static struct agent_credential *new_credential(void) {
    struct agent_credential *c = sec_seal_init() == NEB_OK ? sec_locked_alloc(sizeof *c) : NULL;
    if (!c)
        return NULL;
    sodium_memzero(c, sizeof *c);
    memcpy(c->w.magic, magic, sizeof magic);
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
    randombytes_buf(c->w.secret, sizeof c->w.secret);
    if (crypto_box_keypair(c->w.remote.public, c->w.remote.secret) != 0) { // cannot happen
        agent_credential_destroy(out);
        return no_memory();
    }
    enum neb_status st = site ? sec_seal_key_derive(site, job, &k) : NEB_OK;
    if (k) {
        sec_seal_key_hand(k, c->w.handed);
        c->w.sealed = 1;
        sec_seal_key_destroy(&k);
    }
    if (st != NEB_OK)
        agent_credential_destroy(out);
    return st;
}

void agent_credential_destroy(struct agent_credential **c) {
    if (!*c)
        return;
    sodium_free(*c); // wipes it too
    *c = NULL;
}

bool agent_credential_is(const struct agent_credential *c, const void *secret, size_t len) {
    return c && len == sizeof c->w.secret && sodium_memcmp(c->w.secret, secret, len) == 0;
}

void agent_credential_reach(struct agent_credential *c, const struct agent_ipc *s) {
    agent_ipc_remote_tell(s, &c->w.remote);
}

const struct agent_ipc_remote *agent_credential_remote(const struct agent_credential *c) {
    return &c->w.remote;
}

static enum neb_status pipe_of(const void *p, size_t len, int *fd) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return neb_fail_errno("cannot create a pipe for a worker");
    ssize_t n = write(ends[1], p, len); // fits the buffer of the pipe, so never blocks
    close(ends[1]);
    *fd = ends[0];
    if (n == (ssize_t)len)
        return NEB_OK;
    close(ends[0]);
    return neb_fail_errno("cannot write a worker's credentials");
}

enum neb_status agent_credential_pipe(const struct agent_credential *c, int *fd) {
    return pipe_of(&c->w, sizeof c->w, fd);
}

// ---- a worker behind a network ------------------------------------------------------------------

static enum neb_status box_path(const char *dir, char path[NEB_PATH_MAX]) {
    return neb_path(path, NEB_PATH_MAX, dir, "worker.box");
}

enum neb_status agent_credential_offer(struct agent_credential *c, const char *dir, int *fd) {
    char path[NEB_PATH_MAX];
    memcpy(c->ticket.magic, ticket_magic, sizeof ticket_magic);
    randombytes_buf(c->ticket.nonce, sizeof c->ticket.nonce);
    NEB_TRY(box_path(dir, path));
    NEB_TRY(sec_secret_write(path, &c->ticket, sizeof c->ticket));
    c->offered = true;
    return pipe_of(&c->ticket, sizeof c->ticket, fd);
}

// Opens the file each time: only then does a network file system ask its server for changes.
static enum neb_status read_box(const char *path, uint8_t box[BOX_END + 1], size_t *n) {
    enum neb_status st = sec_secret_read(path, box, BOX_END, n);
    return st == NEB_ERR_NOT_FOUND
               ? neb_fail(st,
                          "%s does not exist: rank 0 reads this file, so the agent's HOME must be "
                          "on a file system that rank 0's host shares",
                          path)
               : st;
}

static enum neb_status append_box(const char *path, const void *p, size_t len, size_t at) {
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return neb_fail_errno("cannot open %s", path);
    ssize_t n = pwrite(fd, p, len, (off_t)at);
    if (close(fd) != 0 || n != (ssize_t)len) // close sends the data to the server
        return neb_fail_errno("cannot write %s", path);
    return NEB_OK;
}

enum neb_status agent_credential_answer(struct agent_credential *c, const char *dir) {
    char path[NEB_PATH_MAX];
    uint8_t box[BOX_END + 1], sealed[BOX_BYTES];
    size_t n = 0;
    if (!c || !c->offered)
        return NEB_OK;
    enum neb_status st = box_path(dir, path);
    if (st == NEB_OK)
        st = read_box(path, box, &n);
    if (st == NEB_OK && n < BOX_AT)
        return NEB_OK;  // the worker has not asked yet
    c->offered = false; // at most one answer, even if it fails
    NEB_TRY(st);
    if (n != BOX_AT || memcmp(box, &c->ticket, sizeof c->ticket) ||
        crypto_box_seal(sealed, (const uint8_t *)&c->w, sizeof c->w, box + HELLO_AT) != 0)
        return neb_fail(NEB_ERR_DENIED, "%s does not contain a key of this job's worker", path);
    return append_box(path, sealed, sizeof sealed, BOX_AT);
}

// Asks for the payload with a fresh key pair, which no other process can use: the network and the
// file see only a ticket, a public key and a sealed box.
static enum neb_status open_box(const char *dir, const struct ticket *ticket,
                                const struct agent_credential_wait *wait, struct payload *out) {
    uint8_t pk[crypto_box_PUBLICKEYBYTES], sk[crypto_box_SECRETKEYBYTES], box[BOX_END + 1];
    char path[NEB_PATH_MAX];
    size_t n = 0;
    enum neb_status st = NEB_OK;
    neb_ns end = neb_now() + wait->limit;
    NEB_TRY(box_path(dir, path));
    crypto_box_keypair(pk, sk);
    NEB_TRY_GOTO(read_box(path, box, &n), out);
    if (n != HELLO_AT || memcmp(box, ticket, sizeof *ticket)) {
        st = neb_fail(NEB_ERR_DENIED,
                      "%s belongs to another start of this worker, or already has an answer: the "
                      "agent starts another worker",
                      path);
        goto out;
    }
    NEB_TRY_GOTO(append_box(path, pk, sizeof pk, HELLO_AT), out);
    while (n < BOX_END) {
        if (neb_now() > end) {
            st = neb_fail(NEB_ERR_TIMEOUT, "no answer from the agent in %s within %.0f s", path,
                          neb_seconds(wait->limit));
            goto out;
        }
        neb_sleep(50 * NEB_MS);
        if (wait->idle)
            wait->idle(wait->user);
        NEB_TRY_GOTO(read_box(path, box, &n), out);
    }
    if (memcmp(box + HELLO_AT, pk, sizeof pk) ||
        crypto_box_seal_open((uint8_t *)out, box + BOX_AT, BOX_BYTES, pk, sk) != 0)
        st = neb_fail(NEB_ERR_DENIED,
                      "the answer in %s is for another process: the agent starts another worker",
                      path);
out:
    sodium_memzero(sk, sizeof sk);
    return st;
}

// ---- the worker's side --------------------------------------------------------------------------

static bool read_all(int fd, void *p, size_t len) {
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (uint8_t *)p + got, len - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

static bool is_payload(const struct payload *w) {
    return !memcmp(w->magic, magic, sizeof magic) && w->sealed <= 1 &&
           memchr(w->remote.endpoint, 0, sizeof w->remote.endpoint);
}

enum neb_status agent_credential_read(int fd, const char *dir,
                                      const struct agent_credential_wait *wait,
                                      struct agent_credential **out) {
    enum neb_status st = NEB_OK;
    struct agent_credential *c = *out = new_credential();
    if (!c)
        return no_memory();
    memset(c->w.magic, 0, sizeof c->w.magic);
    if (read_all(fd, c->w.magic, sizeof c->w.magic)) {
        if (!memcmp(c->w.magic, magic, sizeof magic)) {
            if (!read_all(fd, c->w.secret, sizeof c->w - sizeof c->w.magic))
                c->w.magic[0] = 0;
        } else if (!memcmp(c->w.magic, ticket_magic, sizeof ticket_magic) && dir) {
            memcpy(c->ticket.magic, ticket_magic, sizeof ticket_magic);
            if (read_all(fd, c->ticket.nonce, sizeof c->ticket.nonce))
                st = open_box(dir, &c->ticket, wait, &c->w);
        }
    }
    if (st == NEB_OK && !is_payload(&c->w))
        st = neb_fail(NEB_ERR_DENIED,
                      "no credentials on standard input: only an agent can start a worker");
    if (st != NEB_OK)
        agent_credential_destroy(out);
    return st;
}

const uint8_t *agent_credential_secret(const struct agent_credential *c) { return c->w.secret; }

enum neb_status agent_credential_vault(const struct agent_credential *c, bool ranks,
                                       struct sec_vault **out) {
    struct sec_seal_key *k = NULL;
    *out = NULL;
    if (!c->w.sealed)
        return NEB_OK;
    agent_harden_keys(ranks);
    NEB_TRY(sec_seal_key_take(c->w.handed, &k));
    return sec_vault_create_take(&k, NULL, out);
}

// ---- attached trainers --------------------------------------------------------------------------

enum neb_status agent_credential_leave(struct agent_credential *c, const char *dir) {
    char path[NEB_PATH_MAX];
    size_t n = 0;
    NEB_TRY(neb_path(path, sizeof path, dir, "trainer.key"));
    enum neb_status st = sec_secret_read(path, c->w.secret, sizeof c->w.secret, &n);
    if (st == NEB_ERR_NOT_FOUND || (st == NEB_OK && n != sizeof c->w.secret)) {
        randombytes_buf(c->w.secret, sizeof c->w.secret);
        st = sec_secret_write(path, c->w.secret, sizeof c->w.secret);
    }
    return st;
}

enum neb_status agent_credential_folder(const char *socket_path, const char *job,
                                        char out[NEB_PATH_MAX]) {
    char home[NEB_PATH_MAX], jobs[NEB_PATH_MAX];
    neb_path_folder(home, sizeof home, socket_path);
    NEB_TRY(neb_path(jobs, sizeof jobs, home, "jobs"));
    return neb_path(out, NEB_PATH_MAX, jobs, job);
}

enum neb_status agent_credential_find(const char *socket_path, const char *job,
                                      struct agent_credential **out) {
    char path[NEB_PATH_MAX], dir[NEB_PATH_MAX];
    size_t n = 0;
    *out = NULL;
    NEB_TRY(agent_credential_folder(socket_path, job, dir));
    NEB_TRY(neb_path(path, sizeof path, dir, "trainer.key"));
    struct agent_credential *c = *out = new_credential();
    if (!c)
        return no_memory();
    enum neb_status st = sec_secret_read(path, c->w.secret, sizeof c->w.secret, &n);
    if (st == NEB_OK && n != sizeof c->w.secret)
        st = neb_fail(NEB_ERR_FORMAT,
                      "%s is not a trainer's key: start the agent again, which makes a new one",
                      path);
    if (st == NEB_ERR_NOT_FOUND)
        st = neb_fail(st, "%s does not exist; the agent creates it when a job waits for a trainer",
                      path);
    if (st != NEB_OK)
        agent_credential_destroy(out);
    return st;
}

const uint8_t *agent_credential_seal(const struct agent_credential *c, size_t *len) {
    *len = c->w.sealed ? sizeof c->w.handed : 0;
    return c->w.handed;
}

const void *agent_credential_bytes(const struct agent_credential *c, size_t *len) {
    *len = sizeof c->w;
    return &c->w;
}

enum neb_status agent_credential_take(struct agent_credential *c, const void *p, size_t len) {
    const struct payload *w = p;
    if (len != sizeof *w || !is_payload(w) ||
        sodium_memcmp(w->secret, c->w.secret, sizeof w->secret) != 0)
        return neb_fail(NEB_ERR_FORMAT, "the agent sent credentials that are not this trainer's");
    memcpy(&c->w, w, sizeof c->w);
    return NEB_OK;
}

// ---- the other ranks of an attached trainer -----------------------------------------------------

struct agent_credential_asker {
    uint8_t public[crypto_box_PUBLICKEYBYTES], secret[crypto_box_SECRETKEYBYTES];
};
static_assert((int)crypto_box_PUBLICKEYBYTES == (int)AGENT_CREDENTIAL_PUBLIC, "libsodium's box");
static_assert((int)BOX_BYTES <= (int)AGENT_CREDENTIAL_BOX, "libsodium's sealed box");

enum neb_status agent_credential_ask(struct agent_credential_asker **out,
                                     uint8_t public[AGENT_CREDENTIAL_PUBLIC]) {
    struct agent_credential_asker *a = *out =
        sec_seal_init() == NEB_OK ? sec_locked_alloc(sizeof *a) : NULL;
    if (!a)
        return no_memory();
    crypto_box_keypair(a->public, a->secret);
    memcpy(public, a->public, sizeof a->public);
    return NEB_OK;
}

enum neb_status agent_credential_give(const struct agent_credential *c,
                                      const uint8_t public[AGENT_CREDENTIAL_PUBLIC],
                                      uint8_t box[AGENT_CREDENTIAL_BOX]) {
    memset(box, 0, AGENT_CREDENTIAL_BOX);
    return crypto_box_seal(box, (const uint8_t *)&c->w, sizeof c->w, public) == 0
               ? NEB_OK
               : neb_fail(NEB_ERR_DENIED, "another rank asked for the job's credentials with an "
                                          "invalid public key");
}

enum neb_status agent_credential_given(struct agent_credential_asker **asker,
                                       const uint8_t box[AGENT_CREDENTIAL_BOX],
                                       struct agent_credential **out) {
    struct agent_credential_asker *a = *asker;
    struct agent_credential *c = *out = new_credential();
    enum neb_status st = c ? NEB_OK : no_memory();
    if (c && (crypto_box_seal_open((uint8_t *)&c->w, box, BOX_BYTES, a->public, a->secret) != 0 ||
              !is_payload(&c->w)))
        st = neb_fail(NEB_ERR_DENIED, "the job's credentials were changed in flight from rank 0, "
                                      "or are for another rank");
    sodium_free(a); // wipes it
    *asker = NULL;
    if (st != NEB_OK)
        agent_credential_destroy(out);
    return st;
}
