"""Arguments and options that more than one command takes, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from ..tolerance import Policy


class _PlainHelp:
    """`--help` is a flag, and says nothing of a value."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option


class Command(_PlainHelp, TyperCommand):
    """A command of ours."""


class Group(_PlainHelp, TyperGroup):
    """Commands of ours."""


_PANELS = {
    "What is compared": (
        "--reference --candidate --backend --blocks --depth --cache --trust-remote-code"
    ),
    "Inputs": (
        "--prompt --ids --input --probe --probes --strict --thorough --shape --batch --length "
        "--seed --steps --beams --chunk --draft"
    ),
    "What is allowed": (
        "--policy --rule --allow-missing --expected --fail-on --max-slowdown --max-format-kl "
        "--min-format-snr --min-coverage"
    ),
    "What is looked at beside the layers": (
        "--blame/--no-blame --invariance --bench --contrast --propagation --patch"
    ),
    "Memory and time": "--cache/--no-cache --spill --stream --budget --witness",
    "What is written": "--report --json",
    "Without MODEL, all that the configuration names": "--config --list --only",
}
"""Options that belong together, wherever there are any."""

_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names.split()}


def option(usage: str, help: str, **more: Any) -> Any:
    """An option as one types it, `--prompt -p TEXT`: its names, and what stands for its value."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    number = "N" if "min" in more else ""  # what has no value is a flag
    value = next((word for word in words if not word.startswith("-")), number)
    panel = _PANEL_OF.get(names[0])
    return typer.Option(*names, metavar=value, help=help, rich_help_panel=panel, **more)


_MODEL = (
    "A folder or hub id (transformers), an .onnx file, package.module:factory (a function that "
    "gives a torch module), or demo:decoder / demo:encoder."
)
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)]
AnyModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{_MODEL} Left out: all that the configuration names.",
        show_default=False,
    ),
]
PromptOption = Annotated[
    list[str] | None, option("--prompt -p TEXT", "An input text; several make a batch.")
]
IdsOption = Annotated[
    str | None, option("--ids IDS", "Token ids: '5 17 3', or @FILE, a row a line.")
]
InputOption = Annotated[
    list[str] | None,
    option(
        "--input NAME=FILE",
        "One input from a file, with or without --prompt: .npy as it is, .png, .jpg and .wav "
        "through the model's processor; may be given several times.",
    ),
]
SeedOption = Annotated[int, option("--seed", "Seed of the default probe.", min=0)]
ProbeOption = Annotated[
    Path | None, option("--probe FILE", "Inputs by name from a .safetensors or .npz file.")
]
ProbesOption = Annotated[
    str | None,
    option(
        "--probes SET",
        "Many inputs in one run: a folder of probe files, a .jsonl file with one a line, "
        "builtin:text, builtin:edge, or suggest (a small set that covers most of the model).",
    ),
]
StrictOption = Annotated[
    bool, option("--strict", "Of --probes: one that cannot be read ends it all, nothing is run.")
]
ThoroughOption = Annotated[
    bool,
    option(
        "--thorough",
        "Of --probes: judge each probe of a large set as it would be judged alone. Otherwise most "
        "are screened first, and judged whole where anything gives reason to.",
    ),
]
MinCoverageOption = Annotated[
    str | None,
    option(
        "--min-coverage SHARE",
        "How much of what can be covered the probes must cover, 80% say; less is exit code 1.",
    ),
]
BatchOption = Annotated[int | None, option("--batch", "Rows of the default probe.", min=1)]
LengthOption = Annotated[int | None, option("--length", "Positions of the default probe.", min=1)]
ShapeOption = Annotated[
    list[str] | None,
    option(
        "--shape NAME=SIZES",
        "The shape of a made-up input of a graph: input=1,512; may be given several times.",
    ),
]
BlocksOption = Annotated[
    str | None, option("--blocks PATHS", "What to walk: lists of blocks, modules, globs.")
]
TrustOption = Annotated[bool, option("--trust-remote-code", "Run Python code the model brings.")]
JsonOption = Annotated[bool, option("--json", "Print the result as JSON, alone.")]
ReportOption = Annotated[
    Path | None, option("--report DIR", "Write result.json, HTML, Markdown, JUnit and CSV here.")
]


PolicyOption = Annotated[str, option("--policy P", "calibrated, dtype, or fixed:ATOL[,RTOL].")]
RuleOption = Annotated[
    list[str] | None,
    option("--rule GLOB=ATOL[,RTOL]", "A tolerance for some points, before --policy."),
]
AllowMissingOption = Annotated[
    list[str] | None, option("--allow-missing GLOB", "Points that may lack a partner.")
]
MaxFormatKlOption = Annotated[
    float | None,
    option(
        "--max-format-kl X",
        "Of a quantised candidate: the mean KL divergence that its format may cost, the kernel "
        "aside; more is drift.",
        min=0.0,
    ),
]
MinFormatSnrOption = Annotated[
    float | None,
    option(
        "--min-format-snr DB",
        "Of a quantised candidate: the signal-to-noise ratio that its format must leave at every "
        "output, in decibels; layers before the outputs are reported, and not judged.",
    ),
]


def given_probe(
    prompt: list[str] | None,
    ids: str | None,
    probe: Path | None,
    inputs: Sequence[str] | None = None,
) -> Any:
    """The one way in which the user gave inputs; None where in none."""
    from ..errors import UsageError

    if sum(item is not None for item in (prompt or None, ids, probe)) > 1:
        raise UsageError("Give one of --prompt, --ids and --probe.")
    if inputs:
        from ..input_files import InputFiles

        if ids is not None or probe is not None:
            raise UsageError("--input goes with --prompt or alone; not with --ids or --probe.")
        return InputFiles(tuple(map(_named_file, inputs)), tuple(prompt or ()))
    return list(prompt) if prompt else parse_ids(ids) if ids is not None else probe


def parse_policy(text: str, rules: Sequence[str]) -> Policy:
    """The policy with the command line's rules before its own."""
    from ..tolerance import Policy, make_policy, parse_rule

    base = make_policy(text)
    if not rules:
        return base
    own = tuple(parse_rule(item) for item in rules)
    return Policy("rules", (*own, *base.rules), base.calibrated)


