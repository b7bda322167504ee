// SPDX-License-Identifier: Apache-2.0
// nebula ledger: shows and checks what an agent promised and saw committed. It only reads, and
// works beside a running agent.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/proc/seal.h"
#include "inter/ledger/verify.h"
#include "inter/record/evidence.h"
#include "security/members.h"
#include "security/sign.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct look { // shared by the callbacks of one command
    const char *dir, *seal_key;
    struct sec_vault *vault; // opens sealed updates; NULL: none
    struct inter_ledger *ledger;
    struct sec_members members;
    struct sec_federation *federation; // NULL: a pair without a CA
    json_t *jobs;                      // {hex: {"spec": {…}, "state": {…}}}
    json_t *damages;                   // array
    bool json;
    json_t *chains, *seconds, *evidence, *misnamed; // arrays
    struct sec_former former[SEC_FORMER_MAX]; // keys of removed members and from before rotations
    size_t n_former;
};

static void hex_id(const uint8_t id[INTER_ID_BYTES], char out[2 * INTER_ID_BYTES + 1]) {
    neb_hex(id, INTER_ID_BYTES, out);
}

static json_t *hex_json(const uint8_t *p, size_t n) {
    char *text = malloc(2 * n + 1);
    if (!text)
        return NULL;
    neb_hex(p, n, text);
    json_t *s = json_string(text);
    free(text);
    return s;
}

// ---- jobs of the ledger -------------------------------------------------------------------------

static void add_job(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                    const char *state) {
    struct look *k = user;
    char hex[2 * INTER_ID_BYTES + 1];
    hex_id(id, hex);
    json_t *s = spec ? json_loads(spec, 0, NULL) : NULL,
           *t = state ? json_loads(state, 0, NULL) : NULL;
    json_object_set_new(
        k->jobs, hex,
        json_pack("{s:o,s:o}", "spec", s ? s : json_object(), "state", t ? t : json_object()));
}

static const json_t *job_part(const struct look *k, const uint8_t id[INTER_ID_BYTES],
                              const char *part) {
    char hex[2 * INTER_ID_BYTES + 1];
    hex_id(id, hex);
    return json_object_get(json_object_get(k->jobs, hex), part);
}

// A member is an index into the job's list of clusters. The member list has the key of a cluster's
// agent.
static enum neb_status verify_as(void *user, const uint8_t job[INTER_ID_BYTES], uint8_t member,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[INTER_SIG_BYTES]) {
    const struct look *k = user;
    const json_t *clusters = json_object_get(job_part(k, job, "spec"), "clusters");
    const char *name = agent_json_text(json_array_get(clusters, member), "name", NULL);
    const struct sec_member *m = name ? sec_members_by_name(&k->members, name) : NULL;
    enum neb_status st = m ? sec_verify(m->pub.sign, context, msg, len, sig) : NEB_ERR_NOT_FOUND;
    for (size_t i = k->n_former;
         name && st != NEB_OK && i-- > 0;) // keys from before a rotation or a revocation
        if (!strcmp(k->former[i].name, name))
            st = sec_verify(k->former[i].sign, context, msg, len, sig);
    return st;
}

// The gate, which decides how many votes are enough, and the clusters that lost their vote by the
// signed list.
static void about_job(void *user, const uint8_t job[INTER_ID_BYTES], struct inter_job_config *out) {
    const struct look *k = user;
    const json_t *spec = job_part(k, job, "spec"), *clusters = json_object_get(spec, "clusters"),
                 *c;
    const char *gate = agent_json_text(spec, "sync.gate", "");
    json_int_t f = json_integer_value(json_object_get(spec, "sync.private_colluders"));
    size_t i;
    out->removed = mset_none();
    out->robust = !strcmp(gate, "robust");
    out->masked = !strcmp(gate, "private");
    out->colluders = (uint8_t)(f > 0 && f < NEB_MEMBERS_MAX ? f : 0);
    json_array_foreach(clusters, i, c) {
        const char *name = agent_json_text(c, "name", NULL);
        const struct sec_member *m =
            k->federation && name ? sec_members_by_name(&k->members, name) : NULL;
        if (i < NEB_MEMBERS_MAX && m && !(m->caps & SEC_CAP_VOTER))
            mset_add(&out->removed, (int)i);
    }
}

// The signed list of a federation, or else members.json.
static enum neb_status load_members(struct look *k) {
    char path[NEB_PATH_MAX];
    enum neb_status st = sec_federation_open(k->dir, &k->federation);
    if (st == NEB_OK && k->federation->list.members.version) {
        k->members = k->federation->list.members;
        return sec_former_load(k->federation->dir, k->former, &k->n_former);
    }
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    NEB_TRY(neb_path(path, sizeof path, k->dir, "members.json"));
    st = sec_members_load(path, 0, &k->members);
    return st == NEB_ERR_NOT_FOUND
               ? neb_fail(st,
                          "there is no %s: signatures cannot be checked without the members' keys",
                          path)
               : st;
}

