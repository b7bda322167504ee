#include "agent/plots.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/child.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLUSTERS_MAX = 16 };

struct series { // one cluster's table: t, tokens, loss, sent bytes, goodput
    char name[64];
    FILE *loss, *link;
    double sent;
};

static struct series *series_of(struct series *all, int *n, const char *dir, const char *name) {
    char path[NEB_PATH_MAX + 32];
    for (int i = 0; i < *n; i++)
        if (!strcmp(all[i].name, name))
            return &all[i];
    if (*n == CLUSTERS_MAX)
        return NULL;
    struct series *s = &all[*n];
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", name);
    snprintf(path, sizeof path, "%s/loss-%d.dat", dir, *n);
    s->loss = fopen(path, "w");
    snprintf(path, sizeof path, "%s/link-%d.dat", dir, *n);
    s->link = fopen(path, "w");
    ++*n;
    return s;
}

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static int read_metrics(const char *path, const char *tmp, struct series *all) {
    int n = 0;
    char *line = NULL;
    size_t cap = 0;
    FILE *f = fopen(path, "r");
    while (f && getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(o, "kind")), *name = json_string_value(json_object_get(o, "cluster"));
        struct series *s = kind && name ? series_of(all, &n, tmp, name) : NULL;
        if (s && s->loss && !strcmp(kind, "step"))
            fprintf(s->loss, "%g %g %g %g\n", number(o, "t"), number(o, "tokens"), number(o, "loss"), s->sent);
        if (s && s->link && !strcmp(kind, "link")) {
            s->sent = number(o, "sent_bytes");
            fprintf(s->link, "%g %g %g\n", number(o, "t"), number(o, "goodput_bps") / 1e6, s->sent / 1e6);
        }
        json_decref(o);
    }
    free(line);
    if (f)
        fclose(f);
    for (int i = 0; i < n; i++) {
        if (all[i].loss)
            fclose(all[i].loss);
        if (all[i].link)
            fclose(all[i].link);
    }
    return n;
}

static void curves(FILE *g, const struct series *all, int n, const char *tmp, const char *table, const char *columns) {
    static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
    fputs("plot ", g);
    for (int i = 0; i < n; i++)
        fprintf(g, "%s'%s/%s-%d.dat' using %s with lines lw 2 lc rgb '%s' title \"%s\"", i ? ", " : "", tmp, table, i, columns,
                colours[i % 6], all[i].name);
    fputc('\n', g);
}

static void script(FILE *g, const struct series *all, int n, const char *tmp, const char *out) {
    static const struct {
        const char *file, *x, *y, *table, *columns;
    } plots[] = {
        {"loss_tokens", "tokens trained by the cluster (millions)", "training loss (nats per token)", "loss", "($2/1e6):3"},
        {"loss_seconds", "seconds", "training loss (nats per token)", "loss", "1:3"},
        {"loss_wan", "sent over the WAN by the cluster (MB, on the socket)", "training loss (nats per token)", "loss", "($4/1e6):3"},
        {"goodput", "seconds", "goodput (Mbit/s)", "link", "1:2"},
    };
    fputs("set encoding utf8\nset terminal svg size 720,420 enhanced font 'sans,12' background '#ffffff'\n"
          "set grid lc rgb '#dddddd'\nset border 3\nset tics nomirror\nset key top right noenhanced\n", g);
    for (size_t i = 0; i < sizeof plots / sizeof plots[0]; i++) {
        fprintf(g, "set output '%s/%s.svg'\nset xlabel '%s'\nset ylabel '%s'\n", out, plots[i].file, plots[i].x, plots[i].y);
        curves(g, all, n, tmp, plots[i].table, plots[i].columns);
    }
}

enum neb_status agent_plots_make(const char *dir) {
    enum neb_status st = NEB_OK;
    char metrics[NEB_PATH_MAX], out[NEB_PATH_MAX], tmp[NEB_PATH_MAX], file[NEB_PATH_MAX + 16], log[NEB_PATH_MAX + 16];
    struct series all[CLUSTERS_MAX];
    struct agent_child child;
    int status = 0;
    NEB_TRY(neb_path(metrics, sizeof metrics, dir, "metrics.jsonl"));
    NEB_TRY(neb_path(out, sizeof out, dir, "plots"));
    NEB_TRY(neb_path(tmp, sizeof tmp, out, ".work"));
    if (access("/usr/bin/gnuplot", X_OK) != 0) {
        neb_warn("no plots: gnuplot is not installed (Debian package gnuplot-nox)");
        return NEB_OK;
    }
    NEB_TRY(neb_fs_mkdirs(tmp, 0755));
    int n = read_metrics(metrics, tmp, all);
    snprintf(file, sizeof file, "%s/plots.gp", tmp);
    snprintf(log, sizeof log, "%s/gnuplot.log", tmp);
    FILE *g = fopen(file, "w");
    if (!g)
        return neb_fail_errno("cannot write %s", file);
    script(g, all, n, tmp, out);
    fclose(g);
    if (n > 0) {
        const char *const argv[] = {"/usr/bin/gnuplot", file, NULL};
        NEB_TRY_GOTO(agent_child_start(&child, "gnuplot", argv, log, NULL), out);
        for (int i = 0; i < 1000 && !agent_child_ended(&child, &status); i++)
            neb_sleep(10 * NEB_MS);
        if (child.pid) {
            agent_child_stop(&child, NEB_S);
            status = 1;
        }
        if (status)
            neb_warn("gnuplot could not draw all plots of %s", dir);
    }
out:
    if (neb_fs_remove_tree(tmp) != NEB_OK && st == NEB_OK)
        st = NEB_ERR_IO;
    return st;
}
