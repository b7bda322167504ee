// SPDX-License-Identifier: Apache-2.0
// Fibers, barriers and warp operations of cuda_runtime.h.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "tests/cuda/emu/emu_queue.h"
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_UCONTEXT 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) ||                                                               \
    !defined(__x86_64__) // the sanitizer knows swapcontext, but not our switch
#define EMU_UCONTEXT 1
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

extern "C" {
// set by tests; 0: fibers run in order. Bits 0 and 1: `apart` and `at_once`
unsigned long long emu_seed = 1;
thread_local cudaError_t emu_last_error = cudaSuccess;
// An injected illegal access. emu_launch_fails: the launch that fails, from 1, counted down; 0:
// none. With emu_launch_loses the process then has no device, as with CUDA, until emu_lost is 0.
// EMU_LOSES=N: the same at the N-th launch of every process.
long emu_launch_fails;
int emu_launch_loses, emu_lost;
}

#pragma GCC visibility push(hidden)
namespace emu {

enum { STACK_BYTES = 96 << 10, WARP = 32, SLOT = 64, THREADS_MAX = 1024 };
enum wait : unsigned char { RUNS, FRESH, AT_BLOCK, AT_WARP, ENDED }; // FRESH: has not started yet

struct copy {
    void *dst;
    const void *src;
    size_t bytes, zero_bytes;
    int group;
};

struct product { // of a warp group, this lane's part: two rows
    float *d;
    const uint32_t *registers; // where a comes from, and its values at the call; or `at`: a tile
    uint32_t were[4];
    float a[2][16];
    uintptr_t at, b;
    bool turned, first;
    int group;
};

struct warp {
    unsigned char slots[2][WARP][SLOT];
    int waiting;      // lanes
    const char *what; // the operation in which they wait
};

struct stack {
#ifdef EMU_UCONTEXT
    ucontext_t context;
#else
    void *sp;
#endif
    unsigned char *room;
};

struct fiber {
    position at;
    int turn; // which of the two sets of slots of its warp
    warp *warp_of;
    stack *on; // NULL before the start and after the end
    std::vector<copy> copies;
    int groups; // committed so far
    std::vector<product> products;
    int product_groups; // committed so far
};

position *now;
dim3 block_dim, grid_dim;

static fiber fibers[THREADS_MAX], host; // host: the launching context
static wait states[THREADS_MAX];
static warp warps[THREADS_MAX / WARP];
static fiber *running;
static size_t threads, at_block, ended;    // of the block: all, at the barrier, ended
static unsigned order[THREADS_MAX], place; // order of the threads; index of the next one
static size_t lane_at, lane_end; // with `apart`: lanes of a warp that run before the others
static const std::function<void()> *body;
// allocated exactly, so that the address sanitizer sees an overrun
static unsigned char *shared_at;
// An ended thread gives its stack to the next one, so kernels without barriers use one stack.
static stack stacks[THREADS_MAX], *spare[THREADS_MAX], host_stack;
static size_t n_stacks, n_spare;
static struct at_end {
    ~at_end() {
        free(shared_at);
        for (size_t i = 0; i < n_stacks; i++)
            free(stacks[i].room);
    }
} at_end;
static size_t shared_size;
static const char *kernel_name = "";
// apart: warps run far ahead of each other. at_once: copies happen when they are issued.
static bool apart, at_once;

void stop(const char *why) {
    fprintf(stderr, "emulated kernel %s, block %u %u %u, thread %u: %s\n", kernel_name,
            now ? now->block.x : 0, now ? now->block.y : 0, now ? now->block.z : 0,
            now ? now->thread.x : 0, why);
    abort();
}

// Inline, because this switch takes half of the emulator's time. The processor predicts the jump
// well, since all lanes of a warp continue at one place. The compiler saves the registers. It may
// also use the 128 bytes below the stack pointer.
__attribute__((always_inline)) static inline void change_stack(stack *from, stack *to) {
#ifdef EMU_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    void **save = &from->sp, *load = to->sp;
    __asm__ volatile("leaq -128(%%rsp), %%rsp\n"
                     "pushq %%rbp\n  pushq %%rbx\n"
                     "leaq 1f(%%rip), %%rax\n"
                     "pushq %%rax\n"
                     "movq %%rsp, (%[save])\n"
                     "movq %[load], %%rsp\n"
                     "popq %%rax\n"
                     "jmp *%%rax\n"
                     "1:\n"
                     "popq %%rbx\n  popq %%rbp\n"
                     "leaq 128(%%rsp), %%rsp\n"
                     : [save] "+D"(save), [load] "+S"(load)
                     :
                     : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                       "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory",
                       "cc");
#endif
}

// Lets a warp continue when all its lanes have arrived.
static bool release_warp(size_t w) {
    if (warps[w].waiting != WARP)
        return false;
    warps[w].waiting = 0;
    memset(&states[w * WARP], RUNS, WARP);
    return true;
}

// Lets all warps continue that have arrived, and the block when all its threads have arrived.
// False: the block has ended.
static bool release() {
    bool any = false;
    for (size_t w = 0; w * WARP < threads; w++)
        any |= release_warp(w);
    if (!any && at_block && at_block + ended == threads) {
        if (ended)
            stop("a barrier that some threads have passed by");
        memset(states, RUNS, threads);
        at_block = 0;
        any = true;
    }
    if (!any && ended < threads)
        stop("threads wait for others that do not come (divergent barrier or warp operation)");
    return any;
}

// Selects the next thread. With `apart` a warp's first lane makes the whole warp run up to the
// block's barrier.
__attribute__((noinline)) static fiber *next_of_all() {
    for (;;) {
        while (lane_end) {
            while (lane_at < lane_end)
                if (states[lane_at++] <= FRESH)
                    return &fibers[lane_at - 1];
            lane_at = lane_end - WARP;
            if (!release_warp(lane_at / WARP))
                lane_end = 0;
        }
        while (place < threads) {
            unsigned i = order[place++];
            if (states[i] > FRESH)
                continue;
            if (apart) {
                lane_at = i / WARP * WARP;
                lane_end = lane_at + WARP;
            }
            return &fibers[i];
        }
        if (!release())
            return &host;
        place = 0;
    }
}
__attribute__((always_inline)) static inline fiber *next() {
    if (lane_at < lane_end && states[lane_at] == RUNS)
        return &fibers[lane_at++];
    return next_of_all();
}

static void enter();

static stack *new_stack() {
    stack *s = &stacks[n_stacks];
    // Stacks begin at different places in a page. Otherwise all of them would share a few lines of
    // the processor's cache.
    size_t bytes = STACK_BYTES - (n_stacks * 128 + n_stacks / WARP * 64) % 4096;
    n_stacks++;
    s->room = (unsigned char *)aligned_alloc(4096, STACK_BYTES);
    if (!s->room)
        stop("no memory for a stack");
#ifdef EMU_UCONTEXT
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = s->room;
    s->context.uc_stack.ss_size = bytes;
    s->context.uc_link = nullptr;
    makecontext(&s->context, (void (*)())enter, 0);
#else
    void **sp = (void **)(void *)(s->room + bytes);
    *--sp = nullptr; // an unused return address; keeps the stack aligned as after a call
    *--sp = (void *)enter;
    s->sp = sp;
#endif
    return s;
}

static void begins(fiber *f, stack *on) {
    f->on = on;
    f->turn = f->groups = f->product_groups = 0;
    states[f - fibers] = RUNS;
}

__attribute__((always_inline)) static inline void go_on(fiber *f) {
    running = f;
    now = &f->at;
}

__attribute__((always_inline)) static inline void leave() {
    stack *was = running->on;
    fiber *f = next();
    if (!f->on)
        begins(f, n_spare ? spare[--n_spare] : new_stack());
    go_on(f);
    if (f->on != was) // a block of one thread may release itself from its barrier
        change_stack(was, f->on);
}

static void enter() {
    for (;;) {
        (*body)();
        fiber *was = running;
        if (!was->copies.empty()) {
            for (const copy &c : was->copies)
                if (c.bytes)
                    stop("ends with an asynchronous copy that nobody waited for");
            was->copies.clear();
        }
        if (!was->products.empty())
            stop("ends with a product that nobody waited for");
        stack *on = was->on;
        was->on = nullptr;
        states[was - fibers] = ENDED;
        ended++;
        fiber *f = next();
        if (!f->on) {
            begins(f, on);
            go_on(f);
            continue;
        }
        go_on(f);
        spare[n_spare++] = on;
        change_stack(on, f->on);
    }
}

static void run_block() {
    memset(shared_at, 0xff, shared_size);
    memset(states, FRESH, threads);
    at_block = ended = place = 0;
    lane_at = lane_end = 0;
    running = &host;
    host.on = &host_stack;
    leave();
}

static void run_grid(const char *what, dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void()> &f) {
    threads = (size_t)block.x * block.y * block.z;
    kernel_name = what;
    free(shared_at);
    void *room = nullptr;
    if (posix_memalign(&room, 128, shared_bytes ? shared_bytes : 1))
        stop("no memory for shared memory");
    shared_at = (unsigned char *)room;
    shared_size = shared_bytes;
    block_dim = block;
    grid_dim = grid;
    body = &f;
    uint64_t random =
        emu_seed * 0x9e3779b97f4a7c15u + 1; // xorshift64*: each block has its own order
    apart = emu_seed % 2;
    at_once = emu_seed / 2 % 2;
    unsigned i = 0;
    for (unsigned z = 0; z < block.z; z++)
        for (unsigned y = 0; y < block.y; y++)
            for (unsigned x = 0; x < block.x; x++, i++) {
                fibers[i].at.thread = {x, y, z};
                fibers[i].at.lane = (int)(i % WARP);
                fibers[i].warp_of = &warps[i / WARP];
                order[i] = i;
            }
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                for (i = (unsigned)threads; emu_seed && i > 1; i--) {
                    random ^= random >> 12;
                    random ^= random << 25;
                    random ^= random >> 27;
                    std::swap(order[i - 1], order[(random * 0x2545f4914f6cdd1du >> 32) * i >> 32]);
                }
                for (i = 0; i < threads; i++)
                    fibers[i].at.block = {x, y, z};
                run_block();
            }
    now = nullptr;
}

