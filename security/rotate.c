// SPDX-License-Identifier: Apache-2.0
#include "security/rotate.h"

#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/enrol.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct places {
    char stage[NEB_PATH_MAX], keys[NEB_PATH_MAX], old[NEB_PATH_MAX], new_keys[NEB_PATH_MAX];
    char line[NEB_PATH_MAX], new_line[NEB_PATH_MAX];
};

static enum neb_status places_of(const char *home, struct places *p) {
    NEB_TRY(neb_path(p->stage, sizeof p->stage, home, "rotate"));
    NEB_TRY(neb_path(p->keys, sizeof p->keys, home, "keys"));
    NEB_TRY(neb_path(p->old, sizeof p->old, home, "keys.old"));
    NEB_TRY(neb_path(p->line, sizeof p->line, home, "identity"));
    NEB_TRY(neb_path(p->new_keys, sizeof p->new_keys, p->stage, "keys"));
    return neb_path(p->new_line, sizeof p->new_line, p->stage, "identity");
}

// Step 3. An earlier attempt may have done each rename already.
static enum neb_status swap(const char *home, const struct places *p) {
    if (neb_fs_exists(p->new_keys)) {
        if (neb_fs_exists(p->keys)) {
            NEB_TRY(neb_fs_remove_tree(p->old));
            if (rename(p->keys, p->old) != 0)
                return neb_fail_errno("%s", p->keys);
        }
        if (rename(p->new_keys, p->keys) != 0)
            return neb_fail_errno("%s", p->new_keys);
        NEB_TRY(neb_fs_sync_dir(home));
    }
    if (neb_fs_exists(p->new_line) && rename(p->new_line, p->line) != 0)
        return neb_fail_errno("%s", p->new_line);
    NEB_TRY(neb_fs_sync_dir(home));
    return neb_fs_remove_tree(p->stage);
}

static enum neb_status is_listed(const char *home, const struct sec_public *p, bool *out) {
    struct sec_federation *f = NULL;
    NEB_TRY(sec_federation_open(home, &f));
    *out = sec_members_hold(&f->list.members, p);
    sec_federation_destroy(&f);
    return NEB_OK;
}

// True if step 3 has begun: the answer is stored, so the hub is not needed any more.
static bool half_swapped(const struct places *p) {
    return neb_fs_exists(p->new_line) &&
           (!neb_fs_exists(p->new_keys) || (!neb_fs_exists(p->keys) && neb_fs_exists(p->old)));
}

// earlier: an earlier attempt made `next`, and its answer may have been lost in flight.
static enum neb_status ask_hub(const char *home, const char *hub, const struct sec_identity *next,
                               bool earlier) {
    enum neb_status st = sec_enrol_renew(home, hub, next);
    if (st != NEB_ERR_DENIED || !earlier)
        return st;
    neb_info(
        "the hub may already list the keys of an earlier attempt: asking again, signed with them");
    return sec_enrol_renew_by(home, hub, next);
}

enum neb_status sec_rotate(const char *home, const char *hub) {
    struct places p;
    struct sec_identity *id = NULL, *next = NULL;
    bool listed = false;
    enum neb_status st;
    NEB_TRY(places_of(home, &p));
    if (half_swapped(&p))
        return swap(home, &p);
    NEB_TRY(sec_identity_need(home, &id));
    st = sec_identity_load(p.stage, &next);
    bool earlier = st == NEB_OK;
    if (st == NEB_ERR_NOT_FOUND)
        st = sec_identity_create(p.stage, sec_identity_public(id)->name, &next);
    if (st == NEB_OK)
        st = is_listed(home, sec_identity_public(next), &listed);
    if (st == NEB_OK && !listed)
        st = ask_hub(home, hub, next, earlier);
    sec_identity_destroy(&id);
    sec_identity_destroy(&next);
    return st == NEB_OK ? swap(home, &p) : st;
}
