// SPDX-License-Identifier: Apache-2.0
// nebula bench WHAT: rates of this machine, each beside its limit measured in the same call.
#include "agent/bench/bench.h"
#include "agent/bench/mesh.h"
#include "agent/cli/cmd_options.h"
#include "compress/codec.h"
#include "kernels/pool.h"

#include <string.h>

struct options {
    struct agent_options common; // its argument: what to measure
    const char *input, *codec, *precision;
    struct bench_train_shape shape;
    int threads, steps, stripes;
    uint64_t params;
    bool mesh, muon;
    struct bench_link_options link;
};

static bool take_shape(const char *text, void *options) {
    struct options *o = options;
    return bench_train_shape_parse(text, &o->shape) == NEB_OK; // the reason is logged
}

static bool is_codec(const char *text, void *options) {
    struct cmp_codec codec;
    (void)options;
    return cmp_codec_parse(text, &codec) == NEB_OK; // the reason is logged
}

static bool is_bf16(const struct options *o) {
    return o->precision && !strcmp(o->precision, "bf16");
}

static const char *check(const void *options) {
    const struct options *o = options;
    return is_bf16(o) && (o->mesh || strcmp(o->common.args[0], "train") != 0)
               ? "--precision bf16 is for bench train without --mesh"
               : NULL;
}

static enum neb_status train(struct options *o) {
    if (!o->shape.seq_len)
        NEB_TRY(bench_train_shape_parse("default", &o->shape));
    o->shape.steps = o->steps;
    o->shape.bf16 = is_bf16(o);
    o->shape.muon = o->muon;
    return o->mesh ? bench_mesh(o->threads, o->common.json, &o->shape)
                   : bench_train(o->threads, o->common.json, &o->shape);
}

static enum neb_status decode(struct options *o) {
    if (!o->shape.seq_len)
        NEB_TRY(bench_train_shape_parse("default", &o->shape));
    return bench_decode(o->threads, o->common.json, &o->shape);
}

static int run(void *options) {
    struct options *o = options;
    struct kern_digest digest;
    const char *what = o->common.args[0];
    bool json = o->common.json;
    o->link.json = json;
    o->link.stripes = (unsigned)o->stripes;
    return agent_exit_of(
        !strcmp(what, "codec")        ? bench_codec(json, o->params, o->threads, o->input, o->codec)
        : !strcmp(what, "checkpoint") ? bench_checkpoint(json, o->params, o->threads, o->link.dir)
        : !strcmp(what, "data")       ? bench_data(json, o->link.dir)
        : !strcmp(what, "decode")     ? decode(o)
        : !strcmp(what, "round")
            ? bench_round(json, o->params, o->threads, o->codec ? o->codec : "int4", &digest)
        : !strcmp(what, "seal")    ? bench_seal(json, o->params)
        : !strcmp(what, "link")    ? bench_link(&o->link)
        : !strcmp(what, "kernels") ? bench_kernels(o->threads, json)
                                   : train(o));
}

static const struct agent_option table[] = {
    OPT_JSON("one JSON object per line"),
    OPT_INT("threads", 't', "N", "number of threads (default: all processors)", AT(threads), 0,
            KERN_POOL_THREADS_MAX),
    OPT_WHOLE("params", 'p', "N",
              "checkpoint, codec, round, seal: size of the array (default 8, 50, 16, 32 million)",
              AT(params), 0, 1ull << 40),
    OPT_CHECKED("codec", 'c', "CODEC",
                "round: codec of the updates (default int4); codec: measure only this one",
                AT(codec), is_codec, "a codec"),
    OPT_TEXT("input", 'i', "FILE", "codec: measure the elements of this update (a ledger's .blob)",
             AT(input)),
    OPT_TAKEN("shape", 's', "LxWxS",
              "decode, train: layers x width x sequence, or small (default 8x256x256)", take_shape,
              "a shape"),
    OPT_INT("steps", 'n', "N", "train: steps to measure (default 10)", AT(steps), 1, 10000),
    OPT_FLAG("mesh", 0, "train: overhead of the mesh machinery for a step of one rank, in per cent",
             AT(mesh)),
    OPT_CHECKED("precision", 0, "TYPE",
                "train: fp32 (default), or bf16: steps in bf16 take turns with steps in fp32",
                AT(precision), agent_option_is_type, "fp32 or bf16"),
    OPT_FLAG("muon", 0, "train: optimiser Muon instead of AdamW", AT(muon)),
    OPT_WAN("link: the emulated WAN (default: loopback)", AT(link.wan)),
    OPT_REAL("seconds", 0, "S", "link: how long to send (default 30)", AT(link.seconds), 1, 3600),
    OPT_INT("stripes", 0, "N", "link: bulk connections (default 0: self-tuning)", AT(stripes), 0,
            32),
    OPT_TEXT("congestion", 0, "NAME", "link: TCP congestion control (default: as an agent)",
             AT(link.congestion)),
    OPT_INT("end", 0, "N", NULL, AT(link.end), 0, 1),
    OPT_TEXT("dir", 0, "DIR",
             "checkpoint, data: where to make a temporary folder (default: $TMPDIR)", AT(link.dir)),
    OPT_END};

const struct agent_command cmd_bench = {
    .name = "bench",
    .summary = "measure this machine",
    .options = table,
    .arguments = "checkpoint|codec|data|decode|kernels|link|round|seal|train",
    .doc =
        "Measures this machine. A line has its limit (memcpy, sgemm) from the same call, and the "
        "ratio to that limit.",
    .least = 1,
    .missing = "name a benchmark: checkpoint, codec, data, decode, kernels, link, round, seal or "
               "train",
    .actions = (const struct agent_action[]){{"checkpoint", 1},
                                             {"codec", 1},
                                             {"data", 1},
                                             {"decode", 1},
                                             {"kernels", 1},
                                             {"link", 1},
                                             {"round", 1},
                                             {"seal", 1},
                                             {"train", 1},
                                             {0}},
    .check = check,
    .size = sizeof(struct options),
    .preset = &(const struct options){.link.end = -1},
    .run = run};
