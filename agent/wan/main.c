// SPDX-License-Identifier: Apache-2.0
// wanlink: an emulated wide-area network on one machine. `nebula --wan` starts it.
//
//     wanlink run   LINK… [--sites N] [--mtu 1500] [--ns NAME]… [COMMON…] [-- COMMAND…]
//     wanlink proxy LINK… [--sites N] [--between I-J] --listen HOST:PORT --connect HOST:PORT …
//                   [COMMON…] [-- COMMAND…]
//     wanlink exec NETNS -- COMMAND…   replaces this process by COMMAND in a site's namespace
//     wanlink ctl PATH COMMAND         sends one command to an emulator and prints the answer
//     wanlink probe    prints {"tun":true,"reason":""}, status 0; or "tun":false, status 3
//     wanlink gc       removes the namespaces of emulators that were killed
//
// LINK, for all pairs of sites and both directions:
//     --rate 100mbit    line rate; counts IP packets with their headers
//     --delay 40ms      ONE WAY: a ping takes 2 × delay, serialisation, and under 1 ms more
//     --wan R:D[:L]     short for --rate R --delay D/2 --loss L; D is the ROUND TRIP
//     --jitter 2ms      the delay wanders by ± this, without reordering
//     --loss 0.1%       in each direction
//     --reorder 0.1%    share of packets that other packets may pass
//     --queue 256KiB    drop-tail limit before the line; or 2bdp (default 1bdp, at least 64 KiB)
//     --rate-back, --delay-back, --loss-back, --queue-back   from the higher to the lower site
//     --pair 0-2:rate=10mbit,delay=5ms    other values for one pair; 0>2:… for one direction
//     --seed N          which packets are lost depends only on N and on their order
// COMMON:
//     --ctl PATH        control socket (commands: wanlink ctl PATH help)
//     --stats PATH      file for the statistics, one JSON line, written at the end
//     --die-with-parent    end when the thread that started wanlink ends
//     --die-with-stdin     end when stdin closes
//
// Without COMMAND, wanlink prints one line on stdout when it is ready, and nothing after it:
//     {"ready":true,"mode":"tun","pid":7,"sites":[{"netns":"nebw7a","addr":"10.77.0.1"},…],
//      "ctl":"PATH"|null}
//     {"ready":true,"mode":"proxy","pid":7,
//      "pairs":[{"listen_port":7001,"connect":"127.0.0.1:7000"}…],"ctl":…}
// COMMAND runs in the namespace of the caller. Its environment has WANLINK_SITES, WANLINK_NS0…,
// WANLINK_ADDR0… and WANLINK_CTL (proxy: without NS and ADDR). wanlink exits with its exit status.
// wanlink runs until SIGTERM, SIGINT, SIGHUP or the end of the parent, of stdin or of COMMAND, and
// then removes its namespaces.
//
// Exit status: 0, 1 failed, 2 wrong usage, 3 not possible here (no root or no TUN: use proxy).
#include "agent/wan/ns.h"
#include "agent/wan/opts.h"
#include "agent/wan/proxy.h"
#include "agent/wan/tun.h"

#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_IMPOSSIBLE = 3 };

static const char usage[] =
    "usage: wanlink run   [--rate 100mbit] [--delay 40ms | --wan 100mbit:80ms[:0.1%]] [--jitter "
    "2ms]\n"
    "                     [--loss 0.1%] [--reorder 0.1%] [--queue 256KiB|2bdp] [--rate-back R] "
    "[--delay-back D]\n"
    "                     [--loss-back L] [--queue-back Q] [--sites N] [--pair "
    "I-J:rate=R,delay=D]… [--seed N]\n"
    "                     [--ns NAME]… [--mtu N] [--ctl PATH] [--stats PATH] [--die-with-parent]\n"
    "                     [--die-with-stdin] [-- COMMAND…]\n"
    "       wanlink proxy (the same without --ns, --mtu, --loss, --reorder)\n"
    "                     [--between I-J] --listen HOST:PORT --connect HOST:PORT …\n"
    "       wanlink exec NETNS -- COMMAND…\n"
    "       wanlink ctl PATH COMMAND…\n"
    "       wanlink probe | gc | help\n"
    "--delay is one way; --wan takes the round trip. Exit status 3: this machine cannot do it.\n";

static int exit_of(enum neb_status st) {
    return st == NEB_OK ? 0 : st == NEB_ERR_INVALID ? EXIT_USAGE : EXIT_FAILED;
}

