// SPDX-License-Identifier: Apache-2.0
// The links to the other members: ZeroMQ over TCP with CURVE, one control and n bulk connections a
// peer.
//
// One member listens on one TCP port (a ROUTER) and dials the peers it has an endpoint for (a
// DEALER each for control and every bulk stripe). Where both sides dial, the set dialled by the
// lower CURVE key is kept and the other is closed, so one set of connections remains.
//
//     dialler                                            listener
//     DEALER control ── HELLO{session,0,protocol} ─────► ROUTER (one port)
//     DEALER bulk 1  ── HELLO{session,1,protocol} ─────►   │
//     DEALER bulk n  ── HELLO{session,n,protocol} ─────►   └─ WELCOME{session,protocol}
//
// Both name the protocol that they speak and their build. Where the protocols differ no link is made, and both say why: the log, once and
// then once a minute; status; doctor.
//
// A set is up when control has exchanged HELLO and WELCOME. PING/PONG and HEARTBEAT{connection, bytes}… go on control, both ways: a
// HEARTBEAT, which acknowledges what came, with every 32 KiB, and after 1.5 s in which this side sent nothing; a PING, for the round
// trip, every 16 s (at first sooner). A side to which nothing has come for 4.25 s (or
// six round trips), not even parts of a message, takes the set down.
//
// Who a message is from is what ZAP said about its connection's key (User-Id), never a claim of the
// peer: routing ids chosen by a peer are refused.
//
// Delivery is best effort and unordered between channels: a message that was accepted may be lost
// when a connection breaks. Whoever needs more acknowledges and repeats (inter/transfer,
// inter/service); LOST says when, and what, if the peer is still there.
//
// Threads: a link belongs to one thread (ZeroMQ's own I/O threads and the ZAP thread are inside).
#ifndef INTER_LINK_H
#define INTER_LINK_H
#include "agent/base/build_id.h"
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "inter/link/tcp.h"
#include "security/identity.h"
#include "security/members.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

enum inter_channel { INTER_CONTROL, INTER_BULK };

enum {
    INTER_LINK_MAX_BULK = 32,
    INTER_LINK_SLACK = 4096,                   // allowed above chunk_bytes in one message
    INTER_LINK_CONTROL_MAX = 64 * 1024 + 4096, // largest control message
};

enum inter_link_kind { INTER_LINK_UP, INTER_LINK_DOWN, INTER_LINK_MSG, INTER_LINK_LOST };

struct inter_link_event {
    enum inter_link_kind kind;
    uint32_t peer;              // index into the member list given at create
    enum inter_channel channel; // of a MSG
    const uint8_t *data;        // of a MSG; borrowed, valid during the call
    size_t len;
    uint64_t way; // of a LOST: a connection that broke before all was acknowledged; 0: any may have
};
typedef void inter_link_handler(void *user, const struct inter_link_event *e);

struct inter_link_config {
    const struct sec_identity *identity; // borrowed for the life of the link
    const struct sec_members *members;   // copied; must hold the identity itself
    const char *listen; // "HOST:PORT", "*:PORT" (port 0: any, see inter_link_port); NULL: dial only
    uint32_t n_bulk;    // 1..32; 0: as many as fill the link (inter/link/stripes.h), from 8 or 16
    const char
        *congestion; // of all connections (inter/link/tcp.h), borrowed; NULL: bbr where permitted
    size_t chunk_bytes;         // largest bulk message is this + INTER_LINK_SLACK; 0: 1 MiB
    size_t bulk_queue_bytes;    // unacknowledged bulk bytes a peer, about 2 x BDP; 0: 64 MiB
    size_t control_queue_bytes; // the same on control; 0: 1 MiB
    neb_ns recycle; // connections older than this are replaced without a pause; 0: one hour
    // Of HELLO. 0 and NULL: this build's, which is what everybody but a test wants.
    uint32_t protocol;
    const char *build;
    void *zmq_context; // borrowed; NULL: the link makes its own. Holds this link's ZAP handler.
};

struct inter_link_stats {
    bool up;
    neb_ns since; // monotonic time of the last change of up
    neb_ns rtt;   // smoothed, of PING on control; 0: not known yet
    // of the peer's time of day against ours, to half a round trip; 0: not known
    neb_ns clock_offset;
    // on the TCP sockets: handshakes, ZMTP, CURVE; sent includes retransmissions
    uint64_t sent_bytes, recv_bytes;
    // sent by the caller, headers and all; the rest of sent_bytes is this link's own
    uint64_t message_bytes;
    uint64_t payload_bytes; // of message_bytes: second parts (inter_link_send2) on bulk connections
    // TCP segments: add 40 (IPv4) plus 12 (timestamps) bytes each for IP bytes
    uint64_t sent_segs, recv_segs;
    uint32_t bulk_open, bulk_used;       // connections; those that this side sends on
    char congestion[INTER_TCP_NAME_MAX]; // of the control connection; "": none
    uint64_t queued_bytes; // sent and not acknowledged by the peer's link, both channels
    uint64_t connects;     // times the peer came up
    uint64_t recycled;     // sets of connections that this side replaced for their age
    uint64_t refused;      // messages accepted by nobody: bad frames, spoofed ids, stale sessions
    uint64_t dropped;      // bytes that were unacknowledged when a connection broke
    uint64_t
        twins; // minutes in which it dialled while its links lived: as two agents with its keys
    // What the peer said it is when it was heard last; 0 and "": it was not. differs: it speaks another protocol, and no link is made.
    bool differs;
    uint32_t protocol;
    char build[NEB_BUILD_MAX];
    // bytes that came and are not read yet; connections cut because that was too much
    uint64_t held, cut;
};