// ---- the queue ----

// Each stream has its own. With EMU_LATE ops of different streams run in the order of the waits, so
// a missing cudaStreamWaitEvent shows.
struct line {
    std::deque<std::function<bool()>> ops; // an op returns true when it has run
    size_t put;                            // since the stream's creation
};
static std::map<cudaStream_t, line> lines;
// Several host threads may use the device; one of them runs its ops at a time.
static std::recursive_mutex door;
using lock = std::lock_guard<std::recursive_mutex>;

static bool late() {
    static const bool on = getenv("EMU_LATE") && !strcmp(getenv("EMU_LATE"), "1");
    return on;
}

// Runs ops until one must wait.
static bool run_up_to(cudaStream_t s, size_t position) {
    lock hold(door);
    line &q = lines[s];
    while (!q.ops.empty() && q.put - q.ops.size() < position) {
        if (!q.ops.front()())
            return false;
        q.ops.pop_front();
    }
    return true;
}

static size_t put(cudaStream_t s, std::function<bool()> job) {
    lock hold(door);
    line &q = lines[s];
    size_t position = ++q.put;
    q.ops.push_back(std::move(job));
    if (!late())
        (void)run_up_to(s, position);
    return position;
}

cudaError_t enqueue(cudaStream_t s, std::function<void()> job) {
    if (captures(s))
        return note(std::move(job));
    put(s, [job = std::move(job)] {
        job();
        return true;
    });
    return cudaSuccess;
}

