// SPDX-License-Identifier: Apache-2.0
// Finds and loads the object with the kernels of CUDA or of another device. It lies beside the
// program (build folder), one folder up (tests) or in ../lib/nebula (installation). If this code is
// in a library (libnebula), the object lies beside that or in the folder nebula there. No
// environment variable adds a path, since it could make a job run foreign code.
#include "kernels/device.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char cuda_object[] = "libnebula_cuda.so", cuda_driver[] = "libcuda.so.1",
                  // the emulated device of the tests; if it is there, it is loaded instead
    other_object[] = "libnebula_device.so";

static const struct kern_device_host host = {neb_fail, neb_log, neb_assert_failed};

// For each block of rows dW moves V x d floats twice and computes 2 x rows x V x d. By an H100's
// data sheet, moving the floats takes as long as the product at 1,100 rows, and an eighth as long
// at LOGITS_ROWS. More rows gain little.
enum { LOGITS_ROWS = 8192, LOGITS_ROWS_LEAST = 64, LOGITS_SHARE = 32 };
int kern_logits_rows(double memory_bytes, int V, enum kern_type t, int n) {
    double row = (double)kern_logits_ld(V) * (double)kern_type_bytes(t),
           room = memory_bytes / LOGITS_SHARE / row;
    int least = LOGITS_ROWS_LEAST,
        most = room < LOGITS_ROWS ? (int)room / least * least : LOGITS_ROWS;
    if (most < least)
        most = least;
    if (n <= most)
        return n;
    int blocks = (n - 1) / most + 1, even = (n - 1) / blocks + 1;
    // never above `most`, which is a multiple of least too
    return (even - 1) / least * least + least;
}

void kern_buckets_fill(struct kern_buckets *b, const int32_t *ids, int n, int32_t *next) {
    int32_t used = 0;
    for (int i = 0; i < n; i++) // first, next[id] counts the id, …
        if (ids[i] >= 0 && next[ids[i]]++ == 0)
            b->ids[used++] = ids[i];
    int32_t at = 0;
    for (int32_t k = 0; k < used; k++) { // … then it is where the id's next row goes
        int32_t count = next[b->ids[k]];
        b->start[k] = next[b->ids[k]] = at;
        at += count;
    }
    b->start[used] = at;
    *b->used = used;
    for (int i = 0; i < n; i++)
        if (ids[i] >= 0)
            b->rows[next[ids[i]]++] = i;
    for (int32_t k = 0; k < used; k++)
        next[b->ids[k]] = 0;
}

// The program's path, or that of the library that contains this code. The loader has no path of the
// program, and dladdr would give argument 0: a file of that name in the working folder is not ours.
static bool own_path(bool library, char out[NEB_PATH_MAX]) {
    Dl_info info;
    void *map = NULL;
    char *real = NULL;
    ssize_t n = library ? 0 : readlink("/proc/self/exe", out, NEB_PATH_MAX - 1);
    if (library && dladdr1(&host, &info, &map, RTLD_DL_LINKMAP) && map &&
        ((struct link_map *)map)->l_name[0])
        real = realpath(((struct link_map *)map)->l_name, NULL);
    if (real)
        n = snprintf(out, NEB_PATH_MAX, "%s", real);
    free(real);
    out[n > 0 && n < NEB_PATH_MAX ? n : 0] = 0;
    return out[0] != 0;
}

static bool find_object(const char *name, char out[NEB_PATH_MAX]) {
    static const char *const places[] = {"", "../", "../lib/nebula/", "nebula/"};
    char own[NEB_PATH_MAX];
    for (int library = 1; library >= 0; library--) {
        char *slash = own_path(library, own) ? strrchr(own, '/') : NULL;
        if (!slash)
            continue;
        slash[1] = 0;
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
            if (snprintf(out, NEB_PATH_MAX, "%s%s%s", own, places[i], name) < NEB_PATH_MAX &&
                access(out, R_OK) == 0)
                return true;
    }
    return false;
}

