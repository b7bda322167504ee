# SPDX-License-Identifier: Apache-2.0
"""Follows a run into Weights & Biases, MLflow or TensorBoard.

    nebula-follow --to wandb OUT          (without a wheel: python3 -m nebula.follow)
    nebula-follow --to mlflow OUT --uri sqlite:////data/mlflow.db
    nebula-follow --to tensorboard OUT

OUT is the folder of `nebula pretrain --out`. The follower reads OUT/metrics.jsonl while it grows,
and ends when the run has ended. It only reads the run: a fault of a tracker never reaches the
training. Each cluster becomes a run of its own, in one group. OUT/follow-TO.json keeps the place,
so a follower that was stopped goes on there. A follower that was killed may give the last lines
twice. Weights & Biases works offline with WANDB_MODE=offline.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import sys
import time

# kind of a line: the values that are taken from it
TAKEN = {
    "step": ("loss", "lr", "grad_norm", "tokens", "tokens_per_s", "train_s", "stall_s"),
    "eval": ("loss",),
    "round": (
        "round", "payload_bytes", "encode_s", "travel_s", "apply_s", "stall_s", "error", "share",
        "interval", "overlap",
    ),
    "link": ("sent_bytes", "recv_bytes", "resent_bytes", "goodput_bps", "rtt_ms"),
    "checkpoint": ("bytes", "checkpoint_stall_ms", "write_ms"),
    "tune": ("interval", "overlap", "left_out"),
}
GROUP = {"step": "train"}  # the others are grouped under their kind
END_S = 2.0  # a run has ended if summary.json is there and no line came for so long
BATCH = 500  # lines between two saved places


def number(value):
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


class Lines:
    """The complete lines of a growing file from a place on."""

    def __init__(self, path, place):
        self.path = path
        self.offset = place.get("offset", 0)
        self.head = place.get("head", "")

    def first(self, f):
        """A digest of the first line: another run in the same folder has another one."""
        f.seek(0)
        line = f.readline()
        return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") else ""

    def is_new_run(self):
        """True if the file is not the one in which the place was taken."""
        try:
            with open(self.path, "rb") as f:
                return bool(self.head) and (
                    self.first(f) != self.head or os.fstat(f.fileno()).st_size < self.offset
                )
        except FileNotFoundError:
            return False

    def read(self):
        """At most BATCH new lines, as (object, offset of its end)."""
        try:
            f = open(self.path, "rb")
        except FileNotFoundError:
            return
        with f:
            self.head = self.head or self.first(f)
            f.seek(self.offset)
            for _ in range(BATCH):
                line = f.readline()
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                try:
                    o = json.loads(line)
                except ValueError:
                    continue  # a line that a crash left behind
                if isinstance(o, dict):
                    yield o

    def place(self):
        """What a later follower needs to go on here."""
        return {"offset": self.offset, "head": self.head}


class Stdout:
    """Prints cluster, step, name and value between tabs."""

    def __init__(self, options, state):
        pass

    def log(self, cluster, step, t, values):
        for name, value in values.items():
            print(cluster, step, name, f"{value:.9g}", sep="\t")

    def event(self, cluster, t, text):
        print(cluster, "-", "event", text, sep="\t")

    def flush(self):
        sys.stdout.flush()

    def close(self, summary):
        pass


class Tensorboard:
    """Event files in OUT/follow-tensorboard/CLUSTER. Notes and faults have no place in them."""

    def __init__(self, options, state):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event_pb2, self.summary_pb2, self.writer = event_pb2, summary_pb2, EventFileWriter
        self.folder = pathlib.Path(options.dir or options.out / "follow-tensorboard")
        self.files, self.start = {}, state.setdefault("start", time.time())

    def put(self, cluster, step, t, values):
        if cluster not in self.files:
            self.files[cluster] = self.writer(str(self.folder / plain(cluster)))
        summary = self.summary_pb2.Summary(value=values)
        self.files[cluster].add_event(
            self.event_pb2.Event(wall_time=self.start + t, step=step, summary=summary)
        )

    def log(self, cluster, step, t, values):
        value = self.summary_pb2.Summary.Value
        self.put(cluster, step, t, [value(tag=k, simple_value=v) for k, v in values.items()])

    def event(self, cluster, t, text):
        pass

    def flush(self):
        for f in self.files.values():
            f.flush()

    def close(self, summary):
        for f in self.files.values():
            f.close()


class Mlflow:
    """An experiment with a run for each cluster. --uri, or MLFLOW_TRACKING_URI, says where."""

    def __init__(self, options, state):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.metric, self.param = Metric, Param
        self.client = MlflowClient(tracking_uri=options.uri)
        self.runs = state.setdefault("runs", {})  # cluster: id of its run
        self.start = state.setdefault("start", time.time())
        self.state = state
        self.options, self.pending = options, {}

    def run(self, cluster):
        if cluster not in self.runs:
            name = self.options.project
            found = self.client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self.client.create_experiment(name)
            key = key_of(self.state, cluster)
            tags = {
                "mlflow.runName": f"{self.options.name}-{cluster}",
                "nebula.cluster": cluster,
                "nebula.key": key,
            }
            # A follower that was killed before it saved its place has made this run already.
            runs = self.client.search_runs([experiment], f"tags.`nebula.key` = '{key}'")
            run = self.runs[cluster] = (
                runs[0]
                if runs
                else self.client.create_run(experiment, int(self.start * 1000), tags)
            ).info.run_id
            config = flat(self.options.config)
            params = [self.param(k[:250], str(v)[:500]) for k, v in config.items()]
            for i in range(0, len(params), 100):  # MLflow's limits: of a call, a key, a value
                self.client.log_batch(run, params=params[i : i + 100])
        return self.runs[cluster]

    def log(self, cluster, step, t, values):
        ms = int((self.start + t) * 1000)
        self.pending.setdefault(cluster, []).extend(
            self.metric(k, v, ms, step) for k, v in values.items()
        )

    def event(self, cluster, t, text):
        self.client.set_tag(self.run(cluster), f"nebula.event.{t:.0f}", text[:500])

    def flush(self):
        for cluster, metrics in self.pending.items():
            for i in range(0, len(metrics), 1000):  # the most that a call takes
                self.client.log_batch(self.run(cluster), metrics=metrics[i : i + 1000])
        self.pending.clear()

    def close(self, summary):
        for run in self.runs.values():
            if summary is not None:
                self.client.set_terminated(run)


class Wandb:
    """A run for each cluster, in one group."""

    def __init__(self, options, state):
        import wandb

        self.wandb, self.options, self.state, self.runs = wandb, options, state, {}

    def run(self, cluster):
        if cluster not in self.runs:
            run = self.wandb.init(
                project=self.options.project,
                group=self.options.name,
                name=f"{self.options.name}-{cluster}",
                id=key_of(self.state, cluster),
                resume="allow",
                reinit="create_new",
                config=self.options.config,
                dir=self.options.dir or str(self.options.out),
                settings=self.wandb.Settings(console="off", silent=True),
            )
            # Steps may fall when a job resumes, so they are an axis and not W&B's own counter.
            run.define_metric("step", hidden=True)
            run.define_metric("*", step_metric="step")
            self.runs[cluster] = run
        return self.runs[cluster]

    def log(self, cluster, step, t, values):
        self.run(cluster).log({"step": step, "t": t, **values})

    def event(self, cluster, t, text):
        run = self.run(cluster)
        run.summary[f"event/{t:.0f}"] = text

    def flush(self):
        pass

    def close(self, summary):
        of = {c.get("name"): c for c in (summary or {}).get("clusters", [])}
        for cluster, run in self.runs.items():
            run.summary.update({f"summary/{k}": v for k, v in of.get(cluster, {}).items()})
            run.finish()


SINKS = {"wandb": Wandb, "mlflow": Mlflow, "tensorboard": Tensorboard, "stdout": Stdout}


def key_of(state, cluster):
    """What tells the run of a cluster from all other runs of a tracker."""
    return f"{state['key']}-{hashlib.sha256(cluster.encode()).hexdigest()[:8]}"


def plain(name):
    """A name of a cluster as a name of a folder."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip(".") or "_"


