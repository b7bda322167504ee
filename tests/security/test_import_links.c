// SPDX-License-Identifier: Apache-2.0
// A model folder that somebody else made cannot choose which files are read. Links that lead out of
// it, named pipes and devices are refused by name. The Hugging Face cache, whose files are links
// into its blobs, is read. Written files are public.
#include "agent/base/log.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

// dir is in memory if possible, because many small files are fsynced.
static char dir[64], message[4096];
static const char secret[] = "{\"a secret\": \"of this user alone\"}";

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    size_t n = strlen(message);
    if (level == NEB_LOG_ERROR)
        snprintf(message + n, sizeof message - n, "%s\n", text);
}

__attribute__((format(printf, 2, 3))) static const char *at(char out[NEB_PATH_MAX], const char *fmt,
                                                            ...) {
    va_list ap;
    int n = snprintf(out, NEB_PATH_MAX, "%s/", dir);
    va_start(ap, fmt);
    vsnprintf(out + n, (size_t)(NEB_PATH_MAX - n), fmt, ap);
    va_end(ap);
    return out;
}

static void put(const char *path, const char *text) {
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0644), NEB_OK);
}

static void gone(const char *name) {
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_fs_remove_tree(at(path, "%s", name)), NEB_OK);
}

// Checkpoints, which `nebula export` makes folders of.
static void make_checkpoint(void) {
    static const struct intra_model_config c = {.vocab = 300,
                                                .d_model = 4,
                                                .n_layers = 1,
                                                .n_heads = 1,
                                                .n_kv_heads = 1,
                                                .head_dim = 4,
                                                .d_ff = 4,
                                                .max_seq = 8,
                                                .rope_theta = 10000,
                                                .norm_eps = 1e-6f,
                                                .mask = KERN_MASK_CAUSAL};
    static const struct intra_trainable sets[] = {
        {.mode = INTRA_TRAIN_FULL},
        {.mode = INTRA_TRAIN_LORA, .lora_rank = 1, .lora_alpha = 1, .lora_targets = INTRA_LORA_Q}};
    for (int i = 0; i < 2; i++) {
        char path[NEB_PATH_MAX];
        struct intra_model *m = NULL;
        struct intra_ckpt_writer *w = NULL;
        assert_int_equal(intra_model_create(&c, &sets[i], 1, &m), NEB_OK);
        assert_int_equal(intra_ckpt_create(at(path, "%s", i ? "lora.ckpt" : "full.ckpt"), &w),
                         NEB_OK);
        assert_int_equal(intra_model_save(m, w), NEB_OK);
        assert_int_equal(intra_ckpt_commit(w), NEB_OK);
        intra_ckpt_writer_destroy(&w);
        intra_model_destroy(&m);
    }
}

static enum neb_status export_to(const char *name, const char *like, enum intra_hf_what what) {
    char from[NEB_PATH_MAX], to[NEB_PATH_MAX], other[NEB_PATH_MAX];
    struct intra_hf_exported r;
    struct intra_hf_export e = {
        .checkpoint = at(from, "%s", what == INTRA_HF_MODEL ? "full.ckpt" : "lora.ckpt"),
        .dir = at(to, "%s", name),
        .like = like ? at(other, "%s", like) : NULL,
        .what = what};
    return intra_hf_export(&e, &r);
}

#define TOKENIZER                                                                                  \
    "{\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","          \
    "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"        \
    "\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}"

// The files of a folder that are not weights.
static const struct {
    const char *name, *text;
} small[] = {{"tokenizer.json", TOKENIZER},
             {"tokenizer_config.json", "{}"},
             {"generation_config.json", "{}"},
             {"special_tokens_map.json", "{}"},
             {"added_tokens.json", "{}"},
             {"vocab.json", "{}"},
             {"merges.txt", "#version\n"},
             {"chat_template.jinja", "{{ x }}"},
             {"additional_chat_templates/tool.jinja", "{{ y }}"}};
enum { N_SMALL = sizeof small / sizeof *small };

static void make_folder(void) {
    char path[NEB_PATH_MAX];
    gone("hf");
    gone("out");
    assert_int_equal(export_to("hf", NULL, INTRA_HF_MODEL), NEB_OK);
    assert_int_equal(export_to("hf/adapter", NULL, INTRA_HF_ADAPTER), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(at(path, "hf/additional_chat_templates"), 0755), NEB_OK);
    for (size_t i = 0; i < N_SMALL; i++)
        put(at(path, "hf/%s", small[i].name), small[i].text);
}

static enum neb_status import(const char *from, bool adapter) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX], c[NEB_PATH_MAX];
    struct intra_hf_imported r;
    struct intra_hf_import i = {.dir = at(a, "%s", from),
                                .adapter = adapter ? at(b, "%s/adapter", from) : NULL,
                                .out = at(c, "out")};
    message[0] = 0;
    return intra_hf_import(&i, &r);
}

