#include "agent/plots.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/child.h"
#include "agent/json.h"
#include "agent/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLUSTERS_MAX = 16, CHANGES_MAX = 64 };

// one cluster's tables: loss-N.dat (t, tokens, loss, sent bytes) and link-N.dat (t, Mbit/s)
struct series {
    char name[64];
    FILE *loss, *link;
    int64_t step; // of the last row
    double sent;
    int64_t n_loss, n_sent, n_link; // rows; rows after something was sent
    char codec[32];
};

struct change { // a cluster began to use a codec
    double t;
    char codec[32];
    int cluster;
};

struct data {
    const char *tmp; // folder of the tables
    struct series all[CLUSTERS_MAX];
    int n;
    struct change changes[CHANGES_MAX];
    int n_changes;
};

static FILE *open_table(const struct data *d, const char *what) {
    char path[NEB_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s-%d.dat", d->tmp, what, d->n);
    FILE *f = fopen(path, "w");
    if (!f)
        neb_warn("cannot write %s", path);
    return f;
}

static struct series *series_of(struct data *d, const char *name) {
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->all[i].name, name))
            return &d->all[i];
    if (d->n == CLUSTERS_MAX)
        return NULL;
    struct series *s = &d->all[d->n];
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->loss = open_table(d, "loss");
    s->link = open_table(d, "link");
    d->n++;
    return s;
}

// NAN, which gnuplot leaves out, for what is missing or null.

static void add_step(struct series *s, const json_t *o) {
    int64_t step = json_integer_value(json_object_get(o, "step"));
    // the job was resumed from a checkpoint behind this: begin another piece of curve
    if (step <= s->step && s->n_loss)
        fputc('\n', s->loss);
    fprintf(s->loss, "%g %g %g %g\n", agent_json_get(o, "t"), agent_json_get(o, "tokens"),
            agent_json_get(o, "loss"), s->sent);
    s->step = step;
    s->n_loss++;
    s->n_sent += s->sent > 0;
}

static void add_codec(struct data *d, struct series *s, const json_t *o) {
    const char *codec = json_string_value(json_object_get(o, "codec"));
    if (!codec || !strncmp(codec, s->codec, sizeof s->codec - 1))
        return;
    snprintf(s->codec, sizeof s->codec, "%s", codec);
    if (d->n_changes == CHANGES_MAX)
        return;
    struct change *c = &d->changes[d->n_changes++];
    c->t = agent_json_get(o, "t");
    c->cluster = (int)(s - d->all);
    memcpy(c->codec, s->codec, sizeof c->codec);
}

static void add_line(void *user, const json_t *o) {
    struct data *d = user;
    const char *kind = json_string_value(json_object_get(o, "kind")),
               *name = json_string_value(json_object_get(o, "cluster"));
    struct series *s = kind && name ? series_of(d, name) : NULL;
    if (!s || !s->loss || !s->link)
        return;
    add_codec(d, s, o);
    if (!strcmp(kind, "step")) {
        add_step(s, o);
    } else if (!strcmp(kind, "link")) {
        const json_t *sent = json_object_get(o, "sent_bytes");
        s->sent = json_is_number(sent) ? json_number_value(sent) : s->sent;
        fprintf(s->link, "%g %g\n", agent_json_get(o, "t"), agent_json_get(o, "goodput_bps") / 1e6);
        s->n_link += json_is_number(json_object_get(o, "goodput_bps"));
    }
}

static void close_tables(struct data *d) {
    for (int i = 0; i < d->n; i++) {
        if (d->all[i].loss)
            fclose(d->all[i].loss);
        if (d->all[i].link)
            fclose(d->all[i].link);
    }
}

// 'text' for gnuplot: within single quotes only the quote itself is special, and is doubled.
static void quoted(FILE *g, const char *a, const char *b) {
    fputc('\'', g);
    for (const char *p = a; *p; p++)
        fprintf(g, *p == '\'' ? "''" : "%c", *p);
    fprintf(g, "%s'", b);
}

static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73",
                                      "#cc79a7", "#e69f00", "#56b4e9"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

enum table { TABLE_LOSS, TABLE_SENT, TABLE_LINK };

static int64_t rows_of(const struct series *s, enum table t) {
    return t == TABLE_LOSS ? s->n_loss : t == TABLE_SENT ? s->n_sent : s->n_link;
}

static void curves(FILE *g, const struct data *d, enum table table, const char *columns) {
    char tail[32];
    const char *join = "plot ";
    for (int i = 0; i < d->n; i++) {
        if (!rows_of(&d->all[i], table))
            continue;
        snprintf(tail, sizeof tail, "/%s-%d.dat", table == TABLE_LINK ? "link" : "loss", i);
        fputs(join, g);
        quoted(g, d->tmp, tail);
        fprintf(g, " using %s with lines lw 2 lc rgb '%s' title ", columns, colours[i % COLOURS]);
        quoted(g, d->all[i].name, "");
        join = ", ";
    }
    fputc('\n', g);
}

