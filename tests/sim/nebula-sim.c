// SPDX-License-Identifier: Apache-2.0
// The federation in virtual time.
#include "agent/base/clock.h"
#include "agent/base/number.h"
#include "tests/sim/sim.h"

#include <getopt.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char help[] =
    "usage: nebula-sim [--seed N] [--seeds K] [--members M] [--witnesses W] [--rounds R]\n"
    "                  [--fragments F] [--jobs J] [--orderly] [--trace] [MODE]\n"
    "Random faults by seed: crashes between stores, cuts, one-way cuts, partitions, slow links,\n"
    "lost disks, skewed clocks, slow and killed workers, planned leaves, refused updates, and\n"
    "loss, duplication and reordering of messages. MODE changes this:\n"
    "  --byzantine  also one Byzantine member (nebula-sim-byzantine.c)\n"
    "  --idle       the worker of one of three or more members ends for good; its agent still\n"
    "               votes and stores\n"
    "  --rot        disks lose complete updates, but never the last copy\n"
    "  --terms      no faults, but one member sends false terms (nebula-sim-terms.c) and is not\n"
    "               revoked\n"
    "  --masked [--colluders F --members M] [--byzantine]\n"
    "               masked sums: nobody can read more than one sum a round; two or more members\n"
    "               are honest\n"
    "  --pace       no faults, but links and workers differ in speed: no round may wait without\n"
    "               need\n"
    "  --exhaustive single|double\n"
    "               every fault at every message and every store of an undisturbed run, or every\n"
    "               pair of faults\n"
    "Without --members, the number of members, witnesses and fragments follows from the seed.\n"
    "--jobs sets the number of processes (default 2). --orderly neither loses, doubles nor\n"
    "reorders messages. The exit status is 0 only without a violation.\n";

struct totals {
    uint64_t runs, messages, stores, committed, rejected, merges, returns, snapshots, taken_over;
    uint64_t no_room, rotten;
    uint64_t splits, caught, stuck[SIM_STUCKS];
    double seconds, detected;
};

static void add(struct totals *t, const struct sim_result *r) {
    t->runs++;
    t->messages += r->messages;
    t->stores += r->stores;
    t->committed += r->committed;
    t->snapshots += r->snapshots;
    t->no_room += r->no_room;
    t->rotten += r->rotten;
    t->taken_over += r->taken_over;
    t->rejected += r->rejected;
    t->merges += r->merges;
    t->returns += r->returns;
    t->seconds += r->seconds;
    t->splits += r->splits;
    t->caught += r->caught || r->splits;
    for (int k = 0; k < SIM_STUCKS; k++)
        t->stuck[k] += r->stuck[k];
    t->detected = r->detected > t->detected ? r->detected : t->detected;
}

static struct sim_options by_seed(const struct sim_options *given, uint64_t seed) {
    struct sim_options o = *given;
    uint64_t z = neb_mix64(seed + 77);
    o.seed = seed;
    if (o.masked) {
        static const uint8_t sizes[] = {3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 7};
        // at least 9: there must be at least as many messages as pairs
        uint32_t more = 8 + (uint32_t)(z >> 40) % 9;
        o.members = o.members ? o.members : z >> 32 & 63 ? sizes[z % 15] : more;
        o.witnesses = 0;
        if (!o.colluders)
            o.colluders =
                1 + (uint32_t)(z >> 24) % (o.members > 3 && z >> 12 & 1 ? o.members - 2 : 1);
    }
    if (!o.members && o.byzantine) {
        static const uint8_t sizes[] = {3, 3, 3, 4, 4, 5, 5, 6};
        o.members = sizes[z % 8];
        o.witnesses = z >> 8 & 1 && z >> 9 & 1;
        o.robust = o.members >= 5 && !o.witnesses && z >> 10 & 1;
    }
    if (!o.members && o.idle) {
        static const uint8_t sizes[] = {3, 3, 4, 4, 4, 5, 5, 6};
        o.members = sizes[z % 8];
        o.witnesses = o.members >= 4 && z >> 8 & 1 ? 1 : 0;
    }
    if (!o.members) {
        static const uint8_t sizes[] = {2, 2, 3, 3, 3, 4, 5, 5};
        o.members = sizes[z % 8];
        o.witnesses = o.members >= 3 && z >> 8 & 1 ? 1 : 0;
    }
    if (!o.fragments)
        o.fragments = 1 + (uint32_t)(z >> 16) % 3;
    return o;
}

static bool run_seeds(const struct sim_options *given, uint64_t from, uint64_t count, uint64_t job,
                      uint64_t jobs, struct totals *t) {
    for (uint64_t k = job; k < count; k += jobs) {
        struct sim_options o = by_seed(given, from + k);
        struct sim_result r;
        sim_run(&o, &r);
        add(t, &r);
        if (r.failed)
            return false;
    }
    return true;
}

// Tries every kind of fault at every place of an undisturbed run.
static uint64_t places(const struct sim_result *base, enum sim_fault_kind k) {
    return k < SIM_CRASH_BEFORE_STORE ? base->messages : base->stores;
}

