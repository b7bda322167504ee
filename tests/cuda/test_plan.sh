#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nebula plan for clusters with emulated devices. It measures the devices and reports the result.
# Its seconds a step agree with runs. A profile brings a device's rates to a machine without one.
# Memory, ranks and links of devices count, also for the sides of rtd and distill.
. "$(dirname "$0")/../e2e/lib.sh"
export XDG_CACHE_HOME=$T/cache
cp -r "$BUILD/rates" "$T/cache" # rates of these processors, which e2e_rates measured once
make_corpus
make_job "$T/both.yaml"
sed -i 's/seq_len: 64, batch: 4/seq_len: 64, batch: 2/;
    s/{name: alpha,/{name: alpha, device: cuda,/; s/{name: beta,/{name: beta, device: cpu,/' \
    "$T/both.yaml"
mkdir "$T/bin" "$T/bare" # the program looks for its objects beside itself
cp "$BUILD/nebula" "$T/bin/"
cp "$BUILD/nebula" "$T/bare/"
cp "$EMULATED" "$T/bin/libnebula_device.so"
cp "$EMULATED_NCCL" "$T/bin/libnebula_nccl.so"
nebula=$T/bin/nebula
export EMU_DEVICES=2 EMU_NCCL_SHARED_DEVICE=1 # the emulated NCCL has only one device

plan() { timeout 600 "$nebula" plan "$@" 2>"$T/plan.err" || fail "plan $*: $(cat "$T/plan.err")"; }
near() { # NAME PREDICTED MEASURED LOW HIGH: measured / predicted within bounds
    awk -v p="$2" -v m="$3" -v lo="$4" -v hi="$5" 'BEGIN { exit !(p > 0 && m / p >= lo &&
        m / p <= hi) }' ||
        fail "$1: predicted $2, measured $3: not within $4 to $5 times"
    echo "$1: predicted $2, measured $3"
}

# A plan for processors only has a note that says so. Its profile is kept, and devices are measured
# when they appear.
nebula=$T/bare/nebula
plan "$T/both.yaml" >"$T/none.txt"
[[ $(grep -c 'device: cuda IS NOT IN THE FIGURES' "$T/none.txt") == 2 ]] ||
    fail "the plan does not mention the device: $(cat "$T/none.txt")"
cp -r "$T/cache" "$T/elsewhere" # of a machine without devices
nebula=$T/bin/nebula
plan --profile >"$T/here.json"
jq -e '.device | .name == "emulated" and .count == 2 and .link > 0 and .memory > 1e9 and (.bf16.step
    | length == 9 and all(. > 0))' "$T/here.json" >/dev/null ||
    fail "the profile's device: $(jq .device "$T/here.json")"
grep -q 'measuring emulated' "$T/plan.err" && ! grep -q 'measuring this machine' "$T/plan.err" ||
    fail "what is measured: $(cat "$T/plan.err")"

# A driver that crashes takes only the measuring process with it: the plan uses processors and has
# the reason.
mkdir "$T/crash"
cp "$BUILD/nebula" "$T/crash/"
echo 'void kern_cuda_meet(void) { } void kern_cuda_open(void) { __builtin_trap(); }' |
    cc -shared -fPIC -x c - -o "$T/crash/libnebula_device.so"
nebula=$T/crash/nebula
cp -r "$T/cache" "$T/cache.crash"
jq '.device = null' "$T/here.json" >"$(echo "$T"/cache.crash/nebula/plan-*.json)"
XDG_CACHE_HOME=$T/cache.crash plan "$T/both.yaml" >"$T/crash.txt"
grep -q 'the device cannot be measured: killed by signal' "$T/plan.err" &&
    [[ $(grep -c 'device: cuda IS NOT IN THE FIGURES' "$T/crash.txt") == 2 ]] ||
    fail "a driver that crashes: $(cat "$T/plan.err" "$T/crash.txt")"
nebula=$T/bin/nebula

plan "$T/both.yaml" >"$T/both.txt"
! grep -q measuring "$T/plan.err" || fail "rates are measured twice"
grep -q 'device 2 x emulated: steps at up to' "$T/both.txt" &&
    [[ $(grep -c '^  alpha on emulated in bf16: mesh' "$T/both.txt") == 2 ]] &&
    ! grep -q 'NOT IN THE FIGURES' "$T/both.txt" ||
    fail "the device is not named: $(cat "$T/both.txt")"
plan "$T/both.yaml" --json >"$T/both.json"
jq -e '.written.clusters | (.[0] | .rates_of == "emulated" and .device_reckoned and .precision ==
    "bf16" and .device_bytes > 1e6 and .outer_bytes > 1e6 and .gather_s == 0)
    and (.[1] | .rates_of == "processors" and .precision == "fp32" and .device_bytes == 0)' \
    "$T/both.json" >/dev/null || fail "clusters: $(jq .written.clusters "$T/both.json")"

