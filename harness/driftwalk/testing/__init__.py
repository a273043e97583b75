"""What the pytest plugin does once a test uses it; `driftwalk.plugin` only has the hooks."""

PROPERTY = "driftwalk"
"""The name under which a test's outcomes travel: between processes, and into JUnit files."""
