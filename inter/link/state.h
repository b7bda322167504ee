// SPDX-License-Identifier: Apache-2.0
// The link as a whole (struct inter_link), shared by the link*.c files and by nobody else but tests:
//
//     link.c          created, polled, the pass over all peers, figures
//     link_open.c     connections and sets: opened, watched, replaced, closed
//     link_send.c     sending, bounded by what is not acknowledged
//     link_receive.c  who a message is from; frames
//     link_members.c  who may connect
//     link_guard.c    what a peer can make this side hold
//
// Frames inside a CURVE message, little-endian, first byte the type:
//
//     HELLO   u64 session, u8 connection, u32 protocol, str build    first on every connection, dialler to listener
//     RENEW   …                             the same, where the set before is kept until it is empty
//     WELCOME …                             the answer, as this side's own; only then the connection carries data
//     These three begin so in every protocol, whatever comes behind: two builds that differ can say so.
//     PING    i64 time     PONG i64 time, i64 day   control only; time is the asker's own
//     clock, given back; day the answerer's time of day
//     HEARTBEAT    n × (u8 connection, u64 bytes)    control only; data bytes read so far from those connections; n may be 0
//     STRIPES u8 n                          control only; to the dialler: open n bulk connections, I could fill them
//     DATA    the caller's bytes
//
// ZeroMQ does not tell how much it holds. The BEATs do: what was sent and not acknowledged is the
// queue, wherever it sits (ZeroMQ, kernel, wire, peer), and it is bounded by bytes. A peer may
// acknowledge what it has not read: then what its kernel has not taken (TCP_INFO) is the queue.
//
// A HEARTBEAT is also what a side says that has nothing to say: one frame of 36 bytes with its encryption, every 1.5 s of its own
// silence. PINGs only measure, and get rarer. So a link that idles costs 24 bytes a second each way, and one that carries small
// batches less, since these show as well that this side lives.
//
// ZeroMQ cannot close one connection of a ROUTER either. The link keeps a duplicate of each
// connection's descriptor: for TCP_INFO (byte counts) and to shut a revoked or stale connection
// down.
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
#define PING_FIRST      (1 * NEB_S) // the second one after the first, and so on twice as long until
#define PING_LAST       (16 * NEB_S)
#define ACK_BYTES       (32 << 10)  // data that is acknowledged at once; less of it is no queue
#define ACK_DELAY       (4 * NEB_S) // less of it, at most so late
#define SILENCE                                                                                    \
    (4250 * NEB_MS) // nothing heard for so long, or for six round trips: the set is down
#define SILENCE_MOST    (20 * NEB_S)
#define UNACKED_MOST    (60 * NEB_S)
#define LOOK_EVERY      (1 * NEB_S) // of what is not heard: data that comes is no silence
#define FIRST_WINDOW    (16 << 10) // that TCP gives a new connection, and more: what is beyond waits
#define FIRST_LOOK      (50 * NEB_MS) // between looks at a path of which nothing is known
#define RETRY_AFTER     (200 * NEB_MS)
#define LOOKUP_WAIT     (2 * NEB_S) // for a name, where an address is known from before
#define LOOKUP_RETRY    (5 * NEB_S) // a name that has no address
#define DUPLICATE_GRACE (5 * NEB_S)
#define TWINS_SPAN                                                                                 \
    (60 * NEB_S) // so many living sets displaced in it, or two side by side for so long
#define TWINS_DISPLACED 5
#define TWINS_BESIDE    (30 * NEB_S)
#define RECYCLE         (3600 * NEB_S) // CURVE never rekeys: connections this old are replaced
#define DRAIN_MIN       (2 * NEB_S)    // of a recycled set, from when its successor came up
#define DRAIN_MAX       (60 * NEB_S)
#define PARTING         (1 * NEB_S) // who is revoked still gets that list
#define PROTOCOL_RETRY                                                                             \
    (10 * NEB_S) // who speaks another protocol is dialled: it may have been exchanged
#define PROTOCOL_CUT (1 * NEB_S) // and its connection lives until it has had the answer

enum { HELLO = 1, WELCOME, PING, PONG, HEARTBEAT, DATA, RENEW, STRIPES };
enum {
    DIALED,
    ACCEPTED,
    OLD_DIALED, // being recycled: its successor is up or on its way
    OLD_ACCEPTED,
    SETS,
    RID_BYTES = 5,
    HEARTBEAT_ITEM = 9, // bytes of one connection in a HEARTBEAT
    HELLO_MAX = 1 + 8 + 1 + 4 + 2 + NEB_BUILD_MAX,
    BURST = 256,
    CONNS = 1 + INTER_LINK_MAX_BULK,
    // of one peer's dialling, at once and then a second: each costs signed offers of all that is open
    SESSIONS_BURST = 30,
    SESSIONS_A_SECOND = 1,
};

