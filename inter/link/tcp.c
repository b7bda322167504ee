// SPDX-License-Identifier: Apache-2.0
#include "inter/link/tcp.h"

#include "agent/base/log.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// All zero if fd is no connection. Fields that an older kernel does not know are zero too.
static struct tcp_info info(int fd) {
    struct tcp_info ti = {0};
    socklen_t n = sizeof ti;
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &n) != 0)
        memset(&ti, 0, sizeof ti);
    return ti;
}

struct inter_tcp_counts inter_tcp_counts(int fd) {
    struct tcp_info ti = info(fd);
    return (struct inter_tcp_counts){ti.tcpi_bytes_sent, ti.tcpi_bytes_received, ti.tcpi_segs_out,
                                     ti.tcpi_segs_in};
}

uint64_t inter_tcp_acked(int fd) { return info(fd).tcpi_bytes_acked; }

uint32_t inter_tcp_data_segs(int fd) { return info(fd).tcpi_data_segs_in; }

neb_ns inter_tcp_least_rtt_of_queue(int fd) {
    const neb_ns clear =
        50 * NEB_MS; // margin for single late samples: the mean takes an eighth of each
    struct tcp_info ti = info(fd);
    neb_ns least = ti.tcpi_min_rtt == UINT32_MAX ? 0 : (neb_ns)ti.tcpi_min_rtt * 1000;
    return (neb_ns)ti.tcpi_rtt * 1000 > 2 * least + clear ? least : 0;
}

void inter_tcp_set_patience(int fd, neb_ns patience) {
    unsigned ms = (unsigned)(patience / NEB_MS);
    if (fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms) != 0)
        neb_debug("a connection keeps its previous TCP_USER_TIMEOUT");
}

bool inter_tcp_set_congestion(int fd, const char *name) {
    const char *want = name ? name : "bbr";
    return fd >= 0 &&
           setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, want, (socklen_t)strlen(want)) == 0;
}

void inter_tcp_congestion(int fd, char out[INTER_TCP_NAME_MAX]) {
    socklen_t n = INTER_TCP_NAME_MAX;
    memset(out, 0, INTER_TCP_NAME_MAX);
    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, out, &n) != 0)
        out[0] = 0;
    out[INTER_TCP_NAME_MAX - 1] = 0;
}

// Linux initialises an algorithm when it replaces another one. BBR's start also clears the slow
// start threshold.
void inter_tcp_restart(int fd) {
    char name[INTER_TCP_NAME_MAX];
    inter_tcp_congestion(fd, name);
    if (!name[0])
        return;
    bool other = strcmp(name, "bbr") && inter_tcp_set_congestion(fd, "bbr");
    if (!other && strcmp(name, "reno"))
        other = inter_tcp_set_congestion(fd, "reno");
    if (other && !inter_tcp_set_congestion(fd, name))
        neb_debug("a connection keeps another congestion control than %s", name);
}

bool inter_tcp_may_use(const char *name) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = inter_tcp_set_congestion(fd, name);
    if (fd >= 0)
        close(fd);
    return ok;
}

void inter_tcp_would_use(const char *name, char out[INTER_TCP_NAME_MAX]) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)inter_tcp_set_congestion(fd, name); // if refused, the system's algorithm stays
    inter_tcp_congestion(fd, out);
    if (fd >= 0)
        close(fd);
}

uint64_t inter_tcp_frame_bytes(uint64_t n) {
    enum { CURVE = 33, SHORT = 2, LONG = 9 }; // the length field of ZMTP has one byte or eight
    n += CURVE;
    return n + (n <= UINT8_MAX ? SHORT : LONG);
}

uint64_t inter_tcp_wire_bytes(uint64_t n) {
    enum { FRAME = 9 + 33, MSS = 1448 }; // ZMTP and CURVE; for an MTU of 1500 bytes
    n += FRAME;
    return n + (n + MSS - 1) / MSS * INTER_TCP_HEADERS;
}