# A kept profile is checked again if other GPUs are visible or links could not be measured. The rest
# is not measured again.
kept=$(echo "$T"/cache/nebula/plan-*.json)
export XDG_CACHE_HOME=$T/again
cp -r "$T/cache" "$T/again"
again() { # what is measured ("": nothing, but links), jq's of the profile
    plan --profile >"$T/again.json"
    [[ $(sed -n 's/.* measuring \([a-z]*\).*/\1/p' "$T/plan.err") == "$1" ]] ||
        fail "not '$1' is measured: $(cat "$T/plan.err")"
    jq -e "$2" "$T/again.json" >/dev/null &&
        [[ $(jq -Sc . "$T/again.json") == "$(jq -Sc . "$T/again/nebula/${kept##*/}")" ]] ||
        fail "not $2: $(jq -c '[.link, .device.count, .device.visible, .device.link]' \
        "$T/again.json")"
}
EMU_DEVICES=1 CUDA_VISIBLE_DEVICES=0 again emulated \
    '.device | .count == 1 and .visible == 1 and .link == 0'
EMU_DEVICES=1 CUDA_VISIBLE_DEVICES=0 again '' '.device.count == 1'
[[ ${NEBULA_TESTS:-} != nightly ]] || again emulated '.device | .count == 2 and .link > 0'
jq '.link = 0 | .link_s = 0 | .device.link = 0 | .device.link_s = 0' "$kept" \
    >"$T/again/nebula/${kept##*/}"
again '' '.link > 0 and .link_s > 0 and (.device | .count == 2 and .link > 0 and .link_s > 0)'
export XDG_CACHE_HOME=$T/cache

# The exchange's state on the host costs copies, but no memory of the device.
sed 's/device: cuda,/device: cuda, outer_state: host,/' "$T/both.yaml" >"$T/host.yaml"
plan "$T/host.yaml" --json >"$T/host.json"
jq -e '.written.clusters[0] | .outer_bytes == 0 and .gather_s > 0 and .scatter_s > 0' \
    "$T/host.json" >/dev/null || fail "outer_state: host: $(jq .written.clusters[0] "$T/host.json")"

# Seconds a step on the emulated device: the ratio of a large model to a small one. Both runs are at
# the same time, because the machine's load varies (test_cost_device.c compares absolute times). The
# comparison runs only at night.
sed "/name: beta/d" "$T/both.yaml" >"$T/small.yaml"
sed 's/n_layers: 2/n_layers: 3/; s/d_ff: 128/d_ff: 512/; s/batch: 2/batch: 4/' "$T/small.yaml" \
    >"$T/large.yaml"
train() {
    timeout 600 "$nebula" pretrain "$T/$1.yaml" --local 1 --steps "$2" --set sync.scheme=none \
        --out "$T/$1" >"$T/$1.log" 2>&1 || fail "$1: $(tail -n 5 "$T/$1.log")"
}
if [[ ${NEBULA_TESTS:-} == nightly ]]; then
    for f in small large; do plan "$T/$f.yaml" --local 1 --json >"$T/$f.json"; done
    train small 24 &
    train large 4
    wait $! || fail "the small model"
    near 'seconds a step, of a large model to a small one' \
        "$(jq -n --slurpfile a "$T/large.json" --slurpfile b "$T/small.json" \
        '$a[0].written.clusters[0].step_s / $b[0].written.clusters[0].step_s')" \
        "$(jq -n --slurpfile a "$T/large/summary.json" --slurpfile b "$T/small/summary.json" \
        '($a[0].clusters[0] | .train_s / .steps) / ($b[0].clusters[0] | .train_s / .steps)')" 0.5 2
else
    train small 1
fi
[[ $(summary '.clusters[0].device' "$T/small") == "cuda (emulated, bf16)" ]] ||
    fail "device: $(summary '.clusters[0].device' "$T/small")"

# A machine without devices can plan for one that has them, also if the job's cluster names the
# profile.
nebula=$T/bare/nebula
export XDG_CACHE_HOME=$T/elsewhere
plan "$T/both.yaml" --site "alpha=$T/here.json" --json >"$T/site.json"
jq -e --slurpfile b "$T/both.json" \
    '.written.clusters[0] | .rates_of == "emulated" and
    .step_s == $b[0].written.clusters[0].step_s' \
    "$T/site.json" >/dev/null ||
    fail "--site: $(jq .written.clusters[0] "$T/site.json")"
sed "s|device: cuda,|device: auto, profile: $T/here.json,|" "$T/both.yaml" >"$T/auto.yaml"
plan "$T/auto.yaml" --json >"$T/auto.json"
jq -e '.written.clusters[0].rates_of == "emulated"' "$T/auto.json" >/dev/null ||
    fail "device: auto with a profile: $(jq .written.clusters[0] "$T/auto.json")"
# The plan proposes no ranks and micro-batches for unknown devices, and has a note.
sed "s/device: cuda,/device: cuda, mesh: auto,/" "$T/both.yaml" >"$T/open.yaml"
for command in "plan" "pretrain --local 2 --out $T/none"; do
    read -ra words <<<"$command"
    nebula=$T/bare/nebula
    refused=0
    timeout 600 "$nebula" "${words[0]}" "$T/open.yaml" "${words[@]:1}" >"$T/open.txt" 2>&1 ||
        refused=$?
    why="because the devices of cluster alpha are not known"
    [[ $refused == 1 ]] &&
        has "clusters.mesh: auto cannot be decided, $why" <"$T/open.txt" ||
        fail "$command: exit status $refused, $(cat "$T/open.txt")"
done
plan "$T/open.yaml" --site "alpha=$T/here.json" >"$T/open.txt"
# One rank per device. With more ranks, auto uses processors and cuda fails; the proposal has as
# many ranks as devices.
sed -i 's/seq_len: 64, batch: 2/seq_len: 64, batch: 4/' "$T/both.yaml" "$T/auto.yaml"
mesh() { plan "$T/$1.yaml" --site "alpha=$T/here.json" --json "${@:3}" >"$T/$1-$2.json"; }
sed -i 's/name: alpha,/name: alpha, mesh: {dp: 4, tp: 1},/' "$T/both.yaml" "$T/auto.yaml"
refuse() { # TEXT arguments…
    local rc=0
    timeout 600 "$nebula" "${@:2}" >"$T/refused.json" 2>"$T/refused.err" || rc=$?
    [[ $rc == 1 ]] && has "$1" <"$T/refused.err" ||
        fail "${*:2}: exit status $rc, or no '$1': $(cat "$T/refused.err")"
}
refuse 'cluster alpha: 4 ranks need a device each: there are 2' plan "$T/both.yaml" --site \
    "alpha=$T/here.json" --json
mv "$T/refused.json" "$T/both-4.json"
jq -e '(.written.clusters[0].step_s == null) and (.proposed.clusters[0] | .step_s > 0 and (.mesh |
    .[0] * .[1] * .[2]) <= 2)' "$T/both-4.json" >/dev/null ||
    fail "four ranks on two devices: $(jq '.written.clusters[0], .proposed.clusters[0]' \
    "$T/both-4.json")"
"$nebula" plan "$T/both.yaml" --site "alpha=$T/here.json" >"$T/many.txt" 2>/dev/null &&
    fail "four ranks on two devices fit"
has '4 ranks need a device each: there are 2' <"$T/many.txt" ||
    fail "the plan does not mention four ranks: $(cat "$T/many.txt")"
mesh auto 4
jq -e '.written.clusters[0].rates_of == "processors"' "$T/auto-4.json" >/dev/null ||
    fail "device: auto with four ranks: $(jq .written.clusters[0] "$T/auto-4.json")"
sed -i 's/mesh: {dp: 4, tp: 1}/mesh: {dp: 2, tp: 1}/' "$T/both.yaml"
mesh both 2
jq -e '.written.clusters[0] | .rates_of == "emulated" and .step_s > 0 and .dp_bytes > 0 and .dp_s >
    0 and .outer_bytes > 0 and .gather_s == 0 and .scatter_s > 0' "$T/both-2.json" >/dev/null ||
    fail "two ranks: $(jq .written.clusters[0] "$T/both-2.json")"
# The device has less memory than the job needs, whatever the mesh.
jq '.device.memory = 3e7' "$T/here.json" >"$T/tiny.json"
rc=0
timeout 600 "$nebula" plan "$T/both.yaml" --site "alpha=$T/tiny.json" >"$T/tiny.txt" 2>&1 || rc=$?
[[ $rc == 1 ]] && has 'DOES NOT FIT' <"$T/tiny.txt" ||
    fail "a tiny device: exit status $rc, $(cat "$T/tiny.txt")"
jq 'del(.device.bf16.update)' "$T/here.json" >"$T/bad.json"
rc=0
timeout 600 "$nebula" plan "$T/both.yaml" --site "alpha=$T/bad.json" >"$T/bad.txt" 2>&1 || rc=$?
[[ $rc == 2 ]] && has 'update is missing' <"$T/bad.txt" ||
    fail "a profile without a rate: exit status $rc, $(cat "$T/bad.txt")"

# Modes rtd and distill: each side on the devices of its cluster.
cat >"$T/rtd.yaml" <<YAML
job: rtd
mode: rtd
steps: 60
model: {vocab: 4000, n_layers: 4, d_model: 64, n_heads: 4, d_ff: 128}
data: {corpus: $T/nowhere, seq_len: 64, batch: 4, accumulate: 2}
optim: {lr: 0.003}
rtd: {generator: {n_layers: 1, d_model: 32, n_heads: 2, d_ff: 64}}
clusters:
  - {name: alpha, role: generator, device: cuda}
  - {name: beta, role: discriminator, device: cpu}
YAML
sed -e 's/mode: rtd/mode: distill/; s/job: rtd/job: distill/;
    s/^rtd:.*/distill: {k: 8, teacher: {init: '"${T//\//\\/}"'\/nowhere.ckpt, n_layers: 8}}/' -e \
    's/role: generator/role: teacher/;
    s/role: discriminator, device: cpu/role: student, device: cuda, precision: fp32/' \
    "$T/rtd.yaml" >"$T/distill.yaml"
side() {
    plan "$T/$1.yaml" --site "alpha=$T/here.json" --site "beta=$T/here.json" --json "${@:2}" \
        >"$T/$1.json"
}
side rtd
jq -e '.written.clusters | (.[0] | .rates_of == "emulated" and .device_reckoned and .precision ==
    "bf16" and .device_bytes > 1e6 and .optim_bytes > 0 and .outer_bytes == 0 and .fits)
    and (.[1] | .rates_of == "processors" and .precision == "fp32" and .precision_reckoned and
    .device_bytes == 0)' "$T/rtd.json" >/dev/null ||
    fail "rtd: $(jq .written.clusters "$T/rtd.json")"
