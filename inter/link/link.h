// SPDX-License-Identifier: Apache-2.0
// The links to the other members: ZeroMQ over TCP with CURVE. Each peer has one control connection
// and n bulk connections.
//
// A member listens on one TCP port (a ROUTER). It dials every peer whose endpoint it knows (one
// DEALER for control, one for each bulk stripe). If both sides dial, the set of the side with the
// lower CURVE key is kept and the other set is closed.
//
//     dialler                                            listener
//     DEALER control ── HELLO{session,0,protocol} ─────► ROUTER (one port)
//     DEALER bulk 1  ── HELLO{session,1,protocol} ─────►   │
//     DEALER bulk n  ── HELLO{session,n,protocol} ─────►   └─ WELCOME{session,protocol}
//
// HELLO and WELCOME name the protocol and the build of the sender. If the protocols differ, no link
// is made. Both sides report this in their status, and in their log once and then once a minute.
//
// A set is up when control has exchanged HELLO and WELCOME. Control then carries PING/PONG and
// HEARTBEAT{connection, bytes}… both ways. A HEARTBEAT acknowledges received data: at once after 32
// KiB, and after 1.5 s in which this side sent nothing. A PING measures the round trip every 16 s
// (more often at first). A side closes the set when nothing arrives for 4.25 s or six round trips,
// whichever is longer (at most 20 s). Parts of a message count as arrival.
//
// The sender of a message is known from its connection's key, which ZAP checked (User-Id). Nothing
// that the peer claims counts: routing ids chosen by a peer are refused.
//
// Delivery is best effort, and unordered between channels. An accepted message may be lost when a
// connection breaks. A caller that needs more acknowledges and repeats (inter/round/transfer,
// inter/service). The LOST event tells when to repeat, if the peer is still there.
//
// Threads: a link belongs to one thread. ZeroMQ's I/O threads and the ZAP thread are inside.
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
    INTER_LINK_SLACK = 4096,                   // one message may exceed chunk_bytes by this
    INTER_LINK_CONTROL_MAX = 64 * 1024 + 4096, // largest control message
};

enum inter_link_kind { INTER_LINK_UP, INTER_LINK_DOWN, INTER_LINK_MSG, INTER_LINK_LOST };

struct inter_link_event {
    enum inter_link_kind kind;
    uint32_t peer;              // index into the member list given at create
    enum inter_channel channel; // of MSG
    const uint8_t *data;        // of MSG: borrowed, valid during the call
    size_t len;
    uint64_t way; // of LOST: id of a connection that broke with unacknowledged data; 0: any of them
};
typedef void inter_link_handler(void *user, const struct inter_link_event *e);

struct inter_link_config {
    const struct sec_identity *identity; // borrowed for the life of the link
    const struct sec_members *members;   // copied; must contain the identity
    const char *listen; // "HOST:PORT", "*:PORT" (port 0: any, see inter_link_port); NULL: dial only
    uint32_t n_bulk;    // 1..32; 0: found by trying (inter/link/stripes.h)
    const char
        *congestion;    // of all connections (inter/link/tcp.h), borrowed; NULL: bbr if permitted
    size_t chunk_bytes; // the largest bulk message is this + INTER_LINK_SLACK; 0: 1 MiB
    // limit of unacknowledged bulk bytes per peer, about 2 x BDP; 0: 64 MiB
    size_t bulk_queue_bytes;
    size_t control_queue_bytes; // the same for control; 0: 1 MiB
    neb_ns recycle;             // older connections are replaced without a pause; 0: one hour
    // What HELLO claims. 0 and NULL: the values of this build. Only tests set others.
    uint32_t protocol;
    const char *build;
    void *zmq_context; // borrowed; NULL: the link makes one. It holds this link's ZAP handler.
};

struct inter_link_stats {
    bool up;
    neb_ns since; // monotonic time of the last change of `up`
    neb_ns rtt;   // smoothed, from PING on control; 0: not known yet
    // The peer's time of day minus ours, exact to half a round trip; 0: not known.
    neb_ns clock_offset;
    // On the TCP sockets, with handshakes, ZMTP and CURVE. sent_bytes includes retransmissions.
    uint64_t sent_bytes, recv_bytes;
    // Sent by the caller, headers included. The link itself sent the rest of sent_bytes.
    uint64_t message_bytes;
    uint64_t payload_bytes; // of message_bytes: second parts (inter_link_send2) on bulk connections
    // TCP segments. IP bytes are TCP bytes plus 40 (IPv4) plus 12 (timestamps) bytes per segment.
    uint64_t sent_segs, recv_segs;
    uint32_t bulk_open, bulk_used;       // open connections; those that this side sends on
    char congestion[INTER_TCP_NAME_MAX]; // of the control connection; "": none
    uint64_t queued_bytes; // sent but not acknowledged by the peer's link, both channels
    uint64_t connects;     // times the peer came up
    uint64_t recycled;     // sets of connections that this side replaced because of their age
    uint64_t refused; // messages that were not accepted: bad frames, spoofed ids, stale sessions
    uint64_t dropped; // bytes that were unacknowledged when their connection broke
    uint64_t twins;   // minutes in which two agents seemed to use the peer's keys
    // From the peer's last HELLO or WELCOME; 0 and "" before the first one. differs: the peer
    // speaks another protocol, so no link is made.
    bool differs;
    uint32_t protocol;
    char build[NEB_BUILD_MAX];
    // Bytes that arrived and are not read yet; connections cut because these were too many.
    uint64_t held, cut;
};

