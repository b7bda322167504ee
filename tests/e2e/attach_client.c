// SPDX-License-Identifier: Apache-2.0
// A trainer that uses only libnebula.h, for test_attach.sh. It pulls its parameters towards TARGET,
// so two of them have different values to average.
//
// usage: attach_client AGENT JOB TARGET [--die-at STEP | --detach-at STEP | --boast-at STEP]
//        attach_client AGENT JOB TARGET --mesh KIND RANKS [--own START | --base MODULUS]
//            [--die-at STEP | --bad KIND | [--load DIR] --save-at STEP DIR | --load DIR]
//
// --mesh: the loop has RANKS ranks, processes that hold parts of each tensor. rows, cols: of its
// rows or columns. hsdp: halves of the rows, each on half of the ranks. strided: a part of each
// half of the rows. The values do not depend on the mesh. --die-at: the last rank dies. --own: the
// loop has tensors of its own, of several dimensions and dtypes, for a job with `model: attached`;
// all values begin with START. --brief: the same, but the longest tensor is short. --other: the
// same, but one of them has another shape. --frozen: the same, but one that is frozen has other
// values. --base: besides the tensors of a built-in model, the loop has a frozen one, whose values
// are its indices modulo MODULUS. --bad: the last rank makes a mistake: it declares another name,
// leaves out a part, has a value that is not finite, makes another call, or closes (name, missing,
// nan, call, close).
// --save-at: writes parameters and state to DIR, and ends without a word. --load: continues from
// there, on any mesh.
//
// --device as the first option: all tensors are on the emulated device (loop_device.h), and steps
// are ops of the loop's stream, which run when the stream gets there. At the end rank 0 says how
// often its thread has waited for the device inside nebula_step.
//
// A step takes 5 ms, or STEP_MS of the environment, on a machine that computes it in this time.
// With --pace MS instead, every step takes MS milliseconds on any machine. Each step changes a 64th
// of the parameters by heavy-tailed random amounts with the seed TARGET (configs/stall-compare).
#include "agent/lib/libnebula.h"
#include "tests/e2e/loop_device.h"
#include "tests/e2e/loop_ranks.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void check(int status, const char *what) {
    if (status == NEBULA_OK)
        return;
    fprintf(stderr, "%s: status %d: %s\n", what, status, nebula_last_error());
    exit(10 + status);
}

enum { TENSORS_MAX = 4096, PIECES_MAX = 64 };
struct part { // a rectangle of a tensor
    struct nebula_piece p;
    int64_t size;
};
static struct part parts[TENSORS_MAX][PIECES_MAX];
static int n_parts[TENSORS_MAX];
static int64_t whole_size[TENSORS_MAX];
static int64_t shapes[TENSORS_MAX][NEBULA_DIMS_MAX];
static int dims[TENSORS_MAX];

static struct loop_device device; // stream NULL: the host

