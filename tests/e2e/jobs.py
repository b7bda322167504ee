# SPDX-License-Identifier: Apache-2.0
"""Random jobs out of the whole table of options. usage: jobs.py NEBULA DIR CORPUS PAIRS SEED RUNS

Checks of each job, whose steps are tiny:
  agree    a job that nebula check accepts trains. A job that it refuses, nebula pretrain refuses
           too, with the same line and before it makes a folder.
  sane     all steps are counted, losses are numbers, and clusters of one model end with equal
           digests and agree in every round
  plan     every figure of nebula plan is a number and not negative
The seed also chooses one of
  again    the same bits in a second run, with other threads
  killed   the same bits after workers were killed (kill -9), or after Ctrl-C and a resume
  remesh   Ctrl-C, then a resume on other meshes, micro-batches and threads
  model    eval and generate work on the result; it has the same logits after export and import;
           another job starts from it
A job that fails is printed as YAML with its seed. The seed alone repeats the job:
NEBULA_JOBS_SEED=SEED NEBULA_JOBS_RUNS=1."""
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

nebula, folder, corpus, pairs, first, runs = *sys.argv[1:5], int(sys.argv[5]), int(sys.argv[6])
PATIENCE_S = 120  # for a busy machine; a run takes two seconds


class Broken(Exception):
    pass


class Draw(random.Random):
    def odds(self, p):
        return self.random() < p

    def divisor(self, *numbers, most=4):
        return self.choice([k for k in range(1, most + 1) if all(n % k == 0 for n in numbers)])

    def some(self, section, p, **options):  # sets each with probability p to one of its values
        for key, values in options.items():
            if self.odds(p):
                section[key] = self.choice(values)
        return section


# ---- jobs ----------------------------------------------------------------------------------------


def job_of(r):
    heads, width = r.choice([1, 2, 4, 6]), r.choice([2, 4, 8, 16])
    model = dict(n_layers=r.choice([1, 2, 3, 4]), d_model=heads * width, n_heads=heads,
                 d_ff=r.choice([1, 16, 33, 64]))
    r.some(model, 0.3, n_kv_heads=[r.divisor(heads, most=6)], tied=[False], qkv_bias=[True],
           head_dim=[2, 6, 16])
    llama3 = dict(rope_type="llama3", factor=8, low_freq_factor=1, high_freq_factor=4,
                  original_max_position_embeddings=20)
    r.some(model, 0.1, rope_theta=[1.001, 1e9], norm_eps=[1e-12, 0.1],
           rope_scaling=[dict(rope_type="linear", factor=2.5), llama3])
    data = dict(corpus=corpus, seq_len=r.choice([1, 7, 16, 32, 64]), batch=r.choice([1, 2, 3, 4]))
    r.some(data, 0.5, accumulate=[1, 2, 3])
    steps = r.choice([1, 2, 5, 12, 20, 30])
    optim = r.some(dict(lr=r.choice([1e-9, 3e-4, 3e-3])), 0.4, warmup=[0, 5, 100],
                   schedule=["cosine", "wsd", "constant"])
    r.some(optim, 0.15, min_lr_ratio=[0, 1], decay_fraction=[0, 1], beta1=[0, 0.99999],
           beta2=[0.5, 0.99999], eps=[1e-20, 1], weight_decay=[0, 1])
    if r.odds(0.5):
        optim["clip"] = r.some(dict(kind=r.choice(["none", "global_norm", "adagc"])), 0.4,
                               max_norm=[0, 0.1, 1e9], ratio=[1, 1.5], beta=[0, 1], warmup=[0, 5])
    job = dict(job="j", mode=r.choice(["replicas"] * 4 + ["rtd", "distill"]),
               seed=r.choice([0, 1, 9000000000000000]), steps=steps)
    job.update(model=model, data=data, optim=optim, log_every=1,
               eval=dict(windows=r.choice([1, 4])),
               checkpoint=dict(every_steps=r.choice([0, 1, 3, 10, 1000])))
    r.some(job["checkpoint"], 0.3, copy=[True, False], keep=[1, 16])
    r.some(job, 0.2, recompute=[True])
    {"replicas": replicas, "rtd": rtd, "distill": distill}[job["mode"]](r, job)
    return job


