// SPDX-License-Identifier: Apache-2.0
// Who belongs to the federation: lists of members, the versions that a CA signs, and what a member
// keeps of them.
//
//     struct sec_members     a list, as links and ZAP use it; without a hub it is HOME/members.json
//     struct sec_list        one version of the list, signed by the CA, with the digests of the
//                            versions before it
//     struct sec_federation  HOME/federation: the CA, the newest list, and the next two
//     struct sec_former      previous signing keys of members, and keys of removed members
//     struct sec_forks       forks of the list: two versions that the CA signed and that do not
//                            follow from each other
//
// Without a hub the federation id is SHA-256("nebula federation v1", then in list order both public
// keys of every member), first 16 bytes. Sites that added the same peers compute the same id, and
// messages of one set of members never pass for another's. With a hub it is
// SHA-256("nebula federation ca v1" || the CA's public key), first 16 bytes.
//
// Threads: plain values, except struct sec_federation, which has one user at a time. Processes of
// one home take turns.
#ifndef SEC_MEMBERS_H
#define SEC_MEMBERS_H
#include "agent/base/bytes.h"
#include "agent/base/member_set.h"
#include "agent/base/sha256.h"
#include "security/identity.h"
#include "security/sign.h"

enum { SEC_FEDERATION_BYTES = 16, SEC_ENDPOINT_MAX = 256 };

// ---- lists --------------------------------------------------------------------------------------

enum sec_connect {
    SEC_CONNECT_AUTO, // dial if there is an endpoint, and accept
    SEC_CONNECT_OUT,  // only dial
    SEC_CONNECT_IN,   // only accept
};

enum sec_role {
    SEC_ROLE_DATA,    // trains
    SEC_ROLE_WITNESS, // only votes
};
const char *sec_role_name(enum sec_role r);
NEB_MUST_CHECK bool sec_role_parse(const char *text, enum sec_role *out);

enum sec_capability {
    SEC_CAP_VOTER = 1u << 0, // counts in majorities
    SEC_CAP_ALL = SEC_CAP_VOTER,
};

struct sec_member {
    struct sec_public pub;
    char endpoint[SEC_ENDPOINT_MAX]; // "host:port"; empty: not known, the member dials us
    enum sec_connect connect;
    // Of signed lists only. In members.json all members train and vote.
    enum sec_role role;
    uint32_t caps; // of sec_capability
};

// A plain value: copy it. A list with n 0 admits nobody.
struct sec_members {
    uint8_t federation[SEC_FEDERATION_BYTES];
    uint64_t version; // rises with every change; 0 only for the empty list
    uint32_t n;
    struct sec_member m[NEB_MEMBERS_MAX]; // by pub.sign, ascending: every site has the same indices
};

bool sec_endpoint_valid(const char *endpoint); // host:port or [v6]:port; port 1..65535
// Index, or -1.
int sec_members_find(const struct sec_members *m, const char *name);
// or NULL
const struct sec_member *sec_members_by_name(const struct sec_members *m, const char *name);
const struct sec_member *sec_members_by_curve(const struct sec_members *m,
                                              const uint8_t curve[SEC_KEY_BYTES]); // or NULL
// True if the list holds this name with exactly these keys.
bool sec_members_hold(const struct sec_members *m, const struct sec_public *p);
// True if every field is in range, members ascend, and no name and no key is there twice.
bool sec_members_valid(const struct sec_members *m);
uint32_t sec_members_voters(const struct sec_members *m);
// Puts a member in its place. Leaves version and federation as they are. NEB_ERR_EXISTS: its name
// or a key belongs to another. NEB_ERR_LIMIT: the list is full. NEB_ERR_INVALID: a field is out of
// range.
NEB_MUST_CHECK enum neb_status sec_members_insert(struct sec_members *m,
                                                  const struct sec_member *add);
void sec_members_drop(struct sec_members *m, uint32_t i);

// What changed from a to b. A member with other keys counts as removed and added.
struct sec_members_change {
    uint32_t added, removed, renewed; // renewed: same keys, other endpoint, role or capability
};
void sec_members_diff(const struct sec_members *a, const struct sec_members *b,
                      struct sec_members_change *out);

