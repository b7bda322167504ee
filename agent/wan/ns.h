// SPDX-License-Identifier: Apache-2.0
// Network namespaces with one TUN device each. They are made with system calls, so the `ip` program
// is not needed, and they lie where `ip netns` looks for them: /run/netns/NAME. Needs CAP_SYS_ADMIN
// and CAP_NET_ADMIN (root).
//
// The default name is nebw<pid><letter> with the pid of the emulator. The next emulator finds by it
// the namespaces that a killed emulator has left.
#ifndef WANLINK_NS_H
#define WANLINK_NS_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { WAN_NS_NAME = 40 };

struct wan_site_cfg {
    char name[WAN_NS_NAME];
    unsigned number; // the address is 10.77.0.(number + 1)/24
    unsigned mtu;
};

// The default name of site `number` of this process.
void wan_ns_name(unsigned number, char out[WAN_NS_NAME]);
// Makes the namespace with loopback up and the TUN device `wan0` up. The device has IFF_VNET_HDR,
// and TCP segmentation offload if the kernel has it; *tun_fd is non-blocking. A failure leaves
// nothing behind. The calling thread always returns to its own namespace.
NEB_MUST_CHECK enum neb_status wan_ns_create(const struct wan_site_cfg *cfg, int *tun_fd);
// Unmounts and removes the name. The namespace itself lives, without a link, until the last process
// in it ends.
void wan_ns_remove(const char *name);
// Removes the nebw* namespaces of emulators that no longer run. Returns their number.
unsigned wan_ns_collect(void);
// Enters the network namespace (mounts stay the same) and replaces this process by argv. Returns
// only on failure.
NEB_MUST_CHECK enum neb_status wan_ns_exec(const char *name, char *const argv[]);
// True if this process can make namespaces and TUN devices. If not, `reason` says why.
bool wan_ns_probe(char *reason, size_t cap);

#endif