// Imports a folder with a bad file. It must be refused with the file's name, and nothing may be
// left.
static void refused(const char *name, enum neb_status status, const char *says) {
    char path[NEB_PATH_MAX];
    enum neb_status st = import("hf", !strncmp(name, "adapter/", 8));
    if (st != status || !strstr(message, at(path, "hf/%s", name)) || !strstr(message, says))
        fail_msg("%s: status %d (%s), expected %d with \"%s\"", name, st, message, status, says);
    assert_false(neb_fs_exists(at(path, "out")));
    assert_false(neb_fs_exists(at(path, "out.nebula-building")));
}

static const char *const files[] = {"config.json",
                                    "model.safetensors",
                                    "adapter/adapter_config.json",
                                    "adapter/adapter_model.safetensors",
                                    "tokenizer.model",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "generation_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "chat_template.jinja",
                                    "additional_chat_templates/tool.jinja"};
enum { N_FILES = sizeof files / sizeof *files };

static void test_links_out(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], other[NEB_PATH_MAX];
    for (size_t i = 0; i < N_FILES; i++) {
        const char *const targets[] = {at(other, "secret"),
                                       strchr(files[i], '/') ? "../../secret" : "../secret",
                                       "/etc/passwd", "/dev/zero"};
        for (size_t k = 0; k < sizeof targets / sizeof *targets; k++) {
            make_folder();
            (void)unlink(at(path, "hf/%s", files[i]));
            assert_int_equal(symlink(targets[k], path), 0);
            refused(files[i], NEB_ERR_DENIED, "leads out of its folder");
        }
        make_folder(); // a link within the folder to a link that leads out of it
        (void)unlink(at(path, "hf/%s", files[i]));
        assert_int_equal(symlink(at(other, "hf/further"), path), 0);
        assert_int_equal(symlink(at(other, "secret"), at(path, "hf/further")), 0);
        refused(files[i], NEB_ERR_DENIED, "leads out of its folder");
        make_folder();
        (void)unlink(at(path, "hf/%s", files[i]));
        assert_int_equal(symlink("nowhere", path), 0);
        refused(files[i], NEB_ERR_NOT_FOUND, "a link to a file that does not exist");
    }
}

static void test_no_files(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    for (size_t i = 0; i < N_FILES; i++) {
        make_folder();
        (void)unlink(at(path, "hf/%s", files[i]));
        assert_int_equal(mkfifo(path, 0600), 0);
        refused(files[i], NEB_ERR_INVALID, "is a named pipe, not a file");
        make_folder();
        (void)unlink(at(path, "hf/%s", files[i]));
        assert_int_equal(mkdir(path, 0755), 0);
        refused(files[i], NEB_ERR_INVALID, "is a folder, not a file");
    }
}

static void test_shards(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], other[NEB_PATH_MAX];
    static const char index[] = "{\"weight_map\":{\"lm_head.weight\":\"one.safetensors\"}}";
    make_folder();
    assert_int_equal(unlink(at(path, "hf/model.safetensors")), 0);
    put(at(path, "hf/model.safetensors.index.json"), index);
    refused("one.safetensors", NEB_ERR_NOT_FOUND, "is missing, but");
    assert_int_equal(symlink(at(other, "secret"), at(path, "hf/one.safetensors")), 0);
    refused("one.safetensors", NEB_ERR_DENIED, "leads out of its folder");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(at(path, "hf/model.safetensors.index.json")), 0);
    assert_int_equal(symlink(at(other, "secret"), path), 0);
    refused("model.safetensors.index.json", NEB_ERR_DENIED, "leads out of its folder");
}

// If the folder of templates is a link, its files belong to somebody else.
static void test_folder_of_templates(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], other[NEB_PATH_MAX];
    make_folder();
    gone("hf/additional_chat_templates");
    assert_int_equal(symlink(at(other, "keys"), at(path, "hf/additional_chat_templates")), 0);
    refused("additional_chat_templates/sign.jinja", NEB_ERR_DENIED, "leads out of its folder");
}

// ROOT/snapshots/REVISION/FILE -> ../../blobs/HASH
static void test_cache(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], to[NEB_PATH_MAX], blob[64];
    for (int other = 0; other < 2; other++) {
        make_folder();
        gone("hub");
        assert_int_equal(
            neb_fs_mkdirs(at(path, "hub/a/snapshots/r/additional_chat_templates"), 0755), NEB_OK);
        assert_int_equal(neb_fs_mkdirs(at(path, "hub/a/blobs"), 0755), NEB_OK);
        assert_int_equal(neb_fs_mkdirs(at(path, "hub/b/blobs"), 0755), NEB_OK);
        const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json",
                                     "chat_template.jinja", "additional_chat_templates/tool.jinja"};
        for (int i = 0; i < 5; i++) {
            bool away = other && i == 3;
            assert_int_equal(neb_fs_copy(at(path, "hf/%s", names[i]),
                                         at(to, "hub/%s/blobs/%d", away ? "b" : "a", i), 0644),
                             NEB_OK);
            snprintf(blob, sizeof blob, "%s../../%sblobs/%d", i == 4 ? "../" : "",
                     away ? "../b/" : "", i);
            assert_int_equal(symlink(blob, at(path, "hub/a/snapshots/r/%s", names[i])), 0);
        }
        enum neb_status st = import("hub/a/snapshots/r", false);
        if (st != (other ? NEB_ERR_DENIED : NEB_OK))
            fail_msg("cache with %s: status %d (%s), expected %d",
                     other ? "a link to another model's blobs" : "links to its own blobs", st,
                     message, other ? NEB_ERR_DENIED : NEB_OK);
        assert_int_equal(neb_fs_exists(at(path, "out/hf/additional_chat_templates/tool.jinja")),
                         !other);
    }
    // A link named blobs is not a cache.
    gone("hub/a/blobs");
    assert_int_equal(symlink("../b/blobs", at(path, "hub/a/blobs")), 0);
    for (int i = 0; i < 5; i++)
        put(at(to, "hub/b/blobs/%d", i), "{}");
    assert_int_equal(import("hub/a/snapshots/r", false), NEB_ERR_DENIED);
}

