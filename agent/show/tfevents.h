// SPDX-License-Identifier: Apache-2.0
// One TensorBoard event file of scalars: a sequence of TFRecord records, each with an Event of
// event.proto. Append only; one write for each record, so a crash truncates at most the last
// record, which readers skip.
//
//     u64 length │ u32 masked CRC-32C of these 8 bytes │ Event │ u32 masked CRC-32C of the Event
//     (little-endian)
//
// Framing: tensorflow/core/lib/io/record_writer.h (mask: crc32c.h, after LevelDB). Fields:
// tensorflow/core/util/event.proto and core/framework/summary.proto:
//     Event {double wall_time = 1; int64 step = 2; string file_version = 3;
//            Summary summary = 5; SessionLog session_log = 7}
//     Summary {repeated Value value = 1}   Value {string tag = 1; float simple_value = 2}
//     SessionLog {SessionStatus status = 1; START = 1}
// CRC-32C: RFC 3720, appendix B.4.
#ifndef AGENT_TFEVENTS_H
#define AGENT_TFEVENTS_H
#include "agent/base/bytes.h"
#include "agent/base/status.h"

struct agent_tf_scalar {
    const char *tag;
    double value; // written as a float; skipped if not finite
};

// CRC-32C (Castagnoli); and its masked form in records: rotated right by 15 bits, plus 0xa282ead8.
uint32_t agent_tf_crc32c(const void *p, size_t n);
uint32_t agent_tf_mask(uint32_t crc);

// Write events, and a record around one. wall_s: seconds since 1970.
void agent_tf_put_version(struct neb_buf *event, double wall_s);
// Readers drop events of earlier files from this step on.
void agent_tf_put_start(struct neb_buf *event, double wall_s, int64_t step);
void agent_tf_put_scalars(struct neb_buf *event, double wall_s, int64_t step,
                          const struct agent_tf_scalar *s, int n);
void agent_tf_put_record(struct neb_buf *file, const struct neb_buf *event);

struct agent_tfevents;
// Creates the folder and a new file DIR/events.out.tfevents.SECONDS.HOST.PID.N with its first
// record. NEB_ERR_IO and other disk errors.
NEB_MUST_CHECK enum neb_status agent_tfevents_create(const char *dir, double wall_s,
                                                     struct agent_tfevents **out);
NEB_MUST_CHECK enum neb_status agent_tfevents_start(struct agent_tfevents *f, double wall_s,
                                                    int64_t step);
// Writes nothing if no value is finite.
NEB_MUST_CHECK enum neb_status agent_tfevents_scalars(struct agent_tfevents *f, double wall_s,
                                                      int64_t step, const struct agent_tf_scalar *s,
                                                      int n);
void agent_tfevents_close(struct agent_tfevents **f);

#endif
