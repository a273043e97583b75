"""States left on the device that made them, and compared there; driftwalk.measure says why."""
