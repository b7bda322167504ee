# SPDX-License-Identifier: Apache-2.0
"""Epsilon of jobs with differential privacy: `nebula check --json` against the RDP accountant of
dp-accounting for the same composed Gaussian mechanisms. Prints the table of
tests/security/test_privacy.c first.
"""
import itertools
import json
import subprocess
import sys
import tempfile

import dp_accounting
import numpy
from dp_accounting import rdp

ORDERS = list(1 + numpy.exp(numpy.linspace(-12, 14, 4000)))
TABLE = [
    (0.5, 1, 1e-6),
    (1, 1, 1e-5),
    (1, 30, 1e-6),
    (1, 1000, 1e-6),
    (2, 20, 1e-6),
    (4, 20, 1e-6),
    (5, 100, 1e-5),
    (10, 100, 1e-9),
    (10, 1, 1e-5),
    (30, 10000, 1e-6),
    (100, 10, 1e-5),
    (100, 1000, 1e-9),
]
JOB = """job: privacy
steps: {steps}
model: {{vocab: 96, n_layers: 4, d_model: 32, n_heads: 4, d_ff: 80}}
data: {{corpus: none, seq_len: 16, batch: 1}}
optim: {{lr: 1e-3}}
sync: {{gate: private, codec: bf16, row_weights: false, interval: 10, fragments: {fragments},
  dp: {{clip: 0.1, noise: {noise}, delta: {delta}}}}}
clusters: [{clusters}]
"""


def reference(noise, releases, delta):
    accountant = rdp.RdpAccountant(orders=ORDERS)
    accountant.compose(dp_accounting.GaussianDpEvent(noise), releases)
    return accountant.get_epsilon(delta)


def ours(nebula, **job):
    job["clusters"] = ", ".join("{name: c%d}" % i for i in range(job["clusters"]))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(JOB.format(**job))
        f.flush()
        out = subprocess.run(
            [nebula, "check", f.name, "--json"], capture_output=True, text=True, check=True
        ).stdout
    return json.loads(out)["privacy"]


for noise, releases, delta in TABLE:
    print("    {%g, %d, %g, %.6f}," % (noise, releases, delta, reference(noise, releases, delta)))
worst = 0
for clusters, noise, steps, fragments, delta in itertools.product(
        (3, 5, 16), (0.1, 0.5, 1, 3, 10, 50), (10, 300, 20000), (1, 4), (1e-5, 1e-9)):
    p = ours(
        sys.argv[1], clusters=clusters, noise=noise, steps=steps, fragments=fragments, delta=delta
    )
    # the sum of a fragment has all of the noise, and only a fragment's share of an update
    expected = reference(noise * fragments ** 0.5, p["releases"], delta)
    off = p["epsilon"] / expected - 1
    worst = max(worst, abs(off))
    if (
        not -0.03 < off < 1e-4
    ):  # the variance is a whole number, a little above the requested one
        sys.exit(
            f"{clusters} clusters, noise {noise}, {p['releases']} sums of {fragments} fragments, "
            f"delta {delta}: "
            f"epsilon {p['epsilon']}, dp-accounting {expected}"
        )
print(f"216 jobs: epsilon differs by {100 * worst:.2f} % at most, and is never above")