static float get(const struct part *p, int64_t i) {
    if (p->p.dtype == NEBULA_F32)
        return ((const float *)p->p.data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)p->p.data)[i] << 16; // bfloat16
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void set(const struct part *p, int64_t i, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (p->p.dtype == NEBULA_F32)
        ((float *)p->p.data)[i] = x;
    else
        ((uint16_t *)p->p.data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void chunk(int64_t n, int parts_of, int part, int64_t *at, int64_t *len) {
    int64_t each = (n + parts_of - 1) / parts_of;
    *at = each * part < n ? each * part : n;
    *len = *at + each < n ? each : n - *at;
}

// Elements [at, at + len) in dimension k of tensor t, and all of the others.
static void add_part(int i, const struct nebula_tensor *t, int k, int64_t at, int64_t len) {
    struct part *x = &parts[i][n_parts[i]++];
    x->p = (struct nebula_piece){.size = sizeof x->p, .dtype = t->dtype};
    x->size = 1;
    for (int d = 0; d < t->dims; d++) {
        x->p.offset[d] = d == k ? at : 0;
        x->p.extent[d] = d == k ? len : t->shape[d];
        x->size *= x->p.extent[d];
    }
    x->p.place = device.stream ? NEBULA_CUDA : NEBULA_HOST;
    if (device.stream ? device.alloc(&x->p.data, ((size_t)x->size + 1) * sizeof(float))
                      : !(x->p.data = calloc((size_t)x->size + 1, sizeof(float))))
        exit(2);
}

// What this rank holds of tensor i. Alone: two ranges, because rows need not be contiguous.
static void cut(int i, const struct nebula_tensor *t, const char *mesh, int rank, int ranks) {
    int k = !strcmp(mesh, "cols") && t->dims > 1 ? 1 : 0;
    int64_t n = t->dims ? t->shape[k] : 1, at = 0, len = 0;
    if (!t->dims) {
        add_part(i, t, -1, 0, 0);
    } else if (!*mesh) {
        add_part(i, t, 0, 0, n - n / 2);
        add_part(i, t, 0, n - n / 2, n / 2);
    } else if (!strcmp(mesh, "strided")) {
        for (int half = 0; half < 2; half++) {
            int64_t first, all;
            chunk(n, 2, half, &first, &all);
            chunk(all, ranks, rank, &at, &len);
            add_part(i, t, 0, first + at, len);
        }
    } else {
        bool hsdp = !strcmp(mesh, "hsdp");
        chunk(n, hsdp ? 2 : ranks, hsdp ? rank % 2 : rank, &at, &len);
        add_part(i, t, k, at, len);
    }
}

static const char *bad = ""; // the mistake of this rank

static void take_tensor(struct nebula *n, int i, const struct nebula_tensor *t, const char *mesh,
                        const struct loop_ranks *l) {
    struct nebula_tensor declared = *t;
    if (!strcmp(bad, "name") && i == 1)
        declared.name[0]++;
    t = &declared;
    check(nebula_declare(n, t), "nebula_declare");
    cut(i, t, mesh, l->hooks.rank, l->hooks.ranks);
    dims[i] = t->dims;
    whole_size[i] = 1;
    for (int d = 0; d < t->dims; d++)
        whole_size[i] *= shapes[i][d] = t->shape[d];
    for (int k = !strcmp(bad, "missing") && i == 1; k < n_parts[i]; k++) {
        parts[i][k].p.name = t->name;
        check(nebula_register(n, &parts[i][k].p), t->name);
    }
}

static void take_model(struct nebula *n, int tensors, const char *mesh,
                       const struct loop_ranks *l) {
    for (int i = 0; i < tensors; i++) {
        struct nebula_tensor t = {.size = sizeof t};
        check(nebula_tensor_at(n, i, &t), "nebula_tensor_at");
        take_tensor(n, i, &t, mesh, l);
    }
}

// The flat index of element e of part k in the whole tensor.
static int64_t flat_of(int i, int k, int64_t e) {
    const struct nebula_piece *p = &parts[i][k].p;
    int64_t flat = 0, pitch = 1;
    for (int d = dims[i] - 1; d >= 0; d--) {
        flat += (p->offset[d] + e % p->extent[d]) * pitch;
        e /= p->extent[d];
        pitch *= shapes[i][d];
    }
    return flat;
}

static void take_base(struct nebula *n, int i, const char *mesh, const struct loop_ranks *l,
                      long modulus) {
    struct nebula_tensor t = {.size = sizeof t, .name = "base", .dims = 2, .shape = {9, 50}};
    take_tensor(n, i, &t, mesh, l);
    for (int k = 0; k < n_parts[i]; k++)
        for (int64_t e = 0; e < parts[i][k].size; e++)
            set(&parts[i][k], e, (float)(flat_of(i, k, e) % modulus));
}

enum { FROZEN = 2 }; // tensors at the end of the list

static int take_own(struct nebula *n, const char *mesh, const struct loop_ranks *l, float start,
                    bool other, bool frozen, bool brief) {
    int modulus = frozen ? 401 : 97; // of the values of the last tensor
    static const struct nebula_tensor all[] = {
        {.name = "blocks.0.conv.weight", .dims = 4, .shape = {12, 5, 3, 3}},
        {.name = "wte", .dims = 2, .shape = {211, 24}},
        {.name = "ln.bias", .dims = 1, .shape = {37}},
        {.name = "blocks.0.half", .dims = 2, .shape = {40, 16}, .dtype = NEBULA_BF16},
        {.name = "scale"},
        {.name = "blocks.0.experts.1.w", .dims = 3, .shape = {3, 8, 6}},
        {.name = "long", .dims = 2, .shape = {3, 1500000}},
        {.name = "blocks.1.experts.base", .dims = 2, .shape = {45, 14}}, // frozen, may differ
        {.name = "blocks.2.base", .dims = 3, .shape = {6, 10, 7}, .dtype = NEBULA_BF16},
    };
    int count = sizeof all / sizeof *all;
    for (int i = 0; i < count; i++) {
        struct nebula_tensor t = all[i];
        t.size = sizeof t;
        t.trained = !strstr(t.name, "base");
        if (other && !strcmp(t.name, "wte"))
            t.shape[1]++;
        if (brief && !strcmp(t.name, "long"))
            t.shape[1] = 15;
        take_tensor(n, i, &t, mesh, l);
        for (int k = 0; k < n_parts[i]; k++)
            for (int64_t e = 0; e < parts[i][k].size; e++)
                set(&parts[i][k], e, i < count - 1 ? start : (float)(flat_of(i, k, e) % modulus));
    }
    return count - FROZEN;
}

// ---- a checkpoint of the loop's own: each array as a file, of which every rank writes its part
// -----

static const char *kept = ""; // its folder

static char *map(const char *name, int number, int64_t bytes) {
    char path[600], *at;
    snprintf(path, sizeof path, "%s/%d-%s", kept, number, name);
    for (at = path + strlen(kept) + 1; *at; at++)
        *at = *at == '/' ? '_' : *at;
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, bytes) != 0)
        exit(2);
    at = mmap(NULL, (size_t)bytes + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at;
}

static void keep_parameters(int tensors, bool load) {
    for (int i = 0; i < tensors; i++) {
        float *file = (float *)map("parameters", i, whole_size[i] * 4);
        for (int k = 0; k < n_parts[i]; k++)
            for (int64_t e = 0; e < parts[i][k].size; e++) {
                int64_t flat = flat_of(i, k, e);
                if (load)
                    set(&parts[i][k], e, file[flat]);
                else
                    file[flat] = get(&parts[i][k], e);
            }
    }
}

static void keep_state(struct nebula *n, bool load) {
    int32_t count = 0;
    check(nebula_state_count(n, &count), "nebula_state_count");
    for (int32_t i = 0; i < count; i++) {
        struct nebula_state_part p = {.size = sizeof p};
        check(nebula_state_at(n, i, &p), "nebula_state_at");
        if (p.type == NEBULA_STATE_BYTES) {
            int64_t *bytes = (int64_t *)map("bytes", 0, 8);
            *bytes = load ? *bytes : p.count;
            char *file = map(p.name, 0, *bytes);
            check(load ? nebula_state_set(n, i, file, *bytes) : nebula_state_get(n, i, file),
                  p.name);
            continue;
        }
        float *file = (float *)map(p.name, 0, p.total * 4) + p.offset;
        check(load ? nebula_state_set(n, i, file, p.count) : nebula_state_get(n, i, file), p.name);
    }
}

static double train(int tensors, float target) {
    double loss = 0, count = 0;
    for (int i = 0; i < tensors; i++)
        for (int k = 0; k < n_parts[i]; k++)
            for (int64_t e = 0; e < parts[i][k].size; e++) {
                float x = get(&parts[i][k], e), d = x - target;
                set(&parts[i][k], e, x - 0.02f * d);
                loss += (double)d * d;
                count++;
            }
    return count > 0 ? loss / count : 0;
}

struct train {
    int tensors;
    float target;
};
static void train_there(const void *job) {
    struct train t;
    memcpy(&t, job, sizeof t);
    (void)train(t.tensors, t.target);
}
// After every third step the stream runs as far as it may, so that a later step that does not wait
// for the exchange comes too early. Else it lags: the exchange must wait for it.
static double train_later(int tensors, float target, int64_t step) {
    const struct train t = {tensors, target};
    if (device.enqueue(device.stream, train_there, &t, sizeof t))
        exit(2);
    if (step % 3 == 0)
        (void)device.query(device.stream);
    return 1;
}

static double uniform(uint64_t *state) { // xorshift64, Marsaglia (2003); in [-0.5, 0.5)
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) * 0x1p-53 - 0.5;
}

