"""What a project says once for all runs: its configuration, and the deviations it knows of.

config.py       [tool.driftwalk] or driftwalk.toml
expected.py     known deviations, each with a bound and an expiry date
toml_table.py   TOML read strictly: unknown keys are errors
"""
