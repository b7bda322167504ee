// SPDX-License-Identifier: Apache-2.0
#include "security/source.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <string.h>

static uint64_t of_ipv4(const uint8_t a[4]) {
    const uint8_t b[8] = {0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3]};
    uint64_t v;
    memcpy(&v, b, sizeof v);
    return v;
}

uint64_t sec_source_of(const struct sockaddr_storage *a) {
    static const uint8_t translated[12] = {0, 0x64, 0xff, 0x9b};
    uint8_t v4[4];
    uint64_t v = 0;
    if (a->ss_family == AF_INET) {
        memcpy(v4, &((const struct sockaddr_in *)(const void *)a)->sin_addr, sizeof v4);
        return of_ipv4(v4);
    }
    if (a->ss_family != AF_INET6)
        return 0;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(six) || !memcmp(six->s6_addr, translated, sizeof translated))
        return of_ipv4(six->s6_addr + 12);
    memcpy(&v, six->s6_addr, sizeof v);
    return v;
}

uint64_t sec_source_of_text(const char *address) {
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    if (inet_pton(AF_INET, address, &((struct sockaddr_in *)(void *)&a)->sin_addr) == 1)
        a.ss_family = AF_INET;
    else if (inet_pton(AF_INET6, address, &((struct sockaddr_in6 *)(void *)&a)->sin6_addr) == 1)
        a.ss_family = AF_INET6;
    return sec_source_of(&a);
}

uint64_t sec_source_of_endpoint(const char *endpoint) {
    const char *end = strrchr(endpoint, ':');
    char host[INET6_ADDRSTRLEN];
    bool six = endpoint[0] == '[' && end && end > endpoint && end[-1] == ']';
    size_t n = end ? (size_t)(end - endpoint) - (six ? 2 : 0) : 0;
    if (n == 0 || n >= sizeof host)
        return 0;
    memcpy(host, endpoint + six, n);
    host[n] = 0;
    return sec_source_of_text(host);
}

// getpeername would fail after the other end has reset the connection.
bool sec_address_of_peer(int fd, struct sockaddr_storage *out) {
    static const socklen_t lengths[] = {sizeof(struct sockaddr_in6), sizeof(struct sockaddr_in)};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        socklen_t n = lengths[i]; // at most the size for this family
        if (getsockopt(fd, SOL_SOCKET, SO_PEERNAME, out, &n) == 0)
            return true;
    }
    return false;
}

uint64_t sec_source_of_peer(int fd) {
    struct sockaddr_storage a;
    return sec_address_of_peer(fd, &a) ? sec_source_of(&a) : 0;
}

// ---- how often a source may come ----------------------------------------------------------------

void sec_source_rate_init(struct sec_source_rate *r, uint32_t per_second, uint32_t burst) {
    memset(r, 0, sizeof *r);
    randombytes_buf(r->key, sizeof r->key);
    r->gap = NEB_S / per_second;
    r->ahead = (burst - 1) * r->gap;
}

static neb_ns *bucket(struct sec_source_rate *r, uint64_t source) {
    uint64_t h;
    uint8_t out[crypto_shorthash_BYTES];
    _Static_assert(crypto_shorthash_KEYBYTES == SEC_SOURCE_KEY_BYTES, "key");
    _Static_assert(sizeof h == sizeof out, "hash");
    crypto_shorthash(out, (const uint8_t *)&source, sizeof source, r->key);
    memcpy(&h, out, sizeof h);
    return &r->next[h % SEC_SOURCE_BUCKETS];
}

bool sec_source_rate_take(struct sec_source_rate *r, uint64_t source, neb_ns now) {
    neb_ns *next = bucket(r, source);
    neb_ns at = *next > now ? *next : now;
    if (at - now > r->ahead)
        return false;
    *next = at + r->gap;
    return true;
}

void sec_source_rate_give_back(struct sec_source_rate *r, uint64_t source) {
    *bucket(r, source) -= r->gap;
}

// ---- handshakes of strangers --------------------------------------------------------------------

// The limit for all sources is a virtual clock too. What was spent moves it forward.
static const neb_ns saved = SEC_RATE_SAVED_MS * NEB_MS;

void sec_enrol_rate_init(struct sec_enrol_rate *r) {
    sec_source_rate_init(&r->sources, SEC_RATE_SECOND, SEC_RATE_BURST);
    r->paid = 0;
}

bool sec_enrol_rate_take(struct sec_enrol_rate *r, uint64_t source, neb_ns now) {
    return r->paid - now <= saved * 100 / SEC_RATE_PERCENT &&
           sec_source_rate_take(&r->sources, source, now);
}

void sec_enrol_rate_spent(struct sec_enrol_rate *r, neb_ns cost, neb_ns now) {
    r->paid = (r->paid > now ? r->paid : now) + cost * 100 / SEC_RATE_PERCENT;
}
