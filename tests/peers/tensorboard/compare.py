# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's reader against tests/e2e/tfevents.py on a run's folder: the same tags, steps and
values; and TensorBoard's server lists the runs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from tensorboard import version
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

out, reader = pathlib.Path(sys.argv[1]) / "tensorboard", sys.argv[2]
text = subprocess.run(
    [sys.executable, reader, out], check=True, capture_output=True, text=True
).stdout
ours, goes_on = {}, {}
lines = [json.loads(line) for line in text.splitlines()]
for e in lines:
    if "start" in e:
        goes_on[e["run"]] = (e["file"], e["step"])
for e in lines:
    if "tag" not in e:
        continue
    file, step = goes_on[e["run"]]
    if e["file"] != file and e["step"] >= step:
        continue  # TensorBoard drops these when a run continues from an earlier step
    ours.setdefault((e["run"], e["tag"]), []).append((e["step"], e["value"]))

bad = n = 0
for run in sorted(p.name for p in out.iterdir()):
    acc = EventAccumulator(str(out / run), size_guidance={"scalars": 0, "tensors": 0})
    acc.Reload()
    theirs = {t: [(e.step, e.value) for e in acc.Scalars(t)] for t in acc.Tags()["scalars"]}
    for t in acc.Tags()["tensors"]:  # newer readers turn simple values into tensors
        theirs[t] = [
            (e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in acc.Tensors(t)
        ]
    for tag in sorted({t for r, t in ours if r == run} | set(theirs)):
        want, got = sorted(ours.get((run, tag), [])), sorted(theirs.get(tag, []))
        n += len(got)
        same = want == got
        bad += not same
        print(
            f"{run:8} {tag:26} {len(got):4} points  "
            f"{'ok' if same else f'DIFFERS: {len(want)} of ours'}"
        )

with tempfile.TemporaryFile() as log:
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            str(out),
            "--port",
            "0",
            "--load_fast=false",
        ],
        stderr=log,
    )
    address = runs = None
    for _ in range(600):
        log.seek(0)
        said = log.read().decode()
        if "http://" in said:
            address = "http://" + said.split("http://", 1)[1].split()[0]
            try:
                runs = json.load(urllib.request.urlopen(address + "data/runs", timeout=10))
            except OSError:
                pass
            if runs:
                break
        time.sleep(0.1)
    server.terminate()
    server.wait()
bad += sorted(runs or []) != ["alpha", "beta"]
print(f"tensorboard {version.VERSION}: {n} points; its server lists {runs}; {bad} differ")
sys.exit(bad > 0)
