// SPDX-License-Identifier: Apache-2.0
// nebula bench WHAT: rates of this machine, each beside its limit measured in the same call.
#include "agent/bench/checkpoint.h"
#include "agent/bench/codec.h"
#include "agent/bench/data.h"
#include "agent/bench/kernels.h"
#include "agent/bench/link.h"
#include "agent/bench/mesh.h"
#include "agent/bench/round.h"
#include "agent/bench/seal.h"
#include "agent/bench/train.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/wan_spec.h"
#include "compress/codec.h"
#include "kernels/pool.h"

#include <string.h>

struct options {
    const char *what, *input, *codec;
    struct bench_train_shape shape;
    int threads, steps;
    size_t params;
    bool json, mesh, bf16;
    struct bench_link_options link;
};

enum {
    KEY_WAN = 256,
    KEY_SECONDS,
    KEY_STRIPES,
    KEY_CONGESTION,
    KEY_END,
    KEY_DIR,
    KEY_MESH,
    KEY_PRECISION
};

static int whole(const struct argp_state *state, int key, const char *arg, int min, int max) {
    return (int)agent_option_whole(state, key, arg, (uint64_t)min, (uint64_t)max);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    struct agent_wan wan;
    struct cmp_codec codec;
    switch (key) {
    case 'j': o->json = true; return 0;
    case 't': o->threads = whole(state, key, arg, 0, KERN_POOL_THREADS_MAX); return 0;
    case 's':
        if (bench_train_shape_parse(arg, &o->shape) != NEB_OK) // the reason is logged
            agent_option_refuse(state, key, arg, "a shape");
        return 0;
    case 'n': o->steps = whole(state, key, arg, 1, 10000); return 0;
    case 'i': o->input = arg; return 0;
    case 'c':
        if (cmp_codec_parse(arg, &codec) != NEB_OK) // the reason is logged
            agent_option_refuse(state, key, arg, "a codec");
        o->codec = arg;
        return 0;
    case 'p': o->params = (size_t)agent_option_whole(state, key, arg, 0, 1ull << 40); return 0;
    case KEY_WAN:
        if (agent_wan_parse(arg, "--wan", &wan) != NEB_OK) // the reason is logged
            agent_option_refuse(state, key, arg, "RATE:DELAY[:LOSS]");
        o->link.wan = arg;
        return 0;
    case KEY_SECONDS: o->link.seconds = agent_option_real(state, key, arg, 1, 3600); return 0;
    case KEY_STRIPES: o->link.stripes = (unsigned)whole(state, key, arg, 0, 32); return 0;
    case KEY_CONGESTION: o->link.congestion = arg; return 0;
    case KEY_END: o->link.end = whole(state, key, arg, 0, 1); return 0;
    case KEY_MESH: o->mesh = true; return 0;
    case KEY_PRECISION:
        if (strcmp(arg, "fp32") && strcmp(arg, "bf16"))
            argp_error(state, "--precision: expected fp32 or bf16");
        o->bf16 = !strcmp(arg, "bf16");
        return 0;
    case KEY_DIR: o->link.dir = arg; return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->what = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->what ||
            (strcmp(o->what, "codec") && strcmp(o->what, "kernels") && strcmp(o->what, "round") &&
             strcmp(o->what, "train") && strcmp(o->what, "link") && strcmp(o->what, "checkpoint") &&
             strcmp(o->what, "data") && strcmp(o->what, "seal")))
            argp_error(
                state,
                "name a benchmark: checkpoint, codec, data, kernels, link, round, seal or train");
        if (o->bf16 && (o->mesh || strcmp(o->what, "train")))
            argp_error(state, "--precision bf16 is for bench train without --mesh");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_bench(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"json", 'j', NULL, 0, "one JSON object per line", 0},
        {"threads", 't', "N", 0, "number of threads (default: all processors)", 0},
        {"params", 'p', "N", 0,
         "checkpoint, codec, round, seal: size of the array (default 8, 50, 16, 32 million)", 0},
        {"codec", 'c', "CODEC", 0,
         "round: codec of the updates (default int4); codec: measure only this one", 0},
        {"input", 'i', "FILE", 0, "codec: measure the elements of this update (a ledger's .blob)",
         0},
        {"shape", 's', "LxWxS", 0, "train: layers x width x sequence, or small (default 8x256x256)",
         0},
        {"steps", 'n', "N", 0, "train: steps to measure (default 10)", 0},
        {"mesh", KEY_MESH, NULL, 0,
         "train: overhead of the mesh machinery for a step of one rank, in per cent", 0},
        {"precision", KEY_PRECISION, "TYPE", 0,
         "train: fp32 (default), or bf16: steps in bf16 take turns with steps in fp32", 0},
        {"wan", KEY_WAN, "RATE:DELAY[:LOSS]", 0, "link: the emulated WAN (default: loopback)", 0},
        {"seconds", KEY_SECONDS, "S", 0, "link: how long to send (default 30)", 0},
        {"stripes", KEY_STRIPES, "N", 0, "link: bulk connections (default 0: self-tuning)", 0},
        {"congestion", KEY_CONGESTION, "NAME", 0,
         "link: TCP congestion control (default: as an agent)", 0},
        {"end", KEY_END, "N", OPTION_HIDDEN, NULL, 0},
        {"dir", KEY_DIR, "DIR", 0,
         "checkpoint, data: where to make a temporary folder (default: $TMPDIR)", 0},
        {0}};
    static const struct argp argp = {
        .options = table,
        .parser = parse_option,
        .args_doc = "checkpoint|codec|data|kernels|link|round|seal|train",
        .doc = "Measures this machine. A line has its limit (memcpy, sgemm) from the same call, "
               "and the ratio to that limit."};
    struct options o = {.link.end = -1};
    struct kern_digest digest;
    enum neb_status st;
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    if (!strcmp(o.what, "codec"))
        st = bench_codec(o.json, o.params, o.threads, o.input, o.codec);
    else if (!strcmp(o.what, "checkpoint"))
        st = bench_checkpoint(o.json, o.params, o.threads, o.link.dir);
    else if (!strcmp(o.what, "data"))
        st = bench_data(o.json, o.link.dir);
    else if (!strcmp(o.what, "round"))
        st = bench_round(o.json, o.params, o.threads, o.codec ? o.codec : "int4", &digest);
    else if (!strcmp(o.what, "seal"))
        st = bench_seal(o.json, o.params);
    else if (!strcmp(o.what, "link")) {
        o.link.json = o.json;
        st = bench_link(&o.link);
    } else if (!strcmp(o.what, "kernels"))
        st = bench_kernels(o.threads, o.json);
    else if (o.shape.seq_len || (st = bench_train_shape_parse("default", &o.shape)) == NEB_OK) {
        o.shape.steps = o.steps;
        o.shape.bf16 = o.bf16;
        st = o.mesh ? bench_mesh(o.threads, o.json, &o.shape)
                    : bench_train(o.threads, o.json, &o.shape);
    }
    return agent_exit_of(st);
}
