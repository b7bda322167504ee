// SPDX-License-Identifier: Apache-2.0
// Requests for the status page: method, path, Host, Authorization, Cookie and ?token=, one line
// each. None passes without the token.
#include "agent/base/log.h"
#include "agent/web/guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FIELDS = 6 };
static const char token[] = "0123456789abcdef",
                  cookie[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *fields[FIELDS] = {0};
    char *text = malloc(size + 1), *next = text;
    NEB_ASSERT(text);
    memcpy(text, data, size);
    text[size] = 0;
    for (int i = 0; i < FIELDS && next; i++)
        fields[i] = strsep(&next, "\n");
    const struct agent_web_ask ask = {
        fields[0], fields[1] ? fields[1] : "/", fields[2], fields[3], fields[4], fields[5],
        size & 1};
    bool shown = (ask.authorization && strstr(ask.authorization, token)) ||
                 (ask.query_token && strstr(ask.query_token, token)) ||
                 (ask.cookies && strstr(ask.cookies, cookie));
    for (int wide = 0; wide < 2; wide++) {
        struct agent_web_guard g = {.wide = wide};
        enum agent_web_verdict without = agent_web_judge(&g, &ask);
        NEB_ASSERT(!wide || without != AGENT_WEB_PASS);
        NEB_ASSERT(!ask.other_user || without != AGENT_WEB_PASS || !strcmp(ask.path, "/"));
        memcpy(g.token, token, sizeof token);
        memcpy(g.cookie, cookie, sizeof cookie);
        enum agent_web_verdict v = agent_web_judge(&g, &ask);
        NEB_ASSERT(shown || v != AGENT_WEB_LOGIN);
        NEB_ASSERT(shown || v != AGENT_WEB_PASS || (!wide && !strcmp(ask.path, "/")));
        NEB_ASSERT(!strcmp(ask.method, "GET") || v == AGENT_WEB_METHOD);
        NEB_ASSERT(ask.host || v == AGENT_WEB_METHOD || v == AGENT_WEB_FORBIDDEN);
    }
    free(text);
    return 0;
}