// ---- members.json: a list without a hub ---------------------------------------------------------
//
//     {"format": 1, "federation": "<32 hex>", "version": 3,
//      "members": [{"id": "nebid1:...", "endpoint": "host:7443", "connect": "auto"}, ...]}
//
// The list includes this member. The parser refuses unknown keys, duplicate keys, names or
// identities, and values out of range.

// Reads the file at path. NEB_ERR_DENIED: its version is below at_least (a roll-back), or others
// may write it. NEB_ERR_NOT_FOUND (not logged): no file.
NEB_MUST_CHECK enum neb_status sec_members_load(const char *path, uint64_t at_least,
                                                struct sec_members *out);
NEB_MUST_CHECK enum neb_status sec_members_parse(const char *text, size_t len, const char *what,
                                                 struct sec_members *out);
// Atomic and durable, 0600. NEB_ERR_DENIED: path holds this version or a newer one.
NEB_MUST_CHECK enum neb_status sec_members_save(const char *path, const struct sec_members *m);
// Adds a member, or replaces the one with the same identity. Raises the version and recomputes the
// federation id. Errors: as sec_members_insert.
NEB_MUST_CHECK enum neb_status sec_members_add(struct sec_members *m, const struct sec_member *add);
// Removes a member. NEB_ERR_NOT_FOUND: no such member.
NEB_MUST_CHECK enum neb_status sec_members_remove(struct sec_members *m, const char *name);

// ---- signed versions of the list ----------------------------------------------------------------
//
//     "nebml2" 2 zero bytes | federation 16 | version u64 | issued u64 (seconds since 1970)
//     | h u8 | h times: digest 32 (of version - 1, version - 2, ...) | why u8 | subject str
//     | n u8 | n times: name str, endpoint str, curve 32, sign 32, role u8, connect u8, caps u32
//     | signature 64 (Ed25519ph by the CA, context SEC_CONTEXT_LIST, over all before it)
//
// str: u16 length and bytes. Integers are little-endian. Canonical: members ascend by signing key,
// no name and no key twice, every field in range, nothing after the signature. So a list has one
// digest, SHA-256 of all its bytes. Two lists with one version and two digests are a fork.
//
// The digests are the list's history. A site with an earlier version sees whether this list follows
// from it, even if it missed up to SEC_LIST_HISTORY versions. A new version drops a digest only
// when the history is full.

#define SEC_CONTEXT_LIST "nebula member list v1"

enum {
    SEC_LIST_MAX = 16 * 1024, // bytes; every list fits
    SEC_LIST_HISTORY = 255,   // digests
};

enum sec_list_why { // what this version changed about `subject`
    SEC_LIST_INIT,
    SEC_LIST_JOIN,
    SEC_LIST_REVOKE,
    SEC_LIST_ROTATE,
    SEC_LIST_PROMOTE, // the subject, a lost voter of two, no longer votes
    SEC_LIST_MOVE,    // the subject has another address
    SEC_LIST_WHYS,
};
const char *sec_list_why_name(enum sec_list_why w);

struct sec_list {
    struct sec_members members; // version: 1 or more
    int64_t issued;
    uint32_t n_history;
    uint8_t history[SEC_LIST_HISTORY][NEB_SHA256_BYTES]; // the previous version first
    enum sec_list_why why;
    char subject[SEC_NAME_MAX];
    uint8_t signature[SEC_SIGN_BYTES];
};

// The federation id of a CA.
void sec_federation_of_ca(const uint8_t ca_key[SEC_KEY_BYTES], uint8_t out[SEC_FEDERATION_BYTES]);

// Canonical bytes, with the signature in the struct. Replaces out. NEB_ERR_INVALID: a field is out
// of range.
NEB_MUST_CHECK enum neb_status sec_list_format(const struct sec_list *l, struct neb_buf *out);
// Strict: NEB_ERR_FORMAT. Does not check the signature.
NEB_MUST_CHECK enum neb_status sec_list_parse(const uint8_t *p, size_t len, struct sec_list *out);
// Parses, then checks the federation and the CA's signature: NEB_ERR_DENIED.
NEB_MUST_CHECK enum neb_status sec_list_verify(const uint8_t *p, size_t len,
                                               const uint8_t ca_key[SEC_KEY_BYTES],
                                               struct sec_list *out);

