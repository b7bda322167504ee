// SPDX-License-Identifier: Apache-2.0
// Loads libnebula_mpi.so or libnebula_nccl.so when a job asks for it, because not every host has
// their libraries.
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "intra/ranks/comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The objects call these functions of base, so the linker must keep them in the program.
extern void (*const intra_comm_needs[])(void);
void (*const intra_comm_needs[])(void) = {(void (*)(void))neb_fail, (void (*)(void))neb_now,
                                          (void (*)(void))neb_assert_failed};

void intra_comm_destroy(struct intra_comm **cp) {
    if (*cp)
        (*cp)->ops->destroy(*cp);
    *cp = NULL;
}

// Looks in the folder of the program (a build folder), its parent (tests), and an installation's
// folder. No search path from the environment, which could make a job run foreign code.
static bool find_object(const char *name, char *exe, size_t exe_cap, char *out, size_t cap) {
    static const char *const places[] = {"", "../", "../lib/nebula/"};
    ssize_t n = readlink("/proc/self/exe", exe, exe_cap - 1);
    exe[n < 0 ? 0 : n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash)
        slash[1] = 0;
    for (size_t i = 0; slash && i < sizeof places / sizeof places[0]; i++)
        if (snprintf(out, cap, "%s%s%s", exe, places[i], name) < (int)cap && access(out, R_OK) == 0)
            return true;
    return false;
}

static const char mpi_object[] = "libnebula_mpi.so", nccl_object[] = "libnebula_nccl.so";

static enum neb_status object_path(const char *name, char *out, size_t cap) {
    char exe[NEB_PATH_MAX];
    if (find_object(name, exe, sizeof exe, out, cap))
        return NEB_OK;
    return neb_fail(NEB_ERR_UNSUPPORTED,
                    "%s was not found in %s or its ../lib/nebula; %s, then build again, starting "
                    "with cmake --preset release",
                    name, exe,
                    name == nccl_object ? "install NCCL and the CUDA toolkit (set NCCL_HOME and "
                                          "CUDA_HOME if CMake does not find them)"
                                        : "install Open MPI (configs/install-deps)");
}

bool intra_comm_mpi_there(void) {
    char exe[NEB_PATH_MAX], path[NEB_PATH_MAX];
    return find_object(mpi_object, exe, sizeof exe, path, sizeof path);
}

enum neb_status intra_comm_mpi_find(void) {
    char path[NEB_PATH_MAX];
    return object_path(mpi_object, path, sizeof path);
}

// The object stays loaded, because its library keeps threads and handlers.
static enum neb_status load(const char *object, const char *symbol, void **out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(object_path(object, path, sizeof path));
    // Global, because MPI libraries load plug-ins that look for their symbols.
    void *so = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!so)
        return neb_fail(NEB_ERR_UNSUPPORTED, "cannot load %s: %s", path, dlerror());
    if (!(*out = dlsym(so, symbol)))
        return neb_fail(NEB_ERR_UNSUPPORTED, "%s has no %s; it is from another build", path,
                        symbol);
    return NEB_OK;
}

enum neb_status intra_comm_mpi(struct intra_comm **out) {
    union {
        void *p;
        intra_comm_mpi_opener *open;
    } s;
    NEB_TRY(load(mpi_object, "intra_comm_mpi_open", &s.p));
    return s.open(INTRA_COMM_VERSION, out);
}

// MPI would treat each rank of torchrun as a job of one rank.
static bool by_torchrun(void) {
    const char *size = getenv("WORLD_SIZE");
    return getenv("RANK") && size && strtol(size, NULL, 10) > 1 &&
           !getenv("OMPI_COMM_WORLD_SIZE") && !getenv("PMI_SIZE") && !getenv("SLURM_PROCID");
}

enum neb_status intra_comm_launched(struct intra_comm **out) {
    if (getenv(INTRA_TOKEN_VARIABLE))
        return intra_comm_socket_env(out);
    if (by_torchrun())
        return neb_fail(NEB_ERR_DENIED,
                        "RANK and WORLD_SIZE come from torchrun, but %s is not set. Ranks over TCP "
                        "need a common secret: start them with the agent or nebula ranks, or set "
                        "the variable to the same 64 hexadecimal digits for all",
                        INTRA_TOKEN_VARIABLE);
    return intra_comm_mpi(out);
}

enum neb_status intra_comm_nccl(struct intra_comm *boot, int device, int64_t timeout_ms,
                                struct intra_comm **out) {
    union {
        void *p;
        intra_comm_nccl_opener *open;
    } s;
    // No rank may start if another one cannot.
    uint64_t worst = (uint64_t)load(nccl_object, "intra_comm_nccl_open", &s.p);
    NEB_TRY(boot->ops->all_reduce(boot, &worst, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    NEB_TRY((enum neb_status)worst);
    return s.open(INTRA_COMM_VERSION, boot, device, timeout_ms, out);
}
