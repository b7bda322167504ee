// SPDX-License-Identifier: Apache-2.0
// The inside of a link (struct inter_link). Only the files of this room and tests include it:
//
//     link.c      create, poll, the pass over all peers, statistics
//     open.c      connections and sets: open, watch, replace, close
//     send.c      send, bounded by unacknowledged bytes
//     receive.c   the sender of a message; frames
//     members.c   which members may connect
//     guard.c     bounds of what a peer can make this side hold
//
// Frames inside a CURVE message, little-endian. The first byte is the type:
//
//     HELLO      u64 session, u8 connection, u32 protocol, str build
//                first on every connection, dialler to listener
//     RENEW      as HELLO; the previous set stays until it is empty
//     WELCOME    as HELLO, with the listener's values; the answer. Data may follow only after it.
//     PING       i64 time                        control only; the asker's own clock
//     PONG       i64 time, i64 day               control only; the time from PING, and the
//                                                answerer's time of day
//     HEARTBEAT  n × (u8 connection, u64 bytes)  control only; data bytes read so far; n may be 0
//     STRIPES    u8 n                            control only, to the dialler: please open n bulk
//                                                connections
//     DATA       the caller's bytes
//
// HELLO, RENEW and WELCOME begin like this in every protocol, so two builds that differ can report
// it.
//
// ZeroMQ does not report how much it holds, so HEARTBEATs do. The queue is what was sent and is not
// acknowledged, in ZeroMQ, kernel, wire or peer, and it is bounded in bytes. If a peer acknowledges
// what it has not read, the queue is what its kernel has not acknowledged (TCP_INFO).
//
// A HEARTBEAT is also the sign of life of a side that has nothing to send: one frame of 36 bytes
// after 1.5 s of silence. Data is a sign of life too, so a busy link sends fewer of them. PINGs
// only measure and become rarer.
//
// ZeroMQ cannot close one connection of a ROUTER. So the link keeps a duplicate of each
// connection's descriptor, to read TCP_INFO and to shut down a revoked or stale connection.
#ifndef INTER_LINK_STATE_H
#define INTER_LINK_STATE_H
#include "agent/base/bucket.h"
#include "agent/base/bytes.h"
#include "agent/base/throttle.h"
#include "inter/link/accept_limit.h"
#include "inter/link/link.h"
#include "inter/link/lookup.h"
#include "inter/link/monitor.h"
#include "inter/link/rate_limit.h"
#include "inter/link/socket_profile.h"
#include "inter/link/stripes.h"
#include "security/zap.h"

#define ZAP_DOMAIN      "link"
#define HEARTBEAT_EVERY (1500 * NEB_MS) // of this side's own silence
#define PING_FIRST      (1 * NEB_S)     // between the first two PINGs; doubles up to PING_LAST
#define PING_LAST       (16 * NEB_S)
#define ACK_BYTES       (32 << 10)      // this much data is acknowledged at once; less is no queue
#define ACK_DELAY       (4 * NEB_S)     // less data is acknowledged after this time
#define SILENCE         (4250 * NEB_MS) // least silence that takes a set down
#define SILENCE_MOST    (20 * NEB_S)
#define UNACKED_MOST    (60 * NEB_S)
#define LOOK_EVERY      (1 * NEB_S)   // looks for data that arrives while no message is complete
#define FIRST_WINDOW    (16 << 10)    // above TCP's first window: more unacknowledged is a queue
#define FIRST_LOOK      (50 * NEB_MS) // between looks at a path that is not known yet
#define RETRY_AFTER     (200 * NEB_MS)
#define LOOKUP_WAIT     (2 * NEB_S) // for a name, when an older address is known
#define LOOKUP_RETRY    (5 * NEB_S) // after a name had no address
#define DUPLICATE_GRACE (5 * NEB_S)
#define TWINS_SPAN      (60 * NEB_S) // period in which displaced live sets are counted
#define TWINS_DISPLACED 5
#define TWINS_BESIDE    (30 * NEB_S)
#define RECYCLE         (3600 * NEB_S) // CURVE never rekeys: connections of this age are replaced
#define DRAIN_MIN       (2 * NEB_S)    // of a recycled set, counted from when its successor came up
#define DRAIN_MAX       (60 * NEB_S)
#define PARTING         (1 * NEB_S)  // a revoked member still gets the list that revokes it
#define PROTOCOL_RETRY  (10 * NEB_S) // until a peer with another protocol is dialled again
#define PROTOCOL_CUT    (1 * NEB_S)  // its connection stays, so that it gets the answer

enum { HELLO = 1, WELCOME, PING, PONG, HEARTBEAT, DATA, RENEW, STRIPES };
enum {
    DIALED,
    ACCEPTED,
    OLD_DIALED, // a recycled set: its successor is up or being dialled
    OLD_ACCEPTED,
    SETS,
    RID_BYTES = 5,
    HEARTBEAT_ITEM = 9, // bytes per connection in a HEARTBEAT
    HELLO_MAX = 1 + 8 + 1 + 4 + 2 + NEB_BUILD_MAX,
    BURST = 256,
    CONNS = 1 + INTER_LINK_MAX_BULK,
    // Sessions that one peer may begin, at once and then per second. Each session costs signed
    // offers of all open rounds.
    SESSIONS_BURST = 30,
    SESSIONS_A_SECOND = 1,
};