static bool goes_wrong() {
    static bool read;
    const char *loses = getenv("EMU_LOSES");
    if (!read && loses) {
        emu_launch_fails = strtol(loses, nullptr, 10);
        emu_launch_loses = 1;
    }
    read = true;
    if (emu_launch_fails > 0 && --emu_launch_fails == 0) {
        emu_lost = emu_launch_loses;
        return true;
    }
    return emu_lost;
}

void launch(const char *what, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t s, const std::function<void()> &f) {
    size_t n = (size_t)block.x * block.y * block.z;
    if (n < 1 || n > THREADS_MAX || shared_bytes > emu_dynamic_shared_of(kernel) || grid.x < 1 ||
        grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 ||
        n % WARP) {
        fprintf(stderr,
                "emulated launch of %s: grid %u %u %u, block %zu, %zu bytes of shared memory\n",
                what, grid.x, grid.y, grid.z, n, shared_bytes);
        emu_last_error = cudaErrorInvalidConfiguration;
        return;
    }
    cudaError_t e = goes_wrong()
                        ? cudaErrorIllegalAddress
                        : enqueue(s, [=] { run_grid(what, grid, block, shared_bytes, f); });
    if (e != cudaSuccess)
        emu_last_error = e;
}

unsigned char *dynamic_shared() { return shared_at; }