def parts(job):
    """The trainable parts of the model: the largest number of fragments."""
    t, layers = job.get("trainable", {}), job["model"]["n_layers"]
    return {"full": layers + 2 - ("freeze" in t), "lora": layers, "bitfit": layers + 1,
            "last_layers": t.get("n", 0) + 1}[t.get("mode", "full")]


CODECS = """fp32 bf16 int8 int4 int3 int2 int8:8 int4:65535 int3:9 int2:17 topk topk:1/64 topk:64/64
            topk:3/100:4 topk:512/4096 topk:10/65536"""


def sync_of(r, job):
    interval = r.choice([1, 2, 3, 5, 10, 30])
    s = r.some(dict(interval=interval), 0.4, overlap=[r.randrange(interval)],
               fragments=[min(interval, parts(job), n) for n in (2, 64, 64)])
    r.some(s, 0.7, codec=CODECS.split())
    r.some(s, 0.25, error_feedback=[0, 0.5], anticipate=[0, 0.5], blend=[0.5, 1],
           row_weights=[False], kappa=[1e-6, 1e6], merge_after=[1, 1000000], commit_all=[True])
    r.some(s, 0.4, outer=[dict(lr=lr, momentum=m) for lr in (0, 0.5, 1) for m in (0, 0.6, 0.999)])
    if r.odds(0.2):
        early = max(s.get("overlap", 0) + 1, s.get("fragments", 1)) + r.randrange(4)
        s.update(early_interval=early, early_steps=early * r.choice([1, 2]))
    if r.odds(0.1):
        s.update(tune=dict(mode="auto", finest="int8"),
                 codec=r.choice(["int8", "int4", "topk:512/4096"]))
    return s


def is_private(job):
    """Jobs with masked sums: all clusters have the same batch, which cannot change."""
    return job.get("sync", {}).get("gate") == "private"


def mesh_of(r, job):
    m, sequences = job["model"], job["data"]["batch"] * job["data"].get("accumulate", 1)
    kv_heads = m.get("n_kv_heads", 0) or m["n_heads"]
    mesh = dict(dp=r.divisor(sequences), pp=r.divisor(m["n_layers"]),
                tp=r.divisor(m["n_heads"], kv_heads, m["d_ff"]))
    while math.prod(mesh.values()) > 4:
        mesh[r.choice(list(mesh))] = 1
    return mesh


def replicas(r, job):
    n = r.choice([1, 2, 2, 2, 2, 3, 3])
    if r.odds(0.3):
        kind, layers = r.choice(["lora", "bitfit", "last_layers"]), job["model"]["n_layers"]
        t = job["trainable"] = dict(mode=kind)
        if kind == "lora":
            t["rank"] = r.choice([1, 3, 8])
            targets = r.sample("q k v o gate up down".split(), r.randint(1, 7))
            r.some(t, 0.5, alpha=[1, 16.5], targets=[targets])
        elif kind == "last_layers":
            t["n"] = r.randint(1, layers)
    elif r.odds(0.1):
        job["trainable"] = dict(freeze=["embeddings"])
    s = job["sync"] = sync_of(r, job)
    if n == 3 and r.odds(0.3):
        s.update(gate="private", codec="bf16", row_weights=False)
        s.pop("tune", None)
    elif r.odds(0.1):
        s["scheme"] = r.choice(["none", "synchronous"])
    r.some(job["eval"], 0.2, every_steps=[1, 7])
    job["clusters"] = [r.some(dict(name=name, threads=r.choice([1, 2])), 0.5,
                              sources=[{"gpl": 1}, {"other": 0.001}, {"gpl": 1, "other": 3}])
                       for name in "abc"[:n]]
    for c in job["clusters"] if s.get("scheme") != "synchronous" else []:
        sequences = job["data"]["batch"] * job["data"].get("accumulate", 1)
        r.some(c, 0.2, mesh=[mesh_of(r, job)], batch=[r.divisor(sequences, most=12)],
               recompute=[True, False], precision=["fp32"])
        if is_private(job):
            c.pop("batch", None)
    if n == 3 and "gate" not in s and r.odds(0.5):
        job["clusters"][2] = dict(name="c", witness=True)


