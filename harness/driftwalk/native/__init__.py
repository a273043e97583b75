"""Compiled code, where the package was built with a C compiler; the C stands beside this file.

Without it the harness computes the same in numpy, many times slower. DRIFTWALK_NATIVE=off asks for
that.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

LIBRARY = "_native.so"


class Total(ctypes.Structure):
    """total_t of compare.h: what all rows came to."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("rr", "cc", "rc", "dd", "abs", "most")),
        *((name, ctypes.c_double) for name in ("max_abs", "max_rel", "rms", "ulp_max", "ulp_p99")),
        ("worst", ctypes.c_int64 * 2),
        ("bad", ctypes.c_int64 * 2),
        ("bad_at", (ctypes.c_int64 * 2) * 2),
        ("bad_either", ctypes.c_int64),
        ("rest", ctypes.c_int64),
        ("known", ctypes.c_int64),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None where there are none."""
    if os.environ.get("DRIFTWALK_NATIVE") == "off" or sys.byteorder != "little":
        return None
    try:
        found = ctypes.CDLL(str(Path(__file__).with_name(LIBRARY)))
    except OSError:  # not built, or for another machine
        return None
    whole, array, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double
    rows = (array, array, array, whole, whole)
    found.driftwalk_compare.argtypes = (*rows, whole, whole, array, array)
    found.driftwalk_compare.restype = None
    found.driftwalk_found_size.restype = whole
    found.driftwalk_settle.argtypes = (array, whole, whole, array, whole, array, array)
    found.driftwalk_settle.restype = None
    found.driftwalk_steps16.argtypes = (*rows, array, array, whole, array)
    found.driftwalk_steps16.restype = ctypes.c_uint64
    for other_width in (found.driftwalk_widen, found.driftwalk_narrow):
        other_width.argtypes = (array, array, whole, whole)
        other_width.restype = None
    found.driftwalk_beyond.argtypes = (*rows, array, real, real, ctypes.POINTER(real))
    found.driftwalk_beyond.restype = whole
    found.driftwalk_decide.argtypes = (*rows, array)
    found.driftwalk_decide.restype = None
    found.driftwalk_difference.argtypes = (*rows, whole, *(array,) * 5, whole)
    found.driftwalk_difference.restype = None
    found.driftwalk_norms.argtypes = (*rows, whole, *(array,) * 3, real, array, real, real, array)
    found.driftwalk_norms.restype = whole
    for product in (found.driftwalk_times, found.driftwalk_times_back):
        product.argtypes = (array, whole, whole, array, array)
        product.restype = None
    found.driftwalk_four_digits.argtypes = (array, whole)
    found.driftwalk_four_digits.restype = None
    found.driftwalk_when_cut_off.argtypes = (ctypes.c_char_p,)
    found.driftwalk_when_cut_off.restype = None
    return found
