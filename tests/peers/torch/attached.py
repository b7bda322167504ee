# SPDX-License-Identifier: Apache-2.0
"""Checks PyTorch loops that attach to agents on loopback. Digests must be equal beside a built-in
worker, after kill -9, on all kinds of meshes, for several models, and inside other libraries. Also
checks memory, and the cost of federating.

usage: attached.py [case…]; prints one line per case; exit status 1 if a case fails.
"""
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

here = pathlib.Path(__file__).resolve().parent
source = here.parents[2]
examples = source / "configs/examples"
nebula = str(pathlib.Path(os.environ["BUILD"]) / "nebula")
MESHES = {"one": 1, "rows": 2, "columns": 2, "hsdp": 4, "tp": 4, "ep": 4}  # as in models.py
MODELS = ("gpt2", "vit", "qwen3", "gemma2", "mixtral", "qwen3moe")
failures = 0


def report(case, good, text):
    global failures
    failures += not good
    print(f"{case:6s} {'ok    ' if good else 'FAILED'} {text}", flush=True)


def start(work, clusters, steps, **sync):
    """A job with `model: attached` on len(clusters) local agents."""
    sites = "".join(f"  - {{name: {c}, launcher: attach, threads: 1}}\n" for c in clusters)
    checkpoint = sync.pop("checkpoint", "{every_steps: 0}")
    values = {"interval": 2, "overlap": 1, "codec": "int4", "outer": "{lr: 1, momentum: 0}", **sync}
    (work / "job.yaml").write_text(
        f"job: peers\nsteps: {steps}\nmodel: attached\ndata: {{step_tokens: 65536}}\n"
        f"sync: {{{', '.join(f'{k}: {v}' for k, v in values.items())}}}\n"
        f"checkpoint: {checkpoint}\nclusters:\n{sites}")
    return Job(work, len(clusters))


class Job:
    """The job of work/job.yaml on local agents; the caller starts their loops."""

    processes = []  # of all jobs; those of agents come first

    @classmethod
    def built_in(cls, work, launchers=("attach", "attach"), steps=120, **sync):
        """configs/examples/attach.yaml with other values."""
        text = (examples / "attach.yaml").read_text().replace("steps: 300", f"steps: {steps}")
        text = text.replace("every_steps: 100", "every_steps: 20")
        if (work / "corpus").exists():
            text = text.replace("corpus: corpus", f"corpus: {work / 'corpus'}")
        for name, launcher in zip(("paris", "berlin"), launchers):
            text = text.replace(
                f"name: {name}, launcher: attach", f"name: {name}, threads: 1, launcher: {launcher}"
            )
        for k, v in sync.items():
            text = re.sub(rf"\b{k}: [^\s,}}]+", f"{k}: {v}", text)
        (work / "job.yaml").write_text(text)
        return cls(work, 2)

    def __init__(self, work, clusters):
        self.out = work / "run"
        self.log = open(work / "pretrain.log", "w")
        self.p = subprocess.Popen(
            [nebula, "pretrain", str(work / "job.yaml"), "--local", str(clusters), "--out",
             str(self.out)],
            stdout=self.log,
            stderr=self.log,
        )
        self.loops, self.work = [], work
        self.processes.append(self.p)

    def loop(self, name, script="train_plain.py", ranks=1, arguments=None, **env):
        home = self.out / "clusters" / name
        arguments = arguments or ["1" if name == "paris" else "2"]
        command = [sys.executable, str(examples / script), *map(str, arguments)]
        if ranks > 1:
            port = 29500 + os.getpid() % 400 + len(self.loops)
            command[1:1] = [
                "-m",
                "torch.distributed.run",
                "--nproc-per-node",
                str(ranks),
                "--master-port",
                str(port),
            ]
        log = open(self.work / f"{name}-{len(self.loops)}.log", "w+")
        p = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "NEBULA_AGENT": str(home), **env}
        )
        p.log = log
        self.loops.append(p)
        self.processes.append(p)
        return p

    def step(self, name):
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
        except OSError:
            return -1
        steps = [json.loads(x) for x in lines if '"step"' in x and x.endswith("}")]
        return max(
            [x["step"] for x in steps if x.get("kind") == "step" and x.get("cluster") == name],
            default=-1,
        )

    def end(self, timeout=240):
        limit, left = time.monotonic() + timeout, list(self.loops)
        while left:
            ended = [p for p in left if p.poll() is not None]
            left = [p for p in left if p not in ended]
            if time.monotonic() > limit:
                raise RuntimeError(f"{len(left)} loops did not end: {left[0].args}")
            time.sleep(0.2)
            bad = [p for p in ended if p.returncode not in (0, -signal.SIGKILL)]
            for p in bad[:1]:
                p.log.seek(0)
                raise RuntimeError(f"a loop failed: {p.log.read()[-1500:]}")
        if self.p.wait(60):
            raise RuntimeError(f"the job failed: {(self.work / 'pretrain.log').read_text()[-800:]}")
        return json.loads((self.out / "summary.json").read_text())