def side(r):  # a generator, a teacher
    shape = r.choice([{}, dict(d_model=16, n_heads=2), dict(d_model=8, n_heads=1)]).copy()
    return r.some(shape, 0.5, n_layers=[1, 2], d_ff=[1, 24])


def rtd(r, job):
    x = job["rtd"] = r.some(dict(generator=side(r)), 0.3, mask_rate=[0.001, 0.9], push_text=[True],
                            generator_steps=[2, 3], discriminator_steps=[2, 3], ahead=[1, 1024])
    x["lambda"] = r.choice([1e-6, 1, 50])
    if r.odds(0.3):
        cycle = max(x.get("generator_steps", 1), x.get("discriminator_steps", 1))
        x["ahead"] = r.choice([1, 4])
        x.update(generator=dict(n_layers=1), share_embeddings=cycle * x["ahead"])
    if r.odds(0.2):
        job["sync"] = dict(scheme="synchronous")
    generator = r.some(dict(name="a", role="generator", threads=1), 0.3, sources=[{"gpl": 1}])
    job["clusters"] = [generator, dict(name="b", role="discriminator", threads=2)]


def distill(r, job):
    students = [dict(name=name, role="student", threads=1) for name in "ab"[: r.choice([1, 2])]]
    job["data"].update(corpus=pairs, seq_len=96)
    x = job["distill"] = r.some(dict(teacher=dict(learn=True, **side(r))), 0.4,
                                temperature=[0.1, 20], k=[1, 64], ahead=[1, 1024],
                                push_text=[True], beam=[2])
    x["lambda"] = r.choice([0, 0.5, 1])
    if len(students) == 2 and r.odds(0.5):
        x["federate"], job["sync"] = True, sync_of(r, job)
    elif len(students) == 2 and "push_text" not in x:
        x["relay"] = r.odds(0.5)
    job["clusters"] = students + [dict(name="t", role="teacher", threads=1)]


def spoil(r, job, reference):
    """A key of the table and a value at its bounds, beyond them, or of another type. Most fail."""
    key, allowed = r.choice(reference)
    bounds = re.match(r"(\S+) to ([^,]+)", allowed)
    values = ["nan", "-1", "", "x", "[]", "auto", "1e400"]
    if bounds:
        values += [bounds[1], bounds[2] + "0", "-" + bounds[2]]
    elif "," in allowed:
        values += allowed.split(", ")
    if key == "sync.codec":
        values = ["int4:7", "int8:65536", "topk:0/64", "topk:65/64", "topk:64/65537", "topk:1/64:3",
                  "int5", "fp32:8", "topk:", "int4:"]
    elif key == "sync.fragments":
        values = [str(parts(job) + 1)]
    return key, r.choice(values)


# Keys whose values are checked but not run: they make a job large or long, are paths, or break
# training.
UNTRIED = re.compile("(steps|job|mode|model|data|init|eval|hang|distill.(teacher|cache|patience)|"
                     "rtd.generator|sync.(grace|scheme)|trainable.(rank|n)|optim.(lr|beta2|eps))")


def yaml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def write(job, path):
    with open(path, "w") as f:
        f.writelines(f"{key}: {yaml(value)}\n" for key, value in job.items())
    return path


# ---- checks --------------------------------------------------------------------------------------


