// SPDX-License-Identifier: Apache-2.0
// The shell around the pure core. It carries out a node's actions with the ledger and the links,
// and passes messages between agents. Threads: one, driven by poll. The daemon owns the loop:
//
//     zmq_poll(inter_service_poll_items…, until inter_service_next_deadline); inter_service_process
#ifndef INTER_SERVICE_H
#define INTER_SERVICE_H
#include "inter/ledger/ledger.h"
#include "inter/link/link.h"
#include "inter/link/rate_limit.h"
#include "inter/round/node.h"
#include "inter/service/snapshot.h"
#include "inter/stream/streams.h"

enum inter_screen {
    INTER_SCREEN_USUAL,
    INTER_SCREEN_PASS,  // masked: the gate checks the number of parameters
    INTER_SCREEN_EMPTY, // it has no units: there is nothing to check
    INTER_SCREEN_REFUSE
};

struct inter_service_callbacks {
    void *user;
    // Judges a complete update before it may be committed. INTER_SCREEN_USUAL: the gate decides, by
    // structure, finiteness and norm. May be NULL.
    enum inter_screen (*screen)(void *user, const struct inter_manifest *m, const uint8_t *p,
                                size_t n);
    // A commit that is durable here. blobs: one per entry of the record, valid during the call
    // (empty: rejected, or not here).
    void (*commit)(void *user, const struct inter_record *r, const struct neb_map *blobs);
    // A message from another agent. Reliable ones come in the order of sending: exactly once, or
    // lost if this process is killed meanwhile. Those of the kind config.repeats come then again.
    void (*message)(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n);
    void (*peer)(void *user, uint32_t peer, bool up);
    // peer: the member to blame (enum inter_fault). It may be a removed member
    // (inter_service_removed_member) or INTER_PEER_NONE.
    void (*fault)(void *user, uint32_t peer, enum inter_fault f);
    // This member needs a snapshot: no other member has what it needs to catch up. Repeated while
    // this is true.
    void (*behind)(void *user, const uint8_t job[INTER_ID_BYTES]);
    // As in inter/service/snapshot.h. All NULL: this member gives and takes no snapshots.
    enum neb_status (*snapshot_open)(void *user, const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_source *out);
    void (*snapshot_close)(void *user, struct inter_snapshot_source *source);
    void (*snapshot_done)(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                          const char *part, uint64_t header_bytes, uint32_t giver);
    // A member is proved Byzantine (equivocation). Called when the evidence is found, and again
    // when a job with evidence opens. May be NULL.
    void (*lied)(void *user, uint32_t peer, const struct inter_evidence *e);
    // Long work is in progress and moves bytes. Called about every half second, on the service's
    // thread. May be NULL.
    void (*busy)(void *user);
    // This member and `peer` have diverged: they committed different records for the round. They
    // commit no more. May be NULL.
    void (*split)(void *user, uint32_t peer, const struct inter_key *round);
    // Optional. True if a previous key of this member, from any list, made the signature. Updates,
    // records, votes and promises from that time stay valid, also for members that were away. Such
    // a key opens no envelope and no link.
    bool (*signed_before)(void *user, const char *name, const char *context, const void *msg,
                          size_t len, const uint8_t sig[INTER_SIG_BYTES]);
    // The disk has lost this member's own update of the open round. The worker must submit it
    // again. Called within a step. May be NULL.
    void (*lost)(void *user, const struct inter_key *key);
    // The disk has lost an own masked update, the worker cannot make it again, and no other member
    // has it. The job cannot go on here. text: what is lost, where, and what to do. May be NULL.
    void (*gone)(void *user, const struct inter_key *key, const char *text);
};

struct inter_service_config {
    const char *dir;                     // of the ledger
    const struct sec_identity *identity; // borrowed
    const struct sec_members *members;   // copied
    const char *listen;                  // "HOST:PORT"; NULL: dial only
    uint32_t n_bulk;                     // bulk connections per peer; 0: as many as fill the link
    const char *congestion;              // of TCP, borrowed; NULL: bbr if permitted
    struct inter_rate_limit limit;       // of all that this member sends
    neb_ns recycle;                      // age at which connections are replaced; 0: one hour
    void *zmq_context;                   // borrowed
    uint32_t repeats;                // kind of messages that do no harm if they come twice; 0: none
    const struct sec_seal_key *seal; // borrowed; seals blobs and arriving snapshots; NULL: in clear
    struct inter_service_callbacks callbacks;
};

struct inter_service;
// Opens the ledger and the links. Errors: as inter_ledger_open and inter_link_create.
NEB_MUST_CHECK enum neb_status inter_service_create(const struct inter_service_config *c,
                                                    struct inter_service **out);