def flat(o, prefix=""):
    """{"a": {"b": 1}} as {"a.b": 1}."""
    out = {}
    for k, v in o.items() if isinstance(o, dict) else enumerate(o):
        if isinstance(v, (dict, list)) and v:
            out.update(flat(v, f"{prefix}{k}."))
        else:
            out[f"{prefix}{k}"] = v
    return out


def load(path):
    """The object in a file of JSON; {}: there is no such file, or it is damaged (a warning)."""
    try:
        with open(path, encoding="utf-8") as f:
            o = json.load(f)
        if isinstance(o, dict):
            return o
        why = "it holds no object"
    except FileNotFoundError:
        return {}
    except ValueError as e:
        why = e
    print(f"nebula-follow: {path} is damaged and is not used: {why}", file=sys.stderr)
    return {}


def save(path, o):
    """Writes an object as JSON; the file appears complete or not at all."""
    tmp = path.with_suffix(".tmp")
    try:
        with open(tmp, "w", encoding="utf-8") as f:
            json.dump(o, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, path)
    except OSError as e:  # Python's own error of a full disk names no file
        sys.exit(f"nebula-follow: cannot write {tmp}: {e.strerror}")


def take(sink, steps, o):
    """Gives the values of a line to the sink. steps: the last step of each cluster."""
    kind, cluster, t = o.get("kind"), o.get("cluster"), number(o.get("t")) or 0.0
    if not isinstance(cluster, str):
        return
    if kind in ("fault", "note"):
        sink.event(cluster, t, f"{kind}: {o.get('text', '')}")
        return
    step = o.get("step")
    if isinstance(step, int) and not isinstance(step, bool):
        steps[cluster] = step
    group = GROUP.get(kind, kind)
    values = {f"{group}/{k}": number(o.get(k)) for k in TAKEN.get(kind, ())}
    if kind == "eval" and isinstance(o.get("sources"), dict):
        # Not eval/loss/NAME: in MLflow's file store eval/loss is a file, so it cannot be a folder.
        values.update({f"eval/loss_{k}": number(v) for k, v in o["sources"].items()})
    values = {k: v for k, v in values.items() if v is not None}
    if values:
        sink.log(cluster, steps.get(cluster, 0), t, values)


