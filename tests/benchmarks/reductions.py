"""How small `driftwalk reduce` makes the drifts of the atlas, and faults seeded in graphs.

    python tests/benchmarks/reductions.py --rows FILE [--page FILE] [--faults N] [--keep DIR]
        [--model MODEL [--layers N]] [GLOB ...]
    python tests/benchmarks/reductions.py --rows FILE --keep DIR --again PYTHON

With `--again`, each script that was kept is run by another interpreter, which needs numpy and
onnxruntime alone, and the ratio that it prints goes into the row.

Faults are put into the graph of `demo:decoder`, or of another model (a folder, a GGUF file), of
which `--layers` keeps the first blocks. Globs are of `folder.Class` in the list below. Each row is
kept as soon as it is there, and a run that was stopped goes on where it was. The table of the page
stands between its two marks.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
ATLAS = (
    "helium.HeliumForCausalLM",
    "fnet.FNetModel",
    "moshi.MoshiForCausalLM",
    "bit.BitModel",
    "mobilevitv2.MobileViTV2Model",
    "neucodec.NeuCodecModel",
    "xcodec2.Xcodec2Model",
    "tipsv2_dpt.Tipsv2DptForDensePrediction",
    "chmv2.CHMv2ForDepthEstimation",
    "pp_lcnet_v4.PPLCNetV4Backbone",
    "pp_doclayout_v3.PPDocLayoutV3Model",
    "qwen2_audio.Qwen2AudioForConditionalGeneration",
    "upernet.UperNetForSemanticSegmentation",
    "dac.DacModel",
    "grounding_dino.GroundingDinoModel",
    "mm_grounding_dino.MMGroundingDinoModel",
    "pp_ocrv6_small_rec.PPOCRV6SmallRecModel",
    "pp_ocrv6_tiny_rec.PPOCRV6TinyRecModel",
    "umt5.UMT5ForConditionalGeneration",
    "vjepa2.VJEPA2Model",
)
"""Drifts on `onnxruntime`, or with the other exporter, that docs/atlas.md shows."""
BEGIN, END = "<!-- reductions -->", "<!-- /reductions -->"
MODEL, SPEC = "demo:decoder", "onnxruntime"
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"])
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; kept between runs")
    parser.add_argument("--page", type=Path, help="the page whose table is written anew")
    parser.add_argument("--faults", type=int, default=0, help="so many seeded faults, too")
    parser.add_argument("--model", default=MODEL, help="whose graph those are put into")
    parser.add_argument("--layers", type=int, help="so many of its first blocks are kept")
    parser.add_argument("--minutes", type=float, default=6.0, help="for one search")
    parser.add_argument("--keep", type=Path, help="a folder for all reproductions")
    parser.add_argument("--again", help="an interpreter that runs those that were kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = _stored(options.rows)
    if options.again:
        rows = {name: again(row, options.again, options.keep) for name, row in rows.items()}
        options.rows.write_text("".join(f"{json.dumps(row)}\n" for row in rows.values()), "utf-8")
        options.names = []
    wanted = [n for n in ATLAS if any(fnmatch.fnmatch(n, glob) for glob in options.names)]
    for row in (*seeded(options, rows), *atlas(wanted, options, rows)):
        rows[row["name"]] = row
    if options.page:
        write(options.page, list(rows.values()))
    return 0


def _stored(path: Path) -> dict[str, Row]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def _kept(path: Path, row: Row) -> Row:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    sys.stderr.write(f"{row}\n")
    return row


def atlas(names: list[str], options: Any, known: dict[str, Row]) -> Iterator[Row]:
    """One row for each model of the atlas, tiny and with random weights."""
    from zoo import every
    from zoo.check import runnable

    for name in names:
        if name in known:
            continue
        kind = every.classes([name.partition(".")[0]])[name]
        model, probe = runnable({"name": name, "seconds": {}}, kind, every.MOST_SECONDS)
        row = reduced(name, model, f"{SPEC},cache=off", probe, options)
        if "could not be exported" in row.get("refused", ""):
            other = f"{SPEC},exporter=transformers,cache=off"
            row = reduced(name, model, other, probe, options)
        yield _kept(options.rows, row)


def seeded(options: Any, known: dict[str, Row]) -> Iterator[Row]:
    """One row for each fault of a kind, put into the graph that was exported."""
    import driftwalk
    from driftwalk_backends.anatomy import examine
    from driftwalk_backends.faults.graph import faulty_backend
    from driftwalk_backends.faults.planning import FaultyModel, plan
    from driftwalk_backends.probes import make_probe

    if not options.faults:
        return
    model = cut_model(options.model, options.layers)
    probe = make_probe(model)
    with driftwalk.backend(SPEC, model) as clean, driftwalk.backend("torch", model) as eager:
        eager.trace(probe)  # finds the points
        inputs = model.inputs(model.module, probe, "cpu")
        anatomy = examine(model, probe, model.layout(model.module, inputs, None))
        for fault in plan(model, anatomy, "fp32", options.faults, 0).faults:
            name = f"{fault.kind}: {fault.description}"
            if name not in known:
                with faulty_backend(clean, FaultyModel(model, fault), probe) as side:
                    row = reduced(name, model, side, probe, options)
                yield _kept(options.rows, row)


def cut_model(source: str, layers: int | None) -> Any:
    """A model, or its first blocks: all of them where no number is given."""
    from torch import nn

    from driftwalk_backends.loaded import LoadedModel
    from driftwalk_backends.sources import open_model

    model = open_model(source)
    if layers is None:
        return model
    lists = (part for part in model.module.modules() if isinstance(part, nn.ModuleList))
    del next(blocks for blocks in lists if len(blocks) > layers)[layers:]
    model.module.config.num_hidden_layers = layers
    return LoadedModel(model.module, f"{model.label}, {layers} layers")


def again(row: Row, python: str, folder: Path) -> Row:
    """The row with what its script prints in another environment."""
    script = folder / row.get("folder", "") / "repro.py"
    if "folder" not in row or not script.is_file():
        return row
    done = subprocess.run(
        [python, "-I", str(script)], capture_output=True, text=True, check=False, cwd=script.parent
    )
    lines = [line for line in done.stdout.splitlines() if " ratio " in line]
    sys.stderr.write(f"{row['name']}: {lines or done.stderr[-200:]}\n")
    return row | {"again": float(lines[0].rpartition("ratio ")[2]) if lines else None}


def reduced(name: str, model: Any, candidate: Any, probe: Any, options: Any) -> Row:
    """A row: how large before and after, and the ratio that the script shows by itself."""
    import driftwalk

    begun = time.perf_counter()
    row: Row = {"name": name}
    with tempfile.TemporaryDirectory() as scratch:
        kept = hashlib.sha256(name.encode()).hexdigest()[:12]
        folder = Path(options.keep or scratch, kept)
        try:
            found = driftwalk.reduce(model, candidate, folder, probe=probe, minutes=options.minutes)
        except driftwalk.DriftwalkError as error:
            return row | {"refused": str(error)[:600], "seconds": _since(begun)}
    if found.before is None or found.after is None:
        return row | {"refused": "within tolerance", "seconds": _since(begun)}
    printed = next(line for line in found.printed if " ratio " in line)
    return row | {
        "folder": kept,
        "point": found.point,
        "fault": found.fault,
        "operations": found.operations,
        "before": [found.before.nodes, found.before.longest, found.before.ratio],
        "after": [found.after.nodes, found.after.longest, found.after.ratio],
        "share": found.share,
        "own": len(found.own),
        "printed": float(printed.rpartition("ratio ")[2]),
        "finished": found.finished,
        "runs": found.runs,
        "seconds": _since(begun),
    }


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 1)


def write(page: Path, rows: list[Row]) -> None:
    """The table, between the marks of the page."""
    lines = [
        "| drift | at | whose | nodes | longest axis | what is left | share | ratio | repro.py "
        "alone | seconds |",
        "|---|---|---|---|---|---|---:|---|---:|---:|",
        *map(_line, rows),
    ]
    text = page.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([before + BEGIN, *lines, END + after]), "utf-8")


def _line(row: Row) -> str:
    if "refused" in row:
        return f"| {row['name']} | | | | | {row['refused']} | | | | {row['seconds']:.0f} |"
    (nodes, longest, ratio), (fewer, shorter, now) = row["before"], row["after"]
    ops = ", ".join(row["operations"][:6]) + (" ..." if len(row["operations"]) > 6 else "")
    return (
        f"| {row['name']} | {row['point']} | {row['fault']} | {nodes} to {fewer} | "
        f"{longest} to {shorter} | {ops} | {100 * row['share']:.0f} % | {ratio:.3g} to {now:.3g} | "
        f"{row.get('again') or row['printed']:.3g} | "
        f"{row['seconds']:.0f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