def equal(case, s, text=""):
    digests = {c["params_digest"] for c in s["clusters"]}
    losses = ", ".join(
        f"{c['name']} ({c['device'].split()[0]}) {c['loss_first']:.2f} to {c['loss_last']:.2f}"
        for c in s["clusters"]
    )
    learned = all(c["loss_last"] < c["loss_first"] - 0.5 for c in s["clusters"])
    report(
        case,
        len(digests) == 1 and learned,
        f"{s['rounds']} rounds, digest {sorted(digests)}, loss {losses} {text}",
    )


def plain(work):
    job = Job.built_in(work)
    job.loop("paris"), job.loop("berlin")
    equal("plain", job.end())


def corpus(work):
    text = work / "text"
    text.mkdir()
    for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()):
        if not p.is_symlink():
            for i, part in enumerate(p.read_text(errors="replace").split("\n\n")):
                (text / f"{p.name}-{i:04d}.txt").write_text(part)
    (work / "spec.yaml").write_text(
        f"name: licences\nvocabulary: {{size: 512, type: bpe, byte_fallback: true}}\nseed: 1\n"
        f"holdout: {{per_mille: 60}}\nsources:\n  - {{name: all, format: text, path: {text}}}\n"
    )
    subprocess.run(
        [nebula, "data", "build", str(work / "spec.yaml"), "--out", str(work / "corpus")],
        check=True,
        capture_output=True,
    )


def mixed(work):
    corpus(work)
    job = Job.built_in(work, ("attach", "local"))
    job.loop("paris")
    equal("mixed", job.end())


def kill(work):
    job = Job.built_in(work)
    first = job.loop("paris")
    job.loop("berlin")
    for _ in range(2400):
        if job.step("paris") >= 50 or first.poll() is not None:
            break
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    killed = first.wait() == -signal.SIGKILL
    job.loop("paris")
    s = job.end()
    job.loops[-1].log.seek(0)
    again = re.search(r"going on from step (\d+)", job.loops[-1].log.read())
    equal("kill", s, f"(killed {killed}, went on from step {again and again[1]})")
    if not (killed and again):
        report("kill", False, "the loop was not killed in mid-run")


def ddp(work, script="train_ddp.py", case="ddp"):
    job = Job.built_in(work, steps=60)
    job.loop("paris", script, ranks=2), job.loop("berlin")
    equal(case, job.end())


def fsdp(work):
    ddp(work, "train_fsdp.py", "fsdp")


def ranks(work):
    job = Job.built_in(work, steps=40, overlap=0)
    job.loop("paris", here / "ranks.py", ranks=2)
    for _ in range(600):
        if job.step("paris") >= 1 or job.loops[0].poll() is not None:
            break
        time.sleep(0.1)
    time.sleep(30)  # its ranks wait for berlin, for longer than their own group would
    job.loop("berlin", here / "ranks.py")
    equal("ranks", job.end(120))


def rounds(job):
    """{(round, fragment): {cluster: digest}} of a run."""
    out = {}
    for x in map(json.loads, (job.out / "metrics.jsonl").read_text().splitlines()):
        if x.get("kind") == "round" and x.get("digest"):
            out.setdefault((x["round"], x["fragment"]), {})[x["cluster"]] = x["digest"]
    return out


def fixed(case, work, model, clusters, steps=20):
    """Clusters {name: mesh} of one job; the digests of its rounds, None where they differ."""
    work.mkdir()
    job = start(work, clusters, steps)
    for i, (name, mesh) in enumerate(clusters.items()):
        job.loop(name, here / "loops.py", MESHES[mesh], [f"fixed:{mesh}", model, i + 1])
    s = job.end(900)
    found = rounds(job)
    same = all(len(d) == len(clusters) and len(set(d.values())) == 1 for d in found.values())
    report(case, same and len(found) >= 10, f"{model}: {', '.join(clusters.values())}: "
           f"{len(found)} rounds, every digest equal: {same}, "
           f"last {s['clusters'][0]['params_digest']}")
    return [sorted(d.values())[0] for _, d in sorted(found.items())] if same else None


