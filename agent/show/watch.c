// SPDX-License-Identifier: Apache-2.0
#include "agent/show/watch.h"
#include "agent/base/exit.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "security/identity.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum neb_status agent_ask(const char *home_given, json_t *request, struct agent_ipc_msg *answer) {
    char home[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct agent_ipc *ipc = NULL;
    void *zctx = NULL;
    enum neb_status st = NEB_OK;
    NEB_TRY_GOTO(sec_home(home_given, home, sizeof home), out);
    NEB_TRY_GOTO(neb_path(path, sizeof path, home, "agent.sock"), out);
    if (agent_ipc_is_nobody(path)) {
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "no agent runs in %s (%s %s); start one with nebula agent, or give the home "
                      "of a running one with --home%s",
                      home, neb_fs_exists(path) ? "no agent listens at" : "there is no", path,
                      neb_fs_exists(path) ? "; if this folder is shared, it may run on another host"
                                          : "");
        goto out;
    }
    zctx = zmq_ctx_new();
    NEB_TRY_GOTO(agent_ipc_connect(zctx, path, &ipc), out);
    json_t *copy = json_incref(request);
    NEB_TRY_GOTO(agent_ipc_send(ipc, NULL, copy, NULL, 0), out);
    st = agent_ipc_wait(ipc, 5 * NEB_S, answer);
    if (st == NEB_ERR_TIMEOUT)
        st = neb_fail(st, "the agent at %s does not answer", path);
out:
    json_decref(request);
    agent_ipc_destroy(&ipc);
    if (zctx)
        zmq_ctx_term(zctx);
    return st;
}

static volatile sig_atomic_t ended, paused;
static void on_end(int signo) {
    (void)signo;
    ended = 1;
}
static void on_pause(int signo) {
    (void)signo;
    paused = 1;
}
static void on_resize(int signo) { (void)signo; } // only interrupts the wait

static void hold_log(void *user, enum neb_log_level level, const char *text) {
    if (level == NEB_LOG_ERROR)
        snprintf(user, 400, "%s", text);
}

char *agent_status_text(agent_status_print *print, const json_t *status) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return NULL;
    print(f, status);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    neb_plain(text, true);
    return text;
}

// Prints at most `rows` lines of at most `cols` bytes. Only peer names are not ASCII, and their
// characters have at least as many bytes as columns. Clears each line before it writes the
// text: after the last column, the cursor would still stand on this line.
static void show(const char *text, int rows, int cols) {
    fputs("\033[H", stdout);
    for (int r = 0; r < rows; r++) {
        size_t n = strcspn(text, "\n");
        int cut = n < (size_t)cols ? (int)n : cols;
        while (cut > 0 && (size_t)cut < n && ((unsigned char)text[cut] & 0xC0) == 0x80)
            cut--; // do not cut inside a character
        printf("\033[2K%.*s%s", cut, text, r + 1 < rows ? "\n" : "");
        text += n + (text[n] == '\n');
    }
    fflush(stdout);
}

static void draw(const char *home, agent_status_print *print) {
    struct winsize w = {.ws_row = 24, .ws_col = 80};
    struct agent_ipc_msg m = {0};
    char problem[440] = "";
    neb_log_set_sink(hold_log, problem);
    bool ok = agent_ask(home, json_pack("{s:s}", "op", "status"), &m) == NEB_OK;
    neb_log_set_sink(NULL, NULL);
    char *text = ok ? agent_status_text(print, m.head) : NULL;
    agent_ipc_msg_clear(&m);
    if (!ok)
        strcat(problem, "\n\nretrying every second");
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    show(text ? text : problem, w.ws_row ? w.ws_row : 24, w.ws_col ? w.ws_col : 80);
    free(text);
}

// ---- the terminal -------------------------------------------------------------------------------

// Alternate screen, no cursor, no wrapping; keys arrive at once, without echo.
static void enter(const struct termios *before) {
    struct termios raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l\033[?7l\033[2J", stdout);
}

static void leave(const struct termios *before) {
    fputs("\033[?7h\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, before);
}

static void handle(int signo, void (*handler)(int)) {
    struct sigaction s = {.sa_handler = handler};
    sigaction(signo, &s, NULL);
}

// Blocks the signals except during the wait. Otherwise one could arrive between the check of the
// flags and the wait.
static void hold_signals(sigset_t *open) {
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigset_t held;
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        handle(ends[i], on_end);
        sigaddset(&held, ends[i]);
    }
    handle(SIGTSTP, on_pause);
    handle(SIGWINCH, on_resize);
    sigaddset(&held, SIGTSTP);
    sigaddset(&held, SIGWINCH);
    sigprocmask(SIG_BLOCK, &held, open);
}

int agent_watch(const char *home, agent_status_print *print) {
    struct termios before;
    sigset_t open;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) != 0) {
        neb_log(NEB_LOG_ERROR,
                "nebula status --watch needs a terminal; without one use nebula status --json");
        return AGENT_EXIT_USAGE;
    }
    hold_signals(&open);
    enter(&before);
    while (!ended) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        const struct timespec second = {.tv_sec = 1};
        char key = 0;
        draw(home, print);
        if (ppoll(&p, 1, &second, &open) > 0 &&
            (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
            break;
        if (paused) { // Ctrl-Z: restore the terminal for the shell
            paused = 0;
            leave(&before);
            raise(SIGSTOP);
            enter(&before);
        }
    }
    leave(&before);
    return AGENT_EXIT_OK;
}
