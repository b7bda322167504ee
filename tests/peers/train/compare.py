"""Tokens/s of `nebula bench train` against PyTorch, eager and compiled: interleaved, so that all see the same machine.

A line a shape and peer: medians over the pairs of tokens/s, and the median of the pairs' ratios (ours / theirs) with its quartiles.
Pairs are short, and who goes first changes, so that load on the machine hits both alike.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def surroundings(threads):
    """The same for both: OpenBLAS and MKL with these threads, and the kernels that they choose for this processor."""
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE", "NEBULA_ISA")}
    return env | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}


def start_peer(python, shape, batch, threads, compiled):
    layers, width, seq = shape.split("x")
    args = [python, str(pathlib.Path(__file__).with_name("model.py")), "--layers", layers, "--width", width, "--seq", seq,
            "--batch", str(batch), "--threads", str(threads)] + (["--compile"] if compiled else [])
    peer = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=surroundings(threads))
    return peer, json.loads(peer.stdout.readline())["params"]


def peer_rate(peer, steps, tokens):
    peer.stdin.write(f"{steps}\n")
    peer.stdin.flush()
    return tokens / statistics.median(json.loads(peer.stdout.readline()))


def our_rate(nebula, shape, steps, threads):
    out = subprocess.run([nebula, "bench", "train", "--json", "--shape", shape, "--steps", str(steps), "--threads", str(threads)],
                         check=True, capture_output=True, text=True, env=surroundings(threads)).stdout
    line = json.loads(out)
    return line["tokens_per_s"], line["params"], line["ratio"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("nebula")
    p.add_argument("--shapes", nargs="+", default=["8x256x256", "8x256x1024", "12x512x256", "12x512x1024"])
    p.add_argument("--pairs", type=int, default=9)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    behind = 0
    for shape in a.shapes:
        seq = int(shape.split("x")[2])
        batch = max(1, 2048 // seq)  # as bench train
        for compiled in (False, True):
            peer, params = start_peer(sys.executable, shape, batch, a.threads, compiled)
            pairs = []
            for i in range(a.pairs):
                if i % 2 == 0:
                    theirs = peer_rate(peer, a.steps, batch * seq)
                ours, our_params, of_peak = our_rate(a.nebula, shape, a.steps, a.threads)
                if abs(our_params - params) > 1e-5 * params:  # printed with six digits
                    sys.exit(f"{shape}: {our_params:.0f} parameters here, {params} there: not the same model")
                if i % 2:
                    theirs = peer_rate(peer, a.steps, batch * seq)
                pairs.append((ours, theirs, of_peak))
            peer.stdin.close()
            peer.wait()
            ratios = sorted(o / t for o, t, _ in pairs)
            ratio = statistics.median(ratios)
            behind += ratio < 1
            print(f"{shape:13} batch {batch}  nebula {statistics.median(o for o, _, _ in pairs):7.0f} tokens/s "
                  f"({100 * statistics.median(s for _, _, s in pairs):3.0f} % of sgemm)  torch {'compile' if compiled else 'eager  '} "
                  f"{statistics.median(t for _, t, _ in pairs):7.0f}  ratio {ratio:.2f} "
                  f"({ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}, all {ratios[0]:.2f} to {ratios[-1]:.2f})  "
                  f"{'ok' if ratio >= 1 else 'BEHIND'}", flush=True)
    print(f"{behind} behind")
    sys.exit(behind > 0)


main()
