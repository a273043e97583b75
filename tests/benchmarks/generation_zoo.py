"""Every class of transformers that generates text, made tiny, decoded step by step: is all quiet?

python tests/benchmarks/generation_zoo.py [--rows FILE] [--steps 12] [--cache dynamic] [GLOB ...]

A class has a process of its own, and a row as soon as it is there; a run that was stopped goes on
where it was. Windows are made shorter than the sequence, so that they matter.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
CANDIDATES = ("torch", "emulated:bf16")
WINDOW, LENGTH, ROWS = 8, 8, 2
SECONDS, MEMORY = 180.0, 12 << 30
Row = dict[str, Any]


def main() -> int:
    options = _options()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    import driftwalk.tasks.generation.run
    from zoo import every, run

    del every
    assert driftwalk
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows = run.read(options.rows)
    known = _classes()
    names = [n for n in known if run.asked(n, options.names)]
    waiting = [n for n in names[options.first :: options.every] if n not in rows]
    for count, name in enumerate(waiting, 1):
        row = _in_a_process(name, known[name], options)
        rows[name] = row
        with options.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        run._say(f"{count}/{len(waiting)} {name}: {_outcome(row)}")
    sys.stdout.write(_table([rows[n] for n in names if n in rows]) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="globs of classes; all without any")
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; kept between runs")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cache", default="dynamic")
    parser.add_argument("--every", type=int, default=1, help="only every n-th class")
    parser.add_argument("--first", type=int, default=0, help="begin with that class of all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one class")
    return parser.parse_args()


def _classes() -> dict[str, type]:
    """Those that transformers itself has for text to be generated with."""
    from transformers.models.auto import modeling_auto

    maps = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    )
    found: dict[str, type] = {}
    for one in maps:
        for kinds in one.values():
            for kind in kinds if isinstance(kinds, list | tuple) else (kinds,):
                found[kind.__name__] = kind
    return dict(sorted(found.items()))


def _in_a_process(name: str, kind: type, options: argparse.Namespace) -> Row:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(there, name, kind, options))
    child.start()
    there.close()
    row: Row = {"name": name, "died": f"still running after {options.seconds:g} s"}
    try:
        if here.poll(options.seconds):
            row = here.recv()
    except EOFError:
        child.join(5)
        row = {"name": name, "died": f"the process ended with {child.exitcode}"}
    finally:
        child.kill()
        child.join()
        here.close()
    return row


def _work(pipe: Connection, name: str, kind: Any, options: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    try:
        pipe.send(_row(name, kind, options))
    except BaseException as error:
        pipe.send({"name": name, "died": f"{type(error).__name__}: {error}"[:300]})


def _row(name: str, kind: Any, options: argparse.Namespace) -> Row:
    from zoo.every import NotBuiltError, builds

    row: Row = {"name": name}
    try:
        for built in builds(kind, patience=20.0):
            model = _as_decoder(kind, built.model)
            if not (problem := _own_problem(model)):
                break
            row["own"] = problem
        else:
            return row
    except NotBuiltError as error:
        return row | {"not_built": str(error)}
    row.pop("own", None)
    for candidate in CANDIDATES:
        row[candidate] = _generated(model, candidate, options)
    return row


def _as_decoder(kind: Any, model: Any) -> Any:
    """The same as a decoder, with a window shorter than the sequence, where it has one."""
    import torch

    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    keys = [k for k in ("sliding_window", "attention_window_size") if getattr(text, k, None)]
    changes: dict[str, Any] = dict.fromkeys(keys, WINDOW)
    if getattr(text, "is_decoder", None) is False and "LM" in kind.__name__:
        changes["is_decoder"] = True
    if getattr(text, "attn_layer_indices", 0) is None:
        changes["attn_layer_indices"] = [1]
    if (kinds := getattr(text, "layer_types", None)) and set(kinds) == {"linear_attention"}:
        changes["layer_types"] = [*kinds[:-1], "full_attention"]
    if not changes:
        return model
    try:
        for key, value in changes.items():
            setattr(text, key, value)
        torch.manual_seed(0)
        narrow = kind(config).eval().float()
        narrow.load_state_dict(model.state_dict(), strict=False)
        return model if _own_problem(narrow) else narrow
    except Exception:
        return model


def _prompt(model: Any) -> Any:
    """Ids; a decoder behind an encoder has a default prompt."""
    import numpy as np

    if getattr(model.config, "is_encoder_decoder", False) or model.main_input_name != "input_ids":
        return None
    text = model.config.get_text_config(decoder=True)
    ids = np.random.default_rng(0).integers(4, min(90, text.vocab_size), (ROWS, LENGTH))
    return {"input_ids": ids}


def _own_problem(model: Any) -> str:
    """What transformers says where the model is run on the prompt as it is; or nothing."""
    import torch

    given = _prompt(model)
    if given is None:
        return ""
    try:
        with torch.no_grad():
            model(torch.from_numpy(given["input_ids"]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def _generated(model: Any, candidate: str, options: argparse.Namespace) -> Row:
    import driftwalk

    began = time.perf_counter()
    given = {"prompt": _prompt(model), "steps": options.steps, "cache": options.cache}
    try:
        try:
            report = driftwalk.generate(copy.deepcopy(model), candidate, stored=False, **given)
        except driftwalk.DriftwalkError as error:
            if "--batch 1" not in str(error) or not given["prompt"]:
                raise
            given["prompt"] = {n: a[:1] for n, a in given["prompt"].items()}
            report = driftwalk.generate(copy.deepcopy(model), candidate, stored=False, **given)
    except driftwalk.DriftwalkError as error:
        return {"verdict": "refused", "reason": f"{type(error).__name__}: {error}"[:400]}
    except Exception as error:
        return {"verdict": "crash", "reason": f"{type(error).__name__}: {error}"[:400]}
    held = [r.point.name for r in report.layers if _is_held(r.point.name)]
    used = max((r.tolerance.needed for r in report.layers if r.tolerance), default=0.0)
    said: Row = {
        "verdict": report.verdict,
        "used": used,
        "points": len(report.layers),
        "held": dict(Counter(name.split(".")[2] for name in held if name.startswith("layer."))),
        "held_all": len(held),
        "paths": {side: path.agreement for side, path in report.cache_paths.items()},
        "parted": None if report.parted is None else report.parted.tie,
        "seconds": round(time.perf_counter() - began, 1),
        "notes": list(report.notes)[:4],
    }
    if report.verdict != "pass":
        first = report.first_divergence
        bad = [(r.point.name, r.verdict) for r in report.layers if not r.ok][:4]
        where = f"{first.point.name}, step {first.step}" if first else ""
        said["reason"] = f"{report.reason} {report.cause} {where} {bad} {report.explanation}"
    return said


def _is_held(name: str) -> bool:
    from driftwalk.names import is_of_cache

    return is_of_cache(name)


def _outcome(row: Row) -> str:
    for key in ("died", "not_built", "own"):
        if key in row:
            return f"{key}: {row[key]}"[:200]
    said = []
    for name in CANDIDATES:
        one = row[name]
        quiet = "broken" not in one.get("paths", {}).values()
        held = "" if one.get("held_all", 1) else " no cache points"
        paths = "" if quiet else " broken path"
        said.append(f"{one['verdict']}{held}{paths} {one.get('reason', '')}"[:300])
    return " | ".join(said)


def _table(rows: list[Row]) -> str:
    lines = []
    counts = {name: Counter(r[name]["verdict"] for r in rows if name in r) for name in CANDIDATES}
    for name, count in counts.items():
        lines.append(f"{name}: " + ", ".join(f"{n} {v}" for v, n in count.most_common()))
    lines += [f"{key}: {sum(key in r for r in rows)}" for key in ("died", "not_built", "own")]
    for row in rows:
        odd = any(k in row for k in ("died", "not_built", "own")) or any(
            row[c]["verdict"] != "pass" or not row[c]["held_all"] for c in CANDIDATES
        )
        if odd:
            lines.append(f"- {row['name']}: {_outcome(row)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