// Digest of an earlier version; NULL: the history does not reach back to it.
const uint8_t *sec_list_before(const struct sec_list *l, uint64_t version);
// Makes the list its own next version. digest: of the present version; unused for version 0.
void sec_list_succeed(struct sec_list *l, const uint8_t digest[NEB_SHA256_BYTES]);

// ---- previous keys of members -------------------------------------------------------------------
//
// Signing keys of removed members, and previous keys of members, in DIR/former.json. What they
// signed as members stays valid, and a site may have to check it later: in the open round of a job,
// in commits made while it was away, in an old ledger. The file is written before the new list
// takes effect. These keys let nobody in: only keys of the list open a connection.
//
//     {"format": 1, "former": [{"name": "rome", "sign": hex, "until": 7}]}
//
// Oldest first. until: the first version without the key. "rotated": true is added if that version
// gave the same member another key, and this site is sure that the name still belongs to the same
// member.

// limits of all keys, and of one name; then the oldest is dropped
enum { SEC_FORMER_MAX = 256, SEC_FORMER_OF_ONE = 8 };

struct sec_former {
    char name[SEC_NAME_MAX];
    uint8_t sign[SEC_KEY_BYTES];
    uint64_t until;
    bool rotated;
};

// Adds each key of `before` that `after` does not hold under the same name. NEB_ERR_FORMAT: the
// file is damaged. Errors of writing.
NEB_MUST_CHECK enum neb_status sec_former_keep(const char *dir, const struct sec_list *before,
                                               const struct sec_list *after);
// Reads the whole file. out: (SEC_FORMER_MAX). Without a file *n is 0. NEB_ERR_FORMAT, NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status sec_former_load(const char *dir, struct sec_former *out, size_t *n);
// *out: true if the file has this signing key, of a removed member or replaced by another.
NEB_MUST_CHECK enum neb_status sec_former_holds(const char *dir, const uint8_t sign[SEC_KEY_BYTES],
                                                bool *out);
// The newest key of a name; NULL: none.
const struct sec_former *sec_former_find(const struct sec_former *all, size_t n, const char *name);
// Parses the text of the file. what: its name, for errors.
NEB_MUST_CHECK enum neb_status sec_former_parse(const char *text, size_t len, const char *what,
                                                struct sec_former *out, size_t *n);

// ---- forks of the list --------------------------------------------------------------------------
//
// Forks of the member list that this site has proof of, in DIR/forked. A fork is kept as two
// digests, theirs and ours, of the first version at which the two lists are known to differ. Later
// lists of a branch carry its digest in their history. The file is written before any job stops.
//
// An operator decides which branch is right: the one in members.neb and seen when the agent starts
// again. From then on lists of the other branch prove nothing new, so nobody can stop jobs by
// sending them.
//
//     "nebfork1" | 0 to SEC_FORKS_MAX times: digest 32       oldest first

enum { SEC_FORKS_MAX = 32 }; // digests of 16 forks; a new fork then replaces the oldest

struct sec_forks {
    uint32_t n;
    uint8_t digest[SEC_FORKS_MAX][NEB_SHA256_BYTES];
};

// A signed list and its digest. list NULL: only version and digest are known.
struct sec_branch {
    const struct sec_list *list;
    uint64_t version;
    const uint8_t *digest;
};

// Without a file: no forks. NEB_ERR_FORMAT: damaged. NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status sec_forks_load(const char *dir, struct sec_forks *out);
// Parses the bytes of the file. what: its name in the log. NEB_ERR_FORMAT: damaged; *out is empty.
NEB_MUST_CHECK enum neb_status sec_forks_parse(const uint8_t *p, size_t n, const char *what,
                                               struct sec_forks *out);
// Records that neither of the two lists follows from the other. A known fork is not written again.
NEB_MUST_CHECK enum neb_status sec_forks_keep(const char *dir, const struct sec_branch *theirs,
                                              const struct sec_branch *ours);
// True if `theirs` is on a branch of f that is not ours.
bool sec_forks_know(const struct sec_forks *f, const struct sec_branch *theirs,
                    const struct sec_branch *ours);

