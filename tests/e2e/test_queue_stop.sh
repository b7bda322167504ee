#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A job is stopped while one cluster's launcher still waits in Slurm's queue: nothing remains in the
# queue, and the job does not queue again. If the agent itself is told to end (SIGTERM, a reboot),
# the job is not over: when the agent is back, the job queues again or waits for its trainer. A
# script replaces srun: it waits, and ends on a signal.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
mkdir "$T/path"
cat >"$T/path/srun" <<SRUN
#!/usr/bin/env bash
echo queued >>"$T/queued"
exec sleep 317.$$
SRUN
chmod +x "$T/path/srun"
none_waits() { ! pgrep -f "^sleep 317.$$" >/dev/null; }
unset SLURM_JOB_ID
pids=()
clean_up() {
    pkill -TERM -f "nebula (agent|pretrain) .*$T/" || true
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
make_corpus
pair
start_alpha() {
    PATH=$T/path:$PATH timeout 600 "$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" \
        --workers 127.0.0.1 2>>"$T/a.log" &
    alpha=$!
    pids+=("$alpha")
}
start_alpha
timeout 600 "$nebula" agent --home "$T/b" 2>>"$T/b.log" &
pids+=($!)
wait_for 20 "the agents" link_up a beta
make_job "$T/job.yaml"
sed -i -e 's/batch: 4, accumulate: 1/batch: 1, accumulate: 4/' \
    -e 's/{name: alpha,/{name: alpha, mesh: {dp: 2}, launcher: slurm,/' "$T/job.yaml"
timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 &
submitted=$!
pids+=("$submitted")
wait_for 20 "srun" test -s "$T/queued"
"$nebula" stop "$(basename "$T"/a/jobs/*)" --home "$T/a" >/dev/null ||
    fail "the job cannot be stopped"
within 30 grep -q ': stopped' "$T/a.log" || fail "the job still waits for Slurm"
rc=0
wait "$submitted" || rc=$?
[[ $rc != 0 ]] || fail "the command succeeded although a cluster never trained"
has 'stopped while its launcher waited for hosts' "$T/run.log" || fail "the reason is missing"
sleep 1
[[ $(wc -l <"$T/queued") == 1 ]] || fail "the launcher queued again"
within 10 none_waits || fail "a launcher remains in the queue"

reboot() { # COMMAND…: must succeed after the reboot
    kill -TERM "$alpha" # timeout passes it on
    wait "$alpha" && rc=0 || rc=$?
    ((rc == 0 || rc == 3)) || fail "the agent ended with status $rc after SIGTERM"
    within 10 none_waits || fail "a launcher outlives its agent"
    start_alpha
    wait_for 20 "beta's link" link_up b alpha
    wait_for 20 "$*" "$@"
    kill -0 "$submitted" 2>/dev/null || fail "the job ended with its agent"
}
submit() {
    timeout 600 "$nebula" pretrain "$T/job.yaml" --home "$T/b" \
        --out "$T/again" >"$T/again.log" 2>&1 &
    submitted=$!
    pids+=("$submitted")
}
runs() { "$nebula" jobs --home "$T/a" --json | jq -e 'any(.[]; .state == "running")'; }
queued() { [[ $(wc -l <"$T/queued") == "$1" ]]; }
stop() { # REASON
    "$nebula" stop \
        "$("$nebula" jobs --home "$T/a" --json | jq -r '.[] | select(.state == "running").id')" \
        --home "$T/a" >/dev/null || fail "the job cannot be stopped"
    wait "$submitted" && fail "the command succeeded although a cluster never trained" || true
    has "$1" "$T/again.log" || fail "the reason is missing"
}
submit
wait_for 20 "srun" queued 2
reboot queued 3
stop 'stopped while its launcher waited for hosts'
sed -i 's/mesh: {dp: 2}, launcher: slurm/launcher: attach/; s/model: {/model: {vocab: 512, /' \
    "$T/job.yaml"
rm -rf "$T/again"
submit
wait_for 20 "the job that waits for a trainer" runs
reboot runs
stop 'stopped while no trainer was attached'
echo "nothing remains in the queue after a stop; a reboot during the wait does not end the job"
