// SPDX-License-Identifier: Apache-2.0
// Network namespaces and TUN devices: see ns.h.
#include "agent/wan/ns.h"

#include "agent/base/log.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define NETNS_DIR  "/run/netns"
#define OWN_NETNS  "/proc/thread-self/ns/net"
#define TUN_DEVICE "/dev/net/tun"

void wan_ns_name(unsigned number, char out[WAN_NS_NAME]) {
    snprintf(out, WAN_NS_NAME, "nebw%d%c", (int)getpid(), (int)('a' + number));
}

static enum neb_status ns_path(const char *name, char out[96]) {
    if (name[0] == 0 || name[0] == '.' || strchr(name, '/') != NULL || strlen(name) >= WAN_NS_NAME)
        return neb_fail(NEB_ERR_INVALID, "wanlink: '%s' is not a valid name of a network namespace",
                        name);
    snprintf(out, 96, NETNS_DIR "/%s", name);
    return NEB_OK;
}

// As `ip netns` does: the mount is shared, so every mount namespace sees the names.
static enum neb_status prepare_dir(void) {
    if (mkdir(NETNS_DIR, 0755) != 0 && errno != EEXIST)
        return neb_fail_errno("wanlink: cannot make " NETNS_DIR);
    if (mount("", NETNS_DIR, "none", MS_SHARED | MS_REC, NULL) == 0)
        return NEB_OK;
    if (errno != EINVAL || mount(NETNS_DIR, NETNS_DIR, "none", MS_BIND | MS_REC, NULL) != 0 ||
        mount("", NETNS_DIR, "none", MS_SHARED | MS_REC, NULL) != 0)
        return neb_fail_errno("wanlink: cannot mount " NETNS_DIR
                              " (root with CAP_SYS_ADMIN is needed)");
    return NEB_OK;
}

static bool interface_up(int sock, const char *name) {
    struct ifreq r = {0};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    if (ioctl(sock, SIOCGIFFLAGS, &r) != 0)
        return false;
    r.ifr_flags = (short)(r.ifr_flags | IFF_UP);
    return ioctl(sock, SIOCSIFFLAGS, &r) == 0;
}

static bool interface_address(int sock, const char *name, unsigned long what, const char *text) {
    struct ifreq r = {0};
    struct sockaddr_in a = {.sin_family = AF_INET};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    inet_pton(AF_INET, text, &a.sin_addr);
    memcpy(&r.ifr_addr, &a, sizeof a);
    return ioctl(sock, what, &r) == 0;
}

