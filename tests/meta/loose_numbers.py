"""Numbers in the source that no register holds: constants of modules, and literals in code."""

from __future__ import annotations

import ast
from collections.abc import Iterator

NEUTRAL = (0, 1)
"""Nothing is tuned about them, wherever they stand."""
NEUTRAL_IN_CODE = (0.0, 0.5, 1.0, 2.0)
"""Of floats inside of functions: also one half, and twice."""
GUARDS = 1e-30
"""Floats this small, or larger than its inverse, keep a quotient finite, and are no limit."""
FEW = 4
"""Whole numbers up to this that something is compared with count axes, sides and arguments."""


def loose_numbers(text: str) -> set[str]:
    """Names of constants of a module, and literals in its code as they are written."""
    tree = ast.parse(text)
    return {*_constants(tree), *(ast.unparse(node) for node in _literals(tree))}


def _constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name, value in _named(target, node.value):
                    if any(number not in NEUTRAL for number in _numbers(value)):
                        yield name


def _named(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple):
        alike = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        values = value.elts if isinstance(value, ast.Tuple) and alike else [value] * 99
        for one, part in zip(target.elts, values, strict=False):
            yield from _named(one, part)
    else:
        yield ast.unparse(target), value


def _numbers(node: ast.AST) -> Iterator[float]:
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and type(child.value) in (int, float):
            yield child.value


def _literals(tree: ast.Module) -> Iterator[ast.expr]:
    """Floats in functions and classes, and whole numbers that something is compared with."""
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for node in ast.walk(statement):
                if _is_small_power(node) or _is_float(node):
                    yield node
                elif isinstance(node, ast.Compare):
                    yield from filter(_is_many, _terms([node.left, *node.comparators]))


def _terms(nodes: list[ast.expr]) -> Iterator[ast.expr]:
    """What is compared, and the terms and factors of that."""
    for node in nodes:
        yield node
        if isinstance(node, ast.BinOp):
            yield from _terms([node.left, node.right])


def _is_float(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Constant) and type(node.value) is float):
        return False
    return node.value not in NEUTRAL_IN_CODE and GUARDS < node.value < 1 / GUARDS


def _is_many(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > FEW


def _is_small_power(node: ast.AST) -> bool:
    """2.0**-22 and the like."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)):
        return False
    base, power = node.left, node.right
    negative = isinstance(power, ast.UnaryOp) and isinstance(power.operand, ast.Constant)
    return isinstance(base, ast.Constant) and negative
