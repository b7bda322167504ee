#include "agent/cmd_options.h"

error_t agent_parse_option(int key, char *arg, struct argp_state *state) {
    struct agent_options *o = state->input;
    switch (key) {
    case 'H': o->home = arg; return 0;
    case 'j': o->json = true; return 0;
    case ARGP_KEY_ARG:
        if (o->arg || o->takes == AGENT_TAKES_NOTHING)
            argp_usage(state);
        o->arg = arg;
        return 0;
    case ARGP_KEY_END:
        if (o->takes == AGENT_TAKES_ONE && !o->arg)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}