void block_barrier() {
    states[running - fibers] = AT_BLOCK;
    at_block++;
    leave();
}

const unsigned char *warp_gather(const char *what, const void *in, size_t size) {
    fiber *f = running;
    warp *w = f->warp_of;
    int turn = f->turn;
    f->turn ^= 1;
    if (size > SLOT)
        stop("more than a slot holds");
    if (size == 4) // most copies have 4 bytes: this avoids a call
        memcpy(w->slots[turn][f->at.lane], in, 4);
    else
        memcpy(w->slots[turn][f->at.lane], in, size);
    if (!w->waiting++)
        w->what = what;
    else if (w->what != what && strcmp(w->what, what))
        stop("lanes of one warp are in different warp operations");
    states[f - fibers] = AT_WARP;
    leave();
    return w->slots[turn][0];
}

static void carry_out(const copy &c) {
    if (c.bytes)
        memcpy(c.dst, c.src, c.bytes);
    memset((unsigned char *)c.dst + c.bytes, 0, c.zero_bytes);
}

void copy_later(void *dst, const void *src, size_t bytes, size_t zero_bytes) {
    size_t of = bytes + zero_bytes; // 4 or 16
    if ((uintptr_t)dst % of || (bytes && (uintptr_t)src % of))
        stop("an asynchronous copy that is not aligned to its size");
    running->copies.push_back({dst, src, bytes, zero_bytes, running->groups});
    if (at_once)
        carry_out(running->copies.back());
}
void copy_commit() { running->groups++; }
void copy_wait(int left) {
    size_t kept = 0;
    for (const copy &c : running->copies) {
        if (c.group >= running->groups - left) {
            running->copies[kept++] = c;
            continue;
        }
        if (!at_once)
            carry_out(c);
    }
    running->copies.resize(kept);
}

static float half_of(uint32_t pair, int which) {
    return __uint_as_float((which ? pair >> 16 : pair & 0xffff) << 16);
}

} // namespace emu
#pragma GCC visibility pop

using namespace emu;

size_t emu_position(cudaStream_t s) {
    lock hold(door);
    return lines[s].put;
}

int emu_passed(cudaStream_t s, size_t position) { return run_up_to(s, position); }

int emu_busy(cudaStream_t s) {
    lock hold(door);
    return !lines[s].ops.empty();
}