static bool run_points(const struct sim_options *given, bool pairs, uint64_t job, uint64_t jobs,
                       struct totals *t) {
    // Pairs use the kinds that differ most: a lost message, a crashed receiver, a crash around a
    // store.
    static const enum sim_fault_kind all[] = {SIM_DROP_MESSAGE,      SIM_DOUBLE_MESSAGE,
                                              SIM_DELAY_MESSAGE,     SIM_CUT_AT_MESSAGE,
                                              SIM_CRASH_AT_MESSAGE,  SIM_CRASH_BEFORE_STORE,
                                              SIM_CRASH_AFTER_STORE, SIM_LOSE_DISK_AFTER_STORE},
                                     some[] = {SIM_DROP_MESSAGE, SIM_CRASH_AT_MESSAGE,
                                               SIM_CRASH_BEFORE_STORE, SIM_CRASH_AFTER_STORE};
    const enum sim_fault_kind *kinds = pairs ? some : all;
    size_t n_kinds = pairs ? sizeof some / sizeof *some : sizeof all / sizeof *all;
    struct sim_options o = by_seed(given, given->seed);
    struct sim_result base, r;
    uint64_t turn = 0;
    sim_run(&o, &base);
    if (base.failed)
        return false;
    for (size_t a = 0; a < n_kinds; a++)
        for (uint64_t i = 0; i < places(&base, kinds[a]); i++)
            for (size_t b = 0; b < (pairs ? n_kinds : 1); b++)
                for (uint64_t j = 0; j < (pairs ? places(&base, kinds[b]) : 1); j++) {
                    if (turn++ % jobs != job)
                        continue;
                    o.points[0] = (struct sim_point){kinds[a], i};
                    o.points[1] =
                        pairs ? (struct sim_point){kinds[b], j} : (struct sim_point){0, 0};
                    sim_run(&o, &r);
                    add(t, &r);
                    if (r.failed)
                        return false;
                }
    return true;
}

static uint64_t number(const char *text, const char *what, uint64_t max) {
    uint64_t v;
    if (!neb_number_whole(text, 0, max, &v)) {
        fprintf(stderr, "nebula-sim: %s needs a whole number of up to %llu, not \"%s\"\n", what,
                (unsigned long long)max, text);
        exit(2);
    }
    return v;
}

struct run {
    struct sim_options o;
    uint64_t count, jobs;
    bool exhaustive, pairs;
};

// Starts one process that runs its share and writes its totals to fd. False: it could not be
// started.
static bool start_job(const struct run *x, uint64_t j, int *fd_out) {
    int fd[2];
    if (pipe(fd)) {
        perror("nebula-sim: pipe");
        return false;
    }
    pid_t pid = fork();
    if (pid < 0) {
        perror("nebula-sim: fork");
        return false;
    }
    if (pid == 0) {
        struct totals t = {0};
        bool ok = x->exhaustive ? run_points(&x->o, x->pairs, j, x->jobs, &t)
                                : run_seeds(&x->o, x->o.seed, x->count, j, x->jobs, &t);
        bool told = write(fd[1], &t, sizeof t) == sizeof t;
        fflush(NULL);
        _exit(ok && told ? 0 : 1);
    }
    close(fd[1]);
    *fd_out = fd[0];
    return true;
}

// False: a violation, or a process that crashed.
static bool end_job(int fd, struct totals *sum) {
    struct totals t;
    int status;
    if (read(fd, &t, sizeof t) == sizeof t) {
        sum->runs += t.runs;
        sum->messages += t.messages;
        sum->stores += t.stores;
        sum->committed += t.committed;
        sum->snapshots += t.snapshots;
        sum->no_room += t.no_room;
        sum->rotten += t.rotten;
        sum->taken_over += t.taken_over;
        sum->rejected += t.rejected;
        sum->merges += t.merges;
        sum->returns += t.returns;
        sum->seconds += t.seconds;
        sum->splits += t.splits;
        sum->caught += t.caught;
        for (int k = 0; k < SIM_STUCKS; k++)
            sum->stuck[k] += t.stuck[k];
        sum->detected = t.detected > sum->detected ? t.detected : sum->detected;
    }
    close(fd);
    return wait(&status) >= 0 && WIFEXITED(status) && !WEXITSTATUS(status);
}