plan "$T/rtd.yaml" --site "alpha=$T/here.json" --site "beta=$T/here.json" >"$T/rtd.txt"
parts='parameters (in both types) and gradients .*, activations and labels .*, workspace'
[[ $(grep -c '^  alpha generates on emulated in bf16: step' "$T/rtd.txt") -ge 1 ]] &&
    has "device memory of a rank .*: $parts" <"$T/rtd.txt" ||
    fail "rtd: $(cat "$T/rtd.txt")"
side distill # a frozen teacher has no gradients and no moments, however deep it is
jq -e '.written.clusters | (.[0] | .rates_of == "emulated" and .precision == "bf16" and (.learns |
    not) and .optim_bytes == 0 and .update_s == 0 and .device_bytes > 1e6)
    and (.[1] | .rates_of == "emulated" and .precision == "fp32" and .optim_bytes > 0 and
    .device_bytes > 1e6)' "$T/distill.json" >/dev/null ||
    fail "distill: $(jq .written.clusters "$T/distill.json")"
sed 's/init: [^,]*, n_layers: 8/learn: true, n_layers: 8/' "$T/distill.yaml" >"$T/learns.yaml"
side learns
jq -e --slurpfile looks "$T/distill.json" \
    '.written.clusters[0] | .params_bytes > 1.5 * $looks[0].written.clusters[0].params_bytes
    and .acts_bytes > 2 * $looks[0].written.clusters[0].acts_bytes
    and .step_s > $looks[0].written.clusters[0].step_s' "$T/learns.json" >/dev/null ||
    fail "a teacher that learns: $(jq .written.clusters[0] "$T/learns.json" "$T/distill.json")"