// ---- HOME/federation ----------------------------------------------------------------------------
//
// What a member keeps about its federation, in HOME/federation/:
//
//     ca.pem        the CA's certificate; what this CA signs is trusted
//     member.pem    this member's certificate
//     members.neb   the newest signed member list (struct sec_list)
//     hub           the last known address of the hub's enrolment endpoint
//     former.json   signing keys that the list no longer has
//     forked        forks of the list that were proven here
//     seen          the highest version that was ever in use here, and its digest
//
// A list takes effect once it is in both files: first in members.neb, then in `seen`, each fsynced.
// After a crash in between, the list on disk is newer than `seen` and is accepted.
//
//     version < seen                          a roll-back: NEB_ERR_DENIED
//     version = seen, same digest             nothing new: NEB_OK
//     version = seen, another digest          a fork: NEB_ERR_CORRUPT, names both digests
//     version < seen, not in our history      a fork too: our list does not follow from it
//     version > seen, ours in its history     accepted
//     version > seen, ours not in it          a fork: NEB_ERR_CORRUPT
//     its history does not reach to ours      NEB_ERR_CORRUPT: more than SEC_LIST_HISTORY
//                                             versions were missed, or somebody hides a fork
//
//     any of these, on a branch that was      NEB_ERR_DENIED, logged once: the operator has seen
//     known as forked at the start            that fork
//
// No later version repairs what NEB_ERR_CORRUPT refuses. An operator decides which list is right,
// by copying members.neb and seen from a member that has it while the agent is stopped. The branch
// in use when the agent starts again is the right one. The other branch then proves nothing new, by
// an old list or by one that its hub signs later.
//
// Whoever can write to this folder can roll back both files; nothing here protects from that.

struct sec_federation {
    char *dir; // HOME/federation
    char name[SEC_NAME_MAX];
    uint8_t ca_key[SEC_KEY_BYTES], pin[NEB_SHA256_BYTES];
    struct neb_buf ca;          // DER
    struct neb_buf signed_list; // bytes of `list`; empty before the first
    struct sec_list list;       // version 0 before the first
    uint8_t digest[NEB_SHA256_BYTES];
    struct sec_forks forks; // known when this was opened
    bool settled;           // the last list that was offered is on another branch of these forks
    bool said_settled;
    bool hush, hush_forks; // set by the caller: do not log refused lists, or proofs of a fork
};

// NEB_ERR_NOT_FOUND (not logged): home is in no federation. Otherwise the list on disk is checked
// against `seen`, as above.
NEB_MUST_CHECK enum neb_status sec_federation_open(const char *home, struct sec_federation **out);
// Makes the folder with a CA's certificate. NEB_ERR_EXISTS: it belongs to another federation.
NEB_MUST_CHECK enum neb_status sec_federation_create(const char *home, const uint8_t *ca,
                                                     size_t ca_len, struct sec_federation **out);
void sec_federation_destroy(struct sec_federation **f);

// Applies signed bytes by the rules above. changed (may be NULL): the list was newer.
NEB_MUST_CHECK enum neb_status sec_federation_apply(struct sec_federation *f, const uint8_t *p,
                                                    size_t len, bool *changed);
// Reads the file again.
NEB_MUST_CHECK enum neb_status sec_federation_reload(struct sec_federation *f, bool *changed);

// Address of the hub, "HOST:PORT", for renewals. NEB_ERR_NOT_FOUND (not logged): none was stored.
NEB_MUST_CHECK enum neb_status sec_federation_set_hub(struct sec_federation *f, const char *hub);
NEB_MUST_CHECK enum neb_status sec_federation_hub(const struct sec_federation *f,
                                                  char out[SEC_ENDPOINT_MAX]);

// Verifies this member's certificate, then stores it. p: DER.
NEB_MUST_CHECK enum neb_status sec_federation_set_cert(struct sec_federation *f, const uint8_t *p,
                                                       size_t len);
struct sec_cert; // security/cert.h
// NEB_ERR_NOT_FOUND (not logged): there is none yet.
NEB_MUST_CHECK enum neb_status sec_federation_cert(const struct sec_federation *f,
                                                   struct sec_cert *out);

#endif
