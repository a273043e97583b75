"""The net under all tests: what hangs is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from time_limit import LIMIT, limited

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarms")


def test_a_wait_is_stopped() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"still running after 0\.1 s"), limited(0.1):
        time.sleep(600)


def test_waiting_for_a_process_is_stopped() -> None:
    words = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            with pytest.raises(pytest.fail.Exception), limited(0.1):
                process.stdout.readline()
        finally:
            process.kill()


def test_this_very_test_is_limited_and_a_shorter_limit_gives_the_rest_back() -> None:
    before, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < before <= LIMIT
    with limited(600):
        pass
    after, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < after <= before
