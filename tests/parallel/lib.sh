# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by tests that run several ranks on this machine. Source it; it makes $work and removes it
# at the end.
BUILD=${BUILD:?set BUILD to the build folder}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mesh_train=$BUILD/mesh_train

# Exits with 77 unless this build and this machine have MPI.
need_mpi() {
    [[ -e $BUILD/libnebula_mpi.so ]] || {
        echo "skipped: this build has no MPI (configs/install-deps, then build again)"
        exit 77
    }
    command -v mpirun >/dev/null || {
        echo "skipped: no mpirun on this machine (Debian: openmpi-bin)"
        exit 77
    }
}

# ranks N PROGRAM ARGS...: runs N ranks on this machine, with one thread each, for at most $limit
# seconds (600). mpirun starts them; with launcher=socket, nebula does, over TCP.
# Ranks over MPI sleep where they would yield (yield.c), unless polls=1.
launcher=mpi polls=
ranks() {
    local n=$1 preload=
    shift
    if [[ $launcher == socket ]]; then
        OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
            timeout -k 5 "${limit:-600}" "$BUILD/nebula" ranks "$n" "$@" </dev/null
        return
    fi
    [[ $polls || ! -e $BUILD/libtest_yield.so ]] || preload=$BUILD/libtest_yield.so
    # Leaks inside MPI are not ours. Containers lack the rights for single-copy transfers.
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" \
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 \
    OMPI_MCA_btl=self,vader \
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout -k 5 "${limit:-600}" mpirun --oversubscribe -n "$n" \
        env LD_PRELOAD="$preload" "$@" </dev/null
}

# emulated: from here on, meshes have ranks on emulated devices (tests/cuda). The program looks for
# its objects beside itself. Queues run late, so a collective that reads data too early gets wrong
# values.
emulated() {
    need_mpi
    mkdir "$work/bin"
    cp "$BUILD/mesh_train" "$BUILD/mesh_shards" "$BUILD/libnebula_mpi.so" "$work/bin/"
    cp "${EMULATED:?}" "$work/bin/libnebula_device.so"
    cp "${EMULATED_NCCL:?}" "$work/bin/libnebula_nccl.so"
    mesh_train=$work/bin/mesh_train
    # Every process has one emulated device, all with the same number.
    export EMU_LATE=1 EMU_NCCL_SHARED_DEVICE=1
}

# mpi_pieces: programs in $work/bin use an MPI object that splits messages and collectives after few
# bytes (tests/CMakeLists.txt).
mpi_pieces() {
    need_mpi
    mkdir -p "$work/bin"
    cp "${MPI_PIECES:?}" "$work/bin/libnebula_mpi.so"
}

# Shared by the comparisons below: odd() is true if a field from FROM on is missing or not a number.
# To mawk, a NaN equals everything, and so does a value computed from it.
numbers='function odd(from, i) {
        for (i = from; i <= NF; i++) if ($i !~ /^-?[0-9]/) return 1
        return NF < from
    }
    function far(a, b) { d = (a - b) / b; return d < 0 ? -d : d }'

# agrees WHAT: compares $work/out with $work/one. A loss may differ by the factor $loss_bound
# (1e-4), the first loss by a hundredth of that.
agrees() {
    awk -v what="$1" -v bound="${loss_bound:-1e-4}" "$numbers"'
        odd(2) || NF != ($1 == "eval" ? 2 : 4) {
            print what ": " (NR == FNR ? "one rank" : "the mesh") " prints: " $0
            bad = 1
            next
        }
        NR == FNR { loss[$1] = $2; norm[$1] = $3; clipped[$1] = $4; want++; next }
        !($1 in loss) { print what ": only the mesh has step " $1 ", or twice"; bad = 1; next }
        {
            n++
            e = far($2, loss[$1]); if (e > worst) worst = e
            if (e > ($1 == "0" ? bound / 100 : bound)) {
                print what ": step " $1 ": loss " $2 ", one rank has " loss[$1]
                bad = 1
            }
            c = $4 - clipped[$1]
            if ($1 != "eval" && (far($3, norm[$1]) > 10 * bound || c > 1 || c < -1)) {
                print what ": step " $1 ": gradient norm " $3 ", clipped " $4 \
                    "; one rank has " norm[$1] ", " clipped[$1]
                bad = 1
            }
            delete loss[$1]
        }
        END {
            if (n != want || !want) {
                print what ": " n + 0 " lines, one rank printed " want + 0
                bad = 1
            }
            if (!bad) printf "%-44s largest difference of a loss %.1e\n", what, worst
            exit bad
        }' "$work/one" "$work/out"
}

# losses_agree WHAT BOUND WANT GOT: compares only the losses of two files; the first one by
# $first_bound, if set.
losses_agree() {
    awk -v what="$1" -v bound="$2" -v first="${first_bound:-$2}" "$numbers"'
        odd(2) { print what ": " FILENAME ": " $0; bad = 1; next }
        NR == FNR { want[$1] = $2; n++; next }
        !($1 in want) {
            print what ": one rank did not make step " $1 ", or it came twice"
            bad = 1
            next
        }
        far($2, want[$1]) > (FNR == 1 ? first : bound) {
            print what ": step " $1 ": " $2 ", one rank has " want[$1]
            bad = 1
        }
        { delete want[$1]; made++ }
        END {
            if (made != n || !n) { print what ": " made + 0 " of " n + 0 " steps"; bad = 1 }
            exit bad
        }' "$3" "$4"
}

# meshes OPTIONS MESH...: compares each mesh (DPxPPxTP) with one rank. It returns at the first mesh
# that differs, also where set -e has no effect (a && b). $rank: the program that starts a rank, if
# not $mesh_train.
meshes() {
    local options=$1 dp pp tp
    shift
    # shellcheck disable=SC2086
    timeout "${limit:-600}" "$mesh_train" 0 0 0 eval=1 $options >"$work/one" || {
        echo "one rank ($options): failed"
        exit 1
    }
    for mesh in "$@"; do
        IFS=x read -r dp pp tp <<<"$mesh"
        # shellcheck disable=SC2086
        ranks $((dp * pp * tp)) "${rank:-$mesh_train}" "$dp" "$pp" "$tp" eval=1 $options \
            >"$work/out" 2>"$work/err" || {
            cat "$work/out" "$work/err"
            echo "dp $dp, pp $pp, tp $tp ($options): failed"
            exit 1
        }
        agrees "dp $dp, pp $pp, tp $tp $options" || return 1
    done
}

# mesh DPxPPxTP ARGS...: prints rank 0's lines.
mesh() {
    local dp pp tp
    IFS=x read -r dp pp tp <<<"$1"
    shift
    ranks $((dp * pp * tp)) "$mesh_train" "$dp" "$pp" "$tp" "$@"
}
same() { cmp "$1" "$2" || { echo "$3"; exit 1; }; }