// A real call that waits has no time limit.
void emu_run_until(cudaStream_t s, size_t position) {
    if (run_up_to(s, position))
        return;
    fprintf(stderr, "emulated CUDA: the host waits, without a time limit, behind a collective to "
                    "which other ranks have yet to come\n");
    abort();
}

void emu_run_all(void) {
    lock hold(door);
    for (auto &one : lines)
        emu_run_until(one.first, one.second.put);
}

void emu_goes_on(cudaStream_t s) {
    lock hold(door);
    const line &q = lines[s];
    (void)run_up_to(s, late() ? q.put - q.ops.size() + 1 : q.put);
}

void emu_forget(cudaStream_t s) {
    lock hold(door);
    (void)run_up_to(s, lines[s].put);
    lines.erase(s);
}

cudaError_t emu_follow(cudaStream_t s, cudaStream_t other, size_t position) {
    if (captures(s))
        return emu_forbidden();
    put(s, [=] { return run_up_to(other, position); });
    return cudaSuccess;
}

size_t emu_push(cudaStream_t s, int (*run)(void *op), void *op) {
    if (captures(s)) {
        (void)emu_forbidden();
        return 0;
    }
    return put(s, [=] { return run(op) != 0; });
}

// The job is copied.
cudaError_t emu_enqueue(cudaStream_t s, void (*run)(const void *job), const void *job,
                        size_t bytes) {
    std::vector<unsigned char> kept((const unsigned char *)job, (const unsigned char *)job + bytes);
    return enqueue(s, [=] { run(kept.data()); });
}

// Four sums at once: rows 0 0 1 1 and columns 0 1 0 1 of a lane's part.
typedef double four __attribute__((vector_size(32)));

void mma_bf16_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    uint32_t give[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned char *all = warp_gather("mma", give, sizeof give);
    int l = lane();
    // Rows l / 4 and l / 4 + 8 of A, columns l % 4 * 2 and the next of B; four lanes hold each, as
    // pairs along k.
    four s = {0, 0, 0, 0};
    for (int k = 0; k < 8; k++) {
        uint32_t from_a[2], from_b[2];
        memcpy(from_a, all + SLOT * (l / 4 * 4 + k % 4) + (k >= 4 ? 8 : 0), sizeof from_a);
        for (int col = 0; col < 2; col++)
            memcpy(&from_b[col],
                   all + SLOT * ((l % 4 * 2 + col) * 4 + k % 4) + 16 + (k >= 4 ? 4 : 0), 4);
        for (int half = 0; half < 2; half++) {
            double r0 = (double)half_of(from_a[0], half), r1 = (double)half_of(from_a[1], half),
                   c0 = (double)half_of(from_b[0], half), c1 = (double)half_of(from_b[1], half);
            s += four{r0, r0, r1, r1} * four{c0, c1, c0, c1};
        }
    }
    for (int i = 0; i < 4; i++)
        c[i] = (float)((double)c[i] + s[i]);
}

