"""Arguments and options that more than one command takes, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Hub id, local folder, package.module:factory, or demo:decoder / demo:encoder.",
        show_default=False,
    ),
]
PromptOption = Annotated[
    list[str] | None,
    typer.Option("--prompt", "-p", metavar="TEXT", help="An input text; several make a batch."),
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
