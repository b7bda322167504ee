// SPDX-License-Identifier: Apache-2.0
// TCP super-packets of a TUN device (IFF_VNET_HDR with TSO). The kernel hands over up to 64 KiB in
// one read and expects the network card to cut them into segments. The emulator keeps a
// super-packet in one piece where it can, because one read and one write then carry some forty
// packets. It cuts a super-packet where its segments differ in fate.
//
// Shape: a frame is a `struct virtio_net_hdr` (10 bytes, host order), then an IPv4 packet.
#ifndef WANLINK_GSO_H
#define WANLINK_GSO_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WAN_VNET = 10,                       // bytes of the virtio header
    WAN_FRAME_MAX = WAN_VNET + 65535 + 1 // largest frame of a TUN device
};

struct wan_gso {
    const uint8_t *frame; // borrowed
    size_t len;
    size_t ip_hdr, hdr; // bytes: IP header; IP and TCP header together
    size_t payload;     // bytes behind the headers
    size_t seg_size;    // payload bytes of one segment; equals payload if there is only one
    unsigned segs;      // at least 1
    uint8_t dst[4];     // IPv4 destination
};

// Parses a frame. False if it is not IPv4 or its headers are inconsistent: the caller drops it.
bool wan_gso_parse(const uint8_t *frame, size_t len, struct wan_gso *out);
// Bytes of segment i on the line, headers included.
size_t wan_gso_seg_bytes(const struct wan_gso *g, unsigned i);
// Bytes of a frame that holds only the segments [from, to).
size_t wan_gso_run_bytes(const struct wan_gso *g, unsigned from, unsigned to);
// Writes that frame to `out`, with its own sequence number, IP id, lengths, flags and checksums.
void wan_gso_run_write(const struct wan_gso *g, unsigned from, unsigned to, uint8_t *out);

#endif