static void report(const struct sim_options *o, const struct totals *sum, bool good, double wall) {
    printf("%llu runs from seed %llu, %s: %.0f virtual hours, %llu messages, %llu stores, %llu "
           "commits (%llu merge rounds, %llu returns), %llu refused updates, %llu times without "
           "room, %llu snapshots, %llu updates of lost disks; %.1f s, %.0f runs a minute\n",
           (unsigned long long)sum->runs, (unsigned long long)o->seed,
           good ? "no violation" : "VIOLATION", sum->seconds / 3600,
           (unsigned long long)sum->messages, (unsigned long long)sum->stores,
           (unsigned long long)sum->committed, (unsigned long long)sum->merges,
           (unsigned long long)sum->returns, (unsigned long long)sum->rejected,
           (unsigned long long)sum->no_room, (unsigned long long)sum->snapshots,
           (unsigned long long)sum->taken_over, wall, 60 * (double)sum->runs / wall);
    if (o->rot)
        printf("%llu complete updates were lost\n", (unsigned long long)sum->rotten);
    if (o->byzantine)
        printf(
            "with a Byzantine member: it was exposed in %llu runs; in %llu of them members had "
            "diverged, and all knew within %.1f s; %llu runs stopped for an update that only the "
            "Byzantine member had, %llu because rounds need all members, %llu because each of two "
            "values of a term may be committed\n",
            (unsigned long long)sum->caught, (unsigned long long)sum->splits, sum->detected,
            (unsigned long long)sum->stuck[SIM_STUCK_UPDATE],
            (unsigned long long)sum->stuck[SIM_STUCK_NEEDED],
            (unsigned long long)sum->stuck[SIM_STUCK_TORN]);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"seed", 1, NULL, 's'},      {"seeds", 1, NULL, 'k'},      {"members", 1, NULL, 'm'},
        {"witnesses", 1, NULL, 'w'}, {"rounds", 1, NULL, 'r'},     {"fragments", 1, NULL, 'f'},
        {"jobs", 1, NULL, 'j'},      {"exhaustive", 1, NULL, 'x'}, {"trace", 0, NULL, 't'},
        {"byzantine", 0, NULL, 'l'}, {"orderly", 0, NULL, 'o'},    {"pace", 0, NULL, 'p'},
        {"terms", 0, NULL, 'y'},     {"idle", 0, NULL, 'i'},       {"rot", 0, NULL, 'd'},
        {"masked", 0, NULL, 'a'},    {"colluders", 1, NULL, 'c'},  {"help", 0, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    struct sim_options o = {.seed = 1, .rounds = 8, .chaos = true};
    uint64_t count = 1, jobs = 2;
    bool exhaustive = false, pairs = false, good = true;
    // Keep freed memory for the next run instead of returning it to the kernel.
    (void)mallopt(M_MMAP_THRESHOLD, 16 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 64 << 20);
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's': o.seed = number(optarg, "--seed", UINT64_MAX); break;
        case 'k': count = number(optarg, "--seeds", UINT64_MAX); break;
        case 'm': o.members = (uint32_t)number(optarg, "--members", UINT32_MAX); break;
        case 'w': o.witnesses = (uint32_t)number(optarg, "--witnesses", UINT32_MAX); break;
        case 'r': o.rounds = (uint32_t)number(optarg, "--rounds", UINT32_MAX); break;
        case 'f': o.fragments = (uint32_t)number(optarg, "--fragments", UINT32_MAX); break;
        case 'j': jobs = number(optarg, "--jobs", UINT64_MAX); break;
        case 'h': return fputs(help, stdout) < 0;
        case 't': o.trace = true; break;
        case 'o': o.orderly = true; break;
        case 'l': o.byzantine = true; break;
        case 'i': o.idle = true; break;
        case 'd': o.rot = true; break;
        case 'a': o.masked = true; break;
        case 'c': o.colluders = (uint32_t)number(optarg, "--colluders", NEB_MEMBERS_MAX); break;
        case 'y':
            o.byzantine = o.terms = true;
            o.chaos = false;
            break;
        case 'p':
            o.pace = true;
            o.chaos = false;
            break;
        case 'x':
            exhaustive = true;
            pairs = !strcmp(optarg, "double");
            if (pairs || !strcmp(optarg, "single"))
                break;
            // fall through
        default: fputs("nebula-sim: nebula-sim --help lists the options\n", stderr); return 2;
        }
    }
    if (o.members == 1 || o.members > NEB_MEMBERS_MAX || o.fragments > SIM_FRAGMENTS ||
        o.rounds < 1 || o.rounds > 40 || (o.members && o.witnesses > o.members - 2) ||
        (o.byzantine && (o.members == 2 || exhaustive)) || !jobs || jobs > 64 ||
        (o.masked && (o.members == 2 || (o.members && o.colluders + 2 > o.members))) ||
        (o.colluders && !(o.masked && o.members))) {
        fprintf(stderr,
                "nebula-sim: 2 to 16 members of which two have workers, 1 to 40 rounds, up to %d "
                "fragments, 1 to 64 jobs; masked: 3 members or more, two of them no colluders\n",
                SIM_FRAGMENTS);
        return 2;
    }
    if (exhaustive) {
        o.chaos = false;
        o.members = o.members ? o.members : 2;
        o.fragments = o.fragments ? o.fragments : 1;
    }
    if (o.trace || (count == 1 && !exhaustive))
        jobs = 1;
    const struct run x = {o, count, jobs, exhaustive, pairs};
    neb_ns start = neb_now();
    struct totals sum = {0};
    int pipes[64];
    for (uint64_t j = 0; j < jobs; j++)
        if (!start_job(&x, j, &pipes[j]))
            return 1;
    for (uint64_t j = 0; j < jobs; j++)
        good = end_job(pipes[j], &sum) && good;
    report(&o, &sum, good, neb_seconds(neb_now() - start));
    return good ? 0 : 1;
}