def run(*words, may_fail=False):
    try:
        p = subprocess.run([nebula, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, errors="replace", timeout=PATIENCE_S,
                           stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Broken(f"{' '.join(words)}: not done in {PATIENCE_S} s")
    crashed = p.returncode < 0 or re.search(r"Sanitizer|runtime error|assertion", p.stdout)
    if crashed or p.returncode and not may_fail:
        raise Broken(f"{' '.join(words)}: status {p.returncode}: {p.stdout[-2000:]}")
    return p.returncode, p.stdout


def command(job, path, out):
    return ["distill" if job["mode"] == "distill" else "pretrain", path,
            "--local", str(len(job["clusters"])), "--out", out]


def figures(value, at=""):
    items = value.items() if isinstance(value, dict) else []
    for k, v in enumerate(value) if isinstance(value, list) else items:
        yield from figures(v, f"{at}.{k}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield at, value


def no_absurd(what, text):
    value = json.loads(text, parse_constant=lambda x: math.nan)
    for at, x in figures(value):
        if not math.isfinite(x) or x < 0 and "loss" not in at:
            raise Broken(f"{what}: {at} is {x}")
    return value


def scheme_of(job):
    return job.get("sync", {}).get("scheme", "federated")


def repeats(job):  # the result depends on the job alone
    return "tune" not in job.get("sync", {})


def digests(summary):
    return [(c["name"], c["params_digest"]) for c in summary["clusters"]]


def sane(job, out):
    with open(f"{out}/summary.json") as f:
        summary = no_absurd("summary.json", f.read())
    training = [c for c in job["clusters"] if not c.get("witness")]
    one = {c["name"] for c in training if job["mode"] == "replicas" or
           c["role"] == "student" and job["distill"].get("federate")}
    for c in summary["clusters"]:
        if job["mode"] == "replicas" and c["steps"] != job["steps"]:
            raise Broken(f"{c['name']} made {c['steps']} steps of {job['steps']}")
        fine = c["loss_first"] > 0 and c["loss_last"] < c["loss_first"] + 1
        if job["mode"] == "replicas" and not fine:
            raise Broken(f"{c['name']}: loss {c['loss_first']}, then {c['loss_last']}")
    if scheme_of(job) != "none" and len({d for name, d in digests(summary) if name in one}) > 1:
        raise Broken(f"digests differ: {digests(summary)}")
    rounds = {}
    with open(f"{out}/metrics.jsonl") as f:
        for line in map(json.loads, filter(lambda x: x.endswith("\n"), f)):
            if line["kind"] == "step" and line["loss"] is None:
                raise Broken(f"a loss is not a number: {line}")
            if line["kind"] != "round" or not line.get("digest"):
                continue
            first_digest = rounds.setdefault((line["round"], line["fragment"]), line["digest"])
            if first_digest != line["digest"]:
                raise Broken(f"digests of a round differ: {line}")
    return summary


def planned(r, job, path):
    link = r.choice(["100mbit:80ms", "64kbit:1400ms", "10gbit:0ms"])
    status, text = run("plan", path, "--json", "--local", str(len(job["clusters"])),
                       "--wan", link, may_fail=True)
    if status == 2:
        raise Broken(f"nebula plan refuses a job that nebula check accepts: {text}")
    no_absurd("nebula plan", text.strip().splitlines()[-1])


def processes(out, what):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if len(words) > 2 and words[1] in what and any(f"{out}/clusters/" in w for w in words):
            found.append(int(pid))
    return found


def disturbed(r, job, path, out, ways, after=None):
    """A run whose workers are killed, or that is interrupted and resumed with the job `after`."""
    slow = dict(os.environ, NEBULA_FAULT="worker.step:+30")
    way = r.choice(ways)
    with open(f"{out}.log", "w") as log:
        p = subprocess.Popen([nebula, *command(job, path, out)], stdout=log, stderr=log, env=slow,
                             stdin=subprocess.DEVNULL)
        try:
            end = time.monotonic() + PATIENCE_S
            while (not os.path.exists(f"{out}/metrics.jsonl") and p.poll() is None and
                   time.monotonic() < end):
                time.sleep(0.02)
            for _ in range(r.randint(1, 2)):
                time.sleep(r.uniform(0.1, 1))
                if way == "Ctrl-C" and p.poll() is None:
                    p.send_signal(signal.SIGINT)
                    break
                for pid in processes(out, ["worker"])[: r.randint(1, 2)]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            status = p.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Broken(f"after {way}: not done in {PATIENCE_S} s, see {out}.log")
        finally:
            if p.poll() is None:
                p.terminate()
                p.wait(PATIENCE_S)
    if status == 3 and way == "Ctrl-C":
        run(*command(job, after or path, out), "--resume")
    elif status:
        with open(f"{out}.log") as log:
            raise Broken(f"after {way}: status {status}: {log.read()[-2000:]}")
    return sane(job, out)


def again(r, job, path, out, summary):
    for c in job["clusters"]:
        if not c.get("witness"):
            c["threads"] = 3 - c["threads"]
    write(job, path)
    run(*command(job, path, f"{out}-again"))
    if repeats(job) and digests(sane(job, f"{out}-again")) != digests(summary):
        raise Broken(f"other bits with other threads: {digests(summary)} first, see {out}-again")


def killed(r, job, path, out, summary):
    got = digests(disturbed(r, job, path, f"{out}-killed", ["kill -9", "kill -9", "Ctrl-C"]))
    if repeats(job) and got != digests(summary):
        raise Broken(f"digests: disturbed {got}, undisturbed {digests(summary)}")


def remesh(r, job, path, out, summary):
    if scheme_of(job) == "synchronous":  # one rank only
        return
    other = json.loads(json.dumps(job))
    for c in filter(lambda c: not c.get("witness"), other["clusters"]):
        sequences = job["data"]["batch"] * job["data"].get("accumulate", 1)
        c.update(mesh=mesh_of(r, job), threads=1, recompute=r.odds(0.5))
        if not is_private(job):
            c.update(batch=r.divisor(sequences, most=12))
    disturbed(r, job, path, f"{out}-remesh", ["Ctrl-C"], write(other, f"{out}-remesh.yaml"))


def model(r, job, path, out, summary):
    at = f"{out}/checkpoint"
    n_ids = r.randint(1, min(5, job["data"]["seq_len"]))
    ids = " ".join(str(r.randrange(300)) for _ in range(n_ids))
    run("eval", at, "--windows", "1")
    run("generate", at, "--ids", ids, "--tokens", "9")
    if job["mode"] != "replicas" or not os.path.exists(f"{at}/model.ckpt"):
        return
    lora = ["--merge-lora"] if job.get("trainable", {}).get("mode") == "lora" else []
    run("export", at, f"{out}-hf", *lora)
    run("import", f"{out}-hf", "--out", f"{out}-imported")
    logits = [run("eval", c, "--logits", "--ids", ids, *more)[1].split()
              for c, more in ((at, lora), (f"{out}-imported", []))]
    if len(logits[0]) != len(logits[1]) or any(abs(float(a) - float(b)) > 1e-4
                                               for a, b in zip(*logits)):
        raise Broken("the logits differ after export and import")
    write(dict(job, job="next", model=dict(init=at)), f"{out}-next.yaml")
    run("check", f"{out}-next.yaml")
    run(*command(job, f"{out}-next.yaml", f"{out}-next"))


def one(seed, reference):
    r = Draw(seed)
    job, out = job_of(r), f"{folder}/{seed}"
    path = write(job, f"{folder}/{seed}.yaml")
    for k in range(3):
        key, value = spoil(r, job, reference)
        options = f"--set={key}={value}"
        status, said = run("check", path, options, may_fail=True)
        if status == 2:
            also, text = run(*command(job, path, out), options, may_fail=True)
            reason = said.strip().splitlines()[-1].split(" error ", 1)[-1]
            if also == 0 or reason not in text or os.path.exists(f"{out}/clusters"):
                raise Broken(f"{options}: nebula check refuses it ({said}), "
                             f"the run ends with status {also}: {text[-1000:]}")
        elif status:
            raise Broken(f"nebula check {options}: status {status}: {said}")
        elif value != "auto" and not UNTRIED.match(key):
            run(*command(job, path, f"{out}-{k}"), options)
    run("check", path)
    planned(r, job, path)
    run(*command(job, path, out))
    summary = sane(job, out)
    more = {"rtd": [], "distill": [model], "replicas": [remesh, model]}[job["mode"]]
    then = r.choice([again, killed, killed] + more)
    then(r, job, path, out, summary)
    return f"{job['mode']}, {len(job['clusters'])} clusters, {job['steps']} steps: {then.__name__}"


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the started runs too
table = run("check", "--reference")[1]
rows = [[cell.strip(" `") for cell in line.split("|")]
        for line in table.splitlines() if line.startswith("| `")]
keys = [(row[1], row[3]) for row in rows if row[1] != "clusters"]
for seed in range(first, first + runs):
    try:
        print(f"{seed}: {one(seed, keys)}", flush=True)
    except Broken as why:
        with open(f"{folder}/{seed}.yaml") as f:
            sys.exit(f"seed {seed} (NEBULA_JOBS_SEED={seed} NEBULA_JOBS_RUNS=1): {why}\n{f.read()}")
    shutil.rmtree(folder)
    os.mkdir(folder)
