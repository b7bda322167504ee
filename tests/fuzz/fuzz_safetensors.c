// SPDX-License-Identifier: Apache-2.0
// Foreign safetensors files: opening returns a status; tensors of an opened file lie inside it,
// side by side, and can be read. Input that begins like JSON is also tried as the index of a
// folder.
#include "intra/ckpt/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void require(bool good) {
    if (!good)
        abort();
}

static void read_all(const struct intra_st *s) {
    for (int32_t i = 0; i < intra_st_count(s); i++) {
        const struct intra_st_tensor *t = intra_st_at(s, i);
        require(intra_st_find(s, t->name) == t && intra_st_file(s, t));
        require(t->bytes == t->elements * intra_st_dtype_bytes(t->dtype));
        float x[16];
        uint64_t n = t->elements < 16 ? t->elements : 16;
        enum neb_status st = intra_st_read(s, t, t->elements - n, n, x);
        require((st == NEB_OK) == (t->dtype <= INTRA_ST_BF16));
        intra_st_drop(s, t);
    }
}

static void use_file(const uint8_t *p, size_t size) {
    static int fd = -1;
    static char path[64];
    struct intra_st *s = NULL;
    if (fd < 0) {
        fd = memfd_create("safetensors", MFD_CLOEXEC);
        require(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    require(ftruncate(fd, 0) == 0 && pwrite(fd, p, size, 0) == (ssize_t)size);
    if (intra_st_open(path, &s) != NEB_OK) {
        require(!s);
        return;
    }
    uint64_t bytes = 0;
    for (int32_t i = 0; i < intra_st_count(s); i++) {
        const struct intra_st_tensor *t = intra_st_at(s, i);
        require(t->at <= size && t->bytes <= size - t->at);
        bytes += t->bytes;
    }
    require(bytes <= size);
    read_all(s);
    intra_st_close(&s);
}

static char dir[] = "/tmp/nebula-fuzz-st-XXXXXX";
static void clean(void) { require(neb_fs_remove_tree(dir) == NEB_OK); }

static void write_file(const char *name, const void *p, size_t n) {
    char path[NEB_PATH_MAX];
    require(neb_path(path, sizeof path, dir, name) == NEB_OK);
    FILE *f = fopen(path, "w");
    require(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

// The folder has shard a.safetensors with tensor "a"; the input is the index.
static void use_index(const uint8_t *p, size_t size) {
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    static bool made;
    struct intra_st *s = NULL;
    if (!made) {
        uint8_t shard[8 + sizeof header - 1 + 4] = {sizeof header - 1};
        memcpy(shard + 8, header, sizeof header - 1);
        require(mkdtemp(dir) && atexit(clean) == 0);
        write_file("a.safetensors", shard, sizeof shard);
        made = true;
    }
    write_file("model.safetensors.index.json", p, size);
    if (intra_st_open_dir(dir, "model", &s) == NEB_OK)
        read_all(s);
    else
        require(!s);
    intra_st_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    use_file(data, size);
    if (size && data[0] == '{')
        use_index(data, size);
    return 0;
}
