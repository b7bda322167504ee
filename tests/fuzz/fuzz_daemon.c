// SPDX-License-Identifier: Apache-2.0
// Messages of other members' agents: jobs, stops, refusals, reports, metrics, member lists, masked
// sums; links come and go meanwhile. A daemon in a federation of three has a job of its own with
// bert; carol is a member without a job. At the end the agent still runs, its ledger is sound, and
// its status is JSON. Input: lines of a byte (the kind), a digit (the member), and a body:
//    J j          JOB; J: signed by its claimed member. A "spec" with "base" is one of `specs` with
//                 changed keys. id "0": the agent's own job; "1": the job of this offer, elsewhere
//                 of the last such offer
//    X R P M H    STOP, REFUSED, REPORT, METRICS, HAD: JSON, an id as above
//    L            LIST, a digit: one of `lists`
//    l            hex, signed by the CA as far as it is a list
//    v            LIST_STAND, hex
//    S            SUMS, hex; * for that job's id
//    U D          the link is up, is down
//    N            every job has a line to send
//    T            a second passes
#include "agent/daemon/policy.h"
#include "agent/daemon/sums.h"
#include "agent/job/id.h"
#include "security/hub.h"
#include "tests/fuzz/agent.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LINES_MAX = 48, LINE_MAX_BYTES = 16384, SPECS = 5, LISTS = 8 };
static char own[2 * AGENT_JOB_ID_BYTES + 1], offered[2 * AGENT_JOB_ID_BYTES + 1];
static json_t *specs[SPECS];
static struct neb_buf lists[LISTS]; // by version and signer: make_lists()
static struct sec_hub *hub;         // its CA signs the lists

// ---- once per process ----

static void free_made(void) {
    for (int k = 0; k < SPECS; k++)
        json_decref(specs[k]);
    for (int k = 0; k < LISTS; k++)
        neb_buf_free(&lists[k]);
    sec_hub_destroy(&hub);
}

static void make_specs(void) {
    // the clusters; the first is the agent's own, the last has gate private
    static const char *const clusters[SPECS] = {
        "{name: anna, launcher: attach, threads: 1}, {name: bert, threads: 1}",
        "{name: bert}, {name: anna, launcher: attach}, {name: carol, witness: true}",
        "{name: bert}, {name: carol}, {name: anna, witness: true}",
        "{name: anna, launcher: attach}, {name: bert}, {name: carol}",
        "{name: anna, launcher: attach}, {name: bert}, {name: carol}"};
    static struct agent_job parsed;
    char text[1024];
    for (int k = 0; k < SPECS; k++) {
        int n = snprintf(
            text, sizeof text,
            "job: t%d\nsteps: 400\nlog_every: 1\n"
            "model: {vocab: 16, n_layers: 1, d_model: 8, n_heads: 2, n_kv_heads: 1, "
            "d_ff: 16, tied: true}\ndata: {corpus: /nowhere, seq_len: 8, batch: 1}\n"
            "optim: {lr: 0.1}\nsync: {interval: 4%s}\nclusters: [%s]\n",
            k, k == 4 ? ", gate: private, codec: bf16, row_weights: false, private_range: 0.5" : "",
            clusters[k]);
        NEB_ASSERT(agent_job_parse(text, (size_t)n, "t.yaml", &parsed) == NEB_OK);
        NEB_ASSERT((specs[k] = agent_job_to_json(&parsed)) != NULL);
    }
}

static void sign_list(const struct sec_list *l, struct neb_buf *out) {
    NEB_ASSERT(sec_list_format(l, out) == NEB_OK);
    size_t n = out->len - SEC_SIGN_BYTES;
    NEB_ASSERT(sec_ca_sign(hub->ca, SEC_CONTEXT_LIST, out->p, n, out->p + n) == NEB_OK);
}

static void next_version(struct sec_list *l, const struct neb_buf *of) {
    uint8_t digest[NEB_SHA256_BYTES];
    neb_sha256(of->p, of->len, digest);
    sec_list_succeed(l, digest);
}

static void drop(struct sec_list *l, const char *name) {
    sec_members_drop(&l->members, (uint32_t)sec_members_find(&l->members, name));
}