def meshes(work):
    """Clusters of one job, each on another mesh, for every model; then a run without any mesh."""
    names = ("paris", "berlin", "rome", "oslo", "bern")
    for model in os.environ.get("MODELS", " ".join(MODELS)).split():
        five = fixed("meshes", work / model, model, dict(zip(names, MESHES)))
        alone = fixed("meshes", work / f"{model}-one", model, dict.fromkeys(names, "one"))
        report("meshes", five is not None and five == alone,
               f"{model}: the same digests in a run with meshes and in a run without")


def ep(work):
    """Experts over a dimension of the mesh, beside a loop without a mesh and one by rows."""
    for model in ("mixtral", "qwen3moe"):
        fixed("ep", work / model, model, {"paris": "ep", "berlin": "one", "rome": "rows"})


def library(case, work, model="gpt2", ranks=2, steps=40):
    """Two clusters whose loops a library runs, one of several ranks."""
    job = start(work, ("paris", "berlin"), steps, interval=10, overlap=2)
    for i, (name, n) in enumerate((("paris", ranks), ("berlin", 1))):
        job.loop(name, here / "loops.py", n, [case, model, i + 1])
    s = job.end(900)
    digests = {c["params_digest"] for c in s["clusters"]}
    said = []
    for p in job.loops:
        p.log.seek(0)
        said += re.findall(r"step (\d+) of \d+, digest (\w+)", p.log.read())
    good = len(digests) == 1 and said == [(str(steps), d) for d in digests] * 2
    losses = ", ".join(f"{c['loss_first']:.2f} to {c['loss_last']:.2f}" for c in s["clusters"]
                       if c.get("loss_last") is not None)
    report(case, good, f"{s['rounds']} rounds, digest {sorted(digests)}, loops say {said}, "
                       f"loss {losses}")


def peaks(log):
    log.seek(0)
    found = re.findall(r"rank (\d+) share (\d+) peak (\d+)", log.read())
    return {int(r): (int(share), int(peak)) for r, share, peak in found}


def plan(work, job, ranks):
    """The bytes that `nebula plan` predicts for each rank of paris."""
    shapes = next((job.out / "clusters/paris/jobs").glob("*/tensors.json"))
    said = subprocess.run(
        [nebula, "plan", str(work / "job.yaml"), "--tensors", str(shapes), "--ranks",
         f"paris={ranks}", "--json"], capture_output=True, check=False, text=True)
    return json.loads(said.stdout)["memory"]["paris"]["rank_bytes"]


def memory(work):
    """Peak memory of each rank of an FSDP2 loop, with and without nebula. Limits: 5 floats per
    parameter of its share and 200 MB; the ranks differ by at most 5 %. What `nebula plan` predicts
    for a rank is within 3 % of what the library counts. MEMORY_SYNC: keys of `sync`, for instance
    '{"codec": "int8"}'."""
    # Freed memory goes back at once, so that a peak is what was in use.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"
    steps, sync = 6, json.loads(os.environ.get("MEMORY_SYNC", "{}"))
    for ranks in map(int, os.environ.get("MEMORY_RANKS", "2 4").split()):
        folder = work / str(ranks)
        folder.mkdir()
        alone = folder / "alone.log"
        with open(alone, "w+") as log:
            subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node",
                            str(ranks), "--master-port", str(28500 + os.getpid() % 400),
                            str(here / "memory.py"), "alone"], stdout=log, stderr=log, check=True,
                           env={**os.environ, "STEPS": str(steps)})
            before = peaks(log)
        job = start(folder, ("paris", "berlin"), steps, checkpoint="{every_steps: 3, copy: false}",
                    **sync)
        job.loop("paris", here / "memory.py", ranks, ["attached"], STEPS=str(steps))
        job.loop("berlin", here / "memory.py", 1, ["peer"], STEPS=str(steps))
        job.end(1500)
        after = peaks(job.loops[0].log)
        job.loops[0].log.seek(0)
        counted = [int(x) for x in re.findall(r"units of the exchange: .*, (\d+) bytes",
                                              job.loops[0].log.read())]
        planned = plan(folder, job, ranks)
        report("memory", len(counted) == ranks and abs(planned / max(counted) - 1) < 0.03,
               f"{ranks} ranks: nebula plan says {planned / 1e6:.1f} MB a rank, the library counts "
               f"{', '.join(f'{x / 1e6:.1f}' for x in counted)} MB")
        more = {r: (after[r][1] - before[r][1]) / 1e6 for r in after}
        limit = {r: (20 * after[r][0] + 200e6) / 1e6 for r in after}
        most, least = (f(p for _, p in after.values()) / 1e6 for f in (max, min))
        good = all(more[r] <= limit[r] for r in more) and len(after) == ranks
        report("memory", good and most <= 1.05 * least,
               f"{ranks} ranks: {most:.0f} MB at most, {100 * (most / least - 1):.1f} % above the "
               f"least; more than alone: {', '.join(f'{v:.0f}' for v in more.values())} MB, limits "
               f"{', '.join(f'{v:.0f}' for v in limit.values())} MB")