static enum neb_status look_open(struct look *k) {
    k->jobs = json_object();
    k->damages = json_array();
    k->chains = json_array();
    k->seconds = json_array();
    k->evidence = json_array();
    k->misnamed = json_array();
    if (!k->jobs || !k->damages || !k->chains || !k->seconds || !k->evidence || !k->misnamed)
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading a ledger");
    NEB_TRY(agent_seal_option(k->seal_key, &k->vault));
    NEB_TRY(inter_ledger_open_readonly(k->dir, &k->ledger));
    inter_ledger_seal(k->ledger, sec_vault_key(k->vault));
    return inter_ledger_jobs(k->ledger, add_job, k);
}

static void look_close(struct look *k) {
    inter_ledger_close(&k->ledger);
    sec_vault_destroy(&k->vault);
    sec_federation_destroy(&k->federation);
    json_decref(k->jobs);
    json_decref(k->damages);
    json_decref(k->chains);
    json_decref(k->seconds);
    json_decref(k->evidence);
    json_decref(k->misnamed);
}

static enum neb_status print_json(json_t *o) { // takes o
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    enum neb_status st = text ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory printing");
    if (text && (puts(text) < 0 || fflush(stdout) != 0))
        st = neb_fail_errno("stdout");
    free(text);
    json_decref(o);
    return st;
}

// ---- verify -------------------------------------------------------------------------------------

static void on_damage(void *user, const struct inter_damage *d) {
    struct look *k = user;
    if (k->json) {
        json_t *o = json_pack("{s:s,s:s}", "kind", inter_damage_name(d->kind), "text", d->text);
        if (d->placed) {
            json_object_set_new(o, "job", hex_json(d->job, sizeof d->job));
            json_object_set_new(o, "fragment", json_integer(d->fragment));
            json_object_set_new(o, "round", json_integer(d->round));
        }
        if (d->member >= 0)
            json_object_set_new(o, "member", json_integer(d->member));
        json_array_append_new(k->damages, o);
    } else if (d->placed) {
        char hex[2 * INTER_ID_BYTES + 1];
        hex_id(d->job, hex);
        printf("damage: job %s, fragment %u, round %u: %s (%s)\n", hex, d->fragment, d->round,
               d->text, inter_damage_name(d->kind));
    } else {
        printf("damage: %s (%s)\n", d->text, inter_damage_name(d->kind));
    }
}

static json_t *counts_json(const struct look *k, const struct inter_ledger_counts *n) {
    return json_pack("{s:s,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:O}", "dir", k->dir, "ok",
                     n->damages == 0, "fragments", (json_int_t)n->fragments, "records",
                     (json_int_t)n->records, "manifests", (json_int_t)n->manifests, "votes",
                     (json_int_t)n->votes, "signatures", (json_int_t)n->signatures, "blobs",
                     (json_int_t)n->blobs, "blob_bytes", (json_int_t)n->blob_bytes, "strays",
                     (json_int_t)n->strays, "damages", k->damages);
}

static void print_counts(const struct look *k, const struct inter_ledger_counts *n) {
    printf("ledger: %s\n  fragments: %llu\n  records: %llu\n  manifests: %llu\n  votes: %llu\n  "
           "signatures: %llu\n  blobs: %llu (%llu bytes)\n",
           k->dir, (unsigned long long)n->fragments, (unsigned long long)n->records,
           (unsigned long long)n->manifests, (unsigned long long)n->votes,
           (unsigned long long)n->signatures, (unsigned long long)n->blobs,
           (unsigned long long)n->blob_bytes);
    if (n->strays)
        printf("  files of no update: %llu (harmless; the next start of the agent removes them)\n",
               (unsigned long long)n->strays);
    if (n->damages)
        printf("  DAMAGED: %llu; stop the agent, keep this folder, and join again with a new one\n",
               (unsigned long long)n->damages);
    else
        printf("  all well\n");
}

static enum neb_status verify(struct look *k) {
    struct inter_ledger_counts n;
    NEB_TRY(look_open(k));
    NEB_TRY(load_members(k));
    struct inter_ledger_check check = {k, verify_as, on_damage, about_job};
    enum neb_status st = inter_ledger_verify(k->ledger, &check, &n);
    if (st != NEB_OK && st != NEB_ERR_CORRUPT)
        return st;
    if (k->json)
        NEB_TRY(print_json(counts_json(k, &n)));
    else
        print_counts(k, &n);
    return st;
}

