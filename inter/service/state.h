// SPDX-License-Identifier: Apache-2.0
// The service as a whole (struct inter_service), shared by the service*.c files and by nobody else but tests:
//
//     inter/round/node.h ── actions ──► service_actions.c ──► ledger, link
//          ▲                            │ events that they give rise to
//          ├────────────────────────────┘
//          ├── service_messages.c ◄── link      service_jobs.c ◄── the daemon      service.c: created, polled
//                                               snapshot_service.c: inter/service/snapshot.h
#ifndef INTER_SERVICE_STATE_H
#define INTER_SERVICE_STATE_H
#include "agent/base/bucket.h"
#include "inter/link/job_limits.h"
#include "inter/service/service.h"

enum { ARRIVALS_MAX = 8 };

struct pending { // events that actions gave rise to
    struct inter_event e;
    bool has_manifest;
    struct inter_manifest manifest;
};

struct service_bound {
    uint8_t job[INTER_ID_BYTES];
    uint64_t elements;
    bool counted;
};

struct service_shape {
    uint8_t job[INTER_ID_BYTES], sha256[INTER_SHA_BYTES];
    uint32_t fragment;
    uint64_t elements;
};

struct service_arrival { // an update that arrives, as far as it is checked (service_arrive.c)
    bool on, numbers;    // in use; holds numbers, which `check` follows
    struct inter_key key;
    uint32_t bytes, chunk_bytes;
    uint64_t at, moved; // bytes followed; when, by arrivals_clock
    struct cmp_check *check;
    struct neb_sha256 *sha;
    uint8_t digest[INTER_SHA_BYTES]; // once at == bytes
};

// Messages of and to one peer, by enum inter_message_limit; in pairs: reliable ones, telemetry.
struct service_mail {
    struct neb_bucket messages[2], bytes[2]; // taken
    struct neb_bucket rounds;                // and of rounds, streams, snapshots
    uint64_t sent, acked;                    // newest reliable one to it, since this service began
    uint64_t at; // newest of the window that the link took since it was last sent from its first on
    bool held;   // the link takes no more of it for now
    neb_ns next, wait; // when the window is sent again; after how long then
};

struct inter_service {
    struct inter_service_callbacks cb;
    const struct sec_identity *identity;
    struct inter_link_config link_config; // without members
    struct sec_members members;
    // what a member signed stands: by peer, the key that it had last; behind those, of members that were gone before this service was there
    struct service_removed_member {
        char name[SEC_NAME_MAX];
        uint8_t sign[SEC_KEY_BYTES];
    } former[INTER_PEERS_MAX];
    uint32_t n_former; // of the latter
    uint32_t self;
    const struct sec_seal_key *seal;
    struct inter_ledger *ledger;
    struct inter_link *link;
    struct inter_node *node;
    struct inter_node_crypto crypto;
    struct inter_streams *streams;
    struct inter_actions actions;
    struct pending *pending;
    // the answer to INTER_ACT_READ_COMMIT, of which one is under way
    struct inter_record read_record;
    size_t n_pending, cap_pending;
    struct cmp_work *gate;
    struct service_arrival arrivals[ARRIVALS_MAX];
    uint64_t arrivals_clock;
    struct neb_buf arrived; // a chunk that is read back
    neb_ns next_tick, next_limit;
    bool no_room; // for updates of others, when last one was to be kept
    neb_ns no_room_said;
    char no_room_why[512];
    struct inter_rate_limit limit;
    struct inter_job_limits limits;
    struct inter_snapshots *snapshots;
    bool up[SEC_MEMBERS_MAX];
    struct inter_key mapped_key; // the blob that is being sent: mapped once, not once a chunk
    struct neb_map mapped;
    bool is_mapped;
    struct neb_buf out;
    // (n_bounds), owned: of open jobs whose worker has said how large its model is
    struct service_bound *bounds;
    size_t n_bounds;
    // (n_heartbeats), owned: the node's last one for each job to each peer
    struct service_heartbeat {
        uint32_t peer; // INTER_PEER_NONE: free
        struct inter_node_heartbeat about;
        neb_ns at;
        struct neb_buf bytes;
    } * heartbeats;
    size_t n_heartbeats;
    bool stepping;                 // within service_step
    neb_ns stepped, heartbeats_at; // the node, last; its heartbeats, said again last
    uint64_t moved;                // bytes, when they were last seen to be more
    neb_ns moved_at;
    struct service_mail mail[SEC_MEMBERS_MAX];
    // what updates of a fragment must hold, as this member's own worker said
    struct service_shape *shapes;
    size_t n_shapes;
    enum neb_status st; // first fatal error
};

// service.c: struct inter_node_crypto
bool service_sign(void *user, const char *context, const void *msg, size_t len,
                  uint8_t sig[INTER_SIG_BYTES]);
