// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/doctor.h"
#include "agent/base/build_id.h"
#include "agent/base/clock.h"
#include "agent/proc/harden.h"
#include "agent/show/about.h"
#include "agent/show/progress.h"
#include "inter/link/socket_profile.h"
#include "inter/link/tcp.h"
#include "kernels/kern.h"
#include "kernels/pool.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

static const double clock_warn_s = 0.5, clock_fail_s = 30;

enum neb_status doctor_init(struct doctor *d) {
    *d = (struct doctor){.checks = json_array()};
    return d->checks ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory: doctor");
}

void doctor_free(struct doctor *d) {
    json_decref(d->checks);
    d->checks = NULL;
}

void doctor_add(struct doctor *d, const char *name, enum doctor_state s, const char *advice,
                const char *found, ...) {
    static const char *const states[] = {"ok", "warn", "fail"};
    char text[512];
    va_list ap;
    va_start(ap, found);
    vsnprintf(text, sizeof text, found, ap);
    va_end(ap);
    json_array_append_new(d->checks,
                          json_pack("{s:s,s:s,s:s,s:s}", "name", name, "state", states[s], "found",
                                    text, "advice", advice ? advice : ""));
    d->worst = s > d->worst ? s : d->worst;
}

void doctor_congestion(struct doctor *d, const char *system, bool may_bbr) {
    doctor_add(d, "congestion control", may_bbr ? DOCTOR_OK : DOCTOR_WARN,
               may_bbr ? ""
                       : "BBR fills long paths that lose packets; CUBIC needs many connections for "
                         "that. As root: modprobe tcp_bbr && sysctl -w "
                         "net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"",
               "the system's is %s; links %s", *system ? system : "unknown",
               may_bbr ? "use bbr" : "cannot use bbr, which is not permitted");
}

// Linux offers the other side about half of a buffer as window; the rest is for its own
// bookkeeping. A connection that carries nearly a window is limited by it, since no measurement can
// exceed it.
void doctor_buffers(struct doctor *d, int64_t recv_max, int64_t send_max,
                    const struct doctor_path *path) {
    const struct doctor_path guess = {1e9, 0.1, 8}, *p = path->rtt_s > 0 ? path : &guess;
    const double window = 0.5, nearly = 0.8, most = 2147483647; // most: limit of a sysctl
    double share = p->goodput_bps / 8 * p->rtt_s / p->connections;
    int64_t least = recv_max < send_max ? recv_max : send_max;
    char advice[256] = "";
    if (least < 0) {
        doctor_add(d, "socket buffers", DOCTOR_WARN, "",
                   "net.ipv4.tcp_rmem and tcp_wmem cannot be read");
        return;
    }
    bool small = share > nearly * window * (double)least;
    long long wanted = (long long)fmin(2 / window * share, most);
    if (small)
        snprintf(advice, sizeof advice,
                 "as root: sysctl -w net.ipv4.tcp_rmem=\"4096 131072 %lld\" "
                 "net.ipv4.tcp_wmem=\"4096 16384 %lld\"",
                 wanted, wanted);
    doctor_add(d, "socket buffers", small ? DOCTOR_WARN : DOCTOR_OK, advice,
               "a connection has at most %.1f MiB to receive and %.1f MiB to send, half of it in "
               "flight; one of %d has %.1f MiB in flight on %s",
               (double)recv_max / 1048576, (double)send_max / 1048576, p->connections,
               share / 1048576, p == path ? "the measured path" : "1 Gbit/s over 100 ms");
}

// Heartbeats are small and pass. So such a link comes up, breaks at each update, and comes up
// again.
void doctor_mtu(struct doctor *d, const char *setting) {
    bool off = !strcmp(setting, "0");
    doctor_add(
        d, "path MTU", off ? DOCTOR_WARN : DOCTOR_OK,
        off ? "if a tunnel on the path takes only smaller packets and ICMP is blocked, links come "
              "up but no update passes. At both ends, as root: sysctl -w net.ipv4.tcp_mtu_probing=1"
            : "",
        "%s",
        off        ? "the kernel relies on ICMP, which firewalls drop"
        : *setting ? "the kernel finds the packet size that passes"
                   : "net.ipv4.tcp_mtu_probing cannot be read");
}

void doctor_files(struct doctor *d, int64_t limit, int peers) {
    const int64_t need = INTER_DESCRIPTORS_OWN +
                         (int64_t)(peers > 0 ? peers : 1) * INTER_DESCRIPTORS_PEER +
                         4 * INTER_UNIDENTIFIED_LEAST;
    char advice[128] = "";
    if (limit >= 0 && limit < need)
        snprintf(advice, sizeof advice, "ulimit -n %lld, or LimitNOFILE= in the agent's unit",
                 (long long)need * 2);
    doctor_add(d, "open files", limit < need ? DOCTOR_WARN : DOCTOR_OK, advice,
               "limit %lld for an agent of this user; %d peers and strangers may need %lld",
               (long long)limit, peers, (long long)need);
}

