#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launcher: slurm in a build without MPI: ranks find each other by Slurm's variables, over TCP. A
# script replaces srun (test_slurm.sh uses a real one): it starts a task per rank with SLURM_PROCID
# and the other variables, gives the standard input to the first one, writes a log for each, and
# ends all when one fails. A killed rank ends the step, and the run continues to the same bits,
# which equal those of launcher: local.
source "$(dirname "$0")/../e2e/lib.sh"
mkdir "$T/bin" "$T/path" # the program looks for its objects beside itself, where there is no MPI
cp "$nebula" "$T/bin/"
nebula=$T/bin/nebula
cat >"$T/path/srun" <<'SRUN'
#!/usr/bin/env bash
exec 3<&0
echo "$*" >>"$SRUN_SAYS"
while [[ $1 == --* ]]; do
    case $1 in
    --ntasks=*) n=${1#*=} ;;
    --output=*) out=${1#*=} ;;
    esac
    shift
done
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; exit 143' TERM
for ((i = 0; i < n; i++)); do
    in=/dev/null
    ((i)) || in=/dev/fd/3
    SLURM_PROCID=$i SLURM_NTASKS=$n SLURM_LOCALID=$i SLURM_STEP_NODELIST='127.0.0.1' \
        SLURM_JOB_NODELIST='other[1-9]' \
        "$@" <"$in" >>"${out/\%t/$i}" 2>&1 &
    pids+=($!)
done
for ((i = 0; i < n; i++)); do
    wait -n || { kill "${pids[@]}" 2>/dev/null; exit 1; }
done
SRUN
chmod +x "$T/path/srun"
# The last three are left by another launcher.
export PATH=$T/path:$PATH SLURM_JOB_ID=7 SRUN_SAYS=$T/srun.txt RANK=5 MASTER_ADDR=192.0.2.1 \
    MASTER_PORT=1
make_corpus
job() { # FILE LAUNCHER
    make_job "$1"
    sed -i -e 's/batch: 4, accumulate: 1/batch: 1, accumulate: 4/' \
        -e "s/{name: alpha,/{name: alpha, mesh: {dp: 1, tp: 2}, launcher: $2,/" "$1"
}
job "$T/slurm.yaml" slurm
job "$T/local.yaml" local
run() { # NAME FILE
    timeout 600 "$nebula" pretrain "$T/$2.yaml" --local 2 --out "$T/$1" --steps 80 \
        --set sync.interval=20 --set log_every=1 \
        >"$T/$1.log" 2>&1
}
run whole slurm ||
    fail "the run with Slurm failed: $(tail -n 5 "$T/whole.log"; cat \
        "$T"/whole/clusters/alpha/jobs/*/*.log)"
digests_equal "$T/whole"
grep -q "2 ranks: dp 1, pp 1, tp 2" "$T"/whole/clusters/alpha/jobs/*/rank-0.log ||
    fail "the worker has other ranks: $(cat "$T"/whole/clusters/alpha/jobs/*/rank-0.log)"
has -e '--ntasks=2 .*--mpi=none .* worker .* --rank 1' <"$SRUN_SAYS" ||
    fail "wrong options of srun: $(cat "$SRUN_SAYS")"
job=$(basename "$T"/whole/clusters/alpha/jobs/*) # its id is as long as a token
! sed "s/$job//g" "$SRUN_SAYS" | grep -qE '[0-9a-f]{64}' ||
    fail "the token of the ranks is in a command line: $(cat "$SRUN_SAYS")"
run here local ||
    fail "the run with launcher: local failed: $(tail -n 5 "$T/here.log"; cat \
        "$T"/here/clusters/alpha/jobs/*/*.log)"
want=$(summary '.clusters[0].params_digest' "$T/whole")
[[ $(summary '.clusters[0].params_digest' "$T/here") == "$want" ]] ||
    fail "launcher: local gives other parameters"

NEBULA_FAULT=worker.step:+100 run kill slurm & pid=$!
wait_step "$T/kill" 25 "$pid" alpha && within 20 saved "$T/kill" alpha ||
    fail "alpha has no checkpoint after step 25"
victim=$(pgrep -f "^$nebula worker .*$T/kill/clusters/alpha/.* --rank" | sort -n | tail -n 1)
[[ -n $victim ]] || fail "there is no rank of alpha"
kill -KILL "$victim"
wait "$pid" ||
    fail "the run with a killed rank failed: $(tail -n 5 "$T/kill.log"; cat \
        "$T"/kill/clusters/alpha/jobs/*/*.log)"
grep -q '"fault"' "$T/kill/metrics.jsonl" || fail "the killed rank was not reported"
digests_equal "$T/kill"
[[ $(summary '.clusters[0].params_digest' "$T/kill") == "$want" ]] ||
    fail "the parameters differ after kill -9 of a rank"
went_on "$T/kill" alpha rank-0.log
none_left() { ! pgrep -f "nebula worker .*$T/" >/dev/null; }
within 20 none_left || fail "some ranks remain: $(pgrep -af "nebula worker .*$T/")"
echo "without MPI, tasks of Slurm are ranks over TCP"
