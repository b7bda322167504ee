// SPDX-License-Identifier: Apache-2.0
// nebula peer: the sites that this node works with, in HOME/members.json.
#include "agent/base/fs.h"
#include "agent/cli/cmd_options.h"
#include "security/members.h"

#include <string.h>

struct peers {
    char path[NEB_PATH_MAX];
    struct sec_public self;
    struct sec_members list;
};

// Reads the list and adds this node if it is missing: the list of every site holds the site itself.
static enum neb_status peers_load(const char *home_given, struct peers *p) {
    char home[NEB_PATH_MAX];
    struct sec_identity *id = NULL;
    *p = (struct peers){.path = ""};
    NEB_TRY(sec_init());
    NEB_TRY(sec_home(home_given, home, sizeof home));
    NEB_TRY(neb_path(p->path, sizeof p->path, home, "members.json"));
    NEB_TRY(sec_identity_need(home, &id));
    p->self = *sec_identity_public(id);
    sec_identity_destroy(&id);
    enum neb_status st = sec_members_load(p->path, 0, &p->list);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    const struct sec_member *me = sec_members_by_curve(&p->list, p->self.curve);
    if (me && !memcmp(&me->pub, &p->self, sizeof p->self))
        return NEB_OK;
    struct sec_member add = {.pub = p->self};
    return sec_members_add(&p->list, &add);
}

static bool same(const uint8_t *a, const uint8_t *b) { return !memcmp(a, b, SEC_KEY_BYTES); }

// Checks what was typed, before this node's own files are read.
static enum neb_status peer_typed(const char *line, const char *endpoint, struct sec_member *out) {
    *out = (struct sec_member){.connect = SEC_CONNECT_AUTO};
    NEB_TRY(sec_init());
    enum neb_status st = sec_public_parse(line, &out->pub);
    if (st == NEB_ERR_FORMAT || st == NEB_ERR_CORRUPT)
        return NEB_ERR_INVALID; // the reason is logged
    NEB_TRY(st);
    if (!strcmp(endpoint, "-"))
        return NEB_OK;
    if (!sec_endpoint_valid(endpoint))
        return neb_fail(NEB_ERR_INVALID,
                        "endpoint '%s': expected HOST:PORT, or - if the peer dials", endpoint);
    snprintf(out->endpoint, sizeof out->endpoint, "%s", endpoint);
    return NEB_OK;
}

static enum neb_status peer_add(struct peers *p, struct sec_member add) {
    if (same(add.pub.curve, p->self.curve) || same(add.pub.sign, p->self.sign))
        return neb_fail(NEB_ERR_INVALID, "that is this node's own identity: give the other site's");
    const struct sec_member *old = sec_members_by_curve(&p->list, add.pub.curve);
    if (old) // a new endpoint does not change who dials
        add.connect = old->connect;
    NEB_TRY(sec_members_add(&p->list, &add));
    return sec_members_save(p->path, &p->list);
}

static enum neb_status peer_remove(struct peers *p, const char *name) {
    if (!strcmp(name, p->self.name))
        return neb_fail(NEB_ERR_INVALID, "'%s' is this node itself and stays on its list", name);
    NEB_TRY(sec_members_remove(&p->list, name));
    return sec_members_save(p->path, &p->list);
}

static enum neb_status peer_list(const struct peers *p) {
    char fed[2 * SEC_FEDERATION_BYTES + 1], line[SEC_ID_TEXT];
    neb_hex(p->list.federation, SEC_FEDERATION_BYTES, fed);
    printf("federation: %s\n", fed);
    for (uint32_t i = 0; i < p->list.n; i++) {
        const struct sec_member *m = &p->list.m[i];
        bool self = same(m->pub.curve, p->self.curve);
        NEB_TRY(sec_public_format(&m->pub, line, sizeof line));
        printf("\npeer: %s%s\n  endpoint: %s\n  id: %s\n", m->pub.name, self ? " (this node)" : "",
               *m->endpoint ? m->endpoint
               : self       ? "-"
                            : "- (it dials)",
               line);
    }
    return fflush(stdout) == 0 ? NEB_OK : neb_fail_errno("stdout");
}

static int run(void *options) {
    const struct agent_options *o = options;
    const char *what = o->args[0];
    struct peers p;
    struct sec_member new = {.endpoint = ""};
    bool adds = !strcmp(what, "add");
    enum neb_status st = adds ? peer_typed(o->args[1], o->args[2], &new) : NEB_OK;
    if (st == NEB_OK)
        st = peers_load(o->home, &p);
    if (st == NEB_OK)
        st = adds                      ? peer_add(&p, new)
             : !strcmp(what, "remove") ? peer_remove(&p, o->args[1])
                                       : peer_list(&p);
    return agent_exit_of_input(st);
}

const struct agent_command cmd_peer = {
    .name = "peer",
    .summary = "add, list or remove the sites this node works with",
    .options = (const struct agent_option[]){OPT_HOME("folder of the keys and the list"), OPT_END},
    .arguments = "add ID HOST:PORT\nadd ID -\nlist\nremove NAME",
    .doc = "Lists or changes the sites that this node works with, without a federation. ID is the "
           "output of nebula id at the other site. - in place of an endpoint: the other site "
           "dials. All sites must have the same members.\vA running agent uses a change at once.",
    .least = 1,
    .most = 3,
    .actions = (const struct agent_action[]){{"add", 3}, {"list", 1}, {"remove", 2}, {0}},
    .run = run,
    .home = true};