// ---- show ---------------------------------------------------------------------------------------

static void on_chain(void *user, const struct inter_chain *c) {
    struct look *k = user;
    json_t *o = json_pack("{s:o,s:I,s:I,s:I,s:I,s:I,s:o}", "job", hex_json(c->job, sizeof c->job),
                          "fragment", (json_int_t)c->fragment, "first", (json_int_t)c->first,
                          "floor", (json_int_t)c->floor, "kept", (json_int_t)c->kept, "next",
                          (json_int_t)c->next, "head", hex_json(c->head, sizeof c->head));
    json_array_append_new(k->chains, o);
}

// The name of a member in a job.
static const char *name_of(const struct look *k, const uint8_t job[INTER_ID_BYTES],
                           uint8_t member) {
    const json_t *clusters = json_object_get(job_part(k, job, "spec"), "clusters");
    return agent_json_text(json_array_get(clusters, member), "name", "?");
}

// instead: the update that counts under that key; absent if its round is no longer kept.
static void on_second(void *user, const struct inter_manifest *m) {
    struct look *k = user;
    struct inter_manifest now;
    json_t *o = json_pack(
        "{s:o,s:I,s:I,s:i,s:s,s:I,s:I,s:o,s:o}", "job", hex_json(m->key.job, sizeof m->key.job),
        "fragment", (json_int_t)m->key.fragment, "round", (json_int_t)m->key.round, "member",
        m->key.member, "name", name_of(k, m->key.job, m->key.member), "attempt",
        (json_int_t)m->key.attempt, "bytes", (json_int_t)m->bytes, "sha256",
        hex_json(m->sha256, sizeof m->sha256), "signature", hex_json(m->sig, sizeof m->sig));
    if (inter_ledger_find_manifest(k->ledger, &m->key, &now) == NEB_OK) {
        json_object_set_new(o, "instead_sha256", hex_json(now.sha256, sizeof now.sha256));
        json_object_set_new(o, "instead_signature", hex_json(now.sig, sizeof now.sig));
    }
    json_array_append_new(k->seconds, o);
}

// Includes the signed bytes, so that anybody with the member's key can check them.
static json_t *statement_json(const struct inter_statement *s) {
    static const char *const kinds[INTER_STATEMENT_KINDS] = {"accept", "promise", "update"};
    struct neb_buf b = {0};
    inter_statement_put_signed(&b, s);
    json_t *o = json_pack("{s:s,s:I,s:I,s:I,s:s,s:o,s:o}", "kind", kinds[s->kind], "fragment",
                          (json_int_t)s->fragment, "round", (json_int_t)s->promise.round, "term",
                          (json_int_t)s->term, "context", inter_statement_context(s), "signed",
                          hex_json(b.p, b.oom ? 0 : b.len), "signature",
                          hex_json(s->promise.sig, sizeof s->promise.sig));
    neb_buf_free(&b);
    return o;
}

static void on_evidence(void *user, const struct inter_evidence *e) {
    struct look *k = user;
    char text[256];
    uint8_t member = inter_evidence_member(e);
    inter_evidence_text(e, text, sizeof text);
    json_array_append_new(k->evidence,
                          json_pack("{s:o,s:i,s:s,s:s,s:[o,o]}", "job",
                                    hex_json(e->a.job, sizeof e->a.job), "member", member, "name",
                                    name_of(k, e->a.job, member), "text", text, "statements",
                                    statement_json(&e->a), statement_json(&e->b)));
}

static void on_misnamed(void *user, const uint8_t job[INTER_ID_BYTES], const char *member,
                        const char *text) {
    struct look *k = user;
    json_array_append_new(k->misnamed,
                          json_pack("{s:o,s:s,s:o*}", "job", hex_json(job, INTER_ID_BYTES), "name",
                                    member, "statement", json_loads(text, 0, NULL)));
}

static void print_misnamed(const struct look *k) {
    json_t *o;
    size_t i;
    json_array_foreach(k->misnamed, i, o)
        printf("\nevidence against %s: it signed the job id %.8s "
               "for a specification with another digest\n",
               agent_json_text(o, "name", "?"), agent_json_text(o, "job", ""));
}

static void on_peer(void *user, const char *peer, uint64_t messages, uint64_t bytes) {
    json_object_set_new(
        user, peer,
        json_pack("{s:I,s:I}", "messages", (json_int_t)messages, "bytes", (json_int_t)bytes));
}