namespace emu {
static void begin(product p) {
    if (blockDim.x % 128)
        stop("wgmma in a block that is not of warp groups");
    p.group = running->product_groups;
    running->products.push_back(p);
}
void wgmma(float *d, const uint32_t a[4], const void *b, bool turned, bool first) {
    const unsigned char *all = warp_gather("wgmma", a, 16);
    product p = {d, a, {a[0], a[1], a[2], a[3]}, {}, 0, (uintptr_t)b, turned, first, 0};
    for (int k = 0; k < 16; k++)
        for (int half = 0; half < 2; half++) {
            uint32_t from;
            memcpy(&from, all + SLOT * (lane() / 4 * 4 + k % 8 / 2) + (k / 8 * 2 + half) * 4, 4);
            p.a[half][k] = half_of(from, k % 2);
        }
    begin(p);
}
// All lanes name the same source.
void wgmma_shared(float *d, const void *a, const void *b, bool turned, bool first) {
    const void *given[2] = {a, b};
    const unsigned char *all = warp_gather("wgmma of shared memory", given, sizeof given);
    for (int i = 0; i < WARP; i++)
        if (memcmp(all + SLOT * i, given, sizeof given))
            stop("lanes of a product that name different tiles");
    begin({d, nullptr, {}, {}, (uintptr_t)a, (uintptr_t)b, turned, first, 0});
}
void wgmma_fence() {
    char none = 0;
    (void)warp_gather("wgmma.fence", &none, 1);
}
void wgmma_commit() {
    char none = 0;
    (void)warp_gather("wgmma.commit_group", &none, 1);
    running->product_groups++;
}
// Element (row, column) of a tile at `tile`. Eight rows are 1,024 bytes. The swizzle works on the
// address and keeps 16 bytes together: eight elements of a row.
static float tile_element(uintptr_t tile, int row, int column) {
    uintptr_t from = tile + (uintptr_t)(row * 128 + column * 2);
    uint16_t bits;
    from ^= (from >> 7 & 7) << 4;
    memcpy(&bits, (const void *)from, sizeof bits);
    return half_of(bits, 0);
}
// Elements (column, k) and (column + 1, k) of b, k in order.
static void tile_columns(const product &p, int column, double to[16][2]) {
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 2; i++)
            to[k][i] = (double)(p.turned ? tile_element(p.b, k, column + i)
                                         : tile_element(p.b, column + i, k));
}
static void carry_out(const product &p) {
    int row = (int)(threadIdx.x % 128) / WARP * 16 + lane() / 4;
    four a[16];
    if (p.registers && memcmp(p.registers, p.were, sizeof p.were))
        stop("registers that a product reads were written to before it was waited for");
    for (int k = 0; k < 16; k++) {
        double r0 = (double)(p.at ? tile_element(p.at, row, k) : p.a[0][k]),
               r1 = (double)(p.at ? tile_element(p.at, row + 8, k) : p.a[1][k]);
        a[k] = four{r0, r0, r1, r1};
    }
    for (int n = 0; n < 8; n++) {
        double b[16][2];
        float *d = p.d + 4 * n;
        four sum = {0, 0, 0, 0};
        tile_columns(p, 8 * n + lane() % 4 * 2, b);
        if (!p.first)
            sum = four{(double)d[0], (double)d[1], (double)d[2], (double)d[3]};
        for (int k = 0; k < 16; k++)
            sum += a[k] * four{b[k][0], b[k][1], b[k][0], b[k][1]};
        for (int i = 0; i < 4; i++)
            d[i] = (float)sum[i];
    }
}
void wgmma_wait(int left) {
    char none = 0;
    size_t kept = 0;
    (void)warp_gather("wgmma.wait_group", &none, 1);
    for (const product &p : running->products) {
        if (p.group == running->product_groups)
            stop("wgmma.wait_group before wgmma.commit_group");
        if (p.group >= running->product_groups - left)
            running->products[kept++] = p;
        else
            carry_out(p);
    }
    running->products.resize(kept);
}
} // namespace emu

static void load_matrices(uint32_t r[4], const void *row, bool trans) {
    if ((uintptr_t)row % 16)
        stop("ldmatrix of a row that is not aligned to 16 bytes");
    const unsigned char *all = warp_gather(trans ? "ldmatrix.trans" : "ldmatrix", row, 16);
    int l = lane();
    for (int m = 0; m < 4; m++) {
        uint16_t e[2];
        for (int i = 0; i < 2; i++) {
            int mr = trans ? l % 4 * 2 + i : l / 4, mc = trans ? l / 4 : l % 4 * 2 + i;
            memcpy(&e[i], all + 64 * (m * 8 + mr) + 2 * mc, 2);
        }
        r[m] = (uint32_t)e[0] | (uint32_t)e[1] << 16;
    }
}
void ldmatrix_x4(uint32_t r[4], const void *row) { load_matrices(r, row, false); }
void ldmatrix_x4_trans(uint32_t r[4], const void *row) { load_matrices(r, row, true); }