def fsdp_loop(work):
    for model in os.environ.get("MODELS", " ".join(MODELS)).split():
        (work / model).mkdir()
        library("fsdp", work / model, model)


def loss_of_ratio(fours, alone, federated):
    (
        "The cost of federating in per cent: (first quartile, median, third quartile, "
        "standard error of\n"
        "    the median) over the groups of four segments."
    )
    lost = [100 * (1 - f[federated] / f[alone]) for f in fours]
    low, middle, high = statistics.quantiles(lost, n=4)
    return low, middle, high, 1.2533 * (high - low) / 1.349 / len(lost) ** 0.5


def cost(work):
    """The cost of fed.step (cost.py). Limit: fed.step and the library's threads take 1 % of the
    processor time, which hardly depends on the load. The loss of tokens per second of processor
    time, less two standard errors, has the same limit. COST_HOLD=clock, for an idle machine: the
    loss of tokens per second by the clock has it instead, in full. The model is a GPT-2 of 2.2M
    parameters with 256 tokens a step; COST_MODEL=small: that of configs/examples, with steps of
    12 ms."""
    interval = int(os.environ.get("COST_INTERVAL", 50))
    steps = int(os.environ.get("COST_STEPS", 16 * interval))
    if os.environ.get("COST_MODEL") == "small":
        job = Job.built_in(work, steps=steps, interval=interval, overlap=2, every_steps=0)
    else:
        job = start(work, ("paris", "berlin"), steps, interval=interval, overlap=2)
    for name in ("paris", "berlin"):
        home = job.out / "clusters" / name
        log = open(work / f"cost-{name}.log", "w+")
        p = subprocess.Popen(
            [sys.executable, str(here / "cost.py"), name],
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "NEBULA_AGENT": str(home),
                "PYTHONPATH": f"{examples}:{source / 'agent/lib/python'}",
                "COST_INTERVAL": str(interval),
            },
        )
        p.log = log
        job.loops.append(p)
    job.end(3000)
    job.loops[0].log.seek(0)
    lines = [x.split() for x in job.loops[0].log.read().splitlines()]
    fours, spent = (
        [tuple(map(float, x[1:])) for x in lines if x[:1] == [k]][1:] for k in ("four", "spent")
    )  # the first warms up
    share = 100 * sum(i + o for i, o, _ in spent) / sum(c for *_, c in spent)
    own = 100 * sum(o for _, o, _ in spent) / sum(c for *_, c in spent)
    clock, cpu = loss_of_ratio(fours, 0, 1), loss_of_ratio(fours, 2, 3)
    noise = statistics.quantiles([100 * (f[4] - 1) for f in fours], n=4)
    held = clock if os.environ.get("COST_HOLD") == "clock" else cpu
    good = (
        len(fours) >= 6
        and share < 1
        and (held[1] < 1 if held is clock else held[1] - 2 * held[3] < 1)
    )
    say = "{1:.2f} % (quartiles {0:.2f} to {2:.2f}, standard error {3:.2f})".format
    report(
        "cost",
        good,
        f"{len(fours)} times ABBA, H {interval}: fed.step loses of tokens/s by the clock "
        f"{say(*clock)}, of processor time {say(*cpu)}; "
        f"fed.step and the library's threads take {share:.2f} % of the processor time ({own:.2f} % "
        "in its threads); two segments alone "
        f"differ by {noise[0]:.1f} to {noise[2]:.1f} % (quartiles); "
        f"{statistics.median(f[0] for f in fours):.0f} tokens/s alone",
    )


