"""Arguments and options that more than one command takes, each declared once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..tolerance import Policy

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Hub id, local folder, package.module:factory, or demo:decoder / demo:encoder.",
        show_default=False,
    ),
]
AnyModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="As in other commands; left out, all that the configuration names.",
        show_default=False,
    ),
]
PromptOption = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", metavar="TEXT", help="An input text; several make a batch."),
]
IdsOption = Annotated[
    str | None, typer.Option("--ids", metavar="IDS", help="Token ids instead: '5 17 3'.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the default probe.")]
ProbeOption = Annotated[
    Path | None,
    typer.Option("--probe", metavar="FILE", help="Inputs from a safetensors file, by name."),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, help="Rows of the default probe.")
]
LengthOption = Annotated[
    int | None, typer.Option("--length", min=1, help="Positions of the default probe.")
]
BlocksOption = Annotated[
    str | None,
    typer.Option("--blocks", metavar="PATH", help="Name the stack of blocks by hand."),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code the model brings.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, alone.")]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="DIR", help="Write result.json, HTML, Markdown, JUnit and CSV here."
    ),
]


PolicyOption = Annotated[
    str, typer.Option("--policy", metavar="P", help="calibrated, dtype, or fixed:ATOL[,RTOL].")
]
RuleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", metavar="GLOB=ATOL[,RTOL]", help="A tolerance for some points, before --policy."
    ),
]
AllowMissingOption = Annotated[
    list[str] | None,
    typer.Option("--allow-missing", metavar="GLOB", help="Points that may lack a partner."),
]


def given_probe(prompt: list[str] | None, ids: str | None, probe: Path | None) -> Any:
    """The one way in which the user gave inputs; None where in none."""
    from ..errors import UsageError

    if sum(item is not None for item in (prompt or None, ids, probe)) > 1:
        raise UsageError("Give one of --prompt, --ids and --probe.")
    return list(prompt) if prompt else parse_ids(ids) if ids is not None else probe


def parse_policy(text: str, rules: Sequence[str]) -> Policy:
    """The policy with the command line's rules before its own."""
    from ..tolerance import Policy, make_policy, parse_rule

    base = make_policy(text)
    if not rules:
        return base
    own = tuple(parse_rule(item) for item in rules)
    return Policy("rules", (*own, *base.rules), base.calibrated)


def parse_ids(text: str) -> list[list[int]]:
    """What `--ids` says: one row of whole numbers."""
    from ..errors import ProbeError

    try:
        row = [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise ProbeError(f"Cannot read ids {text!r}; write whole numbers: '5 17 3'.") from None
    if not row:
        raise ProbeError("The list of ids is empty.")
    return [row]