// 0: the current list. 1 to 4: second versions; 1: an hour later; 2: without bert; 3: without anna;
// 4: bert is lost. 5: another list in place of 0. 6: follows from 5. 7: a third version, which
// follows from 1, without carol.
static void make_lists(void) {
    struct sec_list first = {.members.version = 1, .issued = 1000, .subject = "anna"}, l;
    memcpy(first.members.federation, hub->fed->list.members.federation,
           sizeof first.members.federation);
    for (int k = 0; k < AGENT_MEMBERS; k++) {
        struct sec_member e = {.pub = *sec_identity_public(agent_ids[k]), .caps = SEC_CAP_VOTER};
        NEB_ASSERT(sec_members_insert(&first.members, &e) == NEB_OK);
    }
    sign_list(&first, &lists[0]);
    for (int k = 1; k <= 4; k++) {
        l = first;
        next_version(&l, &lists[0]);
        l.issued += 3600;
        if (k == 2 || k == 3)
            drop(&l, agent_names[k == 2]);
        if (k == 4)
            l.members.m[sec_members_find(&l.members, "bert")].caps = 0;
        sign_list(&l, &lists[k]);
    }
    l = first;
    l.issued++;
    sign_list(&l, &lists[5]);
    next_version(&l, &lists[5]);
    sign_list(&l, &lists[6]);
    NEB_ASSERT(sec_list_parse(lists[1].p, lists[1].len, &l) == NEB_OK);
    next_version(&l, &lists[1]);
    drop(&l, "carol");
    sign_list(&l, &lists[7]);
}

static void join_federation(void) {
    struct sec_federation *f = NULL;
    NEB_ASSERT(sec_federation_create(agent_home, hub->fed->ca.p, hub->fed->ca.len, &f) == NEB_OK);
    NEB_ASSERT(sec_federation_apply(f, lists[0].p, lists[0].len, NULL) == NEB_OK);
    sec_federation_destroy(&f);
}

static void set_up(void) {
    char home[96], backup[96], code[SEC_CODE_TEXT];
    const struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    agent_set_up();
    snprintf(home, sizeof home, "%s/carol", agent_root);
    snprintf(backup, sizeof backup, "%s/backup", agent_root);
    NEB_ASSERT(sec_ca_create(home, "acme", backup, code) == NEB_OK);
    NEB_ASSERT(sec_hub_create(home, &s, sec_identity_public(agent_ids[2]), "") == NEB_OK);
    NEB_ASSERT(sec_hub_open(home, &hub) == NEB_OK);
    make_lists();
    join_federation();
    make_specs();
    atexit(free_made);
}

// ---- the agent ----

static void id_of(const struct daemon *d, int of, const json_t *spec,
                  char hex[2 * AGENT_JOB_ID_BYTES + 1]) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    NEB_ASSERT(agent_job_id(daemon_federation(d), agent_names[of], spec, id) == NEB_OK);
    neb_hex(id, sizeof id, hex);
}

static struct daemon *begin(void) {
    struct daemon *d = agent_begin();
    char why[512];
    id_of(d, 0, specs[0], own);
    NEB_ASSERT(daemon_job_accept(d, own, specs[0], UINT32_MAX, why, sizeof why) != NULL);
    return d;
}

static void end(struct daemon *d) {
    const struct sec_federation *f = agent_members_federation(d->trust);
    bool other = f->list.members.version > 1, former;
    char path[NEB_PATH_MAX];
    NEB_ASSERT(neb_path(path, sizeof path, f->dir, "former.json") == NEB_OK);
    former = neb_fs_exists(path);
    NEB_ASSERT(neb_path(path, sizeof path, f->dir, "forked") == NEB_OK);
    other |= former || neb_fs_exists(path);
    NEB_ASSERT(neb_path(path, sizeof path, agent_home, "federation") == NEB_OK);
    agent_end(d);
    if (!other)
        return;
    NEB_ASSERT(neb_fs_remove_tree(path) == NEB_OK);
    join_federation();
}

static void each_job(struct daemon *d, void each(struct daemon *d, struct agent_jobrun *j)) {
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].state)
            each(d, &d->jobs[i]);
}

static void tell_line(struct daemon *d, struct agent_jobrun *j) { daemon_note(d, j, "told"); }

