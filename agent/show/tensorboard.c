// SPDX-License-Identifier: Apache-2.0
#include "agent/show/tensorboard.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/show/tfevents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct series {
    const char *kind, *key, *tag; // kind and key of a metrics line; TensorBoard's tag
};
// Round lines also have a stall_s, but only that of the round.
static const struct series table[] = {
    {"step", "loss", "loss/train"},
    {"step", "lr", "optim/lr"},
    {"step", "grad_norm", "optim/grad_norm"},
    {"step", "tokens_per_s", "throughput/tokens_per_s"},
    {"step", "stall_s", "time/stall_s"},
    {"step", "train_s", "time/train_s"},
    {"link", "sent_bytes", "wan/sent_bytes"},
    {"link", "recv_bytes", "wan/received_bytes"},
    {"link", "goodput_bps", "wan/goodput_bits_per_s"},
    {"link", "rtt_ms", "wan/round_trip_ms"},
    {"round", "round", "round/number"},
    {"round", "payload_bytes", "round/payload_bytes"},
    {"eval", "loss", "loss/held_out"},
};
enum { SERIES = sizeof table / sizeof *table };

struct cluster {
    struct agent_tfevents *file; // NULL: closed after a failure
    int64_t step;                // of the last line that has one
    int64_t link_step;           // of the last link point
    int64_t eval_step;           // of the last held-out loss; -1: none
    bool started;                // wrote where a resumed run continues
};

struct agent_tensorboard {
    bool resume;
    int n;
    struct cluster c[AGENT_CLUSTERS_MAX];
};

enum neb_status agent_tensorboard_create(const char *out, const struct agent_job *job, int n,
                                         bool resume, struct agent_tensorboard **tbp) {
    char root[NEB_PATH_MAX], dir[NEB_PATH_MAX];
    enum neb_status st;
    double now = neb_seconds(neb_wall_now());
    struct agent_tensorboard *tb = calloc(1, sizeof *tb);
    if (!tb)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for event files");
    tb->resume = resume;
    tb->n = n;
    NEB_TRY_GOTO(neb_path(root, sizeof root, out, "tensorboard"), out);
    for (int i = 0; i < n; i++) {
        tb->c[i].link_step = tb->c[i].eval_step = -1;
        NEB_TRY_GOTO(neb_path(dir, sizeof dir, root, job->clusters[i].name), out);
        NEB_TRY_GOTO(agent_tfevents_create(dir, now, &tb->c[i].file), out);
    }
    *tbp = tb;
    return NEB_OK;
out:
    agent_tensorboard_destroy(&tb);
    return st;
}

static void write_scalars(struct agent_tensorboard *tb, struct cluster *c,
                          const struct agent_tf_scalar *s, int n, neb_ns wall) {
    double now = neb_seconds(wall);
    enum neb_status st = NEB_OK;
    if (tb->resume && !c->started)
        st = agent_tfevents_start(c->file, now, c->step);
    c->started = true;
    if (st == NEB_OK)
        st = agent_tfevents_scalars(c->file, now, c->step, s, n);
    if (st != NEB_OK) { // the reason is logged
        neb_warn("no more TensorBoard events for this cluster; metrics.jsonl continues");
        agent_tfevents_close(&c->file);
    }
}

void agent_tensorboard_line(struct agent_tensorboard *tb, int i, const json_t *line, neb_ns wall) {
    struct agent_tf_scalar s[SERIES];
    int n = 0;
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (!tb || i < 0 || i >= tb->n || !tb->c[i].file || !kind)
        return;
    struct cluster *c = &tb->c[i];
    const json_t *step = json_object_get(line, "step");
    if (json_is_integer(step) && json_integer_value(step) >= 0)
        c->step = json_integer_value(step);
    if (!strcmp(kind, "link")) { // come once a second; one point for each step is enough
        if (c->step == c->link_step || (tb->resume && !c->step))
            return;
        c->link_step = c->step;
    }
    if (!strcmp(kind, "eval"))
        c->eval_step = c->step;
    for (int k = 0; k < SERIES; k++) {
        const json_t *v = json_object_get(line, table[k].key);
        if (!strcmp(kind, table[k].kind) && json_is_number(v))
            s[n++] = (struct agent_tf_scalar){table[k].tag, json_number_value(v)};
    }
    if (n)
        write_scalars(tb, c, s, n, wall);
}

void agent_tensorboard_report(struct agent_tensorboard *tb, int i, const json_t *report,
                              neb_ns wall) {
    const json_t *loss = json_object_get(report, "eval_loss"),
                 *steps = json_object_get(report, "steps");
    if (!tb || i < 0 || i >= tb->n || !tb->c[i].file || !json_is_number(loss))
        return;
    if (json_is_integer(steps) && json_integer_value(steps) > tb->c[i].step)
        tb->c[i].step = json_integer_value(steps);
    if (tb->c[i].eval_step == tb->c[i].step)
        return; // an eval line had it already
    const struct agent_tf_scalar s = {"loss/held_out", json_number_value(loss)};
    write_scalars(tb, &tb->c[i], &s, 1, wall);
}

void agent_tensorboard_destroy(struct agent_tensorboard **tbp) {
    struct agent_tensorboard *tb = *tbp;
    for (int i = 0; tb && i < tb->n; i++)
        agent_tfevents_close(&tb->c[i].file);
    free(tb);
    *tbp = NULL;
}