// A dashed line, named, wherever a cluster changed its codec.
static void mark_changes(FILE *g, const struct data *d) {
    for (int i = 0; i < d->n_changes; i++) {
        const struct change *c = &d->changes[i];
        const char *colour = colours[c->cluster % COLOURS];
        if (isnan(c->t))
            continue;
        fprintf(g, "set arrow from %g, graph 0 to %g, graph 1 nohead dt 2 lc rgb '%s'\nset label ",
                c->t, c->t, colour);
        quoted(g, c->codec, "");
        fprintf(g, " at %g, graph %g offset 0.5, 0 noenhanced tc rgb '%s'\n", c->t,
                0.06 + 0.06 * c->cluster, colour);
    }
}

// Returns how many plots there is data for; a plot without any is not drawn, since gnuplot stops at it.
static int script(FILE *g, const struct data *d, const char *out) {
    static const struct {
        const char *file, *x, *y;
        enum table table;
        const char *columns;
    } plots[] = {
        {"loss_tokens", "tokens trained by the cluster (millions)",
         "training loss (nats per token)", TABLE_LOSS, "($2/1e6):3"},
        {"loss_seconds", "seconds", "training loss (nats per token)", TABLE_LOSS, "1:3"},
        {"loss_wan", "sent over the WAN by the cluster (MB, on the socket)",
         "training loss (nats per token)", TABLE_SENT, "($4/1e6):3"},
        {"goodput", "seconds", "goodput (Mbit/s); dashed: codec", TABLE_LINK, "1:2"},
    };
    int drawn = 0;
    fputs("set encoding utf8\nset terminal svg size 720,420 enhanced font 'sans,12' background "
          "'#ffffff'\n"
          "set grid lt 1 lw 0.5 lc rgb '#dddddd'\nset border 3\nset tics nomirror\nset key outside "
          "top center horizontal noenhanced\n",
          g);
    for (size_t i = 0; i < sizeof plots / sizeof plots[0]; i++) {
        char tail[32];
        int64_t rows = 0;
        for (int k = 0; k < d->n; k++)
            rows += rows_of(&d->all[k], plots[i].table);
        if (!rows)
            continue;
        snprintf(tail, sizeof tail, "/%s.svg", plots[i].file);
        fputs("set output ", g);
        quoted(g, out, tail);
        fprintf(g, "\nset xlabel '%s'\nset ylabel '%s'\n", plots[i].x, plots[i].y);
        if (plots[i].table == TABLE_LINK) {
            fputs("set yrange [0:*]\n", g);
            mark_changes(g, d);
        }
        curves(g, d, plots[i].table, plots[i].columns);
        drawn++;
    }
    return drawn;
}

// gnuplot in $PATH, or NULL.
static const char *find_gnuplot(char *out, size_t cap) {
    const char *path = getenv("PATH");
    for (const char *p = path ? path : "/usr/local/bin:/usr/bin:/bin"; *p;) {
        size_t n = strcspn(p, ":");
        if (n && snprintf(out, cap, "%.*s/gnuplot", (int)n, p) < (int)cap && access(out, X_OK) == 0)
            return out;
        p += n + (p[n] == ':');
    }
    return NULL;
}

static enum neb_status run_gnuplot(const char *program, const char *file, const char *log,
                                   const char *dir) {
    struct agent_child child;
    int status = 0;
    const char *const argv[] = {program, file, NULL};
    NEB_TRY(agent_child_start(&child, "gnuplot", argv, log, NULL));
    for (int i = 0; i < 1000 && !agent_child_ended(&child, &status); i++)
        neb_sleep(10 * NEB_MS);
    if (child.pid) {
        agent_child_stop(&child, NEB_S);
        status = 1;
    }
    if (status)
        neb_warn("gnuplot could not draw all plots of %s", dir);
    return NEB_OK;
}

enum neb_status agent_plots_make(const char *dir) {
    enum neb_status st = NEB_OK;
    char metrics[NEB_PATH_MAX], out[NEB_PATH_MAX], tmp[NEB_PATH_MAX], file[NEB_PATH_MAX + 16],
        log[NEB_PATH_MAX + 16];
    char program[NEB_PATH_MAX];
    struct data d = {.tmp = tmp};
    NEB_TRY(neb_path(metrics, sizeof metrics, dir, "metrics.jsonl"));
    NEB_TRY(neb_path(out, sizeof out, dir, "plots"));
    NEB_TRY(neb_path(tmp, sizeof tmp, out, ".work"));
    if (!find_gnuplot(program, sizeof program)) {
        neb_warn("no plots: gnuplot is not installed (Debian package gnuplot-nox)");
        return NEB_OK;
    }
    NEB_TRY(neb_fs_mkdirs(tmp, 0755));
    st = agent_metrics_read(metrics, add_line, &d, NULL);
    close_tables(&d);
    if (st != NEB_OK)
        goto out;
    snprintf(file, sizeof file, "%s/plots.gp", tmp);
    snprintf(log, sizeof log, "%s/gnuplot.log", tmp);
    FILE *g = fopen(file, "w");
    if (!g) {
        st = neb_fail_errno("cannot write %s", file);
        goto out;
    }
    int drawn = script(g, &d, out);
    if (fclose(g) != 0)
        st = neb_fail_errno("cannot write %s", file);
    else if (drawn > 0)
        st = run_gnuplot(program, file, log, dir);
out:
    if (neb_fs_remove_tree(tmp) != NEB_OK && st == NEB_OK)
        st = NEB_ERR_IO;
    return st;
}
