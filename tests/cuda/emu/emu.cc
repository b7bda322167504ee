// Fibers, barriers and warp operations behind cuda_runtime.h of this folder. One host thread; nothing here is for more.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "tests/cuda/emu/emu_queue.h"
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_UCONTEXT 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) ||                                                               \
    !defined(__x86_64__) // the sanitizer knows swapcontext, and not a switch of ours
#define EMU_UCONTEXT 1
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

extern "C" {
void emu_switch(void **save, void *load);
// tests set it; 0: fibers run in order. Bits 0 and 1: `apart` and `at_once` below
unsigned long long emu_seed = 1;
cudaError_t emu_last_error = cudaSuccess;
// A kernel reads memory that is not there. emu_launch_fails: from 1, the launch, counted down, that is one; 0: none. With emu_launch_loses the
// process is without a device from then on, as with CUDA, until emu_lost is 0 again. EMU_LOSES=N in the environment: the same of every
// process at its N-th launch.
long emu_launch_fails;
int emu_launch_loses, emu_lost;
}

namespace emu {

enum { STACK_BYTES = 96 << 10, WARP = 32, SLOT = 64, THREADS_MAX = 1024 };
enum wait { RUNS, AT_BLOCK, AT_WARP, ENDED };

struct copy {
    void *dst;
    const void *src;
    size_t bytes, zero_bytes;
    int group;
};

struct product { // of a warp group, this lane's part: two rows
    float *d;
    float a[2][16];
    uintptr_t b;
    bool turned, first, committed;
};

struct warp {
    unsigned char slots[2][WARP][SLOT];
};

struct fiber {
    position at;
    wait state;
    int lane;
    const char *what; // warp operation it waits in
    int turn;         // of its warp's two sets of slots
    warp *warp_of;
    std::vector<copy> copies;
    int groups; // committed so far
    std::vector<product> products;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#else
    void *sp;
#endif
    std::unique_ptr<unsigned char, decltype(&free)> stack{nullptr, free};
};

position *now;
dim3 block_dim, grid_dim;

static std::vector<fiber> fibers;
static std::vector<warp> warps;
static fiber *running;
static bool passes_on; // a fiber that waits hands over to the next lane itself
static const std::function<void()> *body;
// allocated exactly, so that the address sanitizer sees what passes its end
static unsigned char *shared_at;
static struct shared_end {
    ~shared_end() { free(shared_at); }
} shared_end;
static size_t shared_size;
static const char *kernel_name = "";
static std::mt19937_64 rng;
// warps run far ahead of each other; copies take place when they are issued
static bool apart, at_once;
#ifdef EMU_UCONTEXT
static ucontext_t scheduler;
#else
static void *scheduler;
#endif

void stop(const char *why) {
    fprintf(stderr, "emulated kernel %s, block %u %u %u, thread %u: %s\n", kernel_name,
            now ? now->block.x : 0, now ? now->block.y : 0, now ? now->block.z : 0,
            now ? now->thread.x : 0, why);
    abort();
}

#ifndef EMU_UCONTEXT
// Saves what a call must keep, changes the stack, restores.
__asm__(".text\n"
        ".globl emu_switch\n"
        ".type emu_switch,@function\n"
        "emu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size emu_switch,.-emu_switch\n"
        ".section .note.GNU-stack,\"\",@progbits\n"
        ".text\n");
#endif

static void leave() { // to the next lane of the warp, or the scheduler
    fiber *was = running;
    if (passes_on)
        for (int left = WARP - 1 - was->lane; left > 0; left--)
            if ((++running)->state == RUNS) {
                now = &running->at;
#ifdef EMU_UCONTEXT
                swapcontext(&was->context, &running->context);
#else
                emu_switch(&was->sp, running->sp);
#endif
                return;
            }
#ifdef EMU_UCONTEXT
    swapcontext(&was->context, &scheduler);
#else
    emu_switch(&was->sp, scheduler);
#endif
}

static void enter() {
    (*body)();
    if (!running->copies.empty())
        for (const copy &c : running->copies)
            if (c.bytes)
                stop("ends with an asynchronous copy that nobody waited for");
    if (!running->products.empty())
        stop("ends with a product that nobody waited for");
    running->state = ENDED;
    leave();
    abort();
}

// Tops of the stacks at different places of a page: at the same one, all would share a few lines of the processor's cache.
static size_t stack_bytes(size_t i) { return STACK_BYTES - (i * 128 + i / WARP * 64) % 4096; }

static void prepare(size_t i) {
    fiber &f = fibers[i];
    if (!f.stack)
        f.stack.reset((unsigned char *)aligned_alloc(4096, STACK_BYTES));
    f.lane = (int)(i % WARP);
    f.warp_of = &warps[i / WARP];
    f.copies.clear();
    f.products.clear();
    f.groups = 0;
    f.state = RUNS;
    f.turn = 0;
#ifdef EMU_UCONTEXT
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = stack_bytes(i);
    f.context.uc_link = nullptr;
    makecontext(&f.context, (void (*)())enter, 0);
#else
    void **sp = (void **)(void *)(f.stack.get() + stack_bytes(i));
    *--sp =
        nullptr; // a return address that nothing returns to; keeps the stack aligned as after a call
    *--sp = (void *)enter;
    for (int k = 0; k < 6; k++)
        *--sp = nullptr;
    f.sp = sp;
#endif
}

static void resume(fiber &f) {
    running = &f;
    now = &f.at;
#ifdef EMU_UCONTEXT
    swapcontext(&scheduler, &f.context);
#else
    emu_switch(&scheduler, f.sp);
#endif
}

// Lets a warp go on when all its lanes have come.
static bool release_warp(size_t w) {
    fiber *lanes = &fibers[w * WARP];
    for (int i = 0; i < WARP; i++)
        if (lanes[i].state != AT_WARP)
            return false;
    for (int i = 0; i < WARP; i++) {
        now = &lanes[i].at;
        if (lanes[i].what != lanes->what && strcmp(lanes[i].what, lanes->what))
            stop("lanes of one warp are in different warp operations");
        lanes[i].state = RUNS;
    }
    return true;
}

// Likewise all warps, and the block when all its threads have come. False at the end.
static bool release(size_t n) {
    bool any = false;
    size_t at_block = 0, ended = 0;
    for (size_t i = 0; i < n; i++) {
        at_block += fibers[i].state == AT_BLOCK;
        ended += fibers[i].state == ENDED;
    }
    for (size_t w = 0; w * WARP < n; w++)
        any |= release_warp(w);
    if (!any && at_block && at_block + ended == n) {
        if (ended)
            stop("a barrier that some threads have passed by");
        for (size_t i = 0; i < n; i++)
            fibers[i].state = RUNS;
        any = true;
    }
    if (!any && ended < n)
        stop("threads wait for others that do not come (divergent barrier or warp operation)");
    return any;
}

static void run_block(size_t n, std::vector<size_t> &order) {
    memset(shared_at, 0xff, shared_size);
    for (size_t i = 0; i < n; i++)
        prepare(i);
    do {
        for (size_t i : order) {
            if (fibers[i].state != RUNS)
                continue;
            resume(fibers[i]);
            // The first lane of a warp brings all of it to where the block has to meet.
            size_t w = i / WARP;
            passes_on = apart;
            do
                for (size_t k = w * WARP; apart && k < (w + 1) * WARP; k++)
                    if (fibers[k].state == RUNS)
                        resume(fibers[k]);
            while (apart && release_warp(w));
            passes_on = false;
        }
    } while (release(n));
}

static void run_grid(const char *what, dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void()> &f) {
    size_t n = (size_t)block.x * block.y * block.z;
    kernel_name = what;
    if (fibers.size() < n)
        fibers.resize(n);
    warps.resize((n + WARP - 1) / WARP);
    free(shared_at);
    void *room = nullptr;
    if (posix_memalign(&room, 128, shared_bytes ? shared_bytes : 1))
        stop("no memory for shared memory");
    shared_at = (unsigned char *)room;
    shared_size = shared_bytes;
    block_dim = block;
    grid_dim = grid;
    body = &f;
    rng.seed(emu_seed);
    apart = emu_seed % 2;
    at_once = emu_seed / 2 % 2;
    std::vector<size_t> order(n);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                for (size_t i = n; emu_seed && i > 1; i--)
                    std::swap(order[i - 1], order[rng() % i]);
                for (size_t i = 0; i < n; i++)
                    fibers[i].at = {{(unsigned)(i % block.x), (unsigned)(i / block.x % block.y),
                                     (unsigned)(i / block.x / block.y)},
                                    {x, y, z}};
                run_block(n, order);
            }
    now = nullptr;
}

