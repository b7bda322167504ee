// SPDX-License-Identifier: Apache-2.0
// TCP super-packets of a TUN device (IFF_VNET_HDR with TSO): up to 64 KiB in one read, which the
// kernel meant to be cut into segments by the network card. The emulator keeps them whole where it
// can, because one read and one write then carry forty packets, and cuts them where the fate of the
// segments differs.
//
// Shapes: a frame is `struct virtio_net_hdr` (10 bytes, host order) followed by an IPv4 packet.
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
    size_t seg_size;    // payload of a segment; == payload when there is only one
    unsigned segs;      // at least 1
    uint8_t dst[4];     // IPv4 destination
};

// Looks at a frame. False when it is not IPv4 or its headers lie (to be dropped).
bool wan_gso_parse(const uint8_t *frame, size_t len, struct wan_gso *out);
// Bytes of segment i on the line, IP header included.
size_t wan_gso_seg_bytes(const struct wan_gso *g, unsigned i);
// Bytes of a frame that holds segments [from, to) only.
size_t wan_gso_run_bytes(const struct wan_gso *g, unsigned from, unsigned to);
// Writes that frame: sequence number, IP id and lengths, flags and checksums are made right.
void wan_gso_run_write(const struct wan_gso *g, unsigned from, unsigned to, uint8_t *out);

#endif