def is_ended(out):
    """True if summary.json is of this run, and not of one that has been resumed since."""
    try:
        return os.stat(out / "summary.json").st_mtime >= os.stat(out / "metrics.jsonl").st_mtime
    except FileNotFoundError:
        return False


def follow(options):
    """Gives the lines of a run to a tracker, until the run ends (or, with --once, the lines)."""
    place = options.out / f"follow-{options.to}.json"
    metrics = options.out / "metrics.jsonl"
    state = load(place)
    lines = Lines(metrics, state)
    if lines.is_new_run():
        state, lines = {}, Lines(metrics, {})
    state.setdefault("key", os.urandom(8).hex())
    steps = state.setdefault("steps", {})
    sink = SINKS[options.to](options, state)
    save(place, state)  # before the tracker makes a run: a later follower must find that run
    still, summary = time.monotonic(), None
    try:
        while True:
            count = 0
            for o in lines.read():
                take(sink, steps, o)
                count += 1
            if count:
                sink.flush()
                state.update(lines.place())
                save(place, state)
                still = time.monotonic()
                continue
            if time.monotonic() - still >= END_S and is_ended(options.out):
                summary = load(options.out / "summary.json")
                break
            if options.once:
                break
            time.sleep(options.every)
    finally:
        sink.close(summary)


def main(argv=None):
    """Entry point of nebula-follow."""
    p = argparse.ArgumentParser(
        prog="nebula-follow", description="Follows a run of Nebula into a tracker of experiments."
    )
    p.add_argument("out", type=pathlib.Path, help="folder of `nebula pretrain --out`")
    p.add_argument("--to", choices=sorted(SINKS), required=True)
    p.add_argument("--project", default="nebula", help="project, or experiment of MLflow [nebula]")
    p.add_argument("--name", help="name of the group of runs [name of the job]")
    p.add_argument("--uri", help="mlflow: where it stores runs [MLFLOW_TRACKING_URI]")
    p.add_argument("--dir", help="wandb, tensorboard: folder for their files [OUT]")
    p.add_argument("--once", action="store_true", help="take the lines that are there, and end")
    p.add_argument("--every", type=float, default=1.0, help="seconds between two looks [1]")
    options = p.parse_args(argv)
    if not options.out.is_dir():
        p.error(f"{options.out} is not a folder")
    options.config = load(options.out / "job.json")
    options.name = options.name or str(options.config.get("name") or options.out.resolve().name)
    try:
        follow(options)
    except ImportError as e:
        sys.exit(f"nebula-follow: {e}; --to {options.to} needs: pip install {options.to}")
    except KeyboardInterrupt:
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
