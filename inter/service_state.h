// The service as a whole (struct inter_service), shared by the service*.c files and by nobody else:
//
//     inter/node.h ── actions ──► service_actions.c ──► ledger, link
//          ▲                            │ events that they give rise to
//          ├────────────────────────────┘
//          ├── service_messages.c ◄── link      service_jobs.c ◄── the daemon      service.c: created, polled
//                                               service_snapshot.c: inter/snapshot.h
#ifndef INTER_SERVICE_STATE_H
#define INTER_SERVICE_STATE_H
#include "inter/service.h"

enum { BOUNDS_MAX = 16 };

struct pending { // events that actions gave rise to
    struct inter_event e;
    bool has_manifest;
    struct inter_manifest manifest;
};

struct inter_service {
    struct inter_service_callbacks cb;
    const struct sec_identity *identity;
    struct inter_link_config link_config; // without members
    struct sec_members members;
    uint32_t self;
    const struct sec_seal_key *seal;
    struct inter_ledger *ledger;
    struct inter_link *link;
    struct inter_node *node;
    struct inter_node_crypto crypto;
    struct inter_streams *streams;
    struct inter_actions actions;
    struct pending *pending;
    size_t n_pending, cap_pending;
    struct cmp_work *gate;
    neb_ns next_tick, next_resend, next_limit;
    struct inter_rate_limit limit;
    struct {
        uint8_t job[INTER_ID_BYTES];
        struct inter_rate_limit limit;
    } limits[BOUNDS_MAX];
    int n_limits;
    struct inter_snapshots *snapshots;
    bool up[SEC_MEMBERS_MAX];
    struct inter_key mapped_key; // the blob that is being sent: mapped once, not once a chunk
    struct neb_map mapped;
    bool is_mapped;
    struct neb_buf out;
    struct {
        uint8_t job[INTER_ID_BYTES];
        uint64_t elements;
    } bounds[BOUNDS_MAX]; // of jobs whose worker has said how large its model is
    int n_bounds;
    enum neb_status st; // first fatal error
};

// service.c: struct inter_node_crypto
bool service_sign(void *user, const char *context, const void *msg, size_t len, uint8_t sig[INTER_SIG_BYTES]);
bool service_verify(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                    const uint8_t sig[INTER_SIG_BYTES]);

// service_actions.c
// Hands the node an event and carries out all that comes of it; what goes wrong is in s->st.
void service_step(struct inter_service *s, const struct inter_event *event);
// Structure, finiteness and scale of every frame, before an update may become part of a commit.
NEB_MUST_CHECK enum neb_status service_gate(struct inter_service *s, const struct inter_manifest *m, bool *pass,
                                            float *norm);
NEB_MUST_CHECK enum neb_status service_deliver(struct inter_service *s, const struct inter_record *r);
void service_unmap(struct inter_service *s); // the blob that is being sent: before any may be removed

// service_messages.c
void service_on_event(void *user, const struct inter_link_event *e); // of the link
NEB_MUST_CHECK enum neb_status service_resend(struct inter_service *s, uint32_t peer);

// service_snapshot.c
NEB_MUST_CHECK enum neb_status service_create_snapshots(struct inter_service *s);

#endif
