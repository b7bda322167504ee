// The exact path for layers above compress/: see kernels/exact.h, whose rules these calls keep.
#ifndef CMP_EXACT_H
#define CMP_EXACT_H
#include "kernels/exact.h"
#include "kernels/pool.h"
#endif
