// SPDX-License-Identifier: Apache-2.0
// Collectives over MPI, in host memory. Built as its own object (libnebula_mpi.so), so only hosts
// with MPI need it. MPI errors are returned (MPI_ERRORS_RETURN on every communicator) and logged.
//
// MPI counts with int, and MPI libraries often do so inside. So longer data is sent in pieces:
//
//     a message                      pieces of COUNT_MAX bytes; the last is shorter, perhaps empty
//     all-reduce, reduce, broadcast  piece by piece
//     reduce-scatter, all-gather     if all rows together exceed COUNT_MAX: a reduce to, or a
//                                    broadcast from, the rank of each row
//
// Only the last piece of a message is not full, so a receiver that expects another size notices it.
#include "intra/ranks/comm.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

struct mpi {
    MPI_Comm comm;
    bool world; // MPI_COMM_WORLD: destroy ends MPI
};

// Tests build an object with smaller values (tests/CMakeLists.txt).
#ifndef COUNT_MAX
#define COUNT_MAX (1 << 30) // elements or bytes of one call
#define ROW_PIECE (1 << 26) // elements of a row per reduce: MPI allocates as many
#endif

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

// Elements or bytes of the piece that begins at `at`.
static int piece_at(size_t n, size_t at) { return (int)(n - at < COUNT_MAX ? n - at : COUNT_MAX); }

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    for (size_t at = 0; at < n; at += COUNT_MAX) {
        int rc =
            MPI_Allreduce(MPI_IN_PLACE, (char *)x + at * intra_comm_type_bytes(t), piece_at(n, at),
                          type_of(t), op == INTRA_COMM_SUM ? MPI_SUM : MPI_MAX, mpi_of(c)->comm);
        NEB_TRY(checked(c, rc, "all-reduce"));
    }
    return NEB_OK;
}

static enum neb_status reduce(struct intra_comm *c, float *x, size_t n, int root) {
    bool here = c->rank == root;
    NEB_ASSERT(root >= 0 && root < c->size);
    for (size_t at = 0; at < n; at += COUNT_MAX) {
        NEB_TRY(checked(c,
                        MPI_Reduce(here ? MPI_IN_PLACE : x + at, here ? x + at : NULL,
                                   piece_at(n, at), MPI_FLOAT, MPI_SUM, root, mpi_of(c)->comm),
                        "reduce"));
    }
    return NEB_OK;
}

static bool at_once(const struct intra_comm *c, size_t n) {
    return n <= COUNT_MAX / (size_t)c->size;
}

static enum neb_status reduce_scatter(struct intra_comm *c, float *x, size_t n) {
    if (at_once(c, n)) {
        NEB_TRY(checked(
            c,
            MPI_Reduce_scatter_block(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, mpi_of(c)->comm),
            "reduce-scatter"));
        memmove(x + (size_t)c->rank * n, x, n * sizeof *x); // MPI leaves the result in front
        return NEB_OK;
    }
    for (int row = 0; row < c->size; row++)
        for (size_t at = 0; at < n; at += ROW_PIECE)
            NEB_TRY(
                reduce(c, x + (size_t)row * n + at, n - at < ROW_PIECE ? n - at : ROW_PIECE, row));
    return NEB_OK;
}

static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    NEB_ASSERT(root >= 0 && root < c->size);
    for (size_t at = 0; at < bytes; at += COUNT_MAX) {
        NEB_TRY(checked(
            c, MPI_Bcast((char *)x + at, piece_at(bytes, at), MPI_BYTE, root, mpi_of(c)->comm),
            "broadcast"));
    }
    return NEB_OK;
}

static enum neb_status all_gather(struct intra_comm *c, float *x, size_t n) {
    if (at_once(c, n))
        return checked(c,
                       MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, (int)n, MPI_FLOAT,
                                     mpi_of(c)->comm),
                       "all-gather");
    for (int row = 0; row < c->size; row++)
        NEB_TRY(broadcast(c, x + (size_t)row * n, n * sizeof *x, row));
    return NEB_OK;
}

// A message in flight.
struct sending {
    size_t n; // pieces whose send began
    MPI_Request pieces[];
};

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *out) {
    size_t n = bytes / COUNT_MAX + 1;
    struct sending *s = malloc(sizeof *s + n * sizeof s->pieces[0]);
    NEB_ASSERT(to >= 0 && to < c->size);
    out->handle = NULL;
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a send of %zu bytes", bytes);
    for (s->n = 0; s->n < n; s->n++) {
        size_t at = s->n * COUNT_MAX;
        int rc = MPI_Isend((const char *)x + at, piece_at(bytes, at), MPI_BYTE, to, tag,
                           mpi_of(c)->comm, &s->pieces[s->n]);
        if (rc != MPI_SUCCESS) { // the group is lost; earlier pieces stay with the library
            free(s);
            return checked(c, rc, "send");
        }
    }
    out->handle = s;
    return NEB_OK;
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *out) {
    struct sending *s = out->handle;
    enum neb_status st = NEB_OK;
    out->handle = NULL;
    for (size_t i = 0; s && i < s->n && st == NEB_OK; i++)
        st = checked(c, MPI_Wait(&s->pieces[i], MPI_STATUS_IGNORE), "send");
    free(s);
    return st;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    NEB_ASSERT(from >= 0 && from < c->size);
    for (size_t i = 0; i <= bytes / COUNT_MAX; i++) {
        size_t at = i * COUNT_MAX;
        MPI_Status got;
        int n = 0, want = piece_at(bytes, at);
        NEB_TRY(checked(c,
                        MPI_Recv((char *)x + at, want, MPI_BYTE, from, tag, mpi_of(c)->comm, &got),
                        "receive"));
        NEB_TRY(checked(c, MPI_Get_count(&got, MPI_BYTE, &n), "receive"));
        if (n != want)
            return neb_fail(NEB_ERR_IO,
                            "message from rank %d with tag %d has %zu bytes, %zu were expected",
                            from, tag, at + (size_t)n, bytes);
    }
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
    if (rc != MPI_SUCCESS) // logged; nothing else can be done
        (void)!checked(c, rc, m->world ? "finalize" : "free");
    intra_comm_free(c);
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
    int rank, size;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    NEB_TRY(intra_comm_make(&mpi_ops, sizeof(struct mpi), rank, size, out));
    *mpi_of(*out) = (struct mpi){comm, world};
    return NEB_OK;
}

intra_comm_mpi_opener intra_comm_mpi_open;

enum neb_status intra_comm_mpi_open(int version, struct intra_comm **out) {
    int started = 0, ended = 0, level;
    if (version != INTRA_COMM_VERSION)
        return neb_fail(
            NEB_ERR_UNSUPPORTED,
            "libnebula_mpi.so has interface %d, the program needs %d; install both from one build",
            INTRA_COMM_VERSION, version);
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (started || ended)
        return neb_fail(NEB_ERR_STATE,
                        "MPI was started before in this process; it can start only once");
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (rc != MPI_SUCCESS || level < MPI_THREAD_FUNNELED)
        return neb_fail(
            NEB_ERR_IO,
            "MPI does not start (%d); start this process with the mpirun of the same MPI library",
            rc);
    return wrap(MPI_COMM_WORLD, true, out);
}
