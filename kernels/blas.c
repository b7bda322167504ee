// Which kernels OpenBLAS computes with. It chooses by the processor's model when it is loaded; releases before 0.3.25 (Debian 12
// has 0.3.21) take an Intel model that is newer than they are for the last one they could not mistake, Prescott of 2004, whose
// products use a fifth of the processor (their issue 4267). We choose again then, by instruction set.
#include "agent/base/log.h"
#include "kernels/cpu.h"

#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Of OpenBLAS built for many processors: what its loading runs, and its reverse. Not in its header, hence weak.
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static const char variable[] = "OPENBLAS_CORETYPE";

static void choose(void) {
    const char *wanted = getenv(variable), *better = cpu_isa_find("avx512") ? "SkylakeX"
                                                     : cpu_isa_find("avx2") ? "Haswell"
                                                                            : NULL;
    if ((wanted && *wanted) || !better || strcmp(openblas_get_corename(), "Prescott") != 0)
        return;
    if (gotoblas_dynamic_init && gotoblas_dynamic_quit) {
        setenv(variable, better, 1);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
        unsetenv(variable); // a program that we start may be another's
    }
    if (strcmp(openblas_get_corename(), "Prescott") == 0)
        neb_warn(
            "OpenBLAS does not know this processor and multiplies with a fifth of it; set %s=%s",
            variable, better);
}

void cpu_blas_choose(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}
