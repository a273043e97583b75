"""Honest families that write a whole model otherwise, where the model says how: see `own_forms`."""

from __future__ import annotations

from ..case import HALVES, WHOLE, Done, NoPlace, Site, family
from .structure import PARTED

SPLIT = tuple(run for run in PARTED if run != "int8")
"""Products that are cut or joined have other steps."""


def _form(site: Site, name: str) -> Done:
    """One of the ways in which a model says that it can be written."""
    make = getattr(site.module, "forms", {}).get(name)
    if make is None:
        raise NoPlace
    return Done(make(site.module), f"written with {name}")


@family("structure", "honest", PARTED)
def ports_with_nested_blocks(site: Site) -> Done:
    """A port whose blocks lie deeper, each in a module of its own."""
    return _form(site, "nested")


@family("structure", "honest", PARTED)
def ports_with_blocks_by_name(site: Site) -> Done:
    """A port whose blocks are attributes that are called by name."""
    return _form(site, "by name")


@family("structure", "honest", PARTED)
def ports_in_one_sequence(site: Site) -> Done:
    """A port with blocks, final norm and head in one sequence."""
    return _form(site, "in sequence")


@family("structure", "honest", PARTED)
def ports_with_blocks_in_pairs(site: Site) -> Done:
    """A port with half as many blocks, two in one."""
    return _form(site, "in pairs")


@family("structure", "honest", SPLIT)
def ports_with_fused_products(site: Site) -> Done:
    """A port with one product for queries, keys and values in all blocks."""
    return _form(site, "qkv fused")


@family("structure", "honest", SPLIT)
def ports_with_heads_apart(site: Site) -> Done:
    """A port whose heads have products of their own, added up."""
    return _form(site, "heads apart")


@family("structure", "honest", PARTED)
def ports_with_residual_outside(site: Site) -> Done:
    """A port whose blocks give their difference alone; the model adds it."""
    return _form(site, "residual outside")


@family("structure", "honest", PARTED)
def ports_that_hand_the_residual_on(site: Site) -> Done:
    """A port whose blocks hand on two tensors, as inference engines have it: one not yet added."""
    return _form(site, "residual handed on")


@family("structure", "honest", PARTED)
def ports_with_blocks_in_halves(site: Site) -> Done:
    """A port with twice as many blocks: attention and MLP each one of its own."""
    return _form(site, "in halves")


@family("structure", "honest", PARTED)
def ports_cut_elsewhere(site: Site) -> Done:
    """A port whose blocks begin at the MLP and end behind the next attention."""
    return _form(site, "cut elsewhere")


@family("structure", "honest", (*WHOLE, *HALVES, "onnx", "pair", "set"))
def ports_in_one_function(site: Site) -> Done:
    """A port that calls no modules: everything is one function."""
    return _form(site, "in one function")


@family("structure", "honest", PARTED)
def ports_with_tokens_first(site: Site) -> Done:
    """A port whose states have tokens first and rows second."""
    return _form(site, "length first")


@family("structure", "honest", PARTED)
def ports_that_add_both_first(site: Site) -> Done:
    """A port that adds what attention and MLP give before it adds the residual."""
    return _form(site, "parallel sum")
