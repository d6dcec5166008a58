"""The picture of a comparison: every contender's share of the FMA peak, scene by scene."""

import subprocess

COLOURS = {"mha": "#1f5fa8", "torch": "#e8743b", "onnxruntime": "#8a8f98", "openvino": "#8e5ea2",
           "blas": "#3f9c6c"}
TITLES = {"mha": "libmha", "torch": "PyTorch", "onnxruntime": "ONNX Runtime",
          "openvino": "OpenVINO", "blas": "cblas\\\\_sgemm"}


def draw(report, stem):
    scenes = [scene for scene in report["scenes"] if "mha_ms" in scene]
    layers = [s for s in scenes if "-layer" in s["name"] or s["name"].startswith("tiny")]
    projections = [s for s in scenes if s["name"].startswith("proj-")]
    attention = [s for s in scenes if s not in layers and s not in projections]
    panels = [(title, part) for title, part in
              (("attention", attention), ("layers", layers), ("projections", projections)) if part]
    for suffix, terminal in (("png", "pngcairo font 'Sans,10'"), ("svg", "svg font 'Sans,11'")):
        height = 60 + 330 * len(panels)
        script = [f"set terminal {terminal} size 1200,{height} background '#ffffff'",
                  f"set output '{stem}.{suffix}'",
                  *page(report, panels)]
        subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)


def page(report, panels):
    processor = report["cpu"].replace("_", "\\\\_")
    threads = "1 thread" if report["threads"] == 1 else f"{report['threads']} threads"
    yield "set style data histograms"
    yield "set style histogram clustered gap 1"
    yield "set style fill solid noborder"
    yield "set boxwidth 0.9"
    yield "set yrange [0:100<*]"
    yield "set ytics 25"
    yield "set grid ytics lt 1 lw 0.5 lc rgb '#cccccc'"
    yield "set border 1 lc '#888888'"
    yield "set tics scale 0 textcolor '#333333'"
    yield "set key outside top right horizontal reverse Left"
    yield (f"set multiplot layout {len(panels)},1 title \"Useful work, % of the FMA peak "
           f"({report['peak_gflops']:.0f} GFLOP/s; {processor}, {report['isa']}, {threads}).  "
           "Above a bar of libmha: its speed over that of the best peer\\n\"")
    for title, scenes in panels:
        yield from panel(report, title, scenes)
    yield "unset multiplot"


def panel(report, title, scenes):
    names = ["mha"] + [p for p in COLOURS if any(p in s["peers"] for s in scenes)]
    yield "$data << END"
    for s in scenes:
        # The table's GFLOP/s are those of the least time; bars show medians, ours like theirs.
        work = s["gflops"] * s["least_ms"] / report["peak_gflops"]
        shares = [100 * work / ms if ms else "?" for ms in
                  (s["mha_ms"], *(s["peers"].get(name) for name in names[1:]))]
        label = s["name"].replace("_", "\\\\_")
        yield f"\"{label}\" {s['ratio']:.2f} " + " ".join(map(str, shares))
    yield "END"
    yield f"set ylabel '{title}'"
    yield f"set xtics rotate by {-25 if len(scenes) > 6 else 0}"
    bars = [f"$data using {column}:xtic(1) title \"{TITLES[name]}\" lc rgb '{COLOURS[name]}'"
            for column, name in enumerate(names, 3)]
    # Clusters stand at 0, 1, 2, ...; the bar of libmha is the first of each.
    shift = (1 / (len(names) + 1)) * (len(names) - 1) / 2
    bars.append(f"$data using ($0 - {shift:.3f}):3:(sprintf('%.2f', $2)) with labels "
                "offset 0,0.6 font ',8' textcolor '#1f5fa8' notitle")
    yield "plot " + ", \\\n     ".join(bars)