// Runs inside the new namespace: makes its devices and addresses.
static enum neb_status furnish(const struct wan_site_cfg *cfg, int *tun_fd) {
    // No IPv6 on the device: neighbour and router discovery would disturb the counters.
    int v6 = open("/proc/sys/net/ipv6/conf/default/disable_ipv6", O_WRONLY | O_CLOEXEC);
    if (v6 >= 0) {
        if (write(v6, "1", 1) != 1)
            neb_debug("wanlink: IPv6 stays on in %s", cfg->name);
        close(v6);
    }
    int tun = open(TUN_DEVICE, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (tun < 0)
        return neb_fail_errno("wanlink: cannot open " TUN_DEVICE);
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    snprintf(r.ifr_name, sizeof r.ifr_name, "wan0");
    int sock = -1;
    if (ioctl(tun, TUNSETIFF, &r) != 0) {
        enum neb_status st =
            neb_fail_errno("wanlink: cannot make a TUN device (CAP_NET_ADMIN is needed)");
        close(tun);
        return st;
    }
    // The device also works without offload, with one system call per packet.
    if (ioctl(tun, TUNSETOFFLOAD, (unsigned long)(TUN_F_CSUM | TUN_F_TSO4)) != 0)
        neb_debug("wanlink: no segmentation offload");
    char address[24];
    snprintf(address, sizeof address, "10.77.0.%u", cfg->number + 1);
    sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    r = (struct ifreq){.ifr_mtu = (int)cfg->mtu};
    snprintf(r.ifr_name, sizeof r.ifr_name, "wan0");
    if (sock < 0 || ioctl(sock, SIOCSIFMTU, &r) != 0 || !interface_up(sock, "lo") ||
        !interface_address(sock, "wan0", SIOCSIFADDR, address) ||
        !interface_address(sock, "wan0", SIOCSIFNETMASK, "255.255.255.0") ||
        !interface_up(sock, "wan0")) {
        enum neb_status st = neb_fail_errno("wanlink: %s: cannot set up the TUN device", cfg->name);
        if (sock >= 0)
            close(sock);
        close(tun);
        return st;
    }
    close(sock);
    *tun_fd = tun;
    return NEB_OK;
}

enum neb_status wan_ns_create(const struct wan_site_cfg *cfg, int *tun_fd) {
    char path[96];
    enum neb_status st = NEB_OK;
    NEB_TRY(ns_path(cfg->name, path));
    NEB_TRY(prepare_dir());
    int home = open(OWN_NETNS, O_RDONLY | O_CLOEXEC);
    if (home < 0)
        return neb_fail_errno("wanlink: " OWN_NETNS);
    int name = open(path, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (name < 0) {
        st = neb_fail_errno("wanlink: namespace %s", path);
        close(home);
        return st;
    }
    close(name);
    if (unshare(CLONE_NEWNET) != 0) {
        st = neb_fail_errno("wanlink: cannot make a network namespace");
    } else {
        if (mount(OWN_NETNS, path, "none", MS_BIND, NULL) != 0)
            st = neb_fail_errno("wanlink: cannot mount %s", path);
        if (st == NEB_OK)
            st = furnish(cfg, tun_fd);
        if (setns(home, CLONE_NEWNET) != 0) {
            // The process must not continue in the wrong namespace.
            neb_fail_errno("wanlink: cannot return to the first network namespace");
            abort();
        }
    }
    close(home);
    if (st != NEB_OK)
        wan_ns_remove(cfg->name);
    return st;
}

void wan_ns_remove(const char *name) {
    char path[96];
    if (ns_path(name, path) != NEB_OK)
        return;
    (void)umount2(path, MNT_DETACH); // an error is fine: perhaps only the file exists yet
    if (unlink(path) != 0 && errno != ENOENT)
        neb_warn("wanlink: cannot remove %s: %s", path, strerror(errno));
}

// The pid in nebw<pid><letter>; 0 if the name has another form.
static long owner_of(const char *name) {
    char *end;
    if (strncmp(name, "nebw", 4) != 0 || name[4] < '1' || name[4] > '9')
        return 0;
    errno = 0;
    long pid = strtol(name + 4, &end, 10);
    return errno == 0 && *end >= 'a' && *end <= 'z' && end[1] == 0 ? pid : 0;
}

// Another program may have the pid by now, so the program's name must match too.
static bool emulator_alive(long pid) {
    char path[64], comm[32] = "";
    snprintf(path, sizeof path, "/proc/%ld/comm", pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    bool read = fgets(comm, sizeof comm, f) != NULL;
    fclose(f);
    return read && strncmp(comm, "wanlink", 7) == 0;
}

unsigned wan_ns_collect(void) {
    unsigned n = 0;
    DIR *d = opendir(NETNS_DIR);
    if (d == NULL)
        return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        long pid = owner_of(e->d_name);
        if (pid > 0 && !emulator_alive(pid)) {
            wan_ns_remove(e->d_name);
            n++;
        }
    }
    closedir(d);
    return n;
}

enum neb_status wan_ns_exec(const char *name, char *const argv[]) {
    char path[96];
    NEB_TRY(ns_path(name, path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return neb_fail_errno("wanlink: namespace %s", path);
    if (setns(fd, CLONE_NEWNET) != 0)
        return neb_fail_errno("wanlink: cannot enter %s", path);
    execvp(argv[0], argv);
    return neb_fail_errno("wanlink: cannot run '%s'", argv[0]);
}

struct capture {
    char *text;
    size_t cap;
};

static void keep_first(void *user, enum neb_log_level level, const char *text) {
    struct capture *c = user;
    if (level == NEB_LOG_ERROR && c->text[0] == 0)
        snprintf(c->text, c->cap, "%s", text);
}

bool wan_ns_probe(char *reason, size_t cap) {
    // site 'z': no emulator has so many sites
    struct wan_site_cfg cfg = {.number = 25, .mtu = 1500};
    struct capture c = {reason, cap};
    int tun = -1;
    wan_ns_name(cfg.number, cfg.name);
    reason[0] = 0;
    neb_log_set_sink(keep_first, &c);
    enum neb_status st = wan_ns_create(&cfg, &tun);
    neb_log_set_sink(NULL, NULL);
    if (st != NEB_OK)
        return false;
    close(tun);
    wan_ns_remove(cfg.name);
    return true;
}
