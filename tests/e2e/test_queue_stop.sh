#!/usr/bin/env bash
# A job is stopped while one cluster's launcher still waits for hosts in Slurm's queue: nothing is left in the queue, and nothing queues again.
# In srun's place is a script that waits as it does, and ends when it is told to.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/sites.sh"
mkdir "$T/path"
cat >"$T/path/srun" <<SRUN
#!/usr/bin/env bash
echo queued >>"$T/queued"
exec sleep 317.25
SRUN
chmod +x "$T/path/srun"
unset SLURM_JOB_ID
pids=()
clean_up() {
    pkill -TERM -f "nebula (agent|pretrain) .*$T/" || true
    for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
    wait
}
make_corpus
pair
PATH=$T/path:$PATH timeout 100 "$nebula" agent --home "$T/a" --listen "127.0.0.1:$port" --workers 127.0.0.1 2>>"$T/a.log" &
pids+=($!)
timeout 100 "$nebula" agent --home "$T/b" 2>>"$T/b.log" &
pids+=($!)
wait_for 20 "the agents" link_up a beta
make_job "$T/job.yaml"
sed -i -e 's/batch: 4, accumulate: 1/batch: 1, accumulate: 4/' -e 's/{name: alpha,/{name: alpha, mesh: {dp: 2}, launcher: slurm,/' "$T/job.yaml"
timeout 80 "$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" >"$T/run.log" 2>&1 &
submitted=$!
pids+=("$submitted")
wait_for 20 "srun" test -s "$T/queued"
"$nebula" stop "$(basename "$T"/a/jobs/*)" --home "$T/a" >/dev/null || fail "the job cannot be stopped"
within 10 grep -q ': stopped' "$T/a.log" || fail "the job waits for Slurm: $(tail -n 3 "$T/a.log")"
rc=0
wait "$submitted" || rc=$?
[[ $rc != 0 ]] || fail "a cluster that never trained ended as if all were well"
has 'stopped while its launcher waited for hosts' "$T/run.log" || fail "no reason: $(tail -n 3 "$T/run.log")"
sleep 1
[[ $(wc -l <"$T/queued") == 1 ]] || fail "it queued again"
! pgrep -f 'sleep 317.25' >/dev/null || fail "a launcher is left in the queue"
echo "stopped while srun waited: nothing is left in the queue"