void inter_service_destroy(struct inter_service **s);
// As in inter/link/link.h.
size_t inter_service_poll_items(const struct inter_service *s, zmq_pollitem_t *items, size_t cap);
neb_ns inter_service_next_deadline(const struct inter_service *s);
// Tells all peers that this member is alive. For work that takes longer than peers would wait;
// callbacks may call it too. When no bytes moved for half a minute (agent/base/moved.h), links stay
// up but the other members may go on without this one.
void inter_service_heartbeat(struct inter_service *s);
// After an error the agent cannot go on: its disk failed.
NEB_MUST_CHECK enum neb_status inter_service_process(struct inter_service *s);

// Takes a newer member list while jobs run. Indices, rotated, *waiting and errors: see
// inter_link_reload. Drops the waiting messages for members that are no longer listed.
NEB_MUST_CHECK enum neb_status inter_service_reload(struct inter_service *s,
                                                    const struct sec_members *m,
                                                    const char *rotated, neb_ns overlap,
                                                    uint32_t *waiting);
// The list in use, by peer. A revoked member is all zero.
const struct sec_members *inter_service_members(const struct inter_service *s);
// True if `peer` signed msg, with its present keys or with those of an overlapping rotation.
NEB_MUST_CHECK bool inter_service_verify(struct inter_service *s, uint32_t peer,
                                         const char *context, const void *msg, size_t len,
                                         const uint8_t sig[INTER_SIG_BYTES]);
// The same for signatures that stay valid for ever: also made with any previous key of the member
// (callbacks.signed_before), or when it was still on the list.
NEB_MUST_CHECK bool inter_service_verify_ever(struct inter_service *s, uint32_t peer,
                                              const char *context, const void *msg, size_t len,
                                              const uint8_t sig[INTER_SIG_BYTES]);
// Adds a member that was removed before this service was created. Its signatures are still checked,
// but it is not admitted. *peer: its index in a job's peers, above all of the list's.
// NEB_ERR_LIMIT.
NEB_MUST_CHECK enum neb_status inter_service_removed_member(struct inter_service *s,
                                                            const char *name,
                                                            const uint8_t sign[SEC_KEY_BYTES],
                                                            uint32_t *peer);
// This member's keys were rotated. Makes all links again with `id` (borrowed), which must be on the
// list in use.
NEB_MUST_CHECK enum neb_status inter_service_rekey(struct inter_service *s,
                                                   const struct sec_identity *id);
// See inter_node_job_revoked.
void inter_service_job_gone(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            struct member_set gone);
// The shapes of all fragments (inter_service_shape) are known, or never will be: see
// inter_node_job_judges.
void inter_service_job_judges(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// Members of a job that a signed version removed: see inter_node_job_removed.
void inter_service_job_removed(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                               struct member_set removed);

// Opens a job and restores it from the ledger. Errors: as inter_node_job_open, and the ledger's.
NEB_MUST_CHECK enum neb_status inter_service_job_open(struct inter_service *s,
                                                      const struct inter_job_config *c);
// How the row counts of a job's updates relate to its tokens.
enum inter_counts {
    INTER_COUNTS_FOREIGN, // of an attached trainer: no relation
    INTER_COUNTS_EXACT,
    INTER_COUNTS_COARSE, // cmp_count_coarse
};

// Limits the elements that an update of the job may unpack to, because a few kilobytes can claim
// billions of them, and limits the sum of its row counts. Valid until the job is closed. Before
// this call there is no limit.
void inter_service_bound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         uint64_t elements, enum inter_counts counts);
// What every update of a fragment must hold: its elements, and the SHA-256 of its units' shapes
// (cmp_shapes_hash). Other updates are refused. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_service_shape(struct inter_service *s,
                                                   const uint8_t job[INTER_ID_BYTES],
                                                   uint32_t fragment, uint64_t elements,
                                                   const uint8_t sha256[INTER_SHA_BYTES]);