bool service_verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                    const uint8_t sig[INTER_SIG_BYTES]);

// service_busy.c
// If a message of the node's, which has gone to a peer, is a heartbeat: it is said again while this side is busy.
void service_keep_heartbeat(struct inter_service *s, uint32_t peer, const uint8_t *message,
                            size_t len);
// The job's standing is another one, or it is closed (INTER_TERM_MAX): those of other terms are not said again.
void service_heartbeats_end(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            uint32_t term);
void service_heartbeats_free(struct inter_service *s);
// run(s, arg) and its status, the peers being told meanwhile that this member is there where an update has that many bytes.
typedef enum neb_status service_work(struct inter_service *s, void *arg);
NEB_MUST_CHECK enum neb_status service_run_in_thread(struct inter_service *s, uint64_t bytes,
                                                     service_work *run, void *arg);

// service_gate.c
// Structure, finiteness and scale of every frame, before an update may become part of a commit.
NEB_MUST_CHECK enum neb_status service_gate(struct inter_service *s, const struct inter_manifest *m,
                                            bool *pass, float *norm);

// Who made an update: the name on the list, or the one that a revoked member had.
const char *service_author(const struct inter_service *s, const struct inter_key *k);

// The job is closed: what its updates may hold is said again when it is opened.
void service_unbound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);
uint64_t service_elements_max(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES]);

// service_arrive.c: the same as it arrives; without one of these service_gate does it at the end
void service_arrival_begin(struct inter_service *s, const struct inter_manifest *m);
// After the chunk was written.
void service_arrival_chunk(struct inter_service *s, const struct inter_key *k, uint64_t offset,
                           const uint8_t *p, size_t n);
// Whether all was followed and is what the manifest says.
bool service_arrival_whole(struct inter_service *s, const struct inter_manifest *m);
// After service_arrival_whole. False: not known, check it whole.
struct cmp_update_stats;
bool service_arrival_verdict(struct inter_service *s, const struct inter_manifest *m,
                             enum neb_status *st, struct cmp_update_stats *stats);
void service_arrival_end(struct inter_service *s, const struct inter_key *k);
void service_arrivals_free(struct inter_service *s);

// service_actions.c
struct service_sent {
    bool held;    // not sent: the job's own limit holds it back
    uint64_t way; // sent: by this connection
};
// On the bulk channel, for a job: NEB_ERR_AGAIN also where its own limit holds it back.
NEB_MUST_CHECK enum neb_status service_send_bulk(struct inter_service *s,
                                                 const uint8_t job[INTER_ID_BYTES], uint32_t peer,
                                                 const void *head, size_t n, const void *body,
                                                 size_t m, struct service_sent *sent);
// Hands the node an event and carries out all that comes of it; what goes wrong is in s->st.
void service_step(struct inter_service *s, const struct inter_event *event);
// Events that wait, where this is not within a step, which handles them itself.
void service_step_pending(struct inter_service *s);
// Hands a commit with its updates to callbacks.commit; where the disk has lost one that its
// manifest is here of, later: that is asked of the others first. NEW: the updates have just come.
// AGAIN: they have lain on the disk, and are hashed once more. LAST: as AGAIN, and those that are
// missing are nowhere.
enum service_delivery { SERVICE_DELIVER_NEW, SERVICE_REDELIVER, SERVICE_DELIVER_LAST };
NEB_MUST_CHECK enum neb_status
service_deliver(struct inter_service *s, const struct inter_record *r, enum service_delivery how);
// The bytes of an update are not here any more, or are others: what is left of them goes, and the
// node asks for them.
NEB_MUST_CHECK enum neb_status service_lost(struct inter_service *s,
                                            const struct inter_manifest *m);
// An update that has lain on the disk: NEB_OK, in memory, and with this digest; else *out is empty, and it was said.
NEB_MUST_CHECK enum neb_status service_read_blob(struct inter_service *s,
                                                 const struct inter_key *key, uint32_t bytes,
                                                 const uint8_t sha256[INTER_SHA_BYTES],
                                                 struct neb_map *out);
// Whether an update of another member could not be kept here, which is no reason to end: it is asked for again.
bool service_not_kept(enum neb_status st);
// How the last one fared: said when that changes.
void service_report_room(struct inter_service *s, enum neb_status kept);
// the blob that is being sent: before any may be removed
void service_unmap(struct inter_service *s);

// service_messages.c
void service_on_event(void *user, const struct inter_link_event *e); // of the link
NEB_MUST_CHECK enum neb_status service_resend(struct inter_service *s, uint32_t peer);
// What a message costs its sender beside its place, where it was no good.
void service_charge_fault(struct inter_service *s, uint32_t peer, enum inter_fault f);

// snapshot_service.c
NEB_MUST_CHECK enum neb_status service_create_snapshots(struct inter_service *s);

#endif
