// SPDX-License-Identifier: Apache-2.0
// Network namespaces with one TUN device each, made with system calls (no ip tool needed) and kept
// where `ip netns` looks for them: /run/netns/NAME. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN (root).
//
// Names made by the emulator are nebw<pid><letter>; the pid is that of the emulator, so whoever
// starts next can tell which ones are left over from a killed one.
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
// Makes the namespace: loopback up, TUN device `wan0` with IFF_VNET_HDR (TCP segmentation offload
// where the kernel has it) up, *tun_fd non-blocking. On failure nothing is left behind. The calling
// thread is back in its own namespace in any case.
NEB_MUST_CHECK enum neb_status wan_ns_create(const struct wan_site_cfg *cfg, int *tun_fd);
// Unmounts and removes the name. Processes inside keep the namespace alive, cut off, until they
// end.
void wan_ns_remove(const char *name);
// Removes nebw* namespaces whose emulator is gone; returns how many.
unsigned wan_ns_collect(void);
// Enters a namespace (network only; mounts stay as they are) and replaces this process by argv.
// Returns only on failure.
NEB_MUST_CHECK enum neb_status wan_ns_exec(const char *name, char *const argv[]);
// Can namespaces and TUN devices be made here? When not, `reason` says why.
bool wan_ns_probe(char *reason, size_t cap);

#endif