# A device of a size in between fits only one of them.
jq --slurpfile a "$T/distill.json" --slurpfile b "$T/learns.json" \
    '.device.memory = ([$a, $b | .[0].written.clusters[0].device_bytes] | add) / 2 / 0.94' \
    "$T/here.json" >"$T/between.json"
plan "$T/distill.yaml" --site "alpha=$T/between.json" --site "beta=$T/here.json" >/dev/null
refuse 'the job does not fit' plan "$T/learns.yaml" --site "alpha=$T/between.json" --site \
    "beta=$T/here.json"
has 'DOES NOT FIT' <"$T/refused.json" ||
    fail "the refusal does not name the cluster that does not fit: $(cat "$T/refused.json")"
# Roles follow the devices: the larger model gets the faster one. With unknown devices no role is
# assigned.
jq '.device |= ((.bf16, .fp32) |= walk(if type == "number" then . * 1000 else .
    end))' "$T/here.json" >"$T/fast.json"
plan "$T/rtd.yaml" --site "alpha=$T/fast.json" --site "beta=$T/here.json" --json >"$T/roles.json"
jq -e '.proposed.roles == {alpha: "discriminator", beta: "generator"} and
    .proposed.clusters[0].rates_of == "emulated"' "$T/roles.json" >/dev/null ||
    fail "roles: $(jq .proposed "$T/roles.json")"
