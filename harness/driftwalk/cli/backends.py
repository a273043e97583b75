"""The command `backends`."""

from __future__ import annotations

from .console import guarded, show, show_json
from .options import JsonOption


@guarded
def backends(as_json: JsonOption = False) -> None:
    """What is usable here, and why the rest is not."""
    from ..registry import backend_class, known_backends

    rows = []
    for name in known_backends():
        try:
            rows += [(o.spec, o.usable, o.note) for o in backend_class(name).offers()]
        except Exception as error:
            rows.append((name, False, f"{type(error).__name__}: {error}"))
    if as_json:
        import json

        found = [{"spec": spec, "usable": usable, "note": note} for spec, usable, note in rows]
        show_json(json.dumps(found, indent=1))
        return
    width = max(len(spec) for spec, _, _ in rows)
    lines = [f"{'✓' if usable else '✗'} {spec:<{width}}  {note}" for spec, usable, note in rows]
    show("\n".join(lines))
