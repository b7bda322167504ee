// SPDX-License-Identifier: Apache-2.0
// Cuts TCP super-packets into segments: see gso.h.
#include "agent/wan/gso.h"

#include <linux/virtio_net.h>
#include <netinet/in.h>
#include <string.h>

_Static_assert(sizeof(struct virtio_net_hdr) == WAN_VNET, "legacy virtio header");

enum {
    IP_TOTAL = 2,
    IP_ID = 4,
    IP_PROTO = 9,
    IP_SUM = 10,
    IP_SRC = 12,
    IP_DST = 16,
    TCP_SEQ = 4,
    TCP_OFFSET = 12,
    TCP_FLAGS = 13,
    TCP_SUM = 16,
    TCP_FIN = 0x01,
    TCP_PSH = 0x08,
    TCP_CWR = 0x80,
};

static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static void put16(uint8_t *p, unsigned v) { p[0] = (uint8_t)(v >> 8), p[1] = (uint8_t)v; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16), put16(p + 2, v & 0xffff); }

// The ones' complement sum (RFC 1071) of an even number of bytes, folded but not inverted.
static uint32_t sum16(const uint8_t *p, size_t n, uint32_t start) {
    uint32_t s = start;
    for (size_t i = 0; i + 1 < n; i += 2)
        s += get16(p + i);
    while (s >> 16)
        s = (s & 0xffff) + (s >> 16);
    return s;
}

bool wan_gso_parse(const uint8_t *frame, size_t len, struct wan_gso *out) {
    struct virtio_net_hdr v;
    if (len < WAN_VNET + 20)
        return false;
    memcpy(&v, frame, WAN_VNET);
    const uint8_t *ip = frame + WAN_VNET;
    size_t bytes = len - WAN_VNET, ip_hdr = (size_t)(ip[0] & 15) * 4;
    if (ip[0] >> 4 != 4 || ip_hdr < 20 || ip_hdr > bytes)
        return false;
    *out = (struct wan_gso){.frame = frame, .len = len, .ip_hdr = ip_hdr, .hdr = ip_hdr, .segs = 1};
    memcpy(out->dst, ip + IP_DST, 4);
    out->seg_size = out->payload = bytes - ip_hdr;
    unsigned type = v.gso_type & ~(unsigned)VIRTIO_NET_HDR_GSO_ECN;
    if (type == VIRTIO_NET_HDR_GSO_NONE)
        return true;
    if (type != VIRTIO_NET_HDR_GSO_TCPV4 || v.gso_size == 0 || ip[IP_PROTO] != IPPROTO_TCP ||
        bytes < ip_hdr + 20)
        return false;
    size_t tcp_hdr = (size_t)(ip[ip_hdr + TCP_OFFSET] >> 4) * 4;
    if (tcp_hdr < 20 || ip_hdr + tcp_hdr > bytes)
        return false;
    out->hdr = ip_hdr + tcp_hdr;
    out->payload = bytes - out->hdr;
    out->seg_size = v.gso_size;
    out->segs = (unsigned)((out->payload + v.gso_size - 1) / v.gso_size);
    if (out->segs == 0)
        out->segs = 1;
    return true;
}

static size_t run_payload(const struct wan_gso *g, unsigned from, unsigned to) {
    size_t start = from * g->seg_size, end = to == g->segs ? g->payload : to * g->seg_size;
    return end - start;
}

size_t wan_gso_seg_bytes(const struct wan_gso *g, unsigned i) {
    return g->hdr + run_payload(g, i, i + 1);
}

size_t wan_gso_run_bytes(const struct wan_gso *g, unsigned from, unsigned to) {
    return WAN_VNET + g->hdr + run_payload(g, from, to);
}

void wan_gso_run_write(const struct wan_gso *g, unsigned from, unsigned to, uint8_t *out) {
    if (from == 0 && to == g->segs) {
        memcpy(out, g->frame, g->len);
        return;
    }
    size_t n = run_payload(g, from, to), start = from * g->seg_size;
    uint8_t *ip = out + WAN_VNET, *tcp = ip + g->ip_hdr;
    memcpy(out, g->frame, WAN_VNET + g->hdr);
    memcpy(ip + g->hdr, g->frame + WAN_VNET + g->hdr + start, n);

    struct virtio_net_hdr v;
    memcpy(&v, out, WAN_VNET);
    v.flags |= VIRTIO_NET_HDR_F_NEEDS_CSUM;
    v.hdr_len = (uint16_t)g->hdr;
    v.csum_start = (uint16_t)g->ip_hdr;
    v.csum_offset = TCP_SUM;
    if (to - from == 1) {
        v.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        v.gso_size = 0;
    }
    memcpy(out, &v, WAN_VNET);

    put16(ip + IP_TOTAL, (unsigned)(g->hdr + n));
    put16(ip + IP_ID, get16(ip + IP_ID) + from);
    put16(ip + IP_SUM, 0);
    put16(ip + IP_SUM, ~sum16(ip, g->ip_hdr, 0) & 0xffff);

    put32(tcp + TCP_SEQ, get32(tcp + TCP_SEQ) + (uint32_t)start);
    if (from > 0)
        tcp[TCP_FLAGS] &= (uint8_t)~TCP_CWR; // belongs to the first segment only
    if (to < g->segs)
        tcp[TCP_FLAGS] &= (uint8_t) ~(TCP_FIN | TCP_PSH); // these belong to the last segment
    // Only the sum of the pseudo-header: NEEDS_CSUM asks the receiver of the frame to add the rest.
    put16(tcp + TCP_SUM, sum16(ip + IP_SRC, 8, (uint32_t)(IPPROTO_TCP + g->hdr - g->ip_hdr + n)));
}
