// SPDX-License-Identifier: Apache-2.0
// The calls of sides, which the package binds and these tests never make.
#define NO_SIDE(call)                                                                              \
    int nebula_side_##call(void);                                                                  \
    int nebula_side_##call(void) { return -1; }
NO_SIDE(open)
NO_SIDE(info_get)
NO_SIDE(next)
NO_SIDE(put)
NO_SIDE(writes)
NO_SIDE(answer)
NO_SIDE(ask)
NO_SIDE(learned)
NO_SIDE(saved)
NO_SIDE(close)
NO_SIDE(fail)
NO_SIDE(model)
NO_SIDE(mapped)
