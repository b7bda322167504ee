// SPDX-License-Identifier: Apache-2.0
#include "inter/link/syn_filter.h"

#include "agent/base/status.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/socket.h>

enum {
    IP = SKF_NET_OFF, // loads at this offset read the IP header, others the TCP header
    TCP_FLAGS = 13,
    SYN = 2,
    SYN_ACK = 0x12,
    IPV4_SOURCE = 12,
    IPV6_SOURCE = 8,
    DROP = 0,
    KEEP = -1,
    STEPS_MAX = 29 + 5 * INTER_SYN_FILTER_MAX
};

struct program {
    struct sock_filter step[STEPS_MAX];
    unsigned short n;
};

static void add(struct program *p, int code, uint32_t k, int yes, int no) {
    NEB_ASSERT(p->n < STEPS_MAX);
    p->step[p->n++] = (struct sock_filter){
        .code = (unsigned short)code, .jt = (uint8_t)yes, .jf = (uint8_t)no, .k = k};
}

static void load(struct program *p, int at) {
    add(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)at, 0, 0);
}

static void load_bits(struct program *p, int at, uint32_t bits) {
    add(p, BPF_LD | BPF_B | BPF_ABS, (uint32_t)at, 0, 0);
    add(p, BPF_ALU | BPF_AND | BPF_K, bits, 0, 0);
}

// The filter runs the next `skip` steps only if the loaded value is this one.
static void only(struct program *p, uint32_t value, int skip) {
    add(p, BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip);
}

static void end(struct program *p, int verdict) {
    add(p, BPF_RET | BPF_K, (uint32_t)verdict, 0, 0);
}

static uint32_t word(uint64_t from, int i) {
    uint32_t v;
    memcpy(&v, (const uint8_t *)&from + 4 * i, sizeof v);
    return ntohl(v);
}

static bool is_ipv4(uint64_t from) { return word(from, 0) == 0xffff; }

// Returns the verdict for requests from this IPv6 network. Takes five steps.
static void network(struct program *p, uint64_t from, int verdict) {
    load(p, IP + IPV6_SOURCE);
    only(p, word(from, 0), 3);
    load(p, IP + IPV6_SOURCE + 4);
    only(p, word(from, 1), 1);
    end(p, verdict);
}

bool inter_syn_filter(int listener, enum inter_syn rule, const uint64_t *from, uint32_t n) {
    struct program p = {.n = 0};
    const int listed = rule == INTER_SYN_ONLY_FROM ? KEEP : DROP,
              others = rule == INTER_SYN_ONLY_FROM ? DROP : KEEP;
    NEB_ASSERT(n <= INTER_SYN_FILTER_MAX);
    load_bits(&p, TCP_FLAGS, SYN_ACK);
    add(&p, BPF_JMP | BPF_JEQ | BPF_K, SYN, 1, 0);
    end(&p, KEEP);
    load_bits(&p, IP, 0xf0);
    only(&p, 0x40, 2);
    load(&p, IP + IPV4_SOURCE);
    unsigned short ipv4 = p.n;
    add(&p, BPF_JMP | BPF_JA, 0, 0, 0);
    load(&p, IP + IPV6_SOURCE);
    only(&p, 0x0064ff9b, 6); // 64:ff9b::a.b.c.d stands for that IPv4 address
    load(&p, IP + IPV6_SOURCE + 4);
    only(&p, 0, 4);
    load(&p, IP + IPV6_SOURCE + 8);
    only(&p, 0, 2);
    load(&p, IP + IPV6_SOURCE + 12);
    unsigned short translated = p.n;
    add(&p, BPF_JMP | BPF_JA, 0, 0, 0);
    for (uint32_t i = 0; i < n; i++)
        if (!is_ipv4(from[i]))
            network(&p, from[i], listed);
    if (rule == INTER_SYN_ONLY_FROM)
        network(&p, 0, listed);
    end(&p, others);
    p.step[ipv4].k = (uint32_t)(p.n - ipv4 - 1);
    p.step[translated].k = (uint32_t)(p.n - translated - 1);
    for (uint32_t i = 0; i < n; i++)
        if (is_ipv4(from[i])) {
            only(&p, word(from[i], 1), 1);
            end(&p, listed);
        }
    end(&p, others);
    struct sock_fprog program = {.len = p.n, .filter = p.step};
    for (int again = 0; again < 2; again++) {
        if (setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0)
            return true;
        // The old filter stays until the new one is there. If the socket's memory cannot hold both
        // (net.core.optmem_max), remove the old one first.
        (void)setsockopt(listener, SOL_SOCKET, SO_DETACH_FILTER, &program, sizeof program);
    }
    return false;
}
