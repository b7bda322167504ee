// Collectives over MPI, in host memory. Built as an object of its own (libnebula_mpi.so), so that only hosts with MPI
// need it. Errors are returned, not fatal: MPI_ERRORS_RETURN on every communicator; what MPI says goes into the log.
#include "intra/comm.h"

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

struct mpi {
    MPI_Comm comm;
    bool world; // of this process: ends MPI when destroyed
};

enum { COUNT_MAX = 1 << 30 }; // elements or bytes of one MPI call, whose counts are int

static struct mpi *mpi_of(struct intra_comm *c) { return c->ctx; }

static enum neb_status checked(struct intra_comm *c, int rc, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "unknown";
    int len;
    if (rc == MPI_SUCCESS)
        return NEB_OK;
    if (MPI_Error_string(rc, text, &len) != MPI_SUCCESS)
        len = 0;
    return neb_fail(NEB_ERR_IO, "MPI: %s failed on rank %d of %d: %s", what, c->rank, c->size,
                    text);
}

static MPI_Datatype type_of(enum intra_comm_type t) {
    return t == INTRA_COMM_F32 ? MPI_FLOAT : t == INTRA_COMM_F64 ? MPI_DOUBLE : MPI_UINT64_T;
}

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    for (size_t at = 0; at < n; at += COUNT_MAX) {
        size_t k = n - at < COUNT_MAX ? n - at : COUNT_MAX;
        int rc =
            MPI_Allreduce(MPI_IN_PLACE, (char *)x + at * intra_comm_type_bytes(t), (int)k,
                          type_of(t), op == INTRA_COMM_SUM ? MPI_SUM : MPI_MAX, mpi_of(c)->comm);
        NEB_TRY(checked(c, rc, "all-reduce"));
    }
    return NEB_OK;
}

static enum neb_status reduce(struct intra_comm *c, float *x, size_t n, int root) {
    bool here = c->rank == root;
    NEB_ASSERT(root >= 0 && root < c->size);
    for (size_t at = 0; at < n; at += COUNT_MAX) {
        size_t k = n - at < COUNT_MAX ? n - at : COUNT_MAX;
        NEB_TRY(checked(c,
                        MPI_Reduce(here ? MPI_IN_PLACE : x + at, here ? x + at : NULL, (int)k,
                                   MPI_FLOAT, MPI_SUM, root, mpi_of(c)->comm),
                        "reduce"));
    }
    return NEB_OK;
}

static enum neb_status fits(struct intra_comm *c, size_t n, const char *what) {
    if (n <= COUNT_MAX)
        return NEB_OK;
    return neb_fail(NEB_ERR_LIMIT,
                    "MPI: %s of %zu elements a rank on %d ranks, at most %d are possible; use more "
                    "ranks",
                    what, n, c->size, COUNT_MAX);
}

static enum neb_status reduce_scatter(struct intra_comm *c, float *x, size_t n) {
    NEB_TRY(fits(c, n, "reduce-scatter"));
    NEB_TRY(checked(
        c, MPI_Reduce_scatter_block(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, mpi_of(c)->comm),
        "reduce-scatter"));
    memmove(x + (size_t)c->rank * n, x, n * sizeof *x); // in place, MPI leaves it in front
    return NEB_OK;
}

static enum neb_status all_gather(struct intra_comm *c, float *x, size_t n) {
    NEB_TRY(fits(c, n, "all-gather"));
    return checked(
        c, MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, (int)n, MPI_FLOAT, mpi_of(c)->comm),
        "all-gather");
}

