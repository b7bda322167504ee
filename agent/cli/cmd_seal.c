// SPDX-License-Identifier: Apache-2.0
// nebula seal: keys that seal files on disk; opens a sealed file.
#include "agent/base/file.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/proc/seal.h"
#include "intra/ckpt/checkpoint_parts.h"
#include "security/identity.h"
#include "security/locked.h"
#include "security/seal_key.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

struct options {
    struct agent_options common; // its arguments: the action and files
    bool passphrase;
};

enum { PIECE = 1 << 20 };

static void print_key(const char *path, const struct sec_seal_key *k) {
    char id[2 * SEC_SEAL_ID_BYTES + 1];
    neb_hex(sec_seal_key_id(k), SEC_SEAL_ID_BYTES, id);
    printf("key %s in %s\n", id, path);
}

// Reads it twice, from the terminal or from two lines of a pipe.
static enum neb_status read_passphrase(char *out, size_t cap) {
    struct termios was;
    char *again = sec_locked_alloc(cap);
    bool terminal = tcgetattr(STDIN_FILENO, &was) == 0, got = again != NULL;
    if (terminal) {
        struct termios quiet = was;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
        fputs("passphrase, twice: ", stderr);
    }
    setvbuf(stdin, NULL, _IONBF, 0); // no copy of the passphrase stays in a buffer
    got = got && fgets(out, (int)cap, stdin) && fgets(again, (int)cap, stdin);
    if (terminal) {
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &was);
        fputc('\n', stderr);
    }
    enum neb_status st = NEB_OK;
    if (got) // the second line of a pipe may have no line end
        out[strcspn(out, "\r\n")] = again[strcspn(again, "\r\n")] = 0;
    if (!got)
        st = neb_fail(NEB_ERR_INVALID, "expected the passphrase on two lines of standard input");
    else if (strcmp(out, again) != 0)
        st = neb_fail(NEB_ERR_INVALID, "the two passphrases differ");
    sodium_free(again);
    return st;
}

static enum neb_status id(const struct options *o) {
    struct sec_vault *v = NULL;
    NEB_TRY(agent_seal_option(o->common.args[1], &v));
    print_key(o->common.args[1], sec_vault_key(v));
    sec_vault_destroy(&v);
    return NEB_OK;
}