static void wander(int tensors, int64_t step, uint64_t *state) {
    for (int i = 0; i < tensors; i++)
        for (int p = 0; p < n_parts[i]; p++)
            for (int64_t k = step % 64; k < parts[i][p].size; k += 64) {
                double u = uniform(state);
                float by = (float)(u * u * u * (*state % 16 ? 0.01 : 0.08));
                set(&parts[i][p], k, get(&parts[i][p], k) + by);
            }
}

static void sleep_until(struct timespec *at, double ms) { // until ms after *at; moves *at
    int64_t ns = at->tv_nsec + (int64_t)(ms * 1e6);
    at->tv_sec += ns / 1000000000;
    at->tv_nsec = ns % 1000000000;
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, at, NULL);
}

// The figures of steps on a device come later: after two more steps, or when the library waits.
static struct nebula_step_stats late[64];
static int n_late;

static int late_figures(void *user, int wait, struct nebula_step_stats *out) {
    (void)user;
    if (!n_late)
        return 1;
    if (!wait && n_late < 3)
        return NEBULA_NOT_YET;
    out->tokens = late[0].tokens, out->loss = late[0].loss, out->lr = late[0].lr;
    out->eval_loss = late[0].eval_loss;
    memmove(late, late + 1, (size_t)--n_late * sizeof *late);
    return 0;
}