static void look_at(struct daemon *d, struct agent_jobrun *j) {
    if (j->sums)
        agent_sums_tick(j->sums);
    daemon_lines_due(d, j);
    // the other timers start workers, so they are left out
    if (!agent_timer_at(&j->timers, AGENT_TIMER_AGAIN))
        return;
    agent_timer_clear(&j->timers, AGENT_TIMER_AGAIN);
    daemon_job_event(d, j, AGENT_EV_AGAIN, NULL);
}

// False: the list no longer contains this agent, so the agent ends.
static bool second(struct daemon *d) {
    memset(d->spread.looks, 0, sizeof d->spread.looks);
    memset(d->spread.sends, 0, sizeof d->spread.sends);
    if (daemon_take_members(d) != NEB_OK || daemon_renew_service(d) != NEB_OK)
        return false;
    NEB_ASSERT(inter_service_process(d->service) == NEB_OK);
    each_job(d, look_at);
    agent_spread_stand(&d->spread, d->up);
    daemon_log_suppressed(d);
    d->ended_due = true;
    daemon_drop_ended(d);
    return true;
}

// ---- messages ----

// One of our specifications with the changes of the message.
static void fill_spec(json_t *body) {
    json_t *said = json_object_get(body, "spec"), *base = json_object_get(said, "base");
    json_int_t k = json_integer_value(base);
    if (!json_is_integer(base) || k < 0 || k >= SPECS)
        return;
    json_t *all = json_deep_copy(specs[k]);
    json_object_del(said, "base");
    NEB_ASSERT(all && json_object_update(all, said) == 0);
    json_object_set_new(body, "spec", all);
}

// A worker would be a separate process.
static bool starts_process(const json_t *spec) {
    static struct agent_job job; // large
    if (agent_job_from_json(spec, &job) != NEB_OK)
        return false;
    for (int i = 0; i < job.n_clusters; i++)
        if (!strcmp(job.clusters[i].name, agent_names[0]))
            return !job.clusters[i].witness && job.clusters[i].launcher != AGENT_LAUNCHER_ATTACH;
    return false;
}

// The member that an offer claims to be from.
static int submitter(const json_t *body, int of) {
    const char *home = json_string_value(json_object_get(body, "home"));
    bool passed_on = json_object_get(body, "again") || json_object_get(body, "resume");
    for (int k = 0; home && passed_on && k < AGENT_MEMBERS; k++)
        of = strcmp(home, agent_names[k]) ? of : k;
    return of;
}

static void sign_job(struct daemon *d, json_t *body, int of) {
    const char *id_hex = json_string_value(json_object_get(body, "id"));
    uint8_t id[AGENT_JOB_ID_BYTES], sig[SEC_SIGN_BYTES];
    char text[2 * SEC_SIGN_BYTES + 1];
    struct neb_buf b = {0};
    of = submitter(body, of);
    if (id_hex && neb_unhex(id_hex, id, sizeof id) &&
        agent_job_signed_bytes(d->members.federation, id, json_object_get(body, "spec"), &b) ==
            NEB_OK &&
        sec_sign(agent_ids[of], AGENT_CONTEXT_JOB, b.p, b.len, sig) == NEB_OK) {
        neb_hex(sig, sizeof sig, text);
        json_object_set_new(body, "sig", json_string(text));
    }
    neb_buf_free(&b);
}

static void say(struct daemon *d, int of, uint32_t kind, const void *p, size_t n) {
    const struct sec_member *m = sec_members_by_name(&d->members, agent_names[of]);
    uint8_t *exact = malloc(n ? n : 1);
    NEB_ASSERT(exact);
    if (n)
        memcpy(exact, p, n);
    if (m) // otherwise its link is cut
        daemon_on_message(d, (uint32_t)(m - d->members.m), kind, exact, n);
    free(exact);
}