void doctor_disk(struct doctor *d, const char *dir, int64_t free_bytes, int64_t need_bytes) {
    const int64_t least = (int64_t)1 << 30, good = (int64_t)10 << 30;
    char have[32], need[32];
    enum doctor_state s = free_bytes < least || free_bytes < need_bytes ? DOCTOR_FAIL
                          : free_bytes < good + need_bytes              ? DOCTOR_WARN
                                                                        : DOCTOR_OK;
    if (free_bytes < 0) {
        doctor_add(d, "disk", DOCTOR_FAIL, "make the folder, or give --home", "%s cannot be read",
                   dir);
        return;
    }
    doctor_add(d, "disk", s,
               s ? "free some space, or move the agent's home. On a full disk no checkpoint can be "
                   "written, and the job fails here; when there is room, nebula resume continues it"
                 : "",
               "%s free under %s; checkpoints of the job need %s",
               agent_human_bytes((double)free_bytes, have, sizeof have), dir,
               need_bytes > 0 ? agent_human_bytes((double)need_bytes, need, sizeof need)
                              : "(no job given)");
}

void doctor_user(struct doctor *d, bool root) {
    doctor_add(d, "user", root ? DOCTOR_WARN : DOCTOR_OK,
               root ? "run the agent as its own user (configs/systemd): it needs no root rights, "
                      "and a flaw in it would give them away"
                    : "",
               root ? "root" : "not root");
}

void doctor_keys(struct doctor *d, bool locked, int64_t limit) {
    if (locked)
        doctor_add(d, "keys in memory", DOCTOR_OK, "", "locked: they are not swapped out");
    else
        doctor_add(d, "keys in memory", DOCTOR_WARN,
                   "LimitMEMLOCK=infinity in the agent's unit (configs/systemd), or ulimit -l "
                   "before it starts",
                   "may be swapped out to disk: the limit of %lld KiB of locked memory is used up",
                   (long long)(limit < 0 ? 0 : limit / 1024));
}

void doctor_clock(struct doctor *d, int synchronised) {
    doctor_add(d, "clock", synchronised == 1 ? DOCTOR_OK : DOCTOR_WARN,
               synchronised == 1 ? ""
                                 : "run an NTP client (chrony): certificates, tokens and rate "
                                   "limits by time of day use it",
               synchronised == 1 ? "synchronised" : "not known to be synchronised");
}

void doctor_peer(struct doctor *d, const json_t *p) {
    const char *name = json_string_value(json_object_get(p, "name")),
               *endpoint = json_string_value(json_object_get(p, "endpoint")),
               *cc = json_string_value(json_object_get(p, "congestion")),
               *build = json_string_value(json_object_get(p, "build")),
               *own = json_string_value(json_object_get(p, "own_build"));
    double rtt = json_number_value(json_object_get(p, "rtt_ms")),
           goodput = json_number_value(json_object_get(p, "goodput_bps")),
           offset = json_number_value(json_object_get(p, "clock_offset_s"));
    bool dials = endpoint && *endpoint, up = json_is_true(json_object_get(p, "up"));
    char label[128], rate[32], advice[512] = "";
    snprintf(label, sizeof label, "peer %.64s", name ? name : "?");
    if (json_is_true(json_object_get(p, "protocol_differs"))) {
        doctor_add(
            d, label, DOCTOR_FAIL,
            "install the same version of nebula at both sites (here: nebula --version), and "
            "restart both agents",
            "the link is cut: it speaks protocol %lld (nebula %.64s), the agent here "
            "protocol %lld (nebula %.64s)",
            (long long)json_integer_value(json_object_get(p, "protocol")), build ? build : "?",
            (long long)json_integer_value(json_object_get(p, "own_protocol")), own ? own : "?");
        return;
    }
    if (!up) {
        snprintf(advice, sizeof advice,
                 dials ? "is an agent running there, does %.200s lead to it, and is its port open? "
                         "(there: nebula status; here: nc -vz HOST PORT)"
                       : "it should dial this side: is its agent running, and is this agent's port "
                         "reachable from there?%.0s",
                 dials ? endpoint : "");
        doctor_add(d, label, DOCTOR_FAIL, advice, "not connected%s%s",
                   dials ? "; dialled at " : "; it dials this agent", dials ? endpoint : "");
        return;
    }
    enum doctor_state s = fabs(offset) > clock_fail_s   ? DOCTOR_FAIL
                          : fabs(offset) > clock_warn_s ? DOCTOR_WARN
                                                        : DOCTOR_OK;
    doctor_add(d, label, s,
               s ? "the clocks of the two sites differ: run an NTP client on both" : "",
               "connected, round trip %.1f ms, goodput %s, clock %+.3f s, %s, sends on %lld of "
               "%lld connections",
               rtt, goodput > 0 ? agent_human_rate(goodput, rate, sizeof rate) : "not measured yet",
               offset, cc && *cc ? cc : "congestion control unknown",
               (long long)json_integer_value(json_object_get(p, "bulk_used")),
               (long long)json_integer_value(json_object_get(p, "bulk_open")));
}

