// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/port.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOWEST = 10000, END = 20000, TRIES = 64 };

// The end of the range: END, or the lowest port that the kernel gives to clients.
static int range_end(void) {
    int low = END;
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    if (f && fscanf(f, "%d", &low) != 1)
        low = END;
    if (f)
        fclose(f);
    return low < END ? low : END;
}

static bool bind_to(bool everywhere, uint16_t port, int *fd, int *out) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons(port),
                            .sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    const int one = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return false;
    // Set after bind, so that this bind does not share a port that is reserved.
    if (bind(*fd, (struct sockaddr *)&a, len) == 0 &&
        setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        getsockname(*fd, (struct sockaddr *)&a, &len) == 0) {
        *out = ntohs(a.sin_port);
        return true;
    }
    close(*fd);
    *fd = -1;
    return false;
}

enum neb_status agent_port_bind(bool everywhere, int *fd, int *port) {
    int end = range_end();
    for (int i = 0; i < TRIES && end > LOWEST; i++) {
        uint32_t x;
        if (getrandom(&x, sizeof x, 0) == sizeof x &&
            bind_to(everywhere, (uint16_t)(LOWEST + x % (uint32_t)(end - LOWEST)), fd, port))
            return NEB_OK;
    }
    // All tried ports are in use, or clients may have any port.
    return bind_to(everywhere, 0, fd, port)
               ? NEB_OK
               : neb_fail_errno("cannot find a free port%s", everywhere ? "" : " on loopback");
}
