// SPDX-License-Identifier: Apache-2.0
// The shell around the pure core: carries out a node's actions with the ledger and the link, and passes messages between
// agents. Single-threaded and poll-driven; the daemon owns the loop.
//
//     loop: zmq_poll(inter_service_poll_items…, until inter_service_next_deadline) ; inter_service_process
#ifndef INTER_SERVICE_H
#define INTER_SERVICE_H
#include "inter/ledger/ledger.h"
#include "inter/link/link.h"
#include "inter/link/rate_limit.h"
#include "inter/round/node.h"
#include "inter/service/snapshot.h"
#include "inter/stream/streams.h"

enum inter_screen { INTER_SCREEN_USUAL, INTER_SCREEN_PASS, INTER_SCREEN_REFUSE };

struct inter_service_callbacks {
    void *user;
    // What the gate makes of a whole update before it may be committed; USUAL: structure, finiteness, norm, as of any. May be NULL.
    enum inter_screen (*screen)(void *user, const struct inter_manifest *m, const uint8_t *p,
                                size_t n);
    // A commit, once it is durable here. blobs: one an entry of the record (empty: rejected, or not here), valid during the call.
    void (*commit)(void *user, const struct inter_record *r, const struct neb_map *blobs);
    // A message of another agent. Reliable ones come exactly once and in order of sending.
    void (*message)(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n);
    void (*peer)(void *user, uint32_t peer, bool up);
    // peer: who is to blame (enum inter_fault); one of inter_service_removed_member, and INTER_PEER_NONE, too.
    void (*fault)(void *user, uint32_t peer, enum inter_fault f);
    // What this member needs to catch up is on no other member any more: it needs a snapshot. Said again while it is so.
    void (*behind)(void *user, const uint8_t job[INTER_ID_BYTES]);
    // As in inter/service/snapshot.h. All NULL: this member gives and takes none.
    enum neb_status (*snapshot_open)(void *user, const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_source *out);
    void (*snapshot_close)(void *user, struct inter_snapshot_source *source);
    void (*snapshot_done)(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                          const char *part, uint64_t header_bytes, uint32_t giver);
    // A member has signed what no honest one does: once, when it is found out, and again when a job with such evidence is opened. May be NULL.
    void (*lied)(void *user, uint32_t peer, const struct inter_evidence *e);
    // This side is busy with something large: called every half second or so meanwhile, on the service's thread, while bytes move. May be NULL.
    void (*busy)(void *user);
    // This member and `peer` have committed different records for the round, and commit no more. May be NULL.
    void (*split)(void *user, uint32_t peer, const struct inter_key *round);
    // Optional. Whether a key that this member had before, on any list, signed it: updates, records, votes and promises of that time stand, for who
    // was away too. No envelope is opened by it, and no link.
    bool (*signed_before)(void *user, const char *name, const char *context, const void *msg,
                          size_t len, const uint8_t sig[INTER_SIG_BYTES]);
    // This member's own update of the open round was lost on the disk: its worker is to submit it
    // once more. Within a step. May be NULL.
    void (*lost)(void *user, const struct inter_key *key);
};

struct inter_service_config {
    const char *dir;                     // of the ledger
    const struct sec_identity *identity; // borrowed
    const struct sec_members *members;   // copied
    const char *listen;                  // "HOST:PORT"; NULL: dial only
    uint32_t n_bulk;                     // bulk connections a peer; 0: as many as fill the link
    const char *congestion;              // TCP's, borrowed; NULL: bbr where permitted
    struct inter_rate_limit limit;       // of all that this member sends
    neb_ns recycle;                      // age at which connections are replaced; 0: one hour
    void *zmq_context;                   // borrowed
    const struct sec_seal_key *seal; // borrowed: of blobs and arriving snapshots; NULL: in clear
    struct inter_service_callbacks callbacks;
};

struct inter_service;
// Opens ledger and links. Errors: as inter_ledger_open and inter_link_create.
NEB_MUST_CHECK enum neb_status inter_service_create(const struct inter_service_config *c,
                                                    struct inter_service **out);
void inter_service_destroy(struct inter_service **s);
// As of the link (inter/link/link.h).
size_t inter_service_poll_items(const struct inter_service *s, zmq_pollitem_t *items, size_t cap);
neb_ns inter_service_next_deadline(const struct inter_service *s);
// Says to all peers that this member is there, within a callback too: for whoever does something that takes longer than they would wait. What
// hangs is not covered for long: links stay up, but after half a minute in which no bytes were moved (agent/base/moved.h) others may go on without it.
void inter_service_heartbeat(struct inter_service *s);
// An error is one that the agent cannot go on with: its disk.
NEB_MUST_CHECK enum neb_status inter_service_process(struct inter_service *s);

