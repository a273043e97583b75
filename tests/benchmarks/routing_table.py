"""Mixtures of experts: ties told as such, router faults placed. The tables of docs/routing.md.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/routing_table.py \\
    [seeds] [clean] [faults] [elsewhere]
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import driftwalk
import routed_models
from driftwalk.result import Report

SPECS = ("emulated:bf16", "emulated:bf16,attn=eager", "emulated:fp16")
LAYER = 2
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def clean(seeds: int) -> None:
    say(
        "| model | candidate | runs | alarms | not verified | decisions | within the noise | "
        "not the truth's | ties | following | changes | most used | s |"
    )
    say("|---|---|" + "--:|" * 11)
    for name in routed_models.MODELS:
        for spec in SPECS:
            start = time.perf_counter()
            runs = [
                driftwalk.verify(routed_models.build(name, seed), spec) for seed in range(seeds)
            ]
            spent = (time.perf_counter() - start) / seeds
            told = f"{seeds} | {_verdicts(runs)} | {_counts(runs)} | {spent:.1f}"
            say(f"| {name} | `{spec}` | {told} |")


def _verdicts(runs: list[Report]) -> str:
    alarms, none = (sum(one.verdict == word for one in runs) for word in ("drift", "unverified"))
    return f"{alarms} | {none}"


def _counts(runs: list[Report]) -> str:
    routings = [one.routing for one in runs if one.routing is not None]
    assert len(routings) == len(runs)
    places = [place for one in routings for place in one.places]
    flips = [place.candidate for place in places if place.candidate is not None]
    assert len(flips) == len(places)
    decisions, close = (
        sum(getattr(one, name) for one in places) for name in ("decisions", "close")
    )
    told = [
        sum(getattr(one, name) for one in flips)
        for name in ("others", "ties", "followed", "changes")
    ]
    used = max((part.used for one in routings for part in one.parts), default=0.0)
    return f"{decisions} | {close / decisions:.0%} | {' | '.join(map(str, told))} | {used:.0%}"


def faults(seeds: int) -> None:
    say(
        "| model | fault | dtype | caught | layer right | called a change | of weights | "
        "router named |"
    )
    say("|---|---|---|" + "--:|" * 5)
    for name, fault in routed_models.FAULTS:
        for dtype, kind in DTYPES.items():
            found = []
            for seed in range(seeds):
                model = routed_models.build(name, seed)
                wrong = routed_models.faulty(model, name, fault, LAYER).to(kind)
                path = routed_models.router_path(model, LAYER)
                found.append((driftwalk.verify(model, wrong), path))
            say(f"| {name} | {fault} | {dtype} | {_caught(found)} |")


def _caught(found: list[tuple[Report, str]]) -> str:
    drift = [(one, path) for one, path in found if one.verdict == "drift"]
    named = [(one.routing.fault, path) for one, path in drift if one.routing and one.routing.fault]
    placed = sum(one.cause == f"layer.{LAYER}" for one, _ in drift)
    kinds = [fault.kind for fault, _ in named]
    right = sum(fault.module == path and fault.point == f"layer.{LAYER}" for fault, path in named)
    of = len(found)
    return (
        f"{len(drift)} of {of} | {placed} | {kinds.count('choice')} | {kinds.count('weights')} "
        f"| {right}"
    )


def elsewhere(seeds: int) -> None:
    say("| model | fault | dtype | caught | layer right | router accused |")
    say("|---|---|---|--:|--:|--:|")
    for name in routed_models.MODELS:
        for fault in routed_models.NOT_ROUTERS:
            for dtype, kind in DTYPES.items():
                found: list[Report] = []
                for seed in range(seeds):
                    model: nn.Module = routed_models.build(name, seed)
                    wrong = routed_models.faulty_elsewhere(model, fault, LAYER).to(kind)
                    found.append(driftwalk.verify(model, wrong))
                drift = [one for one in found if one.verdict == "drift"]
                placed = sum(one.cause == f"layer.{LAYER}" for one in drift)
                accused = sum(bool(one.routing and one.routing.fault) for one in found)
                told = f"{len(drift)} of {seeds} | {placed} | {accused}"
                say(f"| {name} | {fault} | {dtype} | {told} |")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for part in (clean, faults, elsewhere):
        if part.__name__ in sys.argv[2:] or not sys.argv[2:]:
            part(count)
            say("")