static int step_later(struct nebula *n, const struct nebula_step_stats *s, int *state) {
    struct nebula_step_stats asked = NEBULA_STEP_STATS_INIT;
    asked.later = NEBULA_LATER | NEBULA_LATER_TOKENS;
    if (n_late == 64)
        return NEBULA_ERR_IO;
    late[n_late++] = *s;
    return nebula_step_with(n, &asked, state);
}

int main(int argc, char **argv) {
    struct nebula_attach_options o = {
        .size = sizeof o, .api = NEBULA_API, .threads = 1, .timeout_s = 30};
    struct nebula_info info = {.size = sizeof info};
    struct nebula *n;
    int state = NEBULA_TRAIN;
    if (argc < 4)
        return 2;
    o.agent = argv[1];
    o.job = argv[2];
    float target = strtof(argv[3], NULL);
    struct loop_ranks loop = {.hooks = {.ranks = 1}};
    const char *mesh = "";
    bool there = argc > 4 && !strcmp(argv[4], "--device");
    argv += there, argc -= there;
    if (argc > 6 && !strcmp(argv[4], "--mesh")) {
        mesh = argv[5];
        loop_start(&loop, (int)strtol(argv[6], NULL, 10));
        o.ranks = &loop.hooks;
        argv += 3, argc -= 3;
    }
    if (there) // each rank for itself
        loop_device_open(&device);
    o.hooks.figures = there && loop.hooks.rank == 0 ? late_figures : NULL;
    bool other = argc > 5 && !strcmp(argv[4], "--other"),
         frozen = argc > 5 && !strcmp(argv[4], "--frozen"),
         brief = argc > 5 && !strcmp(argv[4], "--brief"),
         own = other || frozen || brief || (argc > 5 && !strcmp(argv[4], "--own"));
    float start = own ? strtof(argv[5], NULL) : 0;
    argv += own ? 2 : 0, argc -= own ? 2 : 0;
    bool base = argc > 5 && !strcmp(argv[4], "--base");
    long modulus = base ? strtol(argv[5], NULL, 10) : 0;
    argv += base ? 2 : 0, argc -= base ? 2 : 0;
    int rank = loop.hooks.rank, ranks = loop.hooks.ranks;
    const char *from = argc > 5 && !strcmp(argv[4], "--load") ? argv[5] : "";
    if (*from && argc > 6)
        argv += 2, argc -= 2;
    const char *how = argc > 5 ? argv[4] : "";
    long at = argc > 5 ? strtol(argv[5], NULL, 10) : -1;
    if (!strcmp(how, "--bad") && rank == ranks - 1)
        bad = argv[5];
    double pace_ms = strcmp(how, "--pace") ? 0 : strtod(argv[5], NULL);
    double step_ms = getenv("STEP_MS") ? strtod(getenv("STEP_MS"), NULL) : 5;
    uint64_t state_random = 0x9e3779b97f4a7c15u * (uint64_t)(target + 1);
    check(nebula_attach(&o, &n), "nebula_attach");
    check(nebula_info_get(n, &info), "nebula_info_get");
    int tensors = info.tensors;
    if (own)
        tensors = take_own(n, mesh, &loop, start, other, frozen, brief);
    else
        take_model(n, tensors, mesh, &loop);
    if (modulus > 0)
        take_base(n, tensors, mesh, &loop, modulus);
    if (*from) {
        kept = from;
        keep_parameters(tensors, true);
        keep_state(n, true);
    }
    if (there)
        check(nebula_set_stream(n, device.stream), "nebula_set_stream");
    long waits = 0;
    check(nebula_begin(n), "nebula_begin");
    check(nebula_info_get(n, &info), "nebula_info_get");
    if (rank == 0)
        printf("begins at %lld\n", (long long)info.step);
    fflush(stdout);
    for (int64_t step = info.step; state == NEBULA_TRAIN && step < info.steps; step++) {
        if (step == at && !strcmp(how, "--die-at") && rank == ranks - 1)
            raise(SIGKILL);
        if (step == at && !strcmp(how, "--detach-at")) {
            check(nebula_close(&n, (double)NAN), "nebula_close");
            return 0;
        }
        if (step == at && !strcmp(how, "--boast-at")) {
            int status = nebula_step(n, 1ull << 40, 1.0, &state);
            fprintf(stderr, "status %d: %s\n", status, nebula_last_error());
            if (status != NEBULA_ERR_INVALID)
                return 4;
        }
        if (step == at && !strcmp(how, "--save-at") && argc > 6) {
            kept = argv[6];
            keep_parameters(tensors, false);
            keep_state(n, false);
            return loop_end(&loop, 0);
        }
        if (step == 5 && !strcmp(bad, "nan"))
            set(&parts[1][0], 3, NAN);
        if (step == 5 && !strcmp(bad, "call"))
            check(nebula_checkpoint(n), "nebula_checkpoint");
        if (step == 5 && !strcmp(bad, "close")) {
            check(nebula_close(&n, (double)NAN), "nebula_close");
            return 4;
        }
        int32_t ids[4] = {own ? 0 : (int32_t)step % info.vocab, 1, 2, 3};
        if (rank == 0 && !own) // so that the counts do not depend on the mesh
            check(nebula_count(n, ids, ids, 4), "nebula_count");
        struct timespec began;
        clock_gettime(CLOCK_MONOTONIC, &began);
        double loss = 1;
        if (pace_ms > 0)
            wander(tensors, step, &state_random);
        else
            loss = there ? train_later(tensors, target, step) : train(tensors, target);
        sleep_until(&began, pace_ms > 0 ? pace_ms : step_ms);
        struct nebula_step_stats s = NEBULA_STEP_STATS_INIT;
        s.tokens = 256, s.loss = loss, s.lr = 0.02;
        s.eval_loss = (step + 1) % 40 ? NEBULA_UNKNOWN : loss; // two such steps in a run
        waits -= there && step + 1 < info.steps ? device.blocked() : 0;
        check(step % 2 == 0        ? nebula_step(n, 256, loss, &state)
              : there && rank == 0 ? step_later(n, &s, &state)
                                   : nebula_step_with(n, &s, &state),
              "nebula_step");
        waits += there && step + 1 < info.steps ? device.blocked() : 0;
        if (nebula_step_count(n) <= step)
            return 5;
    }
    check(nebula_info_get(n, &info), "nebula_info_get");
    if (nebula_step_count(n) != info.step || nebula_step_count(NULL) != 0)
        return 5;
    if (there && device.synchronize(device.stream))
        return 5;
    double mean = 0, count = 0; // of this rank's part
    for (int i = 0; i < tensors; i++)
        for (int k = 0; k < n_parts[i]; k++)
            for (int64_t e = 0; e < parts[i][k].size; e++)
                mean += (double)get(&parts[i][k], e), count++;
    if (rank == 0)
        printf("state %d, %llu rounds, digest %s, mean %.3f\n", state,
               (unsigned long long)info.rounds, info.digest, mean / count);
    if (rank == 0 && there)
        printf("waits inside steps: %ld\n", waits);
    check(nebula_close(&n, 1.5), "nebula_close");
    if (n_late)
        return 5;
    return loop_end(&loop, state == NEBULA_DONE ? 0 : 3);
}
