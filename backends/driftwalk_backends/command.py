"""The `command` backend: any program that reads a probe file and writes a trace folder.

    command:./port --model weights.bin

is run as `./port --model weights.bin PROBE OUT`: PROBE is a safetensors file with one tensor for
each of the model's inputs, OUT the folder to write (docs/trace-format.md). No shell is involved.
What is asked for beyond blocks stands in the environment: DRIFTWALK_DEPTH, DRIFTWALK_LAYER. A
program may always write all that it has: of states inside a layer, the unasked are left out.
That a sequence is to be fed step by step stands in PROBE.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.children import Child
from driftwalk.decoding import Decoding
from driftwalk.dtypes import FORMATS, Array
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.names import is_of_cache, place_of
from driftwalk.spec import Spec
from driftwalk.states import Probe, Trace

from .recorded import MAP, naming

TIMEOUT = "DRIFTWALK_COMMAND_TIMEOUT"
DEPTH, LAYER = "DRIFTWALK_DEPTH", "DRIFTWALK_LAYER"
"""What a program is told of how closely it is looked at; it may look away."""
_SECONDS = "600"
_LINES, _LETTERS = 12, 2000
"""How much of a program's own words an error shows."""


class Command(Backend):
    """A program run once for each probe; what it wrote is kept until it is asked again."""

    name: ClassVar[str] = "command"
    options: ClassVar[Mapping[str, str]] = {"map": MAP}
    observable: ClassVar[bool] = False

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec)
        try:
            self._words = shlex.split(spec.text)
        except ValueError as error:
            raise UsageError(f"Cannot read the command in {str(spec)!r}: {error}.") from None
        if not self._words:
            raise UsageError("Backend 'command' needs a program: command:./port --flag.")
        if shutil.which(self._words[0]) is None:
            raise BackendUnavailable(
                f"There is no program {self._words[0]!r} that can be run; give its path, and make "
                "it executable."
            )
        self._named = naming(spec, model)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._made: tuple[str, Trace] | None = None
        self._look = ("block", "")
        self._plan: Decoding | None = None

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return [Offer("command:PROGRAM", True, "any program that writes a trace folder")]

    @property
    def info(self) -> BackendInfo:
        """What the program says of itself; before its first run, only what is known without it."""
        said = self._made[1].backend if self._made else BackendInfo("", "", "", "")
        flags = {**said.flags, "says it is": said.spec} if said.spec else dict(said.flags)
        dtypes = [state.dtype for state in (self._made[1] if self._made else ())]
        most = max((d for d in dtypes if d in FORMATS), key=dtypes.count, default="fp32")
        return replace(
            said,
            spec=str(self.spec),
            name=self.name,
            device=said.device or "unknown",
            dtype=said.dtype if said.dtype in FORMATS else most,
            flags=flags,
        )

    @property
    def looks_at(self) -> tuple[str, str]:
        return self._look

    def look(self, depth: str, layer: str = "") -> None:
        """Ask the program for states inside its blocks too, or inside one of them."""
        if self._look != (depth, layer):
            self._look, self._made = (depth, layer), None

    def decode(self, plan: Decoding | None) -> None:
        """Ask the program to feed sequences so; all at once is what it is asked anyway."""
        asked = plan if plan is not None and plan.chunks else None
        if asked != self._plan:
            self._plan, self._made = asked, None

    def generate(self, probe: Probe, plan: Decoding, sink: Sink) -> Mapping[str, Array]:
        raise UsageError(
            f"{self._words[0]!r} is fed tokens, and chooses none: make it the candidate. As the "
            "reference, give a trace of what it decoded: trace:FOLDER (docs/trace-format.md)."
        )

    def prepare(self, probe: Probe) -> None:
        """Run it: what it computes in is known by what it writes."""
        if self._made is None or self._made[0] != probe.sha256:
            self._made = probe.sha256, self._run(probe)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        if sink is None:
            return self._run(probe).outputs  # asked to run, so that it can be timed
        self.prepare(probe)
        assert self._made is not None
        for state in self._made[1]:
            sink(state)
        return self._made[1].outputs

    def _run(self, probe: Probe) -> Trace:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="driftwalk-command-")
        folder = Path(tempfile.mkdtemp(dir=self._folder.name))
        given = probe.save(folder / "probe.safetensors", self._plan)
        out = folder / "out.trace"
        text = os.environ.get(TIMEOUT) or _SECONDS
        try:
            seconds = float(text)
        except ValueError:
            raise UsageError(f"{TIMEOUT}={text!r} is no number of seconds.") from None
        try:
            child: Child[bytes] = Child(
                [*self._words, str(given), str(out)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, DEPTH: self._look[0], LAYER: self._look[1]},
            )
        except OSError as error:
            raise BackendError(f"{self._words[0]!r} could not be run: {error.strerror}.") from None
        with child:
            try:
                said, _ = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired as error:
                child.end()
                raise BackendError(
                    f"{self._words[0]!r} was still running after {seconds:g} s ({TIMEOUT} sets the "
                    f"limit).{_last(error.stdout)}"
                ) from None
            except BaseException:  # Ctrl-C
                child.end()
                raise
        if child.returncode:
            raise BackendError(
                f"{self._words[0]!r} ended with exit code {child.returncode}.{_last(said)}"
            )
        try:
            made = Trace.load(out, probe)
            self._check_steps(made)
            return self._asked_for(self._named(made, *self._look))
        except UsageError as error:
            raise BackendError(
                f"What {self._words[0]!r} wrote cannot be used: {error}{_last(said)}"
            ) from None

    def _check_steps(self, made: Trace) -> None:
        """A program that did not decode as it was asked would pass for one that did."""
        asked, did = (plan and plan.chunks for plan in (self._plan, made.decoding))
        if asked == did:
            return
        if self._plan is None:
            raise UsageError("it decoded step by step, and was asked for one run.")
        said = f"in steps of {made.decoding.words} tokens" if made.decoding else "in one run"
        raise UsageError(
            f"it was asked for steps of {self._plan.words} tokens, and its manifest says that it "
            f'ran {said}; "decoding" in the probe file\'s metadata is the request, and in the '
            "manifest the answer (docs/trace-format.md). "
        )

    def _asked_for(self, trace: Trace) -> Trace:
        """The blocks, and of the states inside them those that somebody wants to see."""
        depth, layer = self._look

        def wanted(name: str) -> bool:
            place = place_of(name)
            if place is None or place.is_state:
                return True
            if is_of_cache(name):
                return self._plan is not None
            return depth != "block" and layer in ("", place.layer)

        kept = tuple(state for state in trace if wanted(state.point.name))
        return replace(trace, states=kept)

    def _close(self) -> None:
        self._made = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _last(output: bytes | str | None) -> str:
    """The last words of a program, to follow an error's own."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-_LINES:]
    if not lines:
        return " It said nothing."
    return "\nIts last words:\n  " + "\n  ".join(lines)[-_LETTERS:]