struct conn {
    void *sock, *mon;       // DEALER and its monitor; NULL on the listener's side
    uint64_t way;           // id of the connection (inter_link_event)
    uint8_t rid[RID_BYTES]; // listener: the name that the ROUTER gave the connection
    int fd, zmq_fd;         // our duplicate, and the number that ZeroMQ reports; -1: none
    bool open;              // HELLO and WELCOME are exchanged
    bool denied;            // dialler: the peer refused the handshake
    bool lost;              // broken; the next process cleans up
    neb_ns hello_at;        // dialler: when HELLO was sent; 0: not yet
    neb_ns retry_at;        // dialler: when to open it again; 0: not waiting
    uint64_t sent, acked;   // data bytes
    uint64_t framed, taken; // wire bytes: given to ZeroMQ; acknowledged by the peer's kernel
    uint64_t recvd, recv_acked;
    uint64_t read;            // wire bytes of what was read, never too few
    struct inter_meter meter; // IP bytes that count against the limit
};

struct set {
    struct conn c[CONNS]; // [0] control
    uint64_t session;     // 0: no set
    bool up;
    neb_ns since, heard, pinged, data_at, acks_at;
    uint64_t arrived; // data segments that our kernel had at the last look
    neb_ns looked_at;
    neb_ns said;    // last message of this side that no large queue delays
    uint32_t pings; // since the set came up
};

// The listener's set is up as soon as it has answered on control. Its bulk data may arrive before
// that answer, so the dialler leaves the data unread until the answer is there.
static inline bool link_conn_waits(const struct set *s, uint32_t index) {
    return index > 0 && s->c[index].open && !s->up;
}

struct peer {
    struct sec_member member;
    struct sec_public former; // keys before a rotation, valid until former_until (0: none)
    neb_ns former_until;
    bool self, revoked, up;
    neb_ns parts_at; // revoked: the time at which the peer is cut off; 0: it is cut off
    struct set s[SETS];
    neb_ns dial_at, since, rtt, clock_offset;
    char where[SEC_ENDPOINT_MAX]; // the numeric endpoint that is dialled
    struct inter_addresses at;    // addresses of the endpoint's name, from the last lookup
    struct inter_lookup *lookup;  // running, or its result is not read yet
    neb_ns looked_up;             // when the lookup began
    uint32_t tried;               // dials since the peer was up: picks the next address
    bool nowhere;                 // the name has no address, and that was logged
    struct neb_throttle no_dial;  // of the warning that dialling failed
    struct {
        bool differs; // its protocol is not ours
        uint32_t protocol;
        char build[NEB_BUILD_MAX]; // printable ASCII
        struct neb_throttle said;
        // this side's descriptor of its last connection, which is cut at `at` (0: no such
        // connection)
        int fd;
        neb_ns at;
    } speaks; // from its HELLO or WELCOME
    struct {
        uint32_t displaced; // live sets that a new set of the same peer replaced
        neb_ns since;       // when the first of them was replaced
        neb_ns beside;      // since when the sets of both sides are up; 0: they are not
        neb_ns said;
        uint64_t minutes;
    } twins;                      // two agents with its keys
    struct neb_bucket sessions;   // limits the sessions that the peer begins
    struct inter_stripes stripes; // how many bulk connections this side sends on
    uint32_t asked, told;         // number of bulk connections: the peer asked for; we asked for
    uint64_t bulk_acked;          // since the last step of the stripes
    uint64_t taken,
        taken_of;           // bulk bytes that the peer's kernel acknowledged, and their session
    uint64_t message_bytes; // from the caller
    uint64_t payload_bytes; // of these: second parts on bulk
    struct inter_tcp_counts closed; // counts of connections that are closed
    uint64_t connects, refused, dropped, recycled;
    uint64_t held, cut;          // as in inter_link_stats
    uint64_t lost[SETS * CONNS]; // broken connections that are not reported yet (LOST)
    uint32_t n_lost;
};

struct inter_link {
    struct inter_link_config cfg;
    struct sec_members members; // newest list, by peer index; a revoked member is all zero
    void *ctx;
    bool own_ctx;
    bool bbr; // connections get BBR, by configuration or by default
    struct sec_zap *zap;
    void *router, *router_mon;
    uint32_t port, n_peers, self;
    uint64_t last_session, last_way;
    uint32_t protocol;
    char build[NEB_BUILD_MAX];
    neb_ns deadline;
    struct inter_bucket bucket;
    neb_ns settle_at;
    bool limited; // a bulk message was refused because of the bucket
    struct {
        int zmq_fd, fd; // ZeroMQ's number, and our duplicate
        neb_ns at;
        struct inter_incoming visitor;
    } unidentified[INTER_UNIDENTIFIED_MAX]; // accepted connections without HELLO
    uint32_t n_unidentified, nameless_most;
    struct neb_throttle no_accept; // of the warning that accepting failed
    uint64_t cut_nameless;
    struct inter_accept_limit accept_limit; // for connections without HELLO
    neb_ns guard_at;
    inter_link_handler *handler; // set during process
    void *user;
    struct peer peers[NEB_MEMBERS_MAX];
};

