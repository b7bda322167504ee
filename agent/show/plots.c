// SPDX-License-Identifier: Apache-2.0
#include "agent/show/plots.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "agent/job/json.h"
#include "agent/proc/child.h"
#include "agent/show/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CLUSTERS_MAX = 16, CHANGES_MAX = 64 };
enum table { TABLE_LOSS, TABLE_LINK, TABLE_CODEC, TABLES };
static const char *const table_names[TABLES] = {"loss", "link", "codec"};

// One cluster's tables, with columns between tabs and its name in the first line: loss-N.dat (t,
// tokens, loss, sent bytes), link-N.dat (t, Mbit/s), codec-N.dat (t, height, codec; a row for each
// change). Foreign text goes only into tables: gnuplot executes a script but only reads a table.
struct series {
    char name[64];
    FILE *tables[TABLES];
    int64_t step; // of the last row
    double sent;
    int64_t rows[TABLES], n_sent; // rows after the first sent bytes
    char codec[32];
};

struct data {
    const char *tmp; // folder for the tables
    struct series all[CLUSTERS_MAX];
    int n, n_changes;
};

// Writes a field of a table. Only a hostile name contains separators or quotes.
static void put_field(FILE *f, const char *text, size_t cap) {
    char plain[64];
    snprintf(plain, sizeof plain, "%.*s", (int)cap, text);
    neb_plain(plain, false);
    for (char *p = plain; *p; p++)
        if (*p == '"')
            *p = '\'';
    fputs(plain, f);
}

enum { TABLE_PATH_MAX = NEB_PATH_MAX + 32 };
static const char *table_path(const struct data *d, enum table t, int i, char *path) {
    snprintf(path, TABLE_PATH_MAX, "%s/%s-%d.dat", d->tmp, table_names[t], i);
    return path;
}

static FILE *open_table(const struct data *d, enum table t, const char *name) {
    char path[TABLE_PATH_MAX];
    table_path(d, t, d->n, path);
    FILE *f = fopen(path, "w");
    if (!f) {
        neb_warn("cannot write %s", path);
        return NULL;
    }
    put_field(f, name, 60);
    fputc('\n', f);
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
    for (enum table t = 0; t < TABLES; t++)
        s->tables[t] = open_table(d, t, name);
    d->n++;
    return s;
}

static void add_step(struct series *s, const json_t *o) {
    FILE *f = s->tables[TABLE_LOSS];
    int64_t step = json_integer_value(json_object_get(o, "step"));
    // The job was resumed from an earlier checkpoint: start a new piece of the curve.
    if (step <= s->step && s->rows[TABLE_LOSS])
        fputc('\n', f);
    fprintf(f, "%g\t%g\t%g\t%g\n", agent_json_get(o, "t"), agent_json_get(o, "tokens"),
            agent_json_get(o, "loss"), s->sent);
    s->step = step;
    s->rows[TABLE_LOSS]++;
    s->n_sent += s->sent > 0;
}

static void add_codec(struct data *d, struct series *s, const json_t *o) {
    FILE *f = s->tables[TABLE_CODEC];
    const char *codec = json_string_value(json_object_get(o, "codec"));
    double t = agent_json_get(o, "t");
    if (!codec || !strncmp(codec, s->codec, sizeof s->codec - 1))
        return;
    snprintf(s->codec, sizeof s->codec, "%s", codec);
    if (d->n_changes == CHANGES_MAX || isnan(t))
        return;
    d->n_changes++;
    fprintf(f, "%g\t%g\t", t, 0.06 + 0.06 * (double)(s - d->all));
    put_field(f, codec, sizeof s->codec);
    fputc('\n', f);
    s->rows[TABLE_CODEC]++;
}

static void add_line(void *user, const json_t *o) {
    struct data *d = user;
    const char *kind = json_string_value(json_object_get(o, "kind")),
               *name = json_string_value(json_object_get(o, "cluster"));
    struct series *s = kind && name ? series_of(d, name) : NULL;
    if (!s || !s->tables[TABLE_LOSS] || !s->tables[TABLE_LINK] || !s->tables[TABLE_CODEC])
        return;
    add_codec(d, s, o);
    if (!strcmp(kind, "step")) {
        add_step(s, o);
    } else if (!strcmp(kind, "link")) {
        const json_t *sent = json_object_get(o, "sent_bytes");
        s->sent = json_is_number(sent) ? json_number_value(sent) : s->sent;
        fprintf(s->tables[TABLE_LINK], "%g\t%g\n", agent_json_get(o, "t"),
                agent_json_get(o, "goodput_bps") / 1e6);
        s->rows[TABLE_LINK] += json_is_number(json_object_get(o, "goodput_bps"));
    }
}

