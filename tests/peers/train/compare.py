# SPDX-License-Identifier: Apache-2.0
"""Tokens/s of `nebula bench train` against PyTorch, eager and compiled, in turns on one machine.

Prints a line per shape and peer: medians over the pairs of tokens/s, and the median of the ratios
(ours / theirs) with quartiles. Pairs are short, and the order changes, so that load affects both
alike. With several threads this fails: a program whose threads wait actively loses more. --clock
cpu counts processor time instead, without other programs and waiting; it needs --threads 1.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def surroundings(threads):
    """The same for both: the threads of OpenBLAS and MKL, and the kernels for this processor."""
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE", "NEBULA_ISA")
    }
    return env | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}


def start_peer(python, shape, batch, threads, compiled, precision):
    layers, width, seq = shape.split("x")
    args = (
        [
            python,
            str(pathlib.Path(__file__).with_name("model.py")),
            "--layers",
            layers,
            "--width",
            width,
            "--seq",
            seq,
            "--batch",
            str(batch),
            "--threads",
            str(threads),
        ]
        + (["--compile"] if compiled else [])
        + (["--bf16"] if precision == "bf16" else [])
    )
    peer = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=surroundings(threads))
    return peer, json.loads(peer.stdout.readline())["params"]


def peer_rate(peer, steps, tokens, clock):
    peer.stdin.write(f"{steps}\n")
    peer.stdin.flush()
    wall, cpu = json.loads(peer.stdout.readline())
    return tokens / statistics.median(cpu if clock == "cpu" else wall)


def our_rate(nebula, shape, steps, threads, clock, precision):
    out = subprocess.run(
        [
            nebula,
            "bench",
            "train",
            "--json",
            "--shape",
            shape,
            "--steps",
            str(steps),
            "--threads",
            str(threads),
            "--precision",
            precision,
        ],
        check=True,
        capture_output=True,
        text=True,
        env=surroundings(threads),
    ).stdout
    line = json.loads(out.splitlines()[-1])  # for bf16, the first line is that of fp32
    if clock == "cpu":
        return line["tokens_per_cpu_s"], line["params"], line["cpu_ratio"]
    return line["tokens_per_s"], line["params"], line["ratio"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("nebula")
    p.add_argument(
        "--shapes", nargs="+", default=["8x256x256", "8x256x1024", "12x512x256", "12x512x1024"]
    )
    p.add_argument("--pairs", type=int, default=9)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    p.add_argument(
        "--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: PyTorch's is autocast"
    )
    p.add_argument("--peers", nargs="+", choices=["eager", "compile"], default=["eager", "compile"])
    a = p.parse_args()
    if a.clock == "cpu" and a.threads != 1:
        sys.exit(
            "--clock cpu: threads that wait for each other busily would be charged for it; give "
            "--threads 1"
        )
    gemm = "bf16 products" if a.precision == "bf16" else "sgemm"
    behind, unit = 0, " of processor time" if a.clock == "cpu" else ""
    for shape in a.shapes:
        seq = int(shape.split("x")[2])
        batch = max(1, 2048 // seq)  # as bench train
        for name in a.peers:
            compiled = name == "compile"
            peer, params = start_peer(
                sys.executable, shape, batch, a.threads, compiled, a.precision
            )
            pairs = []
            for i in range(a.pairs):
                if i % 2 == 0:
                    theirs = peer_rate(peer, a.steps, batch * seq, a.clock)
                ours, our_params, of_peak = our_rate(
                    a.nebula, shape, a.steps, a.threads, a.clock, a.precision
                )
                if abs(our_params - params) > 1e-5 * params:  # printed with six digits
                    sys.exit(
                        f"{shape}: {our_params:.0f} parameters here, {params} there: not the same "
                        "model"
                    )
                if i % 2:
                    theirs = peer_rate(peer, a.steps, batch * seq, a.clock)
                pairs.append((ours, theirs, of_peak))
            peer.stdin.close()
            peer.wait()
            ratios = sorted(o / t for o, t, _ in pairs)
            ratio = statistics.median(ratios)
            behind += ratio < 1
            print(
                f"{shape:13} batch {batch}  nebula "
                f"{statistics.median(o for o, _, _ in pairs):7.0f} tokens/s{unit} "
                f"({100 * statistics.median(s for _, _, s in pairs):3.0f} % of {gemm})  torch "
                f"{name:7} "
                f"{statistics.median(t for _, t, _ in pairs):7.0f}  ratio {ratio:.2f} "
                f"({ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}, all "
                f"{ratios[0]:.2f} to {ratios[-1]:.2f})  "
                f"{'ok' if ratio >= 1 else 'BEHIND'}",
                flush=True,
            )
    print(f"{behind} behind")
    sys.exit(behind > 0)


main()
