// Large things sealed at rest: checkpoints, ledger blobs. libsodium's secretstream (XChaCha20-Poly1305) over chunks of 64 KiB, so
// that no more than one chunk is held in clear while writing, and a file that was cut, reordered or changed anywhere is refused.
//
//     "nebseal1" | key kind u8, 7 bytes 0 | salt 16 | stream header 24 | chunks of 64 KiB + 17, the last one shorter and marked
//
// The front is bound to the first chunk. The key comes from a key file (or systemd credential), or from a passphrase by Argon2id
// with the salt in the front. Keys and states lie in locked memory and are wiped.
//
// Who writes gives a function that takes bytes, so that whoever has a file writer (intra's checkpoints, the ledger) can use this
// without knowing of it: agent/ passes it down.
#ifndef SEC_SEAL_STREAM_H
#define SEC_SEAL_STREAM_H
#include "agent/base/bytes.h"
#include "security/seal.h"

enum { SEC_STREAM_FRONT = 8 + 8 + SEC_SEAL_SALT_BYTES + 24, SEC_STREAM_CHUNK = 64 << 10 };

enum sec_key_kind { SEC_KEY_FILE, SEC_KEY_PASSPHRASE };
struct sec_seal_key { // made by the two calls below; wipe with sec_seal_key_destroy
    enum sec_key_kind kind;
    uint8_t salt[SEC_SEAL_SALT_BYTES];
    uint8_t bytes[SEC_SEAL_KEY_BYTES];
};
// A key file of 32 bytes, 0600; made when it is not there and `make`. $CREDENTIALS_DIRECTORY/nebula-seal wins over the file.
NEB_MUST_CHECK enum neb_status sec_seal_key_load(const char *path, bool make,
                                                 struct sec_seal_key **out);
// salt NULL: a fresh one, to seal with; else the one of the front of what is to be opened. NEB_ERR_INVALID: under 8 characters.
NEB_MUST_CHECK enum neb_status sec_seal_key_passphrase(const char *text,
                                                       const uint8_t salt[SEC_SEAL_SALT_BYTES],
                                                       struct sec_seal_key **out);
void sec_seal_key_destroy(struct sec_seal_key **k);

typedef enum neb_status sec_stream_put(void *user, const void *p, size_t n);
struct sec_stream_writer;
NEB_MUST_CHECK enum neb_status sec_stream_create(const struct sec_seal_key *k, sec_stream_put *put,
                                                 void *user, struct sec_stream_writer **out);
NEB_MUST_CHECK enum neb_status sec_stream_add(struct sec_stream_writer *w, const void *p, size_t n);
NEB_MUST_CHECK enum neb_status sec_stream_end(struct sec_stream_writer *w); // the last chunk; nothing may follow
void sec_stream_destroy(struct sec_stream_writer **w);

// What key something was sealed with. NEB_ERR_FORMAT: not sealed.
NEB_MUST_CHECK enum neb_status sec_stream_front(const uint8_t *p, size_t len,
                                                enum sec_key_kind *kind,
                                                uint8_t salt[SEC_SEAL_SALT_BYTES]);
// Opens all of it into out (replaced). NEB_ERR_FORMAT: not sealed; NEB_ERR_DENIED: another key, cut, or changed, out empty.
NEB_MUST_CHECK enum neb_status sec_stream_open(const struct sec_seal_key *k, const uint8_t *p,
                                               size_t len, struct neb_buf *out);

#endif