static void say_json(struct daemon *d, int of, char what, const char *text, size_t n) {
    static const char kinds[] = "jXRPM"; // as enum agent_message, from 1
    uint32_t kind = what == 'H' ? (uint32_t)AGENT_MSG_HAD : AGENT_MSG_JOB;
    json_t *body = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    const char *id = json_string_value(json_object_get(body, "id"));
    if (strchr(kinds, what))
        kind = (uint32_t)(strchr(kinds, what) - kinds) + 1;
    if (id && !strcmp(id, "0"))
        json_object_set_new(body, "id", json_string(own));
    if (kind == AGENT_MSG_JOB)
        fill_spec(body);
    // the previous id was freed together with its object
    id = json_string_value(json_object_get(body, "id"));
    if (id && !strcmp(id, "1") && kind == AGENT_MSG_JOB)
        id_of(d, submitter(body, of), json_object_get(body, "spec"), offered);
    id = json_string_value(json_object_get(body, "id"));
    if (id && !strcmp(id, "1"))
        json_object_set_new(body, "id", json_string(offered));
    if (what == 'J')
        sign_job(d, body, of);
    char *whole = body ? json_dumps(body, JSON_COMPACT) : NULL;
    if (!whole) // the text is not JSON, or only a part of it is
        say(d, of, kind, text, n);
    else if (kind != AGENT_MSG_JOB || !starts_process(json_object_get(body, "spec")))
        say(d, of, kind, whole, strlen(whole));
    free(whole);
    json_decref(body);
}

// The CA signs every valid list, unless it has an address that this agent would dial.
static void say_list(struct daemon *d, int of, struct neb_buf *b) {
    struct sec_list l;
    for (int i = 0; i < SEC_SIGN_BYTES; i++)
        neb_buf_u8(b, 0);
    if (sec_list_parse(b->p, b->len, &l) == NEB_OK) {
        for (uint32_t i = 0; i < l.members.n; i++)
            l.members.m[i].endpoint[0] = 0;
        memcpy(l.members.federation, hub->fed->list.members.federation,
               sizeof l.members.federation);
        sign_list(&l, b);
    }
    say(d, of, AGENT_MSG_LIST, b->p, b->len);
}

static void say_bytes(struct daemon *d, int of, char what, const char *text, size_t n) {
    struct neb_buf b = {0};
    char all[LINE_MAX_BYTES + sizeof offered];
    const char *star = memchr(text, '*', n);
    if (star && what == 'S') {
        n = (size_t)snprintf(all, sizeof all, "%.*s%s%.*s", (int)(star - text), text, offered,
                             (int)(text + n - star - 1), star + 1);
        text = all;
    }
    for (size_t i = 0; i + 1 < n; i += 2) {
        const char pair[3] = {text[i], text[i + 1], 0};
        uint8_t byte = 0;
        if (neb_unhex(pair, &byte, 1))
            neb_buf_u8(&b, byte);
    }
    if (what == 'L' && n && text[0] >= '0' && text[0] < '0' + LISTS)
        say(d, of, AGENT_MSG_LIST, lists[text[0] - '0'].p, lists[text[0] - '0'].len);
    else if (what == 'l')
        say_list(d, of, &b);
    else
        say(d, of,
            what == 'v'   ? AGENT_MSG_LIST_STAND
            : what == 'S' ? AGENT_MSG_SUMS
                          : 99,
            b.p, b.len);
    neb_buf_free(&b);
}

// False: the agent ends.
static bool happens(struct daemon *d, char what, int of, const char *text, size_t n) {
    const struct sec_member *m = sec_members_by_name(&d->members, agent_names[of]);
    switch (what) {
    case 'U':
    case 'D':
        if (m && of)
            daemon_on_peer(d, (uint32_t)(m - d->members.m), what == 'U');
        return true;
    case 'N': each_job(d, tell_line); return true;
    case 'T': return second(d);
    case 'L':
    case 'l':
    case 'v':
    case 'S':
    case '?': say_bytes(d, of, what, text, n); return true;
    default: say_json(d, of, what, text, n); return true;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!agent_zctx)
        set_up();
    struct daemon *d = begin();
    bool on = true;
    for (int k = 0; k < LINES_MAX && size && on; k++) {
        const uint8_t *end_of = memchr(data, '\n', size);
        size_t n = end_of ? (size_t)(end_of - data) : size;
        if (n >= 2 && n < LINE_MAX_BYTES && (data[1] == '1' || data[1] == '2'))
            on = happens(d, (char)data[0], data[1] - '0', (const char *)data + 2, n - 2);
        data += n + (end_of != NULL);
        size -= n + (end_of != NULL);
    }
    if (on)
        agent_expect_sound(d);
    end(d);
    return 0;
}
