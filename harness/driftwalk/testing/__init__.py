"""What the pytest plugin does once a test uses it; `driftwalk.plugin` only has the hooks."""