// Closes a job. Its rounds get no more answers. The ledger keeps them.
void inter_service_job_close(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// Gives up this member's rounds, updates and vote of a job that is not open. When the job opens
// again, this member acts like one whose disk was lost: it continues with what the others have.
// NEB_ERR_STATE: the job is open. Also the ledger's errors.
NEB_MUST_CHECK enum neb_status inter_service_job_renew(struct inter_service *s,
                                                       const uint8_t job[INTER_ID_BYTES]);
// Removes all of a closed job from the ledger (inter_ledger_drop_job). NEB_ERR_STATE: it is open.
NEB_MUST_CHECK enum neb_status
inter_service_job_drop(struct inter_service *s, const uint8_t job[INTER_ID_BYTES], bool for_ever);
// Takes this member's update: fills in digest, chunk size and signature, stores and sends it.
// key.attempt counts the updates of this round that the member has replaced by newer ones, at most
// INTER_RETRIES_MAX. A repeated call is harmless: the update in the ledger is kept, and if the
// round is over, its commit is delivered again as below.
//
// NEB_ERR_STATE: the round is not open yet. NEB_ERR_INVALID: numbers that no manifest may hold.
// NEB_ERR_LIMIT: too many attempts, 0 bytes, or more than INTER_BLOB_MAX. NEB_ERR_EXISTS: the disk
// has lost an update that must not be replaced any more. Also the ledger's errors (NEB_ERR_NOSPC).
NEB_MUST_CHECK enum neb_status inter_service_submit(struct inter_service *s,
                                                    const struct inter_manifest *m,
                                                    const void *blob, size_t len);
// Delivers the commit of a round again, to a worker that asks for it. NEB_OK too if there is none
// yet. NEB_ERR_NOT_FOUND (not logged): the round is over, but the ledger began with a later
// snapshot.
NEB_MUST_CHECK enum neb_status inter_service_deliver(struct inter_service *s,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     uint32_t fragment, uint32_t round);
// Sets a job's own rate limit (inter/link/job_limits.h); NULL: none. whole: it limits all that this
// member sends; the smallest such limit counts, this member's own included.
void inter_service_limit(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         const struct inter_rate_limit *limit, bool whole);
// This member is about to leave: the others must not wait for it.
void inter_service_job_leave(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// No worker of this member will come, but it still votes: the others must not wait for its updates.
void inter_service_job_idle(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// False: no such job.
bool inter_service_job_status(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_job_status *out);
// Why others' updates cannot be kept at present, for example a full disk; NULL: they can. The text
// belongs to the service.
const char *inter_service_no_room(const struct inter_service *s);
// Fetches a snapshot of the job into PATH.part, from the first of `peers` that gives one.
// callbacks.snapshot_done gets the result.
NEB_MUST_CHECK enum neb_status inter_service_snapshot_fetch(struct inter_service *s,
                                                            const uint8_t job[INTER_ID_BYTES],
                                                            const char *path, const uint32_t *peers,
                                                            uint32_t n, bool header_only);
// False: no fetch is in progress.
bool inter_service_snapshot_progress(const struct inter_service *s,
                                     const uint8_t job[INTER_ID_BYTES],
                                     struct inter_snapshot_progress *out);
// True if updates of the job must stay though no checkpoint here needs them: a member takes a
// snapshot from this agent, or is some rounds behind. Call it every second. It stays true for at
// most a day.
bool inter_service_updates_stay(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
// Installs a snapshot: in each fragment where it is ahead of the ledger, the chain begins at the
// snapshot's record. The records must prove themselves. The job must be closed; it is opened with
// the config `c` later. *taken: bit per installed fragment. A repeated call installs the same
// fragments. NEB_ERR_DENIED: no majority has signed a record.
NEB_MUST_CHECK enum neb_status inter_service_snapshot_install(struct inter_service *s,
                                                              const struct inter_job_config *c,
                                                              const struct inter_snapshot *snapshot,
                                                              uint64_t *taken);
// What the job's members claim as the digest of (θ, v) of a fragment before a round, compared with
// `digest`. The claims are in signed manifests and the record of an open round, or in the record of
// a past round. NEB_ERR_NOT_FOUND (not logged): the ledger has neither. Also the ledger's errors.
NEB_MUST_CHECK enum neb_status
inter_service_digests(struct inter_service *s, const uint8_t job[INTER_ID_BYTES], uint32_t fragment,
                      uint32_t round, const uint64_t digest[2], struct inter_digests *out);
// The worker's oldest checkpoint needs no blob of earlier rounds.
NEB_MUST_CHECK enum neb_status inter_service_prune(struct inter_service *s,
                                                   const uint8_t job[INTER_ID_BYTES],
                                                   uint32_t fragment, uint32_t round);

// Limits of messages between agents, so that no member can make another one write, compute or send
// without end. Honest members stay below. An agent has at most eight jobs at a time. Each has its
// specification, a stop, a refusal or a report, and the lines of metrics of an outage: 1 MiB in 22
// messages (agent/daemon/lines.h).
enum inter_message_limit {
    INTER_MESSAGE_MAX = 60 << 10,
    // Waiting reliable messages for one peer, and for all. Eight jobs make 200 messages, 9 MiB in
    // all. While the link to a member is down, its jobs cannot be ended and replaced by others, so
    // there are never more than eight. More messages are not stored.
    INTER_OUTBOX_MESSAGES = 512,
    INTER_OUTBOX_BYTES = 16 << 20,
    INTER_OUTBOX_MESSAGES_ALL = 8 * INTER_OUTBOX_MESSAGES,
    INTER_OUTBOX_BYTES_ALL = 8 * INTER_OUTBOX_BYTES,
    // How many of those are in flight at once: at most 1.9 MiB. Acknowledgements make room for
    // more. A peer that acknowledges nothing gets the same again after 3 s, 6 s, … 48 s.
    INTER_RESEND_MESSAGES = 32,
    // Reliable messages, and telemetry that can wait (inter_service_may_send_telemetry), are sent
    // only while no more than this is in flight on control: 4 s at 64 kbit/s. Messages of rounds
    // queue behind it. A peer's link acknowledges this much at a time.
    INTER_TELEMETRY_QUEUED = 32 << 10,
    // Reliable messages taken from one peer: at once, then per second. Each costs a synced write.
    // More are neither taken nor acknowledged, so they are sent again. The window above fits the
    // burst, and so does an outage's 9 MiB, which arrive at once on a fast link.
    INTER_TAKEN_BURST = 200,
    INTER_TAKEN_A_SECOND = 50,
    INTER_TAKEN_BYTES_BURST = INTER_OUTBOX_BYTES,
    INTER_TAKEN_BYTES_A_SECOND = 1 << 20,
    // Telemetry taken from one peer; more is dropped and counted. Honest members send: for each of
    // eight jobs, metrics in 20 messages and 256 KiB a second, after an outage 40 messages and 1
    // MiB (agent/daemon/lines.h); two member lists a second; for masked sums 12 KiB per round and
    // fragment, at most 64 fragments at once and some hundreds of messages a second.
    INTER_TELEMETRY_BURST = 4000,
    INTER_TELEMETRY_A_SECOND = 1000,
    INTER_TELEMETRY_BYTES_BURST = 32 << 20,
    INTER_TELEMETRY_BYTES_A_SECOND = 8 << 20,
    // Control messages of rounds, streams and snapshots taken from one peer; more is dropped,
    // counted and sent again, as after a loss. Honest members send some thousands when one of
    // sixteen comes back with 64 fragments; some hundreds a second for nine rounds a second; 76,000
    // acknowledgements a second at 10 Gbit/s in the smallest chunks. A message that does not parse
    // or has a wrong signature counts as INTER_ROUNDS_BAD, because the check of a bad signature
    // costs as much as that of a good one.
    INTER_ROUNDS_BURST = 160000,
    INTER_ROUNDS_A_SECOND = 80000,
    INTER_ROUNDS_BAD = 800,
};
// Sends a reliable message: the ledger keeps it until the peer has it, also across restarts.
// NEB_ERR_LIMIT: more than INTER_MESSAGE_MAX, no such peer, or (not logged) too many wait
// (INTER_OUTBOX_…).
NEB_MUST_CHECK enum neb_status inter_service_send(struct inter_service *s, uint32_t peer,
                                                  uint32_t kind, const void *p, size_t n);
// Takes back a message of this kind with these bytes, if the peer has not acknowledged it.
NEB_MUST_CHECK enum neb_status inter_service_unsend(struct inter_service *s, uint32_t peer,
                                                    uint32_t kind, const void *p, size_t n);
// Sends a message once, without a guarantee: for telemetry, and for answers that are requested
// again. NEB_ERR_AGAIN (not logged): the peer is down or removed, or its queue is full.
// NEB_ERR_LIMIT: more than INTER_MESSAGE_MAX.
NEB_MUST_CHECK enum neb_status inter_service_send_telemetry(struct inter_service *s, uint32_t peer,
                                                            uint32_t kind, const void *p, size_t n);
// True if telemetry that can wait may be sent now: the peer is up, and its control queue is short.
bool inter_service_may_send_telemetry(const struct inter_service *s, uint32_t peer);
// What of it has arrived (inter_link_control).
struct inter_link_control inter_service_control(const struct inter_service *s, uint32_t peer);

// Owned by the service, valid until destroy.
struct inter_ledger *inter_service_ledger(struct inter_service *s);
// Batches from worker to worker. Set the callbacks with inter_streams_listen.
struct inter_streams *inter_service_streams(struct inter_service *s);
uint32_t inter_service_port(const struct inter_service *s); // TCP port of the listener; 0: none
// The protocol that this side speaks (agent/base/build_id.h).
uint32_t inter_service_protocol(const struct inter_service *s);

struct inter_peer_stats {
    struct inter_link_stats link;
    struct inter_path_stats path;
};
// Refused handshakes: their keys are not on the list.
uint64_t inter_service_refused(const struct inter_service *s);
// NEB_ERR_INVALID: no such peer.
NEB_MUST_CHECK enum neb_status inter_service_stats(struct inter_service *s, uint32_t peer,
                                                   struct inter_peer_stats *out);

#endif