// members.c. Detects two agents with one member's keys: call the first when a new set of the peer
// replaces a live one, the second once a pass.
void link_twins_displaced(struct peer *p, neb_ns now);
void link_twins_look(struct peer *p, neb_ns now);

// open.c
void link_conn_dial(struct inter_link *l, struct peer *p, uint32_t index);
// Keeps a duplicate of zmq_fd.
void link_conn_watch(struct inter_link *l, struct peer *p, struct conn *c, int zmq_fd);
// Keeps the final byte counts.
void link_conn_close(struct inter_link *l, struct peer *p, struct conn *c);
void link_conn_settle(struct inter_link *l, struct conn *c);         // charges what it has sent
void link_conn_patience(const struct peer *p, const struct conn *c); // sets its TCP time-out
struct inter_tcp_counts link_conn_counts(const struct conn *c);
void link_counts_add(struct inter_tcp_counts *a, struct inter_tcp_counts b);
void link_set_dial(struct inter_link *l, struct peer *p);
bool link_peer_find(struct peer *p, neb_ns now);            // false: address not known yet
void link_peer_moved(struct inter_link *l, struct peer *p); // its endpoint changed
// Opens more bulk connections if either side can fill them.
void link_set_widen(struct inter_link *l, struct peer *p);
void link_set_came_up(struct inter_link *l, struct peer *p, struct set *s);
// makes way for its successor
void link_set_retire(struct inter_link *l, struct peer *p, int which);
void link_set_close(struct inter_link *l, struct peer *p, int which);
void link_peer_update(struct inter_link *l, struct peer *p); // reports UP and DOWN
void link_report_lost(struct inter_link *l, struct peer *p); // reports LOST
void link_peer_close(struct inter_link *l, struct peer *p);  // closes all connections
void link_peer_revoke(struct inter_link *l, struct peer *p); // revoked: closes them after PARTING
// Which of two sets is kept.
bool link_prefers_dialed(const struct inter_link *l, const struct peer *p);
void link_dial_events(struct inter_link *l, struct peer *p, int which, uint32_t index);
void link_router_events(struct inter_link *l);
NEB_MUST_CHECK enum neb_status link_listen(struct inter_link *l, const char *where);

// send.c. False: the queue is full or the connection is lost.
bool link_send_small(struct inter_link *l, struct conn *c, const uint8_t *p, size_t n);
bool link_send_hello(struct inter_link *l, struct conn *c, uint8_t type, uint64_t session,
                     uint8_t index);
bool link_send_time(struct inter_link *l, struct conn *c, uint8_t type, uint64_t t);
void link_send_pong(struct inter_link *l, struct set *s, uint64_t t);
// The set to send on; NULL: none is up.
struct set *link_active(const struct inter_link *l, struct peer *p);
uint64_t link_set_queued(const struct set *s); // sent and not acknowledged

// Writes a HELLO, RENEW or WELCOME to p (HELLO_MAX bytes). Returns its length.
size_t link_hello_make(uint32_t protocol, const char *build, uint8_t type, uint64_t session,
                       uint8_t index, uint8_t *p);

// receive.c
void link_dealer_read(struct inter_link *l, struct peer *p, int which, uint32_t index);
void link_router_read(struct inter_link *l);
// A frame of n > 0 bytes on an open connection. False: refused.
bool link_on_frame(struct inter_link *l, struct peer *p, int which, uint32_t index,
                   const uint8_t *b, size_t n);
// HELLO or RENEW from an admitted member. Takes the connection into the peer's set. A newer session
// replaces the whole set. False: refused.
bool link_on_hello(struct inter_link *l, struct peer *p, const uint8_t *rid, int fd,
                   const uint8_t *b, size_t n);

// guard.c. link_guard_most: how many connections without HELLO fit into the limit of open files.
uint32_t link_guard_most(uint32_t peers);
void link_guard_listens(struct inter_link *l, int zmq_fd);  // ZeroMQ listens on this
void link_guard_accepted(struct inter_link *l, int zmq_fd); // a new connection
void link_guard_expects(struct inter_link *l); // takes the sources of members from the list
void link_guard_left(struct inter_link *l, int zmq_fd); // it is gone
// The connection belongs to a member that speaks another protocol. It is no stranger, and is cut
// soon.
void link_guard_differs(struct inter_link *l, struct peer *p, int zmq_fd);
void link_guard_read(struct conn *c, size_t n); // n bytes of message were read
void link_guard(struct inter_link *l, neb_ns now);
void link_guard_end(struct inter_link *l);

// members.c
void link_admit(struct inter_link *l); // tells ZAP which members may connect
void link_peer_init(const struct inter_link *l, struct peer *p, const struct sec_member *x);

#endif
