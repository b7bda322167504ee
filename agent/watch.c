#include "agent/watch.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/commands.h"
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
    if (!neb_fs_exists(path)) {
        st = neb_fail(NEB_ERR_NOT_FOUND,
                      "no agent runs in %s (nothing at %s); start one with nebula agent", home,
                      path);
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

static volatile sig_atomic_t ended;
static void on_end(int signo) {
    (void)signo;
    ended = 1;
}
static void on_resize(int signo) { (void)signo; } // it only has to interrupt the wait

static void hold_log(void *user, enum neb_log_level level, const char *text) {
    if (level == NEB_LOG_ERROR)
        snprintf(user, 400, "%s", text);
}

// At most `rows` lines of at most `cols` bytes (names and figures are ASCII but for peers' names).
static void show(const char *text, int rows, int cols) {
    fputs("\033[H", stdout);
    for (int r = 0; r < rows; r++) {
        size_t n = strcspn(text, "\n");
        int cut = n < (size_t)cols ? (int)n : cols;
        while (cut > 0 && (size_t)cut < n && ((unsigned char)text[cut] & 0xC0) == 0x80)
            cut--; // not in the middle of a character
        printf("%.*s\033[K%s", cut, text, r + 1 < rows ? "\n" : "");
        text += n + (text[n] == '\n');
    }
    fflush(stdout);
}

static void draw(const char *home, void (*print)(FILE *f, const json_t *status)) {
    struct winsize w = {.ws_row = 24, .ws_col = 80};
    struct agent_ipc_msg m = {0};
    char *text = NULL, problem[400] = "";
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return;
    neb_log_set_sink(hold_log, problem);
    if (agent_ask(home, json_pack("{s:s}", "op", "status"), &m) == NEB_OK)
        print(f, m.head);
    else
        fprintf(f, "%s\n\ntrying again every second", problem);
    neb_log_set_sink(NULL, NULL);
    agent_ipc_msg_clear(&m);
    fclose(f);
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    show(text, w.ws_row ? w.ws_row : 24, w.ws_col ? w.ws_col : 80);
    free(text);
}

int agent_watch(const char *home, void (*print)(FILE *f, const json_t *status)) {
    struct termios before, raw;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) != 0) {
        neb_log(NEB_LOG_ERROR,
                "nebula status --watch needs a terminal; without one use nebula status --json");
        return AGENT_EXIT_USAGE;
    }
    struct sigaction end = {.sa_handler = on_end}, resize = {.sa_handler = on_resize};
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGHUP, &end, NULL);
    sigaction(SIGWINCH, &resize, NULL);
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l\033[2J", stdout); // the other screen, no cursor
    while (!ended) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        char key = 0;
        draw(home, print);
        if (poll(&p, 1, 1000) > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
            break;
    }
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return AGENT_EXIT_OK;
}
