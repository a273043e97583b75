"""`driftwalk probes suggest`: a small set that covers most of a model, as a file that is a set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import UsageError
from ...exercised import Exercised
from ...progress import Progress
from ...stage import Setting, is_graph, torch_model
from .entries import to_line


@dataclass(frozen=True, eq=False)
class Suggested:
    """Lines of a set, and what of the model it covers."""

    lines: tuple[str, ...]
    rows: int
    """Rows of all probes but those that enumerate ids; `enumerated` is how many do that."""
    enumerated: int
    exercised: Exercised | None
    before: Exercised | None
    notes: tuple[str, ...]

    def sentences(self) -> Iterator[str]:
        """What was chosen, and what it covers."""
        chosen = len(self.lines) - self.enumerated
        ids = f" and {self.enumerated} that enumerate the ids" if self.enumerated else ""
        yield f"{chosen} probes of {self.rows} rows{ids}."
        if self.exercised is not None and self.exercised.covered is not None:
            known = self.before.covered if self.before is not None else None
            than = "" if known is None else f" (the default probe alone: {_percent(known)})"
            parts = (f"{_percent(part)} of {what}" for what, part in self.exercised.shares.items())
            covered = f"They cover {_percent(self.exercised.covered)} of what can be covered{than}"
            yield f"{covered}: {', '.join(parts)}."
        yield from self.notes


def suggest(
    model: object, seed: int = 0, progress: Progress | None = None, **of_model: object
) -> Suggested:
    """The set for a model; `of_model` is what `stage.Setting` takes of models."""
    from driftwalk_backends.probe_sets.suggest import suggest as found_for

    show = progress or Progress()
    show.expect(2)
    with show.stage("loading the model"):
        opened = Setting.asked(model, **of_model).open_model()
    if is_graph(opened):
        raise UsageError("Probes are suggested for models that PyTorch runs, not for a graph.")
    with show.stage("trying probes"):
        found = found_for(torch_model(opened), seed)
    lines = tuple(to_line(name, probe) for name, probe in found.probes)
    return Suggested(
        lines, found.rows, found.enumerated, found.exercised, found.before, found.notes
    )


def _percent(share: float) -> str:
    """Never 100 where something is left."""
    shown = f"{100 * share:.3g}"
    return "> 99.9 %" if shown == "100" and share < 1 else f"{shown} %"