struct conn {
    void *sock, *mon;       // DEALER and its monitor; NULL on the listener's side
    uint64_t way;           // that it is told apart by
    uint8_t rid[RID_BYTES]; // listener's side: the ROUTER's own name for the connection
    int fd, zmq_fd;         // our duplicate, and the number ZeroMQ reports; -1: none
    bool open;              // HELLO and WELCOME done
    bool denied;            // dialler: the peer refused the handshake
    bool lost;              // found broken; cleaned up by the next process
    neb_ns hello_at;        // dialler: when HELLO went out; 0: not yet
    neb_ns retry_at;        // dialler: open again at; 0: not waiting
    uint64_t sent, acked;   // data bytes
    uint64_t framed, taken; // bytes on the wire: given to ZeroMQ; that the peer's kernel has taken
    uint64_t recvd, recv_acked;
    uint64_t read;            // at least the bytes on the wire of what was read
    struct inter_meter meter; // IP bytes, against a limit
};

struct set {
    struct conn c[CONNS]; // [0] control
    uint64_t session;     // 0: no set
    bool up;
    neb_ns since, heard, pinged, data_at, acks_at;
    uint64_t arrived; // segments with data that this side's kernel had at the last look
    neb_ns looked_at;
    neb_ns said; // this side's last message that the peer hears soon: no large queue is before it
    uint32_t pings; // since it came up
};

// The listener's set is up as soon as it has answered on control, and what it sends on a bulk connection may be here before that
// answer: until then the dialler leaves it unread.
static inline bool link_conn_waits(const struct set *s, uint32_t index) {
    return index > 0 && s->c[index].open && !s->up;
}

struct peer {
    struct sec_member member;
    struct sec_public former; // keys before a rotation, good until former_until (0: none)
    neb_ns former_until;
    bool self, revoked, up;
    neb_ns parts_at; // revoked: nothing is heard or sent, connections are cut then; 0: they are
    struct set s[SETS];
    neb_ns dial_at, since, rtt, clock_offset;
    char where[SEC_ENDPOINT_MAX]; // dialled: its endpoint, in figures
    struct inter_addresses at;    // of its endpoint's name, as looked up last
    struct inter_lookup *lookup;  // under way, or not asked yet what it found
    neb_ns looked_up;             // when it began
    uint32_t tried;               // of these addresses, one after the other, since it was up
    bool nowhere;                 // its name has no address, and that was said
    struct neb_throttle no_dial;  // it cannot be dialled from here
    struct {
        bool differs; // its protocol is not this side's
        uint32_t protocol;
        char build[NEB_BUILD_MAX]; // printable ASCII
        struct neb_throttle said;
        int fd; // of its last connection, if `at`: ours, to be cut then
        neb_ns at;
    } speaks; // as its HELLO or WELCOME said
    struct {
        uint32_t displaced; // sets that lived, by another one that the peer dialled
        neb_ns since;       // the first of them
        neb_ns beside;      // since when both sides' sets are up; 0: they are not
        neb_ns said;
        uint64_t minutes;
    } twins;                      // two agents with its keys
    struct neb_bucket sessions;   // that it began
    struct inter_stripes stripes; // this side sends on the first of them
    uint32_t asked, told;         // connections that the peer wants; that it was asked for
    uint64_t bulk_acked;          // since the last look at the stripes
    uint64_t taken,
        taken_of; // while the stripes begin: by the peer's kernel, of the bulk connections of this session's set
    uint64_t message_bytes;         // handed over by the caller
    uint64_t payload_bytes;         // of these the second parts on bulk
    struct inter_tcp_counts closed; // of connections that are gone
    uint64_t connects, refused, dropped, recycled;
    uint64_t held, cut;          // bytes that came and are unread; connections that were cut for it
    uint64_t lost[SETS * CONNS]; // connections that broke before all was acknowledged: not told yet
    uint32_t n_lost;
};

struct inter_link {
    struct inter_link_config cfg;
    struct sec_members members; // newest, by index of peer; of a revoked one all zero
    void *ctx;
    bool own_ctx;
    bool bbr; // is what connections get, asked for or as the system's
    struct sec_zap *zap;
    void *router, *router_mon;
    uint32_t port, n_peers, self;
    uint64_t last_session, last_way;
    uint32_t protocol;
    char build[NEB_BUILD_MAX];
    neb_ns deadline;
    struct inter_bucket bucket;
    neb_ns settle_at;
    bool limited; // bulk was refused for the bucket
    struct {
        int zmq_fd, fd; // ZeroMQ's number, and our duplicate
        neb_ns at;
        struct inter_incoming visitor;
    } unidentified[INTER_UNIDENTIFIED_MAX]; // accepted, and no HELLO yet
    uint32_t n_unidentified, nameless_most;
    struct neb_throttle no_accept; // connections that this system does not give it
    uint64_t cut_nameless;
    struct inter_accept_limit
        accept_limit; // of connections that come, but for those that said HELLO
    neb_ns guard_at;
    inter_link_handler *handler; // during process
    void *user;
    struct peer peers[SEC_MEMBERS_MAX];
};