static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    NEB_ASSERT(root >= 0 && root < c->size);
    for (size_t at = 0; at < bytes; at += COUNT_MAX) {
        size_t k = bytes - at < COUNT_MAX ? bytes - at : COUNT_MAX;
        NEB_TRY(checked(c, MPI_Bcast((char *)x + at, (int)k, MPI_BYTE, root, mpi_of(c)->comm),
                        "broadcast"));
    }
    return NEB_OK;
}

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *s) {
    NEB_ASSERT(to >= 0 && to < c->size);
    NEB_TRY(fits(c, bytes, "send"));
    MPI_Request *r = malloc(sizeof *r);
    s->handle = NULL;
    if (!r)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a send of %zu bytes", bytes);
    enum neb_status st =
        checked(c, MPI_Isend(x, (int)bytes, MPI_BYTE, to, tag, mpi_of(c)->comm, r), "send");
    if (st == NEB_OK)
        s->handle = r;
    else
        free(r);
    return st;
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *s) {
    MPI_Request *r = s->handle;
    if (!r)
        return NEB_OK;
    enum neb_status st = checked(c, MPI_Wait(r, MPI_STATUS_IGNORE), "send");
    free(r);
    s->handle = NULL;
    return st;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    MPI_Status got;
    int n = 0;
    NEB_ASSERT(from >= 0 && from < c->size);
    NEB_TRY(fits(c, bytes, "receive"));
    NEB_TRY(
        checked(c, MPI_Recv(x, (int)bytes, MPI_BYTE, from, tag, mpi_of(c)->comm, &got), "receive"));
    NEB_TRY(checked(c, MPI_Get_count(&got, MPI_BYTE, &n), "receive"));
    if ((size_t)n != bytes)
        return neb_fail(NEB_ERR_IO,
                        "message from rank %d with tag %d has %d bytes, %zu were expected", from,
                        tag, n, bytes);
    return NEB_OK;
}

static enum neb_status poll(struct intra_comm *c, int from, int tag, bool *ready) {
    int there = 0;
    enum neb_status st =
        checked(c, MPI_Iprobe(from, tag, mpi_of(c)->comm, &there, MPI_STATUS_IGNORE), "probe");
    *ready = there;
    return st;
}

static enum neb_status barrier(struct intra_comm *c) {
    return checked(c, MPI_Barrier(mpi_of(c)->comm), "barrier");
}

static enum neb_status wrap(MPI_Comm comm, bool world, struct intra_comm **out);

static enum neb_status split(struct intra_comm *c, int color, int key, struct intra_comm **out) {
    MPI_Comm part;
    NEB_ASSERT(color >= 0);
    NEB_TRY(checked(c, MPI_Comm_split(mpi_of(c)->comm, color, key, &part), "split"));
    return wrap(part, false, out);
}

static void abort_all(struct intra_comm *c) { MPI_Abort(mpi_of(c)->comm, 1); }

static void destroy(struct intra_comm *c) {
    struct mpi *m = mpi_of(c);
    int rc = m->world ? MPI_Finalize() : MPI_Comm_free(&m->comm);
    if (rc != MPI_SUCCESS) // nothing is left to be done about it; it has been said
        (void)!checked(c, rc, m->world ? "finalize" : "free");
    free(m);
    free(c);
}

static const struct intra_comm_ops mpi_ops = {
    .name = "mpi",
    .all_reduce = all_reduce,
    .reduce = reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .send = send,
    .wait = wait_send,
    .recv = recv,
    .poll = poll,
    .barrier = barrier,
    .split = split,
    .abort = abort_all,
    .destroy = destroy,
};

static enum neb_status wrap(MPI_Comm comm, bool world, struct intra_comm **out) {
    struct intra_comm *c = calloc(1, sizeof *c);
    struct mpi *m = calloc(1, sizeof *m);
    if (!c || !m) {
        free(c);
        free(m);
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a communicator");
    }
    *m = (struct mpi){.comm = comm, .world = world};
    *c = (struct intra_comm){.ops = &mpi_ops, .ctx = m};
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &c->rank);
    MPI_Comm_size(comm, &c->size);
    *out = c;
    return NEB_OK;
}

intra_comm_mpi_opener intra_comm_mpi_open;

enum neb_status intra_comm_mpi_open(int version, struct intra_comm **out) {
    int started = 0, ended = 0, level;
    if (version != INTRA_COMM_VERSION)
        return neb_fail(
            NEB_ERR_UNSUPPORTED,
            "libnebula_mpi.so has interface %d, the program wants %d: install both from "
            "one build",
            INTRA_COMM_VERSION, version);
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (started || ended)
        return neb_fail(NEB_ERR_STATE,
                        "MPI was already started in this process; it can be only once");
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (rc != MPI_SUCCESS || level < MPI_THREAD_FUNNELED)
        return neb_fail(NEB_ERR_IO,
                        "MPI does not start (%d): is this process started by mpirun of the "
                        "same MPI library?",
                        rc);
    return wrap(MPI_COMM_WORLD, true, out);
}