// Chooses the object. Without a driver the CUDA object would first load cuBLASLt, which costs every
// worker time and memory, and only then report that there is no driver.
static enum neb_status choose_object(char path[NEB_PATH_MAX], char *text, size_t cap) {
    if (find_object(other_object, path))
        return NEB_OK;
    if (!find_object(cuda_object, path)) {
        snprintf(text, cap,
                 "%s is neither beside the program nor in its ../lib/nebula: this build has no "
                 "CUDA kernels; install the CUDA toolkit and build again",
                 cuda_object);
        return NEB_ERR_UNSUPPORTED;
    }
    void *driver = dlopen(cuda_driver, RTLD_LAZY | RTLD_LOCAL); // stays loaded
    if (!driver) {
        snprintf(text, cap, "no CUDA device: the driver cannot be loaded: %s", dlerror());
        return NEB_ERR_UNSUPPORTED;
    }
    return NEB_OK;
}

bool kern_device_likely(void) {
    char path[NEB_PATH_MAX], text[NEB_PATH_MAX + 512];
    return choose_object(path, text, sizeof text) == NEB_OK;
}

// True if NVIDIA's kernel module has a GPU that is not hidden from this process. If CUDA then finds
// none, CUDA is broken: the driver was upgraded while it ran, or device files are missing or not
// permitted.
static bool listed(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    bool any = false;
    if (visible && (!*visible || *visible == '-'))
        return false;
    DIR *dir = opendir("/proc/driver/nvidia/gpus");
    for (struct dirent *e; dir && !any && (e = readdir(dir));)
        any = e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return any;
}

// Loads the object, and finds one of its functions. The object stays loaded: the driver has threads
// that cannot be unloaded.
static enum neb_status load(const char *function, void **out, char *text, size_t cap) {
    char path[NEB_PATH_MAX];
    union {
        void *p;
        kern_device_meet *meet;
    } s;
    NEB_TRY(choose_object(path, text, cap));
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        snprintf(text, cap, "cannot load %s: %s", path, dlerror());
        return NEB_ERR_UNSUPPORTED;
    }
    s.p = dlsym(so, "kern_cuda_meet");
    *out = dlsym(so, function);
    if (!s.p || !*out) {
        snprintf(text, cap, "%s has no %s: it belongs to another build; build again", path,
                 s.p ? function : "kern_cuda_meet");
        return NEB_ERR_UNSUPPORTED;
    }
    s.meet(&host);
    return NEB_OK;
}

static enum neb_status open_object(int index, struct kern **out, char *text, size_t cap) {
    union {
        void *p;
        kern_device_opener *open;
    } s;
    NEB_TRY(load("kern_cuda_open", &s.p, text, cap));
    enum neb_status st = s.open(KERN_DEVICE_VERSION, index, out, text, cap);
    return st != NEB_ERR_NOT_FOUND ? st : listed() ? NEB_ERR_IO : NEB_ERR_UNSUPPORTED;
}

enum neb_status kern_device_find(const void *p, int *index, int *was, char why[KERN_WHY_MAX]) {
    char text[NEB_PATH_MAX + 512] = "";
    union {
        void *p;
        kern_device_finder *find;
    } s;
    enum neb_status st = load("kern_cuda_find", &s.p, text, sizeof text);
    if (st == NEB_OK && !s.find(p, index, was)) {
        snprintf(text, sizeof text, "%p is not the memory of a device", p);
        st = NEB_ERR_INVALID;
    }
    snprintf(why, KERN_WHY_MAX, "%.*s", KERN_WHY_MAX - 1, text);
    return st;
}

enum neb_status kern_device_index(bool of_several, int *out) {
    static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
                                        "LOCAL_RANK"};
    *out = 0;
    for (int i = of_several; i < 3 + of_several; i++) {
        const char *text = getenv(names[i]);
        char *end = NULL;
        if (!text)
            continue;
        long n = strtol(text, &end, 10);
        if (!*text || *end || n < 0 || n > 1023)
            return neb_fail(NEB_ERR_INVALID, "%s is \"%s\", not a number in 0..1023", names[i],
                            text);
        *out = (int)n;
        return NEB_OK;
    }
    return NEB_OK;
}

enum neb_status kern_device_open(int index, char why[KERN_WHY_MAX], struct kern **out) {
    char text[NEB_PATH_MAX + 512] = "";
    *out = NULL;
    enum neb_status st = open_object(index, out, text, sizeof text);
    if (st == NEB_OK)
        return NEB_OK;
    if (why) {
        snprintf(why, KERN_WHY_MAX, "%.*s", KERN_WHY_MAX - 1, text);
        return st;
    }
    return neb_fail(st, "%s. `device: cpu` trains without a GPU", text);
}