static void test_links_within(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], other[NEB_PATH_MAX];
    make_folder();
    gone("link");
    assert_int_equal(rename(at(path, "hf/chat_template.jinja"), at(other, "hf/t")), 0);
    assert_int_equal(symlink("t", path), 0);
    assert_int_equal(symlink("hf", at(path, "link")),
                     0); // a link may name the folder itself
    assert_int_equal(import("link", false), NEB_OK);
    assert_true(neb_fs_exists(at(path, "out/hf/chat_template.jinja")));
}

static void test_export(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], other[NEB_PATH_MAX];
    for (size_t i = 0; i < N_FILES; i++) {
        if (strchr(files[i], '/') || strstr(files[i], "safetensors"))
            continue;
        make_folder();
        gone("back");
        (void)unlink(at(path, "hf/%s", files[i]));
        assert_int_equal(symlink(at(other, "secret"), path), 0);
        message[0] = 0;
        assert_int_equal(export_to("back", "hf", INTRA_HF_MODEL), NEB_ERR_DENIED);
        assert_non_null(strstr(message, path));
        assert_false(neb_fs_exists(at(path, "back")));
    }
}

// Each command that looks for a vocabulary in a folder: import, export, data build, eval.
static void test_vocabulary(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], other[NEB_PATH_MAX], out[NEB_PATH_MAX];
    static const char *const names[] = {"tokenizer.model", "tokenizer.json"};
    make_folder();
    assert_int_equal(intra_tokenizer_resolve(at(path, "hf"), out, sizeof out), NEB_OK);
    for (int i = 1; i >= 0; i--) {
        (void)unlink(at(path, "hf/%s", names[i]));
        assert_int_equal(symlink(at(other, "secret"), path), 0);
        assert_int_equal(intra_tokenizer_resolve(at(other, "hf"), out, sizeof out), NEB_ERR_DENIED);
        assert_int_equal(intra_tokenizer_in(at(other, "hf"), out, sizeof out), NEB_ERR_DENIED);
    }
    (void)unlink(at(path, "hf/tokenizer_config.json"));
    assert_int_equal(symlink(at(other, "secret"), path), 0);
    assert_int_equal(intra_tokenizer_config(at(other, "hf/tokenizer.json"), out, sizeof out),
                     NEB_ERR_DENIED);
}

static mode_t mode_of(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_mode & 07777;
}

static void test_modes(void **state) {
    (void)state;
    static const mode_t modes[] = {0600, 0640, 0700, 0444};
    char path[NEB_PATH_MAX];
    mode_t was = umask(022);
    for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
        make_folder();
        gone("back");
        for (size_t i = 0; i < N_SMALL; i++)
            assert_int_equal(chmod(at(path, "hf/%s", small[i].name), modes[k]), 0);
        assert_int_equal(chmod(at(path, "hf/config.json"), modes[k]), 0);
        assert_int_equal(import("hf", false), NEB_OK);
        assert_int_equal(export_to("back", "out/hf", INTRA_HF_MODEL), NEB_OK);
        for (size_t i = 0; i < N_SMALL; i++) {
            assert_int_equal(mode_of(at(path, "out/hf/%s", small[i].name)), 0644);
            assert_int_equal(mode_of(at(path, "back/%s", small[i].name)), 0644);
        }
        assert_int_equal(mode_of(at(path, "out/hf/config.json")), 0644);
        assert_int_equal(mode_of(at(path, "out/tokenizer.json")), 0644);
        assert_int_equal(mode_of(at(path, "back/config.json")), 0644);
    }
    umask(was);
}

static int set_up(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    neb_log_set_sink(keep, NULL);
    snprintf(dir, sizeof dir, "%s/nebula-links-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir) || neb_fs_mkdirs(at(path, "keys"), 0700) != NEB_OK)
        return -1;
    put(at(path, "secret"), secret);
    put(at(path, "keys/sign.jinja"), secret);
    make_checkpoint();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_out), cmocka_unit_test(test_no_files),
        cmocka_unit_test(test_shards),    cmocka_unit_test(test_folder_of_templates),
        cmocka_unit_test(test_cache),     cmocka_unit_test(test_links_within),
        cmocka_unit_test(test_export),    cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_modes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
