"""Timing: backends take turns at plain runs.

run.py           who runs when, and what is made of it
runner.py        a backend, here or in a process of its own
timing_stats.py  what timings mean: intervals, and one of four words
result.py        the report, frozen
"""
