"""The benchmark under its public name: `from driftwalk.bench import bench`."""

from .tasks.bench.run import bench  # noqa: F401
