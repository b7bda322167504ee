# Shared by tests that run several ranks on this machine. Source it; it makes $work and removes it at the end.
BUILD=${BUILD:?set BUILD to the build folder}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Exits 77 unless MPI is in this build and on this machine.
need_mpi() {
    [[ -e $BUILD/libnebula_mpi.so ]] || { echo "skipped: this build has no MPI (configs/install-deps, then build again)"; exit 77; }
    command -v mpirun >/dev/null || { echo "skipped: no mpirun on this machine (Debian: openmpi-bin)"; exit 77; }
}

# ranks N PROGRAM ARGS...: runs N ranks on this machine, one thread each, for at most $limit seconds (60).
ranks() {
    local n=$1
    shift
    # Leaks of the MPI library itself are none of ours; single-copy transfers need rights that containers lack.
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" \
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl=self,vader \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout -k 5 "${limit:-60}" mpirun --oversubscribe -n "$n" "$@" </dev/null
}
