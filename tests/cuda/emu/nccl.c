// libnebula_nccl.so for machines without a GPU: memory of the emulated device is the host's, so the ranks' own communicator does it.
#include "intra/comm.h"

intra_comm_nccl_opener intra_comm_nccl_open;

enum neb_status intra_comm_nccl_open(int version, struct intra_comm *boot, int device,
                                     int64_t timeout_ms, struct intra_comm **out) {
    (void)device, (void)timeout_ms;
    if (version != INTRA_COMM_VERSION)
        return neb_fail(NEB_ERR_UNSUPPORTED, "the emulated NCCL is of another build");
    return boot->ops->split(boot, 0, boot->rank, out);
}