// link_members.c: a set of the peer's that lived gave way to another one that it dialled; the look once a pass
void link_twins_displaced(struct peer *p, neb_ns now);
void link_twins_look(struct peer *p, neb_ns now);

// link_open.c
void link_conn_dial(struct inter_link *l, struct peer *p, uint32_t index);
// keeps a duplicate
void link_conn_watch(struct inter_link *l, struct peer *p, struct conn *c, int zmq_fd);
// its final byte count is kept
void link_conn_close(struct inter_link *l, struct peer *p, struct conn *c);
void link_conn_settle(struct inter_link *l, struct conn *c);         // charges what it has sent
void link_conn_patience(const struct peer *p, const struct conn *c); // as the round trip has it
struct inter_tcp_counts link_conn_counts(const struct conn *c);
void link_counts_add(struct inter_tcp_counts *a, struct inter_tcp_counts b);
void link_set_dial(struct inter_link *l, struct peer *p);
// It cannot be dialled, nor a connection accepted: why, errno's or ZeroMQ's
void link_warn_no_dial(struct peer *p, const char *where, int why, neb_ns now);
void link_warn_no_accept(struct inter_link *l, int why, neb_ns now);
bool link_peer_find(struct peer *p, neb_ns now);            // where to dial; false: not known yet
void link_peer_moved(struct inter_link *l, struct peer *p); // its endpoint is another one
// more bulk connections, when either side could fill them
void link_set_widen(struct inter_link *l, struct peer *p);
void link_set_came_up(struct inter_link *l, struct peer *p, struct set *s);
void link_set_retire(struct inter_link *l, struct peer *p, int which); // aside, for its successor
void link_set_close(struct inter_link *l, struct peer *p, int which);
void link_peer_update(struct inter_link *l, struct peer *p); // reports when it came up or went down
void link_report_lost(struct inter_link *l, struct peer *p); // connections that broke meanwhile
void link_peer_close(struct inter_link *l, struct peer *p);  // with every connection
void link_peer_revoke(struct inter_link *l,
                      struct peer *p); // the same, PARTING later: it is revoked
// of two sets, which one is kept
bool link_prefers_dialed(const struct inter_link *l, const struct peer *p);
void link_dial_events(struct inter_link *l, struct peer *p, int which, uint32_t index);
void link_router_events(struct inter_link *l);
NEB_MUST_CHECK enum neb_status link_listen(struct inter_link *l, const char *where);

// link_send.c. False: not taken (queue full), or the connection is lost.
bool link_send_small(struct inter_link *l, struct conn *c, const uint8_t *p, size_t n);
bool link_send_hello(struct inter_link *l, struct conn *c, uint8_t type, uint64_t session,
                     uint8_t index);
bool link_send_time(struct inter_link *l, struct conn *c, uint8_t type, uint64_t t);
void link_send_pong(struct inter_link *l, struct set *s, uint64_t t);
// the set to send on; NULL: none is up
struct set *link_active(const struct inter_link *l, struct peer *p);
uint64_t link_set_queued(const struct set *s); // sent and not acknowledged

// A HELLO, RENEW or WELCOME, into p (HELLO_MAX); its bytes.
size_t link_hello_make(uint32_t protocol, const char *build, uint8_t type, uint64_t session,
                       uint8_t index, uint8_t *p);

// link_receive.c
void link_dealer_read(struct inter_link *l, struct peer *p, int which, uint32_t index);
void link_router_read(struct inter_link *l);
// A frame of n > 0 bytes on an open connection; false: refused.
bool link_on_frame(struct inter_link *l, struct peer *p, int which, uint32_t index,
                   const uint8_t *b, size_t n);
// HELLO or RENEW from an admitted member: takes the connection into its set, a newer session
// replaces the whole set. False: refused.
bool link_on_hello(struct inter_link *l, struct peer *p, const uint8_t *rid, int fd,
                   const uint8_t *b, size_t n);

// link_guard.c
uint32_t
link_guard_most(uint32_t peers); // connections without a name, as this process may have files open
void link_guard_listens(struct inter_link *l, int zmq_fd);  // ZeroMQ listens with this
void link_guard_accepted(struct inter_link *l, int zmq_fd); // the listener has a new connection
void link_guard_expects(
    struct inter_link *l); // where the members on the list are, as far as it says
void link_guard_left(struct inter_link *l, int zmq_fd); // it is gone
// The connection is this member's, which speaks another protocol: no stranger, and cut soon.
void link_guard_differs(struct inter_link *l, struct peer *p, int zmq_fd);
void link_guard_read(struct conn *c, size_t n); // a message of n bytes was read from it
void link_guard(struct inter_link *l, neb_ns now);
void link_guard_end(struct inter_link *l);

// link_members.c
void link_admit(struct inter_link *l); // tells ZAP who may connect
void link_peer_init(const struct inter_link *l, struct peer *p, const struct sec_member *x);

#endif