static void put_string(struct neb_buf *b, const char *s) {
    neb_buf_u8(b, '"');
    for (; *s != 0; s++) {
        if (*s == '"' || *s == '\\')
            wan_buf_printf(b, "\\%c", *s);
        else if ((unsigned char)*s < 0x20)
            wan_buf_printf(b, "\\u%04x", (unsigned)*s);
        else
            neb_buf_u8(b, (uint8_t)*s);
    }
    neb_buf_u8(b, '"');
}

static enum neb_status put_line(struct neb_buf *b) {
    neb_buf_u8(b, '\n');
    NEB_TRY(neb_buf_check(b));
    if (fwrite(b->p, 1, b->len, stdout) != b->len || fflush(stdout) != 0)
        return neb_fail_errno("wanlink: stdout");
    return NEB_OK;
}

static enum neb_status write_stats(const char *path, const struct wan_mesh *m) {
    if (path == NULL)
        return NEB_OK;
    struct neb_buf b = {0};
    wan_mesh_stats(m, neb_now(), &b);
    wan_buf_printf(&b, "\n");
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = neb_fs_write(path, b.p, b.len, 0644);
    neb_buf_free(&b);
    return st;
}

static enum neb_status set_site_env(unsigned i, const char *ns) {
    char name[32], value[32];
    snprintf(name, sizeof name, "WANLINK_NS%u", i);
    int bad = setenv(name, ns, 1);
    snprintf(name, sizeof name, "WANLINK_ADDR%u", i);
    snprintf(value, sizeof value, "10.77.0.%u", i + 1);
    bad |= setenv(name, value, 1);
    return bad ? neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for the environment") : NEB_OK;
}

static enum neb_status start_command(struct wan_loop *loop, const struct wan_opts *o) {
    char value[16];
    snprintf(value, sizeof value, "%u", o->sites);
    if (setenv("WANLINK_SITES", value, 1) != 0 ||
        setenv("WANLINK_CTL", o->ctl ? o->ctl : "", 1) != 0)
        return neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for the environment");
    return wan_loop_spawn(loop, o->command);
}

// The emulator competes for CPU with the programs that it connects. It needs little time itself,
// but a late packet distorts the link.
static void prefer_us(void) { (void)setpriority(PRIO_PROCESS, 0, -10); }

// Prints the line, or starts the command, then emulates until the end. Finishes `line`.
static enum neb_status serve(const struct wan_opts *o, const struct wan_mesh *mesh,
                             struct wan_loop *loop, const struct wan_engine_ops *ops,
                             struct neb_buf *line, int *code) {
    wan_buf_printf(line, "],\"ctl\":");
    if (o->ctl)
        put_string(line, o->ctl);
    else
        wan_buf_printf(line, "null");
    wan_buf_printf(line, "}");
    NEB_TRY(o->command ? start_command(loop, o) : put_line(line));
    if (!o->n_pair) // a proxy forwards streams, which a late packet does not distort
        prefer_us();
    NEB_TRY(wan_loop_run(loop, ops, code));
    return write_stats(o->stats, mesh);
}

static enum neb_status run_sites(const struct wan_opts *o, struct wan_mesh *mesh,
                                 struct wan_loop *loop, struct wan_site_cfg *site, unsigned *made,
                                 int *code) {
    struct neb_buf line = {0};
    struct wan_tun *tun = NULL;
    int fd[WAN_SITES_MAX];
    enum neb_status st = NEB_OK;
    wan_buf_printf(&line, "{\"ready\":true,\"mode\":\"tun\",\"pid\":%d,\"sites\":[", (int)getpid());
    for (unsigned i = 0; i < o->sites; i++) {
        site[i] = (struct wan_site_cfg){.number = i, .mtu = o->mtu};
        if (o->n_ns)
            snprintf(site[i].name, sizeof site[i].name, "%s", o->ns[i]);
        else
            wan_ns_name(i, site[i].name);
        NEB_TRY_GOTO(wan_ns_create(&site[i], &fd[i]), out);
        *made = i + 1;
        NEB_TRY_GOTO(set_site_env(i, site[i].name), out);
        wan_buf_printf(&line, "%s{\"netns\":\"%s\",\"addr\":\"10.77.0.%u\"}", i ? "," : "",
                       site[i].name, i + 1);
    }
    NEB_TRY_GOTO(wan_tun_create(mesh, fd, wan_loop_epoll(loop), &tun), out);
    struct wan_engine_ops ops = wan_tun_ops(tun);
    st = serve(o, mesh, loop, &ops, &line, code);
out:
    wan_tun_destroy(&tun);
    neb_buf_free(&line);
    return st;
}