def _named_file(text: str) -> tuple[str, Path]:
    from ..errors import UsageError

    name, _, file = text.partition("=")
    if not name or not file:
        raise UsageError(f"--input {text!r}: write NAME=FILE, the name that the model has for it.")
    return name, Path(file)


def parse_input_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]] | None:
    """What `--shape` says: sizes by the name of an input; None where it says nothing."""
    from ..errors import UsageError

    found: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        name, separator, sizes = text.rpartition("=")
        words = [word.strip() for word in sizes.split(",")] if sizes.strip() else []
        if not name or not separator or not all(word.isdecimal() for word in words):
            raise UsageError(
                f"--shape {text!r}: write NAME=SIZES, whole numbers of zero or more: input=1,512."
            )
        if name in found:
            raise UsageError(f"--shape {name}=...: that input was given a shape twice.")
        found[name] = tuple(map(int, words))
    return found or None


def parse_ids(text: str) -> list[list[int]]:
    """What `--ids` says: one row of whole numbers; or `@FILE`, one a line."""
    from ..errors import ProbeError

    lines = [text]
    if text.startswith("@"):
        try:
            lines = Path(text[1:]).read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ProbeError(f"Cannot read ids from {text[1:]!r}: {error}.") from None
    rows = [line.replace(",", " ").split() for line in lines]
    try:
        numbers = [[int(word) for word in row] for row in rows if row]
    except ValueError:
        raise ProbeError(f"Cannot read ids {text!r}; write whole numbers: '5 17 3'.") from None
    if not numbers:
        raise ProbeError("The list of ids is empty.")
    return numbers