def sides(work):
    """Teacher and student of mode distill: distill_loss, adapters, and two jobs beside built-in
    sides."""
    program = [sys.executable, str(here / "sides.py")]
    p = subprocess.run([*program, "check", str(work / "small")], capture_output=True, text=True,
                       timeout=300)
    report("sides", not p.returncode, (p.stdout or p.stderr)[-300:].replace("\n", "; "))
    corpus(work)
    tokenizer = work / "corpus" / "tokenizer.model"
    text = (examples / "teach_hf.yaml").read_text()
    for old, new in (("steps: 300", "steps: 40"), ("vocab: 4096, n_layers: 4", "vocab: 512, "
                     "n_layers: 2"), ("d_model: 128", "d_model: 32"), ("batch: 16", "batch: 8"),
                     ("~/.cache/nebula/manpages-small", str(work / "corpus")),
                     ("seq_len: 96", "seq_len: 32")):
        assert old in text
        text = text.replace(old, new)
    learn = text.replace("k: 16", "k: 16\n  teacher: {learn: true}").replace(
        "teacher, launcher: attach", "teacher, threads: 1").replace(
        "role: student", "role: student, launcher: attach")
    for case, attached, job, script, arguments in (
            ("teach", "paris", text, examples / "teach_hf.py", [work / "small", tokenizer]),
            ("learn", "berlin", learn, here / "sides.py", ["learn", tokenizer])):
        folder = work / case
        folder.mkdir()
        (folder / "job.yaml").write_text(job)
        job = Job(folder, 2)
        job.loop(attached, script=str(script), arguments=arguments,
                 PYTHONPATH=str(source / "agent/lib/python"))
        s = job.end()
        c, q = s["clusters"][1], s["quality"]["clusters"]["berlin"]
        report("sides", q["taught_share"] == 1 and c["loss_last"] < c["loss_first"],
               f"{case}: loss {c['loss_first']:.3f} to {c['loss_last']:.3f}, "
               f"{q['label_bytes_per_target_token']:.1f} bytes a label")


def base(work):
    """Adapters of peft over a base that another site does not have: refused on both sites."""
    job = start(work, ["paris", "berlin"], steps=4)
    loops = {name: job.loop(name, here / "loops.py", arguments=["peft", "gpt2", seed],
                            BASE_SEED=str(seed))
             for name, seed in (("paris", 1), ("berlin", 2))}
    for p in loops.values():
        p.wait(900)
        p.log.seek(0)
    hexes = r"[0-9a-f]{32}"
    wanted = (r'different tensors: tensor "[^"]*base_layer[^"]*": cluster \w+ has .*, '
              rf"frozen, with digest {hexes}, cluster \w+ has .*, frozen, with digest {hexes}")
    said = [p.log.read() for p in loops.values()]
    found = [re.search(wanted, text) for text in said]
    good = all(found) and all(p.returncode for p in loops.values()) and job.p.wait(60)
    report("base", good, found[0].group(0) if found[0] else said[0][-600:])


cases = {f.__name__: f
         for f in (sides, plain, mixed, kill, ddp, fsdp, ranks, meshes, ep, fsdp_loop, base)}
for kind, n in (("hf", 2), ("peft", 1), ("accelerate", 2), ("lightning", 2), ("titan", 2),
                ("state", 2),
                ("hf_fsdp", 2), ("accelerate_fsdp", 2), ("lightning_fsdp", 2),
                ("numpy", 1), ("jax", 1)):
    cases[kind] = lambda work, kind=kind, n=n: library(kind, work, ranks=n)
cases |= {"memory": memory, "cost": cost}
for name in sys.argv[1:] or cases:
    with tempfile.TemporaryDirectory(prefix="nebula-torch-") as folder:
        try:
            cases[name](pathlib.Path(folder))
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as e:
            report(name, False, str(e))
        for p in reversed(Job.processes):
            if p.poll() is None:
                p.send_signal(signal.SIGTERM if p.args[0] != nebula else signal.SIGINT)
                try:
                    p.wait(60)
                except subprocess.TimeoutExpired:
                    p.kill()
        Job.processes.clear()
sys.exit(1 if failures else 0)
