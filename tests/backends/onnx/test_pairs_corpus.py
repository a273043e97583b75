"""The ONNX backend test corpus, some of it: no false alarm, no fault that shows and is not caught.

`tests/benchmarks/onnx_corpus.py` runs all of it.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from corpus import Tally, all_cases, read, try_clean, try_faults

EVERY, WITH_FAULTS = 8, 4
"""Every 8th case of the corpus is taken, and of those every 4th is also spoilt."""


def test_a_sample_of_the_corpus(tmp_path: Path) -> None:
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the corpus does to itself while it is made
        sample = [case for case in map(read, all_cases()[3::EVERY]) if not isinstance(case, str)]
        for number, case in enumerate(sample):
            try_clean(case, tmp_path, tally)
            if number % WITH_FAULTS == 0:
                try_faults(case, tmp_path, tally, most=1)
    assert tally.wrong == []
    assert tally.counts["clean: pass"] > 150
    caught = {key: n for key, n in tally.counts.items() if key.endswith("caught")}
    assert sum(caught.values()) > 30
    assert any(key.startswith("attribute") for key in caught)
