// nebula bench WHAT: figures of this machine, each beside its limit measured in the same call.
#include "agent/bench_codec.h"
#include "agent/bench_kernels.h"
#include "agent/bench_round.h"
#include "agent/bench_train.h"
#include "agent/commands.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *what, *shape, *input, *codec;
    int threads, steps;
    size_t params;
    bool json;
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    char *end = NULL;
    switch (key) {
    case 'j': o->json = true; return 0;
    case 't':
        o->threads = (int)strtol(arg, &end, 10);
        if (!*arg || *end || o->threads < 0 || o->threads > 256)
            argp_error(state, "--threads is 0..256");
        return 0;
    case 's': o->shape = arg; return 0;
    case 'n':
        o->steps = (int)strtol(arg, &end, 10);
        if (!*arg || *end || o->steps < 1 || o->steps > 10000)
            argp_error(state, "--steps is 1..10000");
        return 0;
    case 'i': o->input = arg; return 0;
    case 'c': o->codec = arg; return 0;
    case 'p':
        o->params = (size_t)strtoull(arg, &end, 10);
        if (!*arg || *end)
            argp_error(state, "--params is a number");
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->what = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->what || (strcmp(o->what, "codec") && strcmp(o->what, "kernels") &&
                         strcmp(o->what, "round") && strcmp(o->what, "train")))
            argp_error(state, "bench what? codec, kernels, round or train");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_bench(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"json", 'j', NULL, 0, "one JSON object a line", 0},
        {"threads", 't', "N", 0, "default: all processors", 0},
        {"params", 'p', "N", 0, "codec, round: size of the array (default 50, 16 million)", 0},
        {"codec", 'c', "CODEC", 0, "round: what to send as (default int4)", 0},
        {"input", 'i', "FILE", 0, "codec: the elements of this update (a ledger's .blob) instead",
         0},
        {"shape", 's', "LxWxS", 0, "train: layers x width x sequence, or small (default 8x256x256)",
         0},
        {"steps", 'n', "N", 0, "train: steps to measure (default 10)", 0},
        {0}};
    static const struct argp argp = {table,
                                     parse_option,
                                     "codec|kernels|round|train",
                                     "Measures this machine. Every line names its limit (memcpy, "
                                     "sgemm) from the same call and the ratio to it.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct options o = {0};
    struct bench_train_shape shape;
    struct kern_digest digest;
    enum neb_status st;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0)
        return AGENT_EXIT_USAGE;
    if (!strcmp(o.what, "codec"))
        st = bench_codec(o.json, o.params, o.threads, o.input);
    else if (!strcmp(o.what, "round"))
        st = bench_round(o.json, o.params, o.threads, o.codec ? o.codec : "int4", &digest);
    else if (!strcmp(o.what, "kernels"))
        st = bench_kernels(o.threads, o.json);
    else if ((st = bench_train_shape_parse(o.shape ? o.shape : "default", &shape)) == NEB_OK) {
        shape.steps = o.steps;
        st = bench_train(o.threads, o.json, &shape);
    }
    return st == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}
