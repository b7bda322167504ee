# SPDX-License-Identifier: Apache-2.0
"""Makes the files of a run, and reads what nebula-follow gave to a tracker with its own library.

usage: follow_check.py make OUT | grow OUT | end OUT | tensorboard OUT | mlflow OUT URI | wandb OUT
       follow_check.py die OUT mlflow|wandb OPTIONS…
"""
import json
import os
import pathlib
import struct
import sys

what, out = sys.argv[1], pathlib.Path(sys.argv[2])
clusters = ("paris", "berlin")


def line(**o):
    return json.dumps(o) + "\n"


def lines(first, last):
    for k in range(first, last):
        for i, c in enumerate(clusters):
            t = k + i / 10
            yield line(t=t, kind="step", cluster=c, step=10 * k, loss=5 - k / 100 + i, lr=1e-3,
                       grad_norm=None, tokens=1000 * k, tokens_per_s=50.5)
            if k % 5 == 0:
                yield line(t=t, kind="eval", cluster=c, step=10 * k, loss=4.5, sources={"fr": 4.25})
                yield line(t=t, kind="round", cluster=c, step=10 * k, round=k // 5, fragment=0,
                           encode_s=0.5, travel_s=1.5, apply_s=0.25, stall_s=0, payload_bytes=12345)
                yield line(t=t, kind="link", cluster=c, up=True, sent_bytes=100 * k, rtt_ms=80.5)


def want():
    """{(cluster, name): [(step, value)]} of the whole run."""
    all_ = {}
    for i, c in enumerate(clusters):
        all_[c, "train/loss"] = [(10 * k, 5 - k / 100 + i) for k in range(40)]
        all_[c, "eval/loss_fr"] = [(10 * k, 4.25) for k in range(0, 40, 5)]
        all_[c, "round/travel_s"] = [(10 * k, 1.5) for k in range(0, 40, 5)]
        all_[c, "link/sent_bytes"] = [(10 * k, 100 * k) for k in range(0, 40, 5)]
    return all_


def check(got):
    for key, points in want().items():
        mine = sorted(got.get(key, []))
        same = len(mine) == len(points) and all(
            s == t and abs(v - w) < 1e-5 * (1 + abs(w)) for (s, v), (t, w) in zip(mine, points)
        )
        if not same:
            sys.exit(f"{key}: got {mine[:5]}… ({len(mine)}), want {points[:5]}… ({len(points)})")
    assert not any("grad_norm" in name for _, name in got), "a null became a number"


def records(data):
    """The records of a .wandb file: LevelDB's log format, after a header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # a header does not fit into this block
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def metrics(text, mode):
    with open(out / "metrics.jsonl", mode) as f:
        f.write(text)


if what == "make":  # half of the run; its last line is incomplete
    out.mkdir()
    (out / "job.json").write_text('{"name": "two", "optim": {"lr": 0.001}, "clusters": [1]}')
    metrics("".join(lines(0, 20)) + '{"t": 20, "kind": "st', "w")
elif what == "grow":
    text = (out / "metrics.jsonl").read_text()
    metrics(text[: text.rindex("\n") + 1], "w")
    metrics("".join(lines(20, 40)) + line(t=40.5, kind="fault", cluster="paris", text="odd"), "a")
elif what == "end":
    (out / "summary.json").write_text('{"clusters": [{"name": "paris", "eval_loss": 4.4}]}')
elif what == "die":  # a follower that is killed when the tracker has made a run
    import nebula_federation

    if sys.argv[3] == "mlflow":
        from mlflow.tracking import MlflowClient

        MlflowClient.log_batch = lambda *_, **__: os._exit(9)
    else:
        from wandb.sdk.wandb_run import Run

        Run.define_metric = lambda *_, **__: os._exit(9)
    sys.argv[1:] = ["--once", "--to", *sys.argv[3:], str(out)]
    nebula_federation.follow()
elif what == "stdout":
    got = {}
    for row in sys.stdin:
        c, step, name, value = row.rstrip("\n").split("\t")
        if name != "event":
            got.setdefault((c, name), []).append((int(step), float(value)))
    check(got)
elif what == "tensorboard":
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    got = {}
    for c in clusters:
        acc = EventAccumulator(str(out / "follow-tensorboard" / c), size_guidance={"scalars": 0})
        acc.Reload()
        for name in acc.Tags()["scalars"]:
            got[c, name] = [(e.step, e.value) for e in acc.Scalars(name)]
    check(got)
elif what == "mlflow":
    from mlflow.tracking import MlflowClient

    client, got = MlflowClient(tracking_uri=sys.argv[3]), {}
    experiment = client.get_experiment_by_name("nebula").experiment_id
    runs = client.search_runs([experiment])
    assert len(runs) == 2, runs
    for run in runs:
        c = run.data.tags["nebula.cluster"]
        assert run.info.status == "FINISHED" and run.data.params["optim.lr"] == "0.001"
        for name in run.data.metrics:
            got[c, name] = [
                (m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)
            ]
    check(got)
elif what == "wandb":
    from wandb.proto import wandb_internal_pb2 as pb

    got, ids = {}, set()
    for path in sorted(out.glob("wandb/offline-run-*/run-*.wandb")):
        cluster = None
        for data in records(path.read_bytes()):
            record = pb.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                cluster = record.run.display_name.rpartition("-")[2]
                assert record.run.run_group == "two"
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                items = {
                    i.key or ".".join(i.nested_key): json.loads(i.value_json)
                    for i in record.history.item
                }
                for name, value in items.items():
                    if "/" in name:
                        got.setdefault((cluster, name), []).append((items["step"], value))
    assert len(ids) == 2, ids  # the second follower continued both runs
    check(got)