static double share_of(const struct doctor_path *p) {
    return p->connections ? p->goodput_bps * p->rtt_s / p->connections : 0;
}

bool doctor_path(const json_t *peers, const char *only, struct doctor_path *out) {
    *out = (struct doctor_path){0};
    for (size_t i = 0; i < json_array_size(peers); i++) {
        const json_t *p = json_array_get(peers, i);
        const char *name = json_string_value(json_object_get(p, "name"));
        json_int_t used = json_integer_value(json_object_get(p, "bulk_used"));
        struct doctor_path x = {json_number_value(json_object_get(p, "goodput_bps")),
                                json_number_value(json_object_get(p, "rtt_ms")) / 1e3,
                                used > 1 ? (int)used : 1};
        if ((!only || (name && !strcmp(name, only))) && x.goodput_bps > 0 && x.rtt_s > 0 &&
            share_of(&x) > share_of(out))
            *out = x;
    }
    return out->rtt_s > 0;
}

// ---- reading ------------------------------------------------------------------------------------

static void read_text(const char *path, char *out, size_t cap) {
    FILE *f = fopen(path, "r");
    out[0] = 0;
    if (!f)
        return;
    if (!fgets(out, (int)cap, f))
        out[0] = 0;
    fclose(f);
    out[strcspn(out, "\n")] = 0;
}

static int64_t third_number(const char *path) { // "4096 131072 6291456"
    char text[128];
    long long a, b, c;
    read_text(path, text, sizeof text);
    return sscanf(text, "%lld %lld %lld", &a, &b, &c) == 3 ? c : -1;
}

void doctor_pages(struct doctor *d, const char *setting, bool trains) {
    bool off = strstr(setting, "[never]") != NULL;
    doctor_add(d, "huge pages", off && trains ? DOCTOR_WARN : DOCTOR_OK,
               off && trains ? "training on processors is faster with them. As root: echo madvise "
                               "> /sys/kernel/mm/transparent_hugepage/enabled"
                             : "",
               "%s",
               off                            ? "the kernel gives none"
               : strstr(setting, "[madvise]") ? "the kernel gives them on request, and workers ask"
               : strstr(setting, "[always]")  ? "the kernel gives them to all"
                                              : "this kernel does not have them");
}

static int count_gpus(void) {
    DIR *dir = opendir("/proc/driver/nvidia/gpus");
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

void doctor_machine(struct doctor *d, const char *home, int peers, int64_t need_bytes,
                    const struct doctor_path *path) {
    char text[128];
    char line[256];
    struct rlimit files;
    struct statvfs disk;
    struct stat owner;
    struct timex clock = {0};
    read_text("/proc/sys/net/ipv4/tcp_congestion_control", text, sizeof text);
    doctor_congestion(d, text, inter_tcp_may_use("bbr"));
    doctor_buffers(d, third_number("/proc/sys/net/ipv4/tcp_rmem"),
                   third_number("/proc/sys/net/ipv4/tcp_wmem"), path);
    read_text("/proc/sys/net/ipv4/tcp_mtu_probing", text, sizeof text);
    doctor_mtu(d, text);
    doctor_files(d, getrlimit(RLIMIT_NOFILE, &files) == 0 ? (int64_t)agent_descriptors(&files) : -1,
                 peers);
    doctor_disk(d, home, statvfs(home, &disk) == 0 ? (int64_t)(disk.f_bavail * disk.f_frsize) : -1,
                need_bytes);
    // The agent runs as the owner of its home, which may not exist yet.
    doctor_user(d, (stat(home, &owner) == 0 ? owner.st_uid : geteuid()) == 0);
    doctor_clock(d, adjtimex(&clock) < 0 ? -1 : !(clock.status & STA_UNSYNC));
    int gpus = count_gpus();
    read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text);
    doctor_pages(d, text, !gpus);
    json_t *about = agent_about();
    doctor_add(d, "build", DOCTOR_OK, "", "%s, %s", neb_build(),
               agent_about_line(about, line, sizeof line));
    json_decref(about);
    doctor_add(d, "processors", DOCTOR_OK, "", "%d threads, kernels for %s, linear algebra by %s",
               kern_pool_processors(), kern_cpu_isa(), kern_cpu_library());
    doctor_add(d, "GPU", DOCTOR_OK, "",
               gpus ? "%d by the NVIDIA driver" : "%d: training runs on processors", gpus);
}