sed 's/role: [a-z]*/role: auto/' "$T/rtd.yaml" >"$T/cast.yaml"
plan "$T/cast.yaml" --site "alpha=$T/fast.json" --site "beta=$T/here.json" --json >"$T/cast.json"
jq -e '.written.clusters[0].role == "discriminator"' "$T/cast.json" >/dev/null ||
    fail "role: auto: $(jq .written "$T/cast.json")"
jq '.device = null' "$T/here.json" >"$T/without.json"
refuse "clusters.role: auto cannot be decided, because the devices of cluster alpha are not known" \
    plan "$T/cast.yaml" --site "alpha=$T/without.json"
plan "$T/rtd.yaml" --site "alpha=$T/without.json" >"$T/none.txt"
[[ $(grep -c 'device: cuda IS NOT IN THE FIGURES' "$T/none.txt") == 2 ]] ||
    fail "the plan does not mention the generator's device: $(cat "$T/none.txt")"
# The reference of both modes, one process, uses processors.
sed 's/device: cuda/device: auto/' "$T/rtd.yaml" >"$T/whole.yaml"
plan "$T/whole.yaml" --set sync.scheme=synchronous --site "alpha=$T/here.json" --json \
    >"$T/whole.json"
jq -e 'all(.written.clusters[]; .rates_of == "processors")' "$T/whole.json" >/dev/null ||
    fail "synchronous: $(jq .written.clusters "$T/whole.json")"
echo "plan: devices are reckoned with"
