// SPDX-License-Identifier: Apache-2.0
// Shared by the tests in C. It needs no cmocka, because fuzz targets use it too. A fixture that
// fails ends the program.
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "intra/train/trainer.h"

// Defined under AddressSanitizer and ThreadSanitizer: freed memory stays with the process, and
// mlock does nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TESTING_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TESTING_SANITIZED 1
#endif
#endif

// Time limits of waits are multiplied by this.
#ifdef TESTING_SANITIZED
enum { TESTING_SLOWER = 10 };
#else
enum { TESTING_SLOWER = 1 };
#endif

// A sink for neb_log_set_sink: drops the errors that a test provokes.
void testing_drop(void *user, enum neb_log_level level, const char *text);

// The path of `file`, which is relative to the source root.
void testing_source(const char *file, char out[NEB_PATH_MAX]);

// Makes `n` key pairs of X25519, as members of a masked sum have. Starts libsodium.
void testing_key_pairs(size_t n, uint8_t (*secret)[32], uint8_t (*public)[32]);

// The trainer of the checkpoints in tests/fuzz/corpus/checkpoint: 5 pieces, width 4, one layer.
struct intra_trainer_config testing_small_trainer(struct intra_trainable what);

// Sets parameters by their tensor names, exact in fp32: about 1 in norms, in [-0.5, 0.5) elsewhere.
void testing_set_params(struct intra_model *m);
double testing_unit(const char *prefix, const char *name, size_t k); // in [-1, 1), exact in fp32

#endif
