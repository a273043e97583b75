"""A result as one HTML file that needs no network, no server and no JavaScript to be read."""

from __future__ import annotations

import base64
import hashlib
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from driftwalk.result import Report

from .curve import drift_curve
from .heatmap import LEVELS, heatmaps
from .numbers import clean
from .view import look


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("driftwalk_reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(report: Report) -> str:
    """The whole page as text."""
    view = look(report)
    environment = _environment()
    script = environment.get_template("report.js").render()
    # The page's own script is named by its hash: nothing else in the file can ever run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        view=view,
        curve=drift_curve(view.rows),
        heatmaps=heatmaps(report),
        levels=LEVELS,
        texts=_texts(report),
        script_hash=f"sha256-{digest}",
    )


def _texts(report: Report) -> list[str]:
    return [clean(text, 500) for text in report.probe.texts]
