"""What every HTML page shares: the templates, and a policy under which nothing else can run."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from driftwalk.document import Document

from .door import renderer
from .layout import D, Head


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("driftwalk_reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["parts"] = made.get_template("parts.html.j2").module
    return made


@cache
def _script(names: tuple[str, ...]) -> tuple[str, str]:
    """The page's own script and the hash that names it: nothing else in the file can ever run."""
    text = "".join(_environment().get_template(name).render() for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"sha256-{digest}"


def fill(
    template: str,
    view: Head[Document] | None = None,
    *,
    scripts: tuple[str, ...] = ("report.js",),
    **values: Any,
) -> str:
    """A whole page as text."""
    text, digest = _script(scripts)
    script = Markup(text)  # our own file, nothing foreign
    values |= {"view": view, "script": script, "digest": digest}
    return _environment().get_template(template).render(values)


def page_renderer(template: str, look: Callable[[D], Head[Document]]) -> Callable[[D], str]:
    """What writes a document as one HTML file, where the template needs no more than the view."""
    return renderer(lambda document: fill(template, look(document)))


def inline_json(data: object) -> Markup:
    """JSON for a script element: no character in it can end the element or start another."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for unsafe in "<>&\u2028\u2029":
        text = text.replace(unsafe, f"\\u{ord(unsafe):04x}")
    return Markup(text)
