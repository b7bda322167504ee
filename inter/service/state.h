// SPDX-License-Identifier: Apache-2.0
// The inside of a service (struct inter_service). Only the files of this room and tests include it:
//
//     inter/round/node.h ── actions ──► actions.c ──► ledger, link
//          ▲                               │ events from their results
//          ├───────────────────────────────┘
//          ├── messages.c ◄── link        jobs.c ◄── the daemon        service.c: create, poll
//                                         snapshot_service.c: inter/service/snapshot.h
#ifndef INTER_SERVICE_STATE_H
#define INTER_SERVICE_STATE_H
#include "agent/base/bucket.h"
#include "compress/update.h"
#include "inter/link/job_limits.h"
#include "inter/service/service.h"

enum { ARRIVALS_MAX = 8 };

struct pending { // an event that an action caused
    struct inter_event e;
    bool has_manifest;
    struct inter_manifest manifest;
};

struct service_bound {
    uint8_t job[INTER_ID_BYTES];
    uint64_t elements;
    enum inter_counts counts;
};

struct service_shape {
    uint8_t job[INTER_ID_BYTES], sha256[INTER_SHA_BYTES];
    uint32_t fragment;
    uint64_t elements;
};

struct service_arrival { // an update that is checked while it arrives (arrive.c)
    bool on, numbers;    // in use; holds numbers, which `check` follows
    struct inter_key key;
    uint32_t bytes, chunk_bytes;
    uint64_t at, moved; // bytes followed; last progress, in arrivals_clock
    struct cmp_check *check;
    struct neb_sha256 *sha;
    uint8_t digest[INTER_SHA_BYTES]; // valid when at == bytes
};

// Messages from and to one peer (enum inter_message_limit). Pairs: [0] reliable, [1] telemetry.
struct service_mail {
    struct neb_bucket messages[2], bytes[2]; // taken from it
    struct neb_bucket rounds;                // the same for rounds, streams, snapshots
    uint64_t sent, acked; // newest reliable message to it since this service began
    uint64_t at;          // newest that the link took since the window's last restart
    bool held;            // the link takes no more of the window now
    neb_ns next, wait;    // when the window restarts; the pause after that
};

struct inter_service {
    struct inter_service_callbacks cb;
    uint32_t repeats; // as configured
    const struct sec_identity *identity;
    struct inter_link_config link_config; // without members
    struct sec_members members;
    // Keys that check old signatures: by peer, the last known key; then those of members that were
    // removed before this service began.
    struct service_removed_member {
        char name[SEC_NAME_MAX];
        uint8_t sign[SEC_KEY_BYTES];
    } former[INTER_PEERS_MAX];
    uint32_t n_former; // number of those removed members
    uint32_t self;
    const struct sec_seal_key *seal;
    struct inter_ledger *ledger;
    struct inter_link *link;
    struct inter_node *node;
    struct inter_node_crypto crypto;
    struct inter_streams *streams;
    struct inter_actions actions;
    struct pending *pending;
    // The answer to INTER_ACT_READ_COMMIT. There is one at a time.
    struct inter_record read_record;
    size_t n_pending, cap_pending;
    struct cmp_work *gate;
    struct service_arrival arrivals[ARRIVALS_MAX];
    uint64_t arrivals_clock;
    struct neb_buf arrived; // a chunk that is read back
    neb_ns next_tick, next_limit;
    bool no_room; // the last update of another member could not be kept
    neb_ns no_room_said;
    char no_room_why[512];
    struct inter_rate_limit limit;
    struct inter_job_limits limits;
    struct inter_snapshots *snapshots;
    bool up[NEB_MEMBERS_MAX];
    struct inter_key mapped_key; // the blob being sent: mapped once for all its chunks
    struct neb_map mapped;
    bool is_mapped;
    struct neb_buf out;
    // (n_bounds), owned: open jobs whose worker has reported its model's size.
    struct service_bound *bounds;
    size_t n_bounds;
    // (n_heartbeats), owned: the node's last heartbeat for each job and peer.
    struct service_heartbeat {
        uint32_t peer; // INTER_PEER_NONE: free
        struct inter_node_heartbeat about;
        neb_ns at;
        struct neb_buf bytes;
    } * heartbeats;
    size_t n_heartbeats;
    bool stepping;                 // within service_step
    neb_ns stepped, heartbeats_at; // last step of the node; last repetition of its heartbeats
    uint64_t moved;                // bytes at the last progress
    neb_ns moved_at;
    struct service_mail mail[NEB_MEMBERS_MAX];
    // (n_shapes), owned: what updates of a fragment must hold, from this member's worker.
    struct service_shape *shapes;
    size_t n_shapes;
    // (n_owed), owned: own masked updates of open rounds that the disk has lost and the worker
    // cannot make again. The other members are asked for them until `until`.
    struct service_owed {
        struct inter_manifest m;
        neb_ns until;
    } * owed;
    size_t n_owed;
    enum neb_status st; // first fatal error
};

