"""PyTorch loops attached to agents on loopback: equal digests, beside a built-in worker, after kill -9, with DDP and FSDP,
and what federating costs. usage: attached.py [case…]; one line a case, exit status 1 when one fails."""
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
failures = 0


def report(case, good, text):
    global failures
    failures += not good
    print(f"{case:6s} {'ok    ' if good else 'FAILED'} {text}", flush=True)


class Job:
    """A job on two local agents, whose loops are started by the caller."""

    def __init__(self, work, launchers=("attach", "attach"), steps=120, **sync):
        self.out = work / "run"
        text = (examples / "attach.yaml").read_text().replace("steps: 300", f"steps: {steps}")
        text = text.replace("every_steps: 100", "every_steps: 20")
        if (work / "corpus").exists():
            text = text.replace("corpus: corpus", f"corpus: {work / 'corpus'}")
        for name, launcher in zip(("paris", "berlin"), launchers):
            text = text.replace(f"name: {name}, launcher: attach", f"name: {name}, threads: 1, launcher: {launcher}")
        for k, v in sync.items():
            text = re.sub(rf"\b{k}: [^\s,}}]+", f"{k}: {v}", text)
        (work / "job.yaml").write_text(text)
        self.log = open(work / "pretrain.log", "w")
        self.p = subprocess.Popen([nebula, "pretrain", str(work / "job.yaml"), "--local", "2", "--out", str(self.out)],
                                  stdout=self.log, stderr=self.log)
        self.loops, self.work = [], work

    def loop(self, name, script="train_plain.py", ranks=1, **env):
        home = self.out / "clusters" / name
        command = [sys.executable, str(examples / script), "1" if name == "paris" else "2"]
        if ranks > 1:
            port = 29500 + os.getpid() % 400 + len(self.loops)
            command[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(port)]
        log = open(self.work / f"{name}-{len(self.loops)}.log", "w+")
        p = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "NEBULA_AGENT": str(home), **env})
        p.log = log
        self.loops.append(p)
        return p

    def step(self, name):
        try:
            lines = (self.out / "metrics.jsonl").read_text().splitlines()
        except OSError:
            return -1
        steps = [json.loads(x) for x in lines if '"step"' in x and x.endswith("}")]
        return max([x["step"] for x in steps if x.get("kind") == "step" and x.get("cluster") == name], default=-1)

    def end(self, timeout=240):
        for p in self.loops:
            if p.wait(timeout) not in (0, -signal.SIGKILL):
                p.log.seek(0)
                raise RuntimeError(f"a loop failed: {p.log.read()[-1500:]}")
        if self.p.wait(60):
            raise RuntimeError(f"the job failed: {(self.work / 'pretrain.log').read_text()[-800:]}")
        return json.loads((self.out / "summary.json").read_text())


def equal(case, s, text=""):
    digests = {c["params_digest"] for c in s["clusters"]}
    losses = ", ".join(f"{c['name']} ({c['device'].split()[0]}) {c['loss_first']:.2f} to {c['loss_last']:.2f}" for c in s["clusters"])
    learned = all(c["loss_last"] < c["loss_first"] - 0.5 for c in s["clusters"])
    report(case, len(digests) == 1 and learned, f"{s['rounds']} rounds, digest {sorted(digests)}, loss {losses} {text}")


def plain(work):
    job = Job(work)
    job.loop("paris"), job.loop("berlin")
    equal("plain", job.end())


def corpus(work):
    text = work / "text"
    text.mkdir()
    for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()):
        if not p.is_symlink():
            for i, part in enumerate(p.read_text(errors="replace").split("\n\n")):
                (text / f"{p.name}-{i:04d}.txt").write_text(part)
    (work / "spec.yaml").write_text(f"name: licences\nvocabulary: {{size: 512, type: bpe, byte_fallback: true}}\nseed: 1\n"
                                    f"holdout: {{per_mille: 60}}\nsources:\n  - {{name: all, format: text, path: {text}}}\n")
    subprocess.run([nebula, "data", "build", str(work / "spec.yaml"), "--out", str(work / "corpus")], check=True,
                   capture_output=True)


def mixed(work):
    corpus(work)
    job = Job(work, ("attach", "local"))
    job.loop("paris")
    equal("mixed", job.end())


def kill(work):
    job = Job(work)
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
    job = Job(work, steps=60)
    job.loop("paris", script, ranks=2), job.loop("berlin")
    equal(case, job.end())


def fsdp(work):
    ddp(work, "train_fsdp.py", "fsdp")


def robust(values):
    """Median and its standard error, by the median of the deviations: a window in which the machine did something else counts little."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(v - middle) for v in values)
    return 100 * middle, 100 * 1.2533 * spread / len(values) ** 0.5


def cost(work):
    """What fed.step costs (cost.py): held to 2 % is the share of processor time, which does not depend on the load; the pairs
    must not contradict it by more than their noise."""
    job = Job(work, steps=int(os.environ.get("COST_STEPS", 400)), interval=50, overlap=10, every_steps=0)
    for name in ("paris", "berlin"):
        home = job.out / "clusters" / name
        log = open(work / f"cost-{name}.log", "w+")
        p = subprocess.Popen([sys.executable, str(here / "cost.py"), name], stdout=log, stderr=log,
                             env={**os.environ, "NEBULA_AGENT": str(home), "PYTHONPATH": f"{examples}:{source / 'agent/python'}"})
        p.log = log
        job.loops.append(p)
    job.end(900)
    job.loops[0].log.seek(0)
    lines = [x.split() for x in job.loops[0].log.read().splitlines()]
    pairs = [tuple(map(float, x[1:])) for x in lines if x[:1] == ["pair"]][1:]  # the first warms up
    spent = [tuple(map(float, x[1:])) for x in lines if x[:1] == ["spent"]][1:]
    share = 100 * sum(i + o for i, o, _ in spent) / sum(c for *_, c in spent)
    own = 100 * sum(o for _, o, _ in spent) / sum(c for *_, c in spent)
    cpu, cpu_error = robust([1 - p[2] / p[0] for p in pairs])
    clock, clock_error = robust([1 - p[3] / p[1] for p in pairs])
    rate = statistics.median(p[0] for p in pairs)
    report("cost", len(pairs) >= 6 and share < 2 and cpu - 2 * cpu_error < 2,
           f"fed.step and the library's threads take {share:.2f} % of the loop's processor time ({own:.2f} % in its threads); {len(pairs)} "
           f"interleaved pairs: tokens/s of processor time {cpu:.2f} % ± {cpu_error:.2f} % fewer, of the clock {clock:.2f} % ± {clock_error:.2f} % "
           f"(median, standard error), {rate:.0f} tokens/s alone")


cases = {f.__name__: f for f in (plain, mixed, kill, ddp, fsdp, cost)}
for name in sys.argv[1:] or cases:
    with tempfile.TemporaryDirectory(prefix="nebula-torch-") as folder:
        try:
            cases[name](pathlib.Path(folder))
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as e:
            report(name, False, str(e))
sys.exit(1 if failures else 0)
