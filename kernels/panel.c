// SPDX-License-Identifier: Apache-2.0
// Asks the processor and the kernel for AMX (panel.h).
#include "kernels/panel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

// Linux: arch/x86/include/uapi/asm/prctl.h
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static bool here;

// The processor must have AMX. The kernel (Linux 5.16 and later) must permit it, since each
// thread's state then holds 8 KiB of tiles.
static void ask(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return;
    bool bf16 = d >> 22 & 1, tiles = d >> 24 & 1;
    here = bf16 && tiles && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool panel_amx_here(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask);
    return here;
}
#else
bool panel_amx_here(void) { return false; }
#endif
