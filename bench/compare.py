"""libmha against PyTorch, ONNX Runtime and OpenVINO: the same scenes, numbers, threads.

Run by ./run bench, which builds what is needed. README.md beside this file tells how to read it.
"""

import argparse
import json
import os
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent

# Before the libraries are loaded: large pages for what PyTorch allocates, as the others get them;
# what it compiles is compiled in this process, and kept.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(TOP / "build/bench-compiled"))

import numpy

import libmha
import ours
import peer_onnxruntime
import peer_openvino
import peer_torch
import plot
import rounds
import scenes

PEERS = (peer_torch, peer_onnxruntime, peer_openvino)
OURS_BOUND = 2e-6     # of the largest magnitude expected: what libmha promises
PEERS_BOUND = 2**-16  # of the largest magnitude: float32 is far below, bfloat16 far above


def say(text):
    print(text, file=sys.stderr, flush=True)


class Machine:
    """What plain loops reach on it, for the number of threads and for one; the best seen so far."""

    def __init__(self, library, isa, threads):
        self.bench, self.isa, self.threads = library.bench, isa.encode(), threads
        self.peak = self.peak_of_one = 0
        self.look()

    def look(self):
        self.peak = max(self.peak, self.bench.bench_roof_fma(self.isa, self.threads))
        if self.threads > 1:
            self.peak_of_one = max(self.peak_of_one, self.bench.bench_roof_fma(self.isa, 1))

    def read(self, count):
        return self.bench.bench_roof_read(self.isa, self.threads, count)


# ---- are the results right? ----------------------------------------------------------------------

def check_ours(scene, operands, contender):
    """Fails unless the sampled rows are as expected and everything is a number."""
    result = contender.result()
    result.fill(numpy.nan)
    contender.run()
    error = largest = 0.0
    for where, expected in scenes.expected_rows(scene, operands):
        error = max(error, numpy.abs(result[where] - expected).max())
        largest = max(largest, numpy.abs(expected).max())
    if not (error <= OURS_BOUND * largest and numpy.isfinite(result).all()):
        raise RuntimeError(f"libmha is wrong: error {error:.2g} at magnitudes up to {largest:.2g}")


def difference(scene, a, b):
    """Largest difference of the rows that count."""
    if not scene.lengths:
        return numpy.abs(a - b).max()
    return max(numpy.abs(a[i, :, :length] - b[i, :, :length]).max()
               for i, length in enumerate(scene.lengths))


def right_ways(scene, ways, wanted, notes):
    """The ways of one peer that can be had and agree with `wanted`; what cannot is noted."""
    largest = numpy.abs(wanted).max()
    for name, make in ways:
        try:
            contender = make()
            contender.prepare()
            contender.run()
            error = difference(scene, contender.result(), wanted) / largest
        except Exception as problem: # each runtime has its own kinds
            notes.append(f"{name}: {str(problem).strip().splitlines()[0][:200]}")
            continue
        if error <= PEERS_BOUND:
            yield contender
        else:
            notes.append(f"{name}: differs by {error:.2g} of the largest magnitude")


# ---- one scene -----------------------------------------------------------------------------------

def contenders_of(scene, operands, contexts, notes):
    """libmha, the fastest right way of each peer, and libmha with one thread if that differs."""
    mine = [ours.contender(context, scene, operands) for context in contexts]
    for contender in mine:
        check_ours(scene, operands, contender)
    if scene.what == "projection":
        offers = [ours.blas_ways(contexts[0], scene, operands)]
    else:
        offers = [peer.ways(scene, operands) for peer in PEERS]
    chosen = []
    for ways in offers:
        right = list(right_ways(scene, ways, mine[0].result(), notes))
        if right:
            chosen.append(rounds.fastest(right))
    return mine[0], chosen, mine[1:]


def run_scene(scene, contexts, machine):
    notes = []
    operands = scenes.Operands(scene)
    mine, peers, alone = contenders_of(scene, operands, contexts, notes)
    flops, count = scene.flops(), scene.bytes()
    reads = []

    def look():
        machine.look()
        if count / flops > 0.05: # elsewhere arithmetic rules on any machine
            reads.append(machine.read(count))

    times, *others = rounds.measure([mine, *peers, *alone], look)
    result = {"name": scene.name, "threads": machine.threads, "isa": contexts[0].isa,
              "mha_ms": 1e3 * times.median,
              "peers": {peer.peer: 1e3 * t.median for peer, t in zip(peers, others)},
              "ratio": min((t.median for t in others[:len(peers)]), default=0) / times.median,
              "gflops": flops / times.least / 1e9, "peak_share": None,
              "least_ms": 1e3 * times.least,
              "spread_ms": 1e3 * (times.at(0.75) - times.at(0.25)),
              "ways": {peer.peer: peer.way for peer in peers}}
    if reads and count / max(reads) > flops / machine.peak:
        result["gbps"] = count / times.least / 1e9
        result["read_share"] = count / times.least / max(reads)
    if alone:
        result["one_thread_ms"] = 1e3 * others[-1].median
        result["gain"] = others[-1].median / times.median
    for contender, t in zip((mine, *peers), (times, *others)):
        if t.busiest > machine.threads + 0.25:
            notes.append(f"{contender.peer} kept {t.busiest:.1f} processors busy")
    if notes:
        result["notes"] = notes
    return result


