"""Which network a module is, for what a database notes of whole networks (:mod:`tvm_ext.database.marks`)."""

from __future__ import annotations

import hashlib

import tvm
import tvm_ffi

NETWORK_ATTRIBUTE = "tvm_ext.network"
"""Attribute of a module between the begin of the phase ``schedule`` and the look into a database."""


def network_of(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """Tell a network from all others by what it computes with which kernels, as the phase ``schedule`` finds them.

    Weights do not count, and options as far as they change a kernel or what calls it.
    """
    bare = tvm.IRModule(mod.functions)  # what it says of itself does not count
    hashed = tvm_ffi.structural_hash(bare, skip_tensor_content=True)
    return hashlib.sha256(repr((hashed, str(target))).encode()).hexdigest()[:24]


def named_network() -> tvm.transform.Pass:
    """Make the pass that notes in a module which network it is."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.NamedNetwork")
    def _named(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return mod.with_attr(NETWORK_ATTRIBUTE, network_of(mod, tvm.target.Target.current(allow_none=False)))

    return _named