// Takes a newer member list while jobs run; see inter_link_reload for indices, `rotated`, *waiting
// and errors. Messages that wait for who is on it no more are dropped, as they are at the start.
NEB_MUST_CHECK enum neb_status inter_service_reload(struct inter_service *s,
                                                    const struct sec_members *m,
                                                    const char *rotated, neb_ns overlap,
                                                    uint32_t *waiting);
// The list in use, by peer: all zero where a member was revoked.
const struct sec_members *inter_service_members(const struct inter_service *s);
// Whether `peer` signed msg, with its present keys or those of an overlapping rotation.
NEB_MUST_CHECK bool inter_service_verify(struct inter_service *s, uint32_t peer,
                                         const char *context, const void *msg, size_t len,
                                         const uint8_t sig[INTER_SIG_BYTES]);
// The same for what stands for ever: also with those that the member had before (callbacks.signed_before), or when it was on the list.
NEB_MUST_CHECK bool inter_service_verify_ever(struct inter_service *s, uint32_t peer,
                                              const char *context, const void *msg, size_t len,
                                              const uint8_t sig[INTER_SIG_BYTES]);
// A member that was on the list before this service was made: what it signed is still checked, and nobody is let in by it. *peer: its place
// in a job's peers, beyond all of the list's. NEB_ERR_LIMIT.
NEB_MUST_CHECK enum neb_status inter_service_removed_member(struct inter_service *s,
                                                            const char *name,
                                                            const uint8_t sign[SEC_KEY_BYTES],
                                                            uint32_t *peer);
// This member's keys have been rotated: all links are made anew with `id` (borrowed), which the list in use must hold.
NEB_MUST_CHECK enum neb_status inter_service_rekey(struct inter_service *s,
                                                   const struct sec_identity *id);
// inter_node_job_revoked
void inter_service_job_gone(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            uint16_t gone);
// The shapes of all fragments are known (inter_service_shape), or will never be: inter_node_job_judges.
void inter_service_job_judges(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// Members of a job that a signed version removed: inter_node_job_removed.
void inter_service_job_removed(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                               uint16_t removed);

// Opens a job; what the ledger knows of it is restored. Errors: as inter_node_job_open, and the ledger's.
NEB_MUST_CHECK enum neb_status inter_service_job_open(struct inter_service *s,
                                                      const struct inter_job_config *c);
// No update of the job may unpack to more elements than this: a few kilobytes can claim, and cost, billions.
// counted: tokens are counted with the rows, so that more rows than tokens are a lie. Until the job is closed; before it is said
// nothing bounds what its updates claim.
void inter_service_bound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         uint64_t elements, bool counted);
// What every update of a fragment holds: its elements, and the SHA-256 of its units' shapes (cmp_shapes_hash). Another one is refused.
NEB_MUST_CHECK enum neb_status inter_service_shape(struct inter_service *s,
                                                   const uint8_t job[INTER_ID_BYTES],
                                                   uint32_t fragment, uint64_t elements,
                                                   const uint8_t sha256[INTER_SHA_BYTES]);