# ---- the report ----------------------------------------------------------------------------------

def print_table(report):
    peers = [peer for peer in ("torch", "onnxruntime", "openvino", "blas")
             if any(peer in scene["peers"] for scene in report["scenes"])]
    print(f"{report['cpu']}, {report['isa']}, threads: {report['threads']}, "
          f"FMA peak {report['peak_gflops']:.1f} GFLOP/s")
    print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    gain = report["threads"] > 1
    print(f"\n{'scene':20}  {'mha ms':>9}" + "".join(f"  {peer:>11}" for peer in peers)
          + f"  {'ratio':>6}  {'GFLOP/s':>8}  {'peak %':>6}  {'GB/s':>6}  {'read %':>6}"
          + ("    gain" if gain else ""))
    for s in report["scenes"]:
        if "mha_ms" not in s:
            print(f"{s['name']:20}  {'; '.join(s['notes'])}")
            continue
        line = f"{s['name']:20}  {s['mha_ms']:9.4f}"
        for peer in peers:
            line += f"  {s['peers'][peer]:11.4f}" if peer in s["peers"] else f"  {'-':>11}"
        line += f"  {s['ratio']:6.2f}  {s['gflops']:8.1f}  {100 * s['peak_share']:6.1f}"
        if "gbps" in s:
            line += f"  {s['gbps']:6.1f}  {100 * s['read_share']:6.1f}"
        else:
            line += f"  {'-':>6}  {'-':>6}"
        print(line + (f"  {s['gain']:6.2f}" if gain else ""))
    if gain:
        print(f"\nA plain FMA loop gains {report['fma_gain']:.2f} by its threads.")


def parse():
    parser = argparse.ArgumentParser(prog="./run bench", allow_abbrev=False,
                                     description="libmha against its peers, scene by scene.")
    parser.add_argument("--short", action="store_true",
                        help=f"only {', '.join(scenes.SHORT)}")
    parser.add_argument("--scene", metavar="NAME[,NAME]...", help="only these scenes")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--isa", metavar="LEVEL", help="instruction-set level of libmha")
    parser.add_argument("--json", type=argparse.FileType("w"), metavar="FILE",
                        help="write the numbers there")
    parser.add_argument("--plot", metavar="STEM", help="draw STEM.png and STEM.svg")
    parser.add_argument("--build", default=TOP / "build/release", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.threads < 1:
        parser.error("--threads: at least 1")
    return parser, asked


def choose(parser, asked, everything):
    """--short takes layers as they are with and without packing: what there is of a name."""
    known = [scene.name for scene in everything]
    names = known
    if asked.scene:
        names = asked.scene.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"no scene {unknown[0]}; there are: {', '.join(known)}")
    elif asked.short:
        names = [name if name in known else f"{name}-plain" for name in scenes.SHORT]
    return [scene for scene in everything if scene.name in names]


def main():
    parser, asked = parse()
    chosen = choose(parser, asked, scenes.load(asked.build))
    library = libmha.Library(asked.build)
    contexts = [libmha.Context(library, asked.isa, n) for n in sorted({asked.threads, 1})[::-1]]
    versions = {"mha": library.version, "blas": library.blas}
    versions |= {peer.NAME: peer.start(asked.threads) for peer in PEERS}
    machine = Machine(library, contexts[0].isa, asked.threads)

    results = []
    for number, scene in enumerate(chosen, 1):
        say(f"[{number}/{len(chosen)}] {scene.name}")
        try:
            results.append(run_scene(scene, contexts, machine))
        except RuntimeError as problem:
            results.append({"name": scene.name, "notes": [str(problem)]})
        for note in results[-1].get("notes", ()):
            say(f"    {note}")

    for result in results:
        if "mha_ms" in result:
            result["peak_share"] = 1e9 * result["gflops"] / machine.peak
    report = {"cpu": contexts[0].cpu, "isa": contexts[0].isa, "threads": asked.threads,
              "versions": versions, "peak_gflops": machine.peak / 1e9, "scenes": results}
    if asked.threads > 1:
        report["fma_gain"] = machine.peak / machine.peak_of_one
    print_table(report)
    if asked.json:
        json.dump(report, asked.json, indent=2)
        asked.json.write("\n")
        asked.json.close()
    if asked.plot:
        plot.draw(report, asked.plot)
    if any("mha_ms" not in result for result in results):
        sys.exit("compare.py: some scene has no result")


if __name__ == "__main__":
    main()
