"""Hardware checks: does this device give the same bits each time, and are they the right ones?

What is planned, judged and said stands here, without any framework; what runs on a device stands
in `driftwalk_backends.hardware`.
"""

from __future__ import annotations

from .check import check as check

hwcheck = check
"""The public name: `driftwalk.hwcheck(...)`."""