// Its rounds are no longer answered for; the ledger keeps them.
void inter_service_job_close(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// Gives up what this member has of a job that is not open, rounds and updates, and its vote with them: when it is opened again it is a
// member whose disk was lost, and goes on with what the others have. NEB_ERR_STATE: it is open; and the ledger's errors.
NEB_MUST_CHECK enum neb_status inter_service_job_renew(struct inter_service *s,
                                                       const uint8_t job[INTER_ID_BYTES]);
// Removes all that the ledger has of a job that is not open (inter_ledger_drop_job). NEB_ERR_STATE: it is.
NEB_MUST_CHECK enum neb_status
inter_service_job_drop(struct inter_service *s, const uint8_t job[INTER_ID_BYTES], bool for_ever);
// Takes this member's update: fills in digest, chunk size and signature, stores, sends. key.attempt: how often the member
// has sent this round's update before and now takes it back for a newer one, up to INTER_RETRIES_MAX (NEB_ERR_LIMIT). Repeating it is fine: what the
// ledger holds under the key stands; if the round is over, its commit is delivered again, as below. NEB_ERR_STATE: the round is not open yet; NEB_ERR_INVALID: numbers that no
// manifest may hold;
// NEB_ERR_LIMIT also for 0 bytes or more than INTER_BLOB_MAX; and the ledger's errors (NEB_ERR_NOSPC).
NEB_MUST_CHECK enum neb_status inter_service_submit(struct inter_service *s,
                                                    const struct inter_manifest *m,
                                                    const void *blob, size_t len);
// Hands the commit of a round over again, if there is one: to a worker that asks for it. NEB_OK where there is none yet; NEB_ERR_NOT_FOUND (not logged):
// the round is over, and the ledger, which began from a snapshot, does not reach back to it.
NEB_MUST_CHECK enum neb_status inter_service_deliver(struct inter_service *s,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round);
// A job's own limit (job_limits.h); whole: of all that this member sends, where the smallest counts, its own one included. NULL: none
// any more.
void inter_service_limit(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         const struct inter_rate_limit *limit, bool whole);
// This member is about to go: the others shall not wait for it.
void inter_service_job_leave(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// No worker of this member comes any more, though it votes on: the others shall not wait for its updates.
void inter_service_job_idle(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// False: no such job.
bool inter_service_job_status(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_job_status *out);
// Why others' updates cannot be kept here at present, a full disk say: of the service; NULL: they can.
const char *inter_service_no_room(const struct inter_service *s);
// Fetches a snapshot of the job into PATH.part, from the first of `peers` that gives one: callbacks.snapshot_done says how it went.
NEB_MUST_CHECK enum neb_status inter_service_snapshot_fetch(struct inter_service *s,
                                                            const uint8_t job[INTER_ID_BYTES],
                                                            const char *path, const uint32_t *peers,
                                                            uint32_t n, bool header_only);
// False: none is on its way.
bool inter_service_snapshot_progress(const struct inter_service *s,
                                     const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_progress *out);
// Whether updates of the job are to stay though no checkpoint here needs them: for who takes a snapshot from this agent, and for who is
// some rounds behind and catches up. To be asked every second; a day in a row at most.
bool inter_service_updates_stay(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// Begins the chains of the fragments in which the snapshot is ahead of the ledger, at the records that it carries, which must
// prove themselves. The job must be closed, and `c` is what it is opened with afterwards. *taken: those fragments, bit each. Again
// is fine: the same fragments are taken. NEB_ERR_DENIED: a record that no majority has signed.
NEB_MUST_CHECK enum neb_status inter_service_snapshot_install(struct inter_service *s,
                                                              const struct inter_job_config *c,
                                                              const struct inter_snapshot *snapshot,
                                                              uint64_t *taken);
// What the job's members say that (θ, v) of a fragment digested to before a round, beside `digest`: in signed manifests and the record of the
// round, where it is open, in its record where it is over. NEB_ERR_NOT_FOUND (not logged): this ledger knows neither; and the ledger's errors.
NEB_MUST_CHECK enum neb_status
inter_service_digests(struct inter_service *s, const uint8_t job[INTER_ID_BYTES], uint32_t fragment,
                      uint32_t round, const uint64_t digest[2], struct inter_digests *out);
// The worker's oldest checkpoint needs no blob of rounds below this one.
NEB_MUST_CHECK enum neb_status inter_service_prune(struct inter_service *s,
                                                   const uint8_t job[INTER_ID_BYTES],
                                                   uint32_t fragment, uint32_t round);

// What messages between agents may cost, so that no member can make another one write, compute or send without end. Honest ones stay below:
// an agent has eight jobs at a time, a message is 60 KiB at most, and of each job there are its specification, a stop, a refusal or a report,
// and the lines of metrics of an outage, 1 MiB in 22 messages (agent/daemon/lines.h).
enum inter_message_limit {
    INTER_MESSAGE_MAX = 60 << 10,
    // Reliable ones that wait for one peer, and for all. Eight jobs make 200 messages of 9 MiB; a job that runs here cannot be ended and followed
    // by another one of that member's while the link to it is down. More is not stored.
    INTER_OUTBOX_MESSAGES = 512,
    INTER_OUTBOX_BYTES = 16 << 20,
    INTER_OUTBOX_MESSAGES_ALL = 8 * INTER_OUTBOX_MESSAGES,
    INTER_OUTBOX_BYTES_ALL = 8 * INTER_OUTBOX_BYTES,
    // Of those, under way at once, at most 1.9 MiB; the others follow what is acknowledged. A peer that acknowledges nothing gets as many after
    // 3 s, 6 s, … 48 s.
    INTER_RESEND_MESSAGES = 32,
    // Those of the outbox, and telemetry that can wait (inter_service_may_send_telemetry), follow only where no more than this is under way on the control
    // connection: what rounds say comes behind it, and at 64 kbit/s this is 4 s. It is what a peer's link acknowledges at a time.
    INTER_TELEMETRY_QUEUED = 32 << 10,
    // Reliable ones that are taken of one peer: at once, a second. Each is a write that is synced. What comes beyond is neither taken nor
    // acknowledged, and said again: nothing is lost. The window above is less than what is taken at once, and so are the 9 MiB of an outage,
    // which come at once where the link is fast.
    INTER_TAKEN_BURST = 200,
    INTER_TAKEN_A_SECOND = 50,
    INTER_TAKEN_BYTES_BURST = INTER_OUTBOX_BYTES,
    INTER_TAKEN_BYTES_A_SECOND = 1 << 20,
    // Telemetry that is taken of one peer. Eight jobs: lines of metrics in 20 messages and 256 KiB a second each (agent/daemon/lines.h), and after an
    // outage 40 messages and 1 MiB; member lists, two a second; of masked sums 12 KiB a round and fragment, of 64 fragments at once and, in
    // all, some hundreds a second at most. What comes beyond is dropped, and counted.
    INTER_TELEMETRY_BURST = 4000,
    INTER_TELEMETRY_A_SECOND = 1000,
    INTER_TELEMETRY_BYTES_BURST = 32 << 20,
    INTER_TELEMETRY_BYTES_A_SECOND = 8 << 20,
    // Control messages of rounds, streams and snapshots that are taken of one peer. Of sixteen members and 64 fragments one that comes back says
    // some thousands at once; nine rounds a second are some hundreds, the acknowledgements of 10 Gbit/s in the smallest chunks, as a link
    // within a building has them, 76,000. What comes beyond is dropped, counted, and said again, as what a link loses. One that does not parse
    // or is not signed by whom it names counts as many, a hundred a second: no honest member sends any, and a signature that is no good costs
    // as much to check as one that is.
    INTER_ROUNDS_BURST = 160000,
    INTER_ROUNDS_A_SECOND = 80000,
    INTER_ROUNDS_BAD = 800,
};
// Kept in the ledger until the peer has it, so also across restarts. NEB_ERR_LIMIT: more than INTER_MESSAGE_MAX, no such peer, or
// more than INTER_OUTBOX_… wait (then not logged).
NEB_MUST_CHECK enum neb_status inter_service_send(struct inter_service *s, uint32_t peer,
                                                  uint32_t kind, const void *p, size_t n);
// Takes it back where the peer has not acknowledged it: same kind, same bytes.
NEB_MUST_CHECK enum neb_status inter_service_unsend(struct inter_service *s, uint32_t peer,
                                                    uint32_t kind, const void *p, size_t n);
// Sent once, or not at all: for telemetry, and answers that are asked for again. NEB_ERR_AGAIN (not logged): the peer is down, or no member
// any more, or its queue is full; NEB_ERR_LIMIT: more than INTER_MESSAGE_MAX.
NEB_MUST_CHECK enum neb_status inter_service_send_telemetry(struct inter_service *s, uint32_t peer,
                                                            uint32_t kind, const void *p, size_t n);
// Whether telemetry that can wait may be told now: the peer is up, and little is queued before it.
bool inter_service_may_send_telemetry(const struct inter_service *s, uint32_t peer);

// The service's own: valid until destroy.
struct inter_ledger *inter_service_ledger(struct inter_service *s);
// Batches from worker to worker; set its callbacks with inter_streams_listen.
struct inter_streams *inter_service_streams(struct inter_service *s);
uint32_t inter_service_port(const struct inter_service *s); // TCP, listened on; 0: none
// That this side speaks (agent/base/build_id.h).
uint32_t inter_service_protocol(const struct inter_service *s);

struct inter_peer_stats {
    struct inter_link_stats link;
    struct inter_path_stats path;
};
// handshakes, of keys that are not on the list
uint64_t inter_service_refused(const struct inter_service *s);
// NEB_ERR_INVALID: no such peer.
NEB_MUST_CHECK enum neb_status inter_service_stats(struct inter_service *s, uint32_t peer,
                                                   struct inter_peer_stats *out);

#endif