static enum neb_status run_proxy(const struct wan_opts *o, struct wan_mesh *mesh,
                                 struct wan_loop *loop, int *code) {
    struct neb_buf line = {0};
    struct wan_proxy *proxy = NULL;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(wan_proxy_create(mesh, o->pair, o->n_pair, wan_loop_epoll(loop), &proxy), out);
    wan_buf_printf(&line, "{\"ready\":true,\"mode\":\"proxy\",\"pid\":%d,\"pairs\":[",
                   (int)getpid());
    for (unsigned i = 0; i < o->n_pair; i++) {
        wan_buf_printf(&line, "%s{\"listen_port\":%u,\"connect\":", i ? "," : "",
                       wan_proxy_port(proxy, i));
        put_string(&line, o->pair[i].connect);
        wan_buf_printf(&line, "}");
    }
    struct wan_engine_ops ops = wan_proxy_ops(proxy);
    st = serve(o, mesh, loop, &ops, &line, code);
out:
    wan_proxy_destroy(&proxy);
    neb_buf_free(&line);
    return st;
}

static int emulate(int argc, char **argv, bool proxy) {
    struct wan_site_cfg site[WAN_SITES_MAX];
    struct wan_mesh *mesh = calloc(1, sizeof *mesh);
    struct wan_opts *o = calloc(1, sizeof *o);
    struct wan_loop *loop = NULL;
    unsigned made = 0;
    int code = 0;
    char reason[256];
    enum neb_status st = mesh && o ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "wanlink: no memory");
    NEB_TRY_GOTO(st, out);
    NEB_TRY_GOTO(wan_opts_parse(argc, argv, proxy, o), out);
    NEB_TRY_GOTO(wan_opts_mesh(o, mesh), out);
    if (!proxy) {
        unsigned stale = wan_ns_collect();
        if (stale > 0)
            neb_info("wanlink: removed %u namespaces of killed emulators", stale);
        if (!wan_ns_probe(reason, sizeof reason)) {
            neb_fail(NEB_ERR_UNSUPPORTED,
                     "wanlink: run is not possible here, but wanlink proxy is: %s", reason);
            code = EXIT_IMPOSSIBLE;
            goto out;
        }
    }
    struct wan_loop_cfg cfg = {
        .ctl = o->ctl, .die_with_parent = o->die_with_parent, .die_with_stdin = o->die_with_stdin};
    NEB_TRY_GOTO(wan_loop_create(&cfg, mesh, &loop), out);
    st = proxy ? run_proxy(o, mesh, loop, &code) : run_sites(o, mesh, loop, site, &made, &code);
out:
    wan_loop_destroy(&loop);
    for (unsigned i = 0; i < made; i++)
        wan_ns_remove(site[i].name);
    free(o);
    free(mesh);
    return st == NEB_OK ? code : exit_of(st);
}

static int probe(void) {
    char reason[256];
    struct neb_buf b = {0};
    bool can = wan_ns_probe(reason, sizeof reason);
    wan_buf_printf(&b, "{\"tun\":%s,\"reason\":", can ? "true" : "false");
    put_string(&b, reason);
    wan_buf_printf(&b, "}");
    enum neb_status st = put_line(&b);
    neb_buf_free(&b);
    return st != NEB_OK ? EXIT_FAILED : can ? 0 : EXIT_IMPOSSIBLE;
}

static int send_command(int argc, char **argv) {
    char text[256];
    size_t n = 0;
    for (int i = 2; i < argc; i++) {
        int k = snprintf(text + n, sizeof text - n, "%s%s", i > 2 ? " " : "", argv[i]);
        if (k < 0 || (size_t)k >= sizeof text - n)
            return exit_of(neb_fail(NEB_ERR_INVALID,
                                    "wanlink: ctl: the command is longer than %zu bytes",
                                    sizeof text - 1));
        n += (size_t)k;
    }
    return exit_of(wan_ctl_client(argv[1], text));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!neb_fs_std_open())
        return 1;
    argc--, argv++;
    if (strcmp(what, "run") == 0 || strcmp(what, "proxy") == 0)
        return emulate(argc, argv, what[0] == 'p');
    if (strcmp(what, "exec") == 0 && argc > 2) {
        char **command = argv + (strcmp(argv[2], "--") == 0 ? 3 : 2);
        if (*command != NULL)
            return exit_of(wan_ns_exec(argv[1], command));
    }
    if (strcmp(what, "ctl") == 0 && argc > 2)
        return send_command(argc, argv);
    if (strcmp(what, "probe") == 0)
        return probe();
    if (strcmp(what, "gc") == 0) {
        printf("removed %u\n", wan_ns_collect());
        return 0;
    }
    bool help = strcmp(what, "help") == 0 || strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    fputs(usage, help ? stdout : stderr);
    return help ? 0 : EXIT_USAGE;
}
