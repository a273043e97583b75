"""The self-test under its public name: `from driftwalk.selftest import selftest`."""

from .tasks.selftest.run import selftest  # noqa: F401
