// SPDX-License-Identifier: Apache-2.0
// Bytes of stream messages. Parsers take hostile bytes. They return false for anything that does
// not fit.
//
//     all     | INTER_MSG_STREAM u8 | kind u8 | stream u16 | job 32 |
//     HELLO   | version u8 | role u8 | type u8 | ask u8 | batch_bytes u32 | base u64 |
//             | n u8 | n × (name str, sha256 32) |
//     GRANT   | session u64 | have u64 | applied u64 | durable u64 |
//             | window_batches u32 | window_bytes u32 |
//     DATA    | seq u64 | put i64 | signature 64 | the batch |
//             the signature covers job, stream, type, seq, sha256 of the batch
//
// put: the producer's time of day at the put in ns, or 0. It is not signed, because only statistics
// use it. HELLO and GRANT go on control, DATA on bulk connections.
#ifndef INTER_STREAM_WIRE_H
#define INTER_STREAM_WIRE_H
#include "inter/stream/stream.h"

enum {
    INTER_MSG_STREAM = 48,
    INTER_STREAM_VERSION = 3,
    INTER_STREAM_HEADER = 20,
    INTER_STREAM_DATA_HEADER = INTER_STREAM_HEADER + 8 + 8 + 64
};
#define INTER_STREAM_CONTEXT "nebula stream v1"

enum inter_stream_kind { INTER_STREAM_HELLO = 1, INTER_STREAM_GRANT, INTER_STREAM_DATA };

struct inter_stream_hello {
    uint8_t role, type;
    bool ask; // asks for a HELLO in return
    uint32_t batch_bytes, n_terms;
    uint64_t base; // producer: the oldest batch that it keeps; consumer: 0
    struct inter_stream_term terms[INTER_STREAM_TERMS_MAX];
};
struct inter_stream_grant {
    uint64_t session, have, applied, durable;
    uint32_t window_batches, window_bytes;
};
struct inter_stream_message {
    enum inter_stream_kind kind;
    struct inter_stream_key key;
    struct inter_stream_hello hello;
    struct inter_stream_grant grant;
    uint64_t seq;
    neb_ns put_at;
    uint8_t sig[INTER_SIG_BYTES];
    const uint8_t *body; // points into the message
    size_t len;
};

void inter_stream_put_hello(struct neb_buf *b, const struct inter_stream_key *k,
                            const struct inter_stream_hello *h);
void inter_stream_put_grant(struct neb_buf *b, const struct inter_stream_key *k,
                            const struct inter_stream_grant *g);
void inter_stream_put_data(struct neb_buf *b, const struct inter_stream_key *k, uint64_t seq,
                           neb_ns put_at, const uint8_t sig[INTER_SIG_BYTES]); // the batch follows
// The bytes that a batch's signature covers.
void inter_stream_put_signed(struct neb_buf *b, const struct inter_stream_key *k,
                             enum inter_stream_type type, uint64_t seq, const void *p, size_t n);
bool inter_stream_parse(const uint8_t *p, size_t n, struct inter_stream_message *out);
// Parses only the stream that a message belongs to.
bool inter_stream_parse_key(const uint8_t *p, size_t n, struct inter_stream_key *out);
// True for a HELLO of another version.
bool inter_stream_other_version(const uint8_t *p, size_t n);

#endif