// ---- the queue ------------------------------------------------------------------------------------------------

static std::deque<std::function<bool()>> queue; // true: has run
static size_t enqueued;                         // ever

static bool late() {
    static const bool on = getenv("EMU_LATE") && !strcmp(getenv("EMU_LATE"), "1");
    return on;
}

// As far as it gets.
static bool run_up_to(size_t position) {
    while (!queue.empty() && enqueued - queue.size() < position) {
        if (!queue.front()())
            return false;
        queue.pop_front();
    }
    return true;
}

static void put(std::function<bool()> job) {
    enqueued++;
    queue.push_back(std::move(job));
    if (!late())
        (void)run_up_to(enqueued);
}

cudaError_t enqueue(cudaStream_t s, std::function<void()> job) {
    if (captures(s))
        return note(std::move(job));
    put([job = std::move(job)] {
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
    running->state = AT_BLOCK;
    leave();
}

int lane() { return running->lane; }

const unsigned char *warp_gather(const char *what, const void *in, size_t size) {
    warp &w = *running->warp_of;
    int turn = running->turn;
    running->turn ^= 1;
    if (size > SLOT)
        stop("more than a slot holds");
    if (size == 4) // most: not a call
        memcpy(w.slots[turn][lane()], in, 4);
    else
        memcpy(w.slots[turn][lane()], in, size);
    running->what = what;
    running->state = AT_WARP;
    leave();
    return w.slots[turn][0];
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

using namespace emu;

size_t emu_position(void) { return enqueued; }

int emu_passed(size_t position) { return run_up_to(position); }

int emu_busy(void) { return !queue.empty(); }

// Who waits in a call of CUDA has no time limit there.
void emu_run_until(size_t position) {
    if (run_up_to(position))
        return;
    fprintf(stderr, "emulated CUDA: the host waits, without a time limit, behind a collective to "
                    "which other ranks have yet to come\n");
    abort();
}

void emu_goes_on(void) { (void)run_up_to(late() ? enqueued - queue.size() + 1 : enqueued); }

size_t emu_push(cudaStream_t s, int (*run)(void *op), void *op) {
    if (captures(s)) {
        (void)emu_forbidden();
        return 0;
    }
    put([=] { return run(op) != 0; });
    return enqueued;
}

// The job is copied.
cudaError_t emu_enqueue(cudaStream_t s, void (*run)(const void *job), const void *job,
                        size_t bytes) {
    std::vector<unsigned char> kept((const unsigned char *)job, (const unsigned char *)job + bytes);
    return enqueue(s, [=] { run(kept.data()); });
}

void mma_bf16_16816(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    uint32_t give[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned char *all = warp_gather("mma", give, sizeof give);
    int l = lane();
    // Rows l / 4 and 8 more of A, columns l % 4 * 2 and 1 more of B, as four lanes hold each of them: pairs along k.
    double s[4] = {0, 0, 0, 0};
    for (int k = 0; k < 8; k++) {
        uint32_t from_a[2], from_b[2];
        memcpy(from_a, all + SLOT * (l / 4 * 4 + k % 4) + (k >= 4 ? 8 : 0), sizeof from_a);
        for (int col = 0; col < 2; col++)
            memcpy(&from_b[col],
                   all + SLOT * ((l % 4 * 2 + col) * 4 + k % 4) + 16 + (k >= 4 ? 4 : 0), 4);
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 4; i++)
                s[i] += (double)half_of(from_a[i / 2], half) * (double)half_of(from_b[i % 2], half);
    }
    for (int i = 0; i < 4; i++)
        c[i] = (float)((double)c[i] + s[i]);
}

namespace emu {
void wgmma(float *d, const uint32_t a[4], const void *b, bool turned, bool first) {
    const unsigned char *all = warp_gather("wgmma", a, 16);
    product p = {d, {}, (uintptr_t)b, turned, first, false};
    if (blockDim.x % 128)
        stop("wgmma in a block that is not of warp groups");
    for (int k = 0; k < 16; k++)
        for (int half = 0; half < 2; half++) {
            uint32_t from;
            memcpy(&from, all + SLOT * (lane() / 4 * 4 + k % 8 / 2) + (k / 8 * 2 + half) * 4, 4);
            p.a[half][k] = half_of(from, k % 2);
        }
    running->products.push_back(p);
}
void wgmma_fence() {
    char none = 0;
    (void)warp_gather("wgmma.fence", &none, 1);
}
void wgmma_commit() {
    char none = 0;
    (void)warp_gather("wgmma.commit_group", &none, 1);
    for (product &p : running->products)
        p.committed = true;
}
// Element (column, k) of b. Eight rows of a tile are 1,024 bytes; the swizzle is of the address.
static float tile_element(const product &p, int column, int k) {
    int row = p.turned ? k : column, at = p.turned ? column : k;
    uintptr_t from = p.b + (uintptr_t)(row * 128 + at * 2);
    uint16_t bits;
    from ^= (from >> 7 & 7) << 4;
    memcpy(&bits, (const void *)from, sizeof bits);
    return half_of(bits, 0);
}
void wgmma_wait() {
    char none = 0;
    (void)warp_gather("wgmma.wait_group", &none, 1);
    for (const product &p : running->products) {
        if (!p.committed)
            stop("wgmma.wait_group before wgmma.commit_group");
        for (int n = 0; n < 8; n++)
            for (int i = 0; i < 4; i++) {
                double sum = p.first ? 0.0 : (double)p.d[4 * n + i];
                for (int k = 0; k < 16; k++)
                    sum += (double)p.a[i / 2][k] *
                           (double)tile_element(p, 8 * n + lane() % 4 * 2 + i % 2, k);
                p.d[4 * n + i] = (float)sum;
            }
    }
    running->products.clear();
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