struct inter_link;

// NEB_ERR_INVALID: bad configuration. NEB_ERR_IO: the port is not available.
NEB_MUST_CHECK enum neb_status inter_link_create(const struct inter_link_config *cfg,
                                                 struct inter_link **out);
void inter_link_destroy(struct inter_link **l);

// Copies the message. NEB_ERR_AGAIN: the peer is down or its queue is full; try after the next
// process. NEB_ERR_LIMIT: larger than the channel allows. NEB_ERR_INVALID: no such peer.
NEB_MUST_CHECK enum neb_status inter_link_send(struct inter_link *l, uint32_t peer,
                                               enum inter_channel channel, const void *data,
                                               size_t len);
// The same for a header and its payload. They arrive as one message.
NEB_MUST_CHECK enum neb_status inter_link_send2(struct inter_link *l, uint32_t peer,
                                                enum inter_channel channel, const void *hdr,
                                                size_t hlen, const void *data, size_t len);
// The same. *way: the id of the connection that carries the message, never 0 and never reused.
NEB_MUST_CHECK enum neb_status inter_link_send_on(struct inter_link *l, uint32_t peer,
                                                  enum inter_channel channel, const void *hdr,
                                                  size_t hlen, const void *data, size_t len,
                                                  uint64_t *way);

// Sends the heartbeats that are due to all peers, and nothing else. For a caller that waits for
// something longer than the peers tolerate silence.
void inter_link_heartbeat(struct inter_link *l);
// Does all pending work without blocking: dials, checks liveness, and calls handler(user, event)
// for every event. The handler may send. It must not call process or destroy.
NEB_MUST_CHECK enum neb_status inter_link_process(struct inter_link *l, inter_link_handler *handler,
                                                  void *user);
// Fills at most cap items to poll and returns their number. Sockets that do not fit are read at the
// deadline. The items change with every process. Call process when an item is readable or the
// deadline has come.
size_t inter_link_poll_items(const struct inter_link *l, zmq_pollitem_t *items, size_t cap);
neb_ns inter_link_next_deadline(const struct inter_link *l); // monotonic

// Limits what leaves this member, to all peers together, in bit/s of IP bytes; 0: no limit. Bulk
// waits. Control never waits, but counts. In any t seconds the link sends at most what the limit
// allows in t + 1 s, and uses that extra second only after a path was slower than the limit
// (inter/link/rate_limit.h). The caller may retry a refused bulk message at the next deadline.
void inter_link_limit(struct inter_link *l, uint64_t bps);
// True once, when a bulk message was refused because of the limit and would pass now.
bool inter_link_resumes(struct inter_link *l);

// Tells congestion control that its estimate of the path to a peer is old. Bulk connections with
// nothing queued start like new connections (inter/link/tcp.h). This costs no round trip.
void inter_link_restart(struct inter_link *l, uint32_t peer);

uint32_t inter_link_protocol(const struct inter_link *l); // the protocol that this side speaks

// The statistics of one peer: all its connections since create. NEB_ERR_INVALID: no such peer.
NEB_MUST_CHECK enum neb_status inter_link_stats(struct inter_link *l, uint32_t peer,
                                                struct inter_link_stats *out);
// The control connection to a peer: its id (never reused; 0: the peer is down or does not exist),
// the bytes of messages sent on it, and how many of these the peer's link has read.
struct inter_link_control {
    uint64_t way, sent, acked;
};
struct inter_link_control inter_link_control(struct inter_link *l, uint32_t peer);
uint32_t inter_link_port(const struct inter_link *l);    // the TCP port of the listener; 0: none
uint64_t inter_link_refused(const struct inter_link *l); // handshakes that ZAP refused

// Replaces the member list at once. A member whose name is known keeps its index. A new member gets
// the next index. A member that was removed or has other keys is cut off (DOWN follows at the next
// process). A removed member still gets what was sent to it before.
//
// rotated: the member that brings new keys by rotation in this version, or NULL. Its previous keys
// stay valid for `overlap` beside the new ones.
//
// *waiting: the number of new members that found no room, because this link has seen too many names
// (NEB_MEMBERS_MAX). Only a new link admits them. The rest of the list is in use.
//
// NEB_ERR_DENIED: the list is not newer.
NEB_MUST_CHECK enum neb_status inter_link_reload(struct inter_link *l, const struct sec_members *m,
                                                 const char *rotated, neb_ns overlap,
                                                 uint32_t *waiting);
// The list in use, by peer index. It is unsorted. The entry of a revoked member is all zero.
const struct sec_members *inter_link_members(const struct inter_link *l);
// The keys of a peer (or of this member) before a rotation while they are valid, or NULL. until
// (may be NULL): when they expire, monotonic time.
const struct sec_public *inter_link_previous_keys(const struct inter_link *l, uint32_t peer,
                                                  neb_ns *until);
// Gives a new link the keys that a peer had before a rotation.
void inter_link_keep_previous_keys(struct inter_link *l, uint32_t peer,
                                   const struct sec_public *former, neb_ns until);

#endif