static long long number(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static void print_chains(const struct look *k, const char *job) {
    json_t *c;
    size_t i;
    json_array_foreach(k->chains, i, c) if (!strcmp(agent_json_text(c, "job", ""), job)) {
        long long first = number(c, "first"), next = number(c, "next"), kept = number(c, "kept");
        if (next == first)
            printf("  fragment %lld: no commit; round %lld is open\n", number(c, "fragment"), next);
        else
            printf("  fragment %lld: commits %lld to %lld, blobs from %lld on, newest %.16s\n",
                   number(c, "fragment"), first, next - 1, kept, agent_json_text(c, "head", ""));
    }
}

static void print_lies(const struct look *k, const char *job) {
    json_t *o;
    size_t i;
    json_array_foreach(k->evidence, i, o) if (!strcmp(agent_json_text(o, "job", ""), job))
        printf("  evidence against %s: %s\n", agent_json_text(o, "name", "?"),
               agent_json_text(o, "text", ""));
    json_array_foreach(k->seconds, i, o) if (!strcmp(agent_json_text(o, "job", ""), job)) {
        const char *instead = agent_json_text(o, "instead_sha256", NULL);
        printf("  %s signed a second update for round %lld of fragment %lld: %.16s",
               agent_json_text(o, "name", "?"), number(o, "round"), number(o, "fragment"),
               agent_json_text(o, "sha256", ""));
        if (instead)
            printf("; %.16s counts", instead);
        putchar('\n');
    }
}

static enum neb_status show(struct look *k) {
    char epoch[17];
    json_t *outbox = json_object(), *job, *peer;
    const char *key;
    enum neb_status st;
    NEB_TRY_GOTO(look_open(k), out);
    NEB_TRY_GOTO(inter_ledger_chains(k->ledger, on_chain, k), out);
    NEB_TRY_GOTO(inter_ledger_outbox(k->ledger, on_peer, outbox), out);
    NEB_TRY_GOTO(inter_ledger_replaced_all(k->ledger, on_second, k), out);
    NEB_TRY_GOTO(inter_ledger_all_evidence(k->ledger, on_evidence, k), out);
    NEB_TRY_GOTO(inter_ledger_all_misnamed(k->ledger, on_misnamed, k), out);
    snprintf(epoch, sizeof epoch, "%016llx", (unsigned long long)inter_ledger_epoch(k->ledger));
    if (k->json) {
        st = print_json(json_pack("{s:s,s:s,s:O,s:O,s:O,s:O,s:O,s:O}", "dir", k->dir, "epoch",
                                  epoch, "jobs", k->jobs, "chains", k->chains, "outbox", outbox,
                                  "second_updates", k->seconds, "evidence", k->evidence, "misnamed",
                                  k->misnamed));
        goto out;
    }
    printf("ledger: %s\n  epoch: %s\n", k->dir, epoch);
    json_object_foreach(k->jobs, key, job) {
        printf("\njob: %s (%s)\n  state: %s\n",
               agent_json_text(json_object_get(job, "spec"), "job", "?"), key,
               agent_json_text(json_object_get(job, "state"), "state", "?"));
        print_chains(k, key);
        print_lies(k, key);
    }
    print_misnamed(k);
    json_object_foreach(outbox, key, peer)
        printf("\nwaiting for %s: %lld messages, %lld bytes\n", key, number(peer, "messages"),
               number(peer, "bytes"));
    st = fflush(stdout) == 0 ? NEB_OK : neb_fail_errno("stdout");
out:
    json_decref(outbox);
    return st;
}

// ---- command ------------------------------------------------------------------------------------

static int run(void *options) {
    const struct agent_options *o = options;
    struct look k = {.dir = o->args[1], .seal_key = o->seal_key, .json = o->json};
    enum neb_status st = sec_init();
    if (st == NEB_OK)
        st = !strcmp(o->args[0], "verify") ? verify(&k) : show(&k);
    look_close(&k);
    return agent_exit_of(st);
}

const struct agent_command cmd_ledger = {
    .name = "ledger",
    .summary = "show or verify the ledger of an agent",
    .options = (const struct agent_option[]){OPT_SEAL_KEY("key of sealed updates"),
                                             OPT_JSON("one JSON object instead of text"), OPT_END},
    .arguments = "verify DIR\nshow DIR",
    .doc =
        "Shows or verifies the ledger of an agent. DIR is the agent's home (~/.nebula, or "
        "OUT/clusters/NAME of a local run). It only reads, and works while the agent "
        "runs.\vverify checks the chain of commits, all manifests, votes and signatures (against "
        "the signed member list, or DIR/members.json), and the SHA-256 of all updates that are "
        "kept. It names damage by job, fragment and round. Exit status 0: all is well.\nshow "
        "prints what is kept of each job, and proofs of equivocation: two signed statements that "
        "contradict each other, and second updates under one key.",
    .least = 2,
    .actions = (const struct agent_action[]){{"verify", 2}, {"show", 2}, {0}},
    .run = run};