static enum neb_status close_tables(struct data *d) {
    enum neb_status st = NEB_OK;
    for (int i = 0; i < d->n; i++)
        for (enum table t = 0; t < TABLES; t++) {
            char path[TABLE_PATH_MAX];
            FILE *f = d->all[i].tables[t];
            if (f && neb_fs_close(f, table_path(d, t, i, path)) != NEB_OK)
                st = NEB_ERR_IO;
        }
    return st;
}

static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73",
                                      "#cc79a7", "#e69f00", "#56b4e9"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

struct plot {
    const char *file, *x, *y;
    enum table table;
    bool sent; // only rows after the first sent bytes
    const char *columns;
};

static int64_t rows_of(const struct series *s, const struct plot *p) {
    return p->sent ? s->n_sent : s->rows[p->table];
}

static void curves(FILE *g, const struct data *d, const struct plot *p) {
    const char *join = "plot ";
    for (int i = 0; i < d->n; i++) {
        const char *colour = colours[i % COLOURS];
        if (rows_of(&d->all[i], p)) {
            fprintf(g,
                    "%sTMP.'/%s-%d.dat' using %s with lines lw 2 lc rgb '%s' title "
                    "columnheader(1)",
                    join, table_names[p->table], i, p->columns, colour);
            join = ", ";
        }
        // A dashed, labelled line at each change of a cluster's codec.
        if (p->table == TABLE_LINK && d->all[i].rows[TABLE_CODEC])
            fprintf(g,
                    ", TMP.'/codec-%d.dat' using 1:(1) axes x1y2 with impulses dt 2 lc rgb '%s' "
                    "notitle, '' using 1:2:3 axes x1y2 with labels left offset 0.5,0 noenhanced "
                    "tc rgb '%s' notitle",
                    i, colour, colour);
    }
    fputc('\n', g);
}

// Returns the number of plots with data; gnuplot would stop at a plot without data. The script gets
// its folders as arguments (ARG1, ARG2), so it contains only text from this file.
static int script(FILE *g, const struct data *d) {
    static const struct plot plots[] = {
        {"loss_tokens", "tokens trained by the cluster (millions)",
         "training loss (nats per token)", TABLE_LOSS, false, "($2/1e6):3"},
        {"loss_seconds", "seconds", "training loss (nats per token)", TABLE_LOSS, false, "1:3"},
        {"loss_wan", "sent over the WAN by the cluster (MB, on the socket)",
         "training loss (nats per token)", TABLE_LOSS, true, "($4/1e6):3"},
        {"goodput", "seconds", "goodput (Mbit/s); dashed: codec", TABLE_LINK, false, "1:2"},
    };
    int drawn = 0;
    fputs("TMP = ARG1\nOUT = ARG2\nset datafile separator \"\\t\"\n"
          "set encoding utf8\nset terminal svg size 720,420 enhanced font 'sans,12' background "
          "'#ffffff'\n"
          "set grid lt 1 lw 0.5 lc rgb '#dddddd'\nset border 3\nset tics nomirror\nset key outside "
          "top center horizontal noenhanced\n",
          g);
    for (size_t i = 0; i < sizeof plots / sizeof plots[0]; i++) {
        int64_t rows = 0;
        for (int k = 0; k < d->n; k++)
            rows += rows_of(&d->all[k], &plots[i]);
        if (!rows)
            continue;
        fprintf(g, "set output OUT.'/%s.svg'\nset xlabel '%s'\nset ylabel '%s'\n", plots[i].file,
                plots[i].x, plots[i].y);
        if (plots[i].table == TABLE_LINK)
            fputs("set yrange [0:*]\nset y2range [0:1]\n", g);
        curves(g, d, &plots[i]);
        drawn++;
    }
    return drawn;
}

static enum neb_status run_gnuplot(const char *program, const char *file, const char *log,
                                   const char *tmp, const char *out, const char *dir) {
    struct agent_child child;
    int status = 0;
    const char *const argv[] = {program, "-c", file, tmp, out, NULL};
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
    if (!agent_program_find("gnuplot", program, sizeof program)) {
        neb_warn("no plots: gnuplot is not installed (Debian package gnuplot-nox)");
        return NEB_OK;
    }
    NEB_TRY(neb_fs_mkdirs(tmp, 0755));
    st = agent_metrics_read(metrics, add_line, &d, NULL);
    if (close_tables(&d) != NEB_OK && st == NEB_OK)
        st = NEB_ERR_IO;
    if (st != NEB_OK)
        goto out;
    snprintf(file, sizeof file, "%s/plots.gp", tmp);
    snprintf(log, sizeof log, "%s/gnuplot.log", tmp);
    FILE *g = fopen(file, "w");
    if (!g) {
        st = neb_fail_errno("cannot write %s", file);
        goto out;
    }
    int drawn = script(g, &d);
    st = neb_fs_close(g, file);
    if (st == NEB_OK && drawn > 0)
        st = run_gnuplot(program, file, log, tmp, out, dir);
out:
    if (neb_fs_remove_tree(tmp) != NEB_OK && st == NEB_OK)
        st = NEB_ERR_IO;
    return st;
}