struct inter_link;

// NEB_ERR_INVALID: bad configuration; NEB_ERR_IO: the port cannot be had.
NEB_MUST_CHECK enum neb_status inter_link_create(const struct inter_link_config *cfg,
                                                 struct inter_link **out);
void inter_link_destroy(struct inter_link **l);

// Copies the message. NEB_ERR_AGAIN: the peer is down or its queue is full (try after the next
// process); NEB_ERR_LIMIT: larger than the channel allows; NEB_ERR_INVALID: no such peer.
NEB_MUST_CHECK enum neb_status inter_link_send(struct inter_link *l, uint32_t peer,
                                               enum inter_channel channel, const void *data,
                                               size_t len);
// The same for a header and its payload, which arrive as one message.
NEB_MUST_CHECK enum neb_status inter_link_send2(struct inter_link *l, uint32_t peer,
                                                enum inter_channel channel, const void *hdr,
                                                size_t hlen, const void *data, size_t len);
// The same, and by which of its connections it goes: never 0, never given to another one.
NEB_MUST_CHECK enum neb_status inter_link_send_on(struct inter_link *l, uint32_t peer,
                                                  enum inter_channel channel, const void *hdr,
                                                  size_t hlen, const void *data, size_t len,
                                                  uint64_t *way);

// Says to all peers that this member is there, and nothing else: for whoever waits for something that takes longer than they would.
void inter_link_heartbeat(struct inter_link *l);
// Does all that is pending, without blocking: dials, liveness, and handler(user, event) for every
// event. The handler may send; it must not call process or destroy.
NEB_MUST_CHECK enum neb_status inter_link_process(struct inter_link *l, inter_link_handler *handler,
                                                  void *user);
// Fills at most cap items to poll for and returns how many it has filled; without room for all of them, what the others have waits
// for the deadline. They change with every process. When one is readable or the deadline has come, call process.
size_t inter_link_poll_items(const struct inter_link *l, zmq_pollitem_t *items, size_t cap);
neb_ns inter_link_next_deadline(const struct inter_link *l); // monotonic

// At most so many bit/s leave this member, to all peers together, as IP bytes; 0: no limit. Bulk waits, control never does
// but is counted. In any t seconds no more than the limit carries in t + 1 s, and that second only after a path was slower
// (inter/link/rate_limit.h). A bulk message that is refused for this may be sent again at the next deadline.
void inter_link_limit(struct inter_link *l, uint64_t bps);
// A bulk message was refused for the limit, and now one would pass (true once).
bool inter_link_resumes(struct inter_link *l);

// What congestion control has learned about the way to a peer is old: bulk connections on which nothing queues learn it anew, as if they had just
// been opened, at no round trip (inter/link/tcp.h).
void inter_link_restart(struct inter_link *l, uint32_t peer);

uint32_t inter_link_protocol(const struct inter_link *l); // that this side speaks

// Of one peer, over all its connections since create. NEB_ERR_INVALID: no such peer.
NEB_MUST_CHECK enum neb_status inter_link_stats(struct inter_link *l, uint32_t peer,
                                                struct inter_link_stats *out);
// Sent to it on control and not acknowledged by its link; 0: it is down, or no such peer.
uint64_t inter_link_control_queued(struct inter_link *l, uint32_t peer);
uint32_t inter_link_port(const struct inter_link *l);    // the TCP port listened on; 0: none
uint64_t inter_link_refused(const struct inter_link *l); // handshakes that ZAP refused

// Takes a newer member list at once. Members whose names are known keep their index, new ones get
// the next. A member that is gone, or has other keys, is cut off (DOWN follows at the next
// process); one that is gone still gets what was sent to it before. rotated: name of the member
// whose new keys this version brings by rotation: its former ones stay good for `overlap` beside
// them. NULL: nobody's.
// *waiting: new members that are not let in, since more names came and went in this link's life than
// it has room for (SEC_MEMBERS_MAX): only a new link takes them. All else of the list is in use.
// NEB_ERR_DENIED: not newer.
NEB_MUST_CHECK enum neb_status inter_link_reload(struct inter_link *l, const struct sec_members *m,
                                                 const char *rotated, neb_ns overlap,
                                                 uint32_t *waiting);
// The list in use, by peer index: unsorted, and all zero where a member was revoked.
const struct sec_members *inter_link_members(const struct inter_link *l);
// The keys of a peer (or of this member) before a rotation, while they are good; or NULL. until
// (may be NULL): how long they are, monotonic time.
const struct sec_public *inter_link_previous_keys(const struct inter_link *l, uint32_t peer,
                                                  neb_ns *until);
// Hands such keys over to a new link.
void inter_link_keep_previous_keys(struct inter_link *l, uint32_t peer,
                                   const struct sec_public *former, neb_ns until);

#endif
