// SPDX-License-Identifier: Apache-2.0
// Rows for the options of a command (commands.h). `field` is an offset: AT(name).
#ifndef AGENT_CMD_OPTIONS_H
#define AGENT_CMD_OPTIONS_H
#include "agent/cli/commands.h"

// Offset of a field in the options of this file's command.
#define AT(field) offsetof(struct options, field)

// clang-format off
#define OPT_FLAG(name, letter, help, field)                                                        \
    {name, letter, NULL, help, AGENT_FLAG, field, 0, 0, NULL, NULL}
#define OPT_TEXT(name, letter, arg, help, field)                                                   \
    {name, letter, arg, help, AGENT_TEXT, field, 0, 0, NULL, NULL}
// The function `take` checks the text: false: it is not `expected`.
#define OPT_CHECKED(name, letter, arg, help, field, take, expected)                                \
    {name, letter, arg, help, AGENT_TEXT, field, 0, 0, take, expected}
// The function `take` also keeps the value.
#define OPT_TAKEN(name, letter, arg, help, take, expected)                                         \
    {name, letter, arg, help, AGENT_NOTHING, 0, 0, 0, take, expected}
#define OPT_LIST(name, letter, arg, help, field, take, expected)                                   \
    {name, letter, arg, help, AGENT_LIST, field, 0, 0, take, expected}
#define OPT_INT(name, letter, arg, help, field, min, max)                                          \
    {name, letter, arg, help, AGENT_INT, field, min, max, NULL, NULL}
#define OPT_WHOLE(name, letter, arg, help, field, min, max)                                        \
    {name, letter, arg, help, AGENT_WHOLE, field, min, max, NULL, NULL}
#define OPT_REAL(name, letter, arg, help, field, min, max)                                         \
    {name, letter, arg, help, AGENT_REAL, field, min, max, NULL, NULL}
#define OPT_SIZE(name, letter, arg, help, field, min, max)                                         \
    {name, letter, arg, help, AGENT_SIZE, field, min, max, NULL, NULL}
#define OPT_OTHER_NAME(name) {name, 0, NULL, NULL, AGENT_OTHER_NAME, 0, 0, 0, NULL, NULL}
#define OPT_END {0}

#define OPT_HOME(what)                                                                             \
    OPT_TEXT("home", 'H', "DIR", what " (default ~/.nebula)", offsetof(struct agent_options, home))
#define OPT_JSON(what) OPT_FLAG("json", 'j', what, offsetof(struct agent_options, json))
#define OPT_SEAL_KEY(what)                                                                         \
    OPT_TEXT("seal-key", 0, "FILE", what, offsetof(struct agent_options, seal_key))
#define OPT_SET(what, field) OPT_LIST("set", 's', "PATH=VALUE", what, field, NULL, NULL)
#define OPT_WAN(what, field)                                                                       \
    OPT_CHECKED("wan", 0, "RATE:DELAY[:LOSS]", what, field, agent_option_is_wan,                   \
                "RATE:DELAY[:LOSS]")
// clang-format on

bool agent_option_is_wan(const char *value, void *options);  // the reason is logged
bool agent_option_is_type(const char *value, void *options); // bf16 or fp32

#endif
