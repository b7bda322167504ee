// SPDX-License-Identifier: Apache-2.0
// Sockets really have the options of the profile: each row of the table is read back from a socket
// of each role. If a role has no row for an option, ZeroMQ's default stays.
#include "agent/base/log.h"
#include "inter/link/link.h"
#include "inter/link/socket_profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int64_t read_back(void *s, const struct inter_socket_option *o) {
    int64_t wide = 0;
    int narrow = 0;
    size_t n = o->wide ? sizeof wide : sizeof narrow;
    assert_int_equal(zmq_getsockopt(s, o->option, o->wide ? (void *)&wide : (void *)&narrow, &n),
                     0);
    return o->wide ? wide : narrow;
}

// True if a role has its own row for the option.
static bool told(enum inter_socket_role role, int option) {
    for (size_t i = 0; i < inter_socket_profile_rows; i++)
        if (inter_socket_profile[i].option == option &&
            inter_socket_profile[i].roles & (unsigned)role)
            return true;
    return false;
}

static void test_rows(void **state) {
    (void)state;
    static const struct {
        enum inter_socket_role role;
        int type;
    } roles[] = {{INTER_SOCKET_LISTEN, ZMQ_ROUTER},
                 {INTER_SOCKET_CONTROL, ZMQ_DEALER},
                 {INTER_SOCKET_BULK, ZMQ_DEALER}};
    const size_t chunk = 256 << 10;
    void *ctx = zmq_ctx_new();
    for (int r = 0; r < 3; r++) {
        void *s = zmq_socket(ctx, roles[r].type), *plain = zmq_socket(ctx, roles[r].type);
        assert_int_equal(inter_socket_apply(s, roles[r].role, chunk), NEB_OK);
        for (size_t i = 0; i < inter_socket_profile_rows; i++) {
            const struct inter_socket_option *o = &inter_socket_profile[i];
            bool has = o->roles & (unsigned)roles[r].role;
            // This option cannot be read; test_link_strangers.c checks its effect.
            if (o->option == ZMQ_ROUTER_MANDATORY) {
                assert_int_equal(o->value, 1);
                continue;
            }
            if (has || !told(roles[r].role, o->option))
                assert_int_equal(read_back(s, o),
                                 has ? inter_socket_value(o, chunk) : read_back(plain, o));
            if (r == 0)
                printf("%-24s %8lld %-22s %s\n", o->name, (long long)o->value, o->unit, o->why);
        }
        zmq_close(s);
        zmq_close(plain);
    }
    zmq_ctx_term(ctx);
}

// A row that ZeroMQ refuses is an error that names it.
static void test_refused(void **state) {
    (void)state;
    // a PAIR socket has no ROUTER_MANDATORY
    void *ctx = zmq_ctx_new(), *s = zmq_socket(ctx, ZMQ_PAIR);
    char text[256];
    assert_int_equal(inter_socket_apply(s, INTER_SOCKET_LISTEN, 1 << 20), NEB_ERR_IO);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "ZMQ_ROUTER_MANDATORY"));
    zmq_close(s);
    zmq_ctx_term(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