// service.c: the functions of struct inter_node_crypto.
bool service_sign(void *user, const char *context, const void *msg, size_t len,
                  uint8_t sig[INTER_SIG_BYTES]);
bool service_verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                    const uint8_t sig[INTER_SIG_BYTES]);

// jobs.c. Ends the wait for owed updates that are here again, or that no member sent in time
// (callbacks.gone).
enum neb_status service_owed_tick(struct inter_service *s, neb_ns now);

// busy.c. Call after a message of the node went to a peer. A heartbeat is kept, to be repeated
// while this side is busy.
void service_keep_heartbeat(struct inter_service *s, uint32_t peer, const uint8_t *message,
                            size_t len);
// The job's standing changed, or the job was closed (INTER_TERM_MAX): heartbeats of other terms are
// not repeated any more.
void service_heartbeats_end(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            uint32_t term);
void service_heartbeats_free(struct inter_service *s);
// Calls run(s, arg) and returns its status. If bytes is large, peers get heartbeats meanwhile.
typedef enum neb_status service_work(struct inter_service *s, void *arg);
NEB_MUST_CHECK enum neb_status service_run_in_thread(struct inter_service *s, uint64_t bytes,
                                                     service_work *run, void *arg);

// gate.c. True if the row counts of an update can come from `tokens` tokens.
bool service_counts_fit(enum inter_counts kind, const struct cmp_update_stats *stats,
                        uint64_t tokens);
// Checks an update that is complete on disk before it may become part of a commit.
NEB_MUST_CHECK enum neb_status service_gate(struct inter_service *s, const struct inter_manifest *m,
                                            bool *pass, float *norm);

// The job is closed: forgets what its updates may hold.
void service_unbound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
uint64_t service_elements_max(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);

// arrive.c: checks an update while it arrives. If any of these fails, service_gate does all of it.
void service_arrival_begin(struct inter_service *s, const struct inter_manifest *m);
// Call after the chunk was written.
void service_arrival_chunk(struct inter_service *s, const struct inter_key *k, uint64_t offset,
                           const uint8_t *p, size_t n);
// True if all bytes were followed and have the manifest's digest.
bool service_arrival_whole(struct inter_service *s, const struct inter_manifest *m);
// Call after service_arrival_whole. False: no verdict, the caller must check the update.
struct cmp_update_stats;
bool service_arrival_verdict(struct inter_service *s, const struct inter_manifest *m,
                             enum neb_status *st, struct cmp_update_stats *stats);
void service_arrival_end(struct inter_service *s, const struct inter_key *k);
void service_arrivals_free(struct inter_service *s);

// actions.c
struct service_sent {
    bool held;    // not sent, because of the job's own limit
    uint64_t way; // sent: the connection that carries it
};
// Sends on bulk for a job. NEB_ERR_AGAIN also if the job's own limit holds it back.
NEB_MUST_CHECK enum neb_status service_send_bulk(struct inter_service *s,
                                                 const uint8_t job[INTER_ID_BYTES], uint32_t peer,
                                                 const void *head, size_t n, const void *body,
                                                 size_t m, struct service_sent *sent);
// Gives the node an event and carries out all actions that follow. Errors are in s->st.
void service_step(struct inter_service *s, const struct inter_event *event);
// Handles waiting events. No effect within a step, which handles them itself.
void service_step_pending(struct inter_service *s);
// Gives a commit with its updates to callbacks.commit. If the disk has lost an update whose
// manifest is here, the others are asked for it first, and the commit is delivered later. NEW: the
// updates have just arrived. REDELIVER: they were on the disk, and are hashed again. LAST: as
// REDELIVER, but without the updates that no member has.
enum service_delivery { SERVICE_DELIVER_NEW, SERVICE_REDELIVER, SERVICE_DELIVER_LAST };
NEB_MUST_CHECK enum neb_status
service_deliver(struct inter_service *s, const struct inter_record *r, enum service_delivery how);
// Reads an update that was on the disk and compares its digest. On failure *out is empty, and the
// failure is logged.
NEB_MUST_CHECK enum neb_status service_read_blob(struct inter_service *s,
                                                 const struct inter_key *key, uint32_t bytes,
                                                 const uint8_t sha256[INTER_SHA_BYTES],
                                                 struct neb_map *out);
// True for errors with which an update of another member is not kept but requested again.
bool service_not_kept(enum neb_status st);
// Whether the last update of another member was kept. Logs a change.
void service_report_room(struct inter_service *s, enum neb_status kept);
// Unmaps the blob being sent. Call it before any blob is removed.
void service_unmap(struct inter_service *s);

// messages.c
void service_on_event(void *user, const struct inter_link_event *e); // from the link
NEB_MUST_CHECK enum neb_status service_resend(struct inter_service *s, uint32_t peer);
// Charges the sender of a bad message, in addition to the message itself.
void service_charge_fault(struct inter_service *s, uint32_t peer, enum inter_fault f);

// snapshot_service.c
NEB_MUST_CHECK enum neb_status service_create_snapshots(struct inter_service *s);

#endif
