"""What every backend must do, as tests that its author runs.

suite.py    the tests
checks.py   what they ask of states and traces
"""

from .suite import BackendConformance as BackendConformance