static enum neb_status make_key(const struct options *o) {
    char *passphrase = NULL;
    struct sec_seal_key *k = NULL;
    if (o->passphrase && !(passphrase = sec_locked_alloc(SEC_SEAL_PASSPHRASE_MAX)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a passphrase");
    enum neb_status st = passphrase ? read_passphrase(passphrase, SEC_SEAL_PASSPHRASE_MAX) : NEB_OK;
    if (st == NEB_OK)
        st = sec_seal_key_make(o->common.args[1], passphrase, &k);
    sodium_free(passphrase);
    NEB_TRY(st);
    print_key(o->common.args[1], k);
    sec_seal_key_destroy(&k);
    return NEB_OK;
}

static enum neb_status init(const struct options *o) {
    char home[NEB_PATH_MAX];
    NEB_TRY(sec_home(o->common.home, home, sizeof home));
    NEB_TRY(agent_seal_settings_none(home));
    NEB_TRY(neb_fs_mkdirs(home, 0700));
    // An existing key is from an interrupted init or from another home. It is used once it has been
    // read.
    NEB_TRY(!o->passphrase && neb_fs_exists(o->common.args[1]) ? id(o) : make_key(o));
    NEB_TRY(agent_seal_settings_write(home, o->common.args[1]));
    printf("The agent of %s seals checkpoints and updates from its next start on. Keep a copy of "
           "the key in\nanother place: without it, sealed files are lost.\n",
           home);
    return NEB_OK;
}

static enum neb_status copy(const struct neb_file *f, struct neb_fs_writer *w) {
    uint8_t *p = malloc(PIECE);
    enum neb_status st = p ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory copying");
    for (uint64_t at = 0, len = neb_file_len(f); st == NEB_OK && at < len;) {
        size_t n = len - at < PIECE ? (size_t)(len - at) : PIECE;
        st = neb_file_read(f, at, p, n);
        if (st == NEB_OK)
            st = neb_fs_writer_add(w, p, n);
        at += n;
    }
    free(p);
    return st == NEB_OK ? neb_fs_writer_commit(w) : st;
}

static enum neb_status open_one(const struct neb_vault *v, const char *from, const char *to) {
    struct neb_file *f = NULL;
    struct neb_fs_writer *w = NULL;
    enum neb_status st = neb_file_open(from, v, &f);
    if (st == NEB_OK)
        st = neb_fs_writer_open(to, 0600, &w);
    if (st == NEB_OK)
        st = copy(f, w);
    neb_fs_writer_destroy(&w);
    neb_file_close(&f);
    return st;
}

// Parts of a checkpoint, in clear beside `to`.
struct parts {
    uint64_t token;
    uint32_t n;
};

// Opens the parts of a checkpoint that ranks of a mesh wrote. made: the parts written, also on
// failure.
static enum neb_status open_parts(const struct neb_vault *v, const char *from, const char *to,
                                  struct parts *made) {
    struct neb_file *f = NULL;
    uint8_t head[sizeof INTRA_CKPT_MAGIC] = {0};
    struct intra_ckpt *c = NULL;
    uint64_t parts[2] = {0, 0};
    NEB_TRY(neb_file_open(from, v, &f));
    enum neb_status st =
        neb_file_len(f) < sizeof head ? NEB_OK : neb_file_read(f, 0, head, sizeof head);
    neb_file_close(&f);
    if (st != NEB_OK || memcmp(head, INTRA_CKPT_MAGIC, sizeof head) != 0)
        return st;
    NEB_TRY(intra_ckpt_open_index(v, from, &c));
    const struct intra_ckpt_section *s = intra_ckpt_find(c, INTRA_PARTS_SECTION);
    if (s && s->rows == 2) // a part itself has three rows
        st = intra_ckpt_read(c, INTRA_PARTS_SECTION, INTRA_U64, 2, 1, parts);
    intra_ckpt_close(&c);
    if (parts[1] > INTRA_PARTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "%s: impossible number of parts", from);
    made->token = parts[0];
    for (uint32_t k = 1; k <= parts[1] && st == NEB_OK; k++) {
        char sealed[NEB_PATH_MAX], clear[NEB_PATH_MAX];
        NEB_TRY(intra_part_path(from, parts[0], k, sealed, sizeof sealed));
        NEB_TRY(intra_part_path(to, parts[0], k, clear, sizeof clear));
        st = open_one(v, sealed, clear);
        made->n = k;
    }
    return st;
}

// After a failure, nothing stays in clear.
static void forget(const char *to, const struct parts *made) {
    char clear[NEB_PATH_MAX];
    bool all = neb_fs_remove(to) == NEB_OK;
    for (uint32_t k = 1; k <= made->n; k++)
        all = intra_part_path(to, made->token, k, clear, sizeof clear) == NEB_OK &&
              neb_fs_remove(clear) == NEB_OK && all;
    if (!all) // the name is logged
        neb_warn("parts in clear are left beside %s: remove them", to);
}

static enum neb_status open_file(const struct options *o) {
    struct sec_vault *v = NULL;
    struct parts made = {0};
    if (neb_fs_exists(o->common.args[2]))
        return neb_fail(NEB_ERR_EXISTS, "%s exists already: name a new file", o->common.args[2]);
    NEB_TRY(agent_seal_option(o->common.seal_key, &v));
    enum neb_status st = open_parts(sec_vault_of(v), o->common.args[1], o->common.args[2], &made);
    if (st == NEB_OK)
        st = open_one(sec_vault_of(v), o->common.args[1], o->common.args[2]);
    if (st != NEB_OK)
        forget(o->common.args[2], &made);
    sec_vault_destroy(&v);
    return st;
}

static const char *check(const void *options) {
    const struct options *o = options;
    return !strcmp(o->common.args[0], "open") && !o->common.seal_key ? "open: give --seal-key FILE"
                                                                     : NULL;
}

static int run(void *options) {
    const struct options *o = options;
    const char *what = o->common.args[0];
    enum neb_status st = sec_init();
    if (st == NEB_OK)
        st = !strcmp(what, "init") ? init(o) : !strcmp(what, "id") ? id(o) : open_file(o);
    return agent_exit_of(st);
}

static const struct agent_option table[] = {
    OPT_HOME("home of the agent that seals"),
    OPT_FLAG("passphrase", 'p',
             "init: protect the key with a passphrase, which the agent needs at each start",
             AT(passphrase)),
    OPT_SEAL_KEY("open: the key"), OPT_END};

const struct agent_command cmd_seal = {
    .name = "seal",
    .summary = "make a key that seals files on disk; open sealed files",
    .options = table,
    .arguments = "init KEYFILE\nid KEYFILE\nopen SEALED CLEAR",
    .doc = "Seals what the agent writes: checkpoints, models, snapshots and updates of its "
           "ledger.\vinit makes a key, or uses an existing KEYFILE, and writes HOME/seal.json, "
           "which names the key. The agent seals from its next start on. Keep the key file on "
           "another disk than HOME, or pass it as systemd credential nebula-seal. id prints the "
           "public id of a key, as in errors. open writes one sealed file in clear, and the parts "
           "of a checkpoint beside it.",
    .least = 2,
    .most = 3,
    .actions = (const struct agent_action[]){{"init", 2}, {"id", 2}, {"open", 3}, {0}},
    .check = check,
    .size = sizeof(struct options),
    .run = run,
    .home = true};
