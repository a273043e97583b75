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


class Found(ctypes.Structure):
    """found_t of compare.c."""

    _fields_ = (
        ("max_abs", ctypes.c_double),
        ("max_rel", ctypes.c_double),
        ("worst", ctypes.c_int64 * 2),
        ("bad", ctypes.c_int64 * 2),
        ("bad_either", ctypes.c_int64),
        ("lone", ctypes.c_int64),
        ("lone_rr", ctypes.c_double),
        ("bad_at", (ctypes.c_int64 * 2) * 2),
        ("ulp_max", ctypes.c_uint64),
        ("ulps", ctypes.c_void_p),
        ("rest", ctypes.c_uint64),
        ("precise", ctypes.c_int64),
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
    found.driftwalk_compare.argtypes = (*rows, array, ctypes.POINTER(Found))
    found.driftwalk_compare.restype = None
    found.driftwalk_sample.argtypes = (array, array, whole, whole, ctypes.c_uint64)
    found.driftwalk_sample.restype = ctypes.c_uint64
    found.driftwalk_steps16.argtypes = (*rows, array, array, array)
    found.driftwalk_steps16.restype = ctypes.c_uint64
    found.driftwalk_beyond.argtypes = (*rows, array, real, real, ctypes.POINTER(real))
    found.driftwalk_beyond.restype = whole
    found.driftwalk_decide.argtypes = (*rows, array)
    found.driftwalk_decide.restype = None
    found.driftwalk_difference.argtypes = (*rows, whole, array, array, whole)
    found.driftwalk_difference.restype = real
    for product in (found.driftwalk_times, found.driftwalk_times_back):
        product.argtypes = (array, whole, whole, array, array)
        product.restype = None
    found.driftwalk_four_digits.argtypes = (array, whole)
    found.driftwalk_four_digits.restype = None
    return found
