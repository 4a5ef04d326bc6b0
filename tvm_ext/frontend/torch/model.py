"""Imports a PyTorch model: export it if it is a module, convert it, name its inputs and outputs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm_ext.dynamic import OpenDimension
from tvm_ext.errors import InputError, MissingPackageError, ModelError
from tvm_ext.frontend.imported import ImportedModel
from tvm_ext.frontend.index_limits import with_limits
from tvm_ext.frontend.relax.module import import_module
from tvm_ext.frontend.relax.ranges import narrowed
from tvm_ext.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


def import_torch(
    model: str | os.PathLike[str] | torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    dynamic: Mapping[str, OpenDimension] | None = None,
) -> ImportedModel:
    """Import a PyTorch model.

    Its weights become constants, copied: the imported model does not change when the module is trained on. Symbolic
    dimensions of an exported program stay symbolic, and keep their ranges. Inputs are named as the arguments of
    ``forward``, outputs by their place in what it returns: ``output`` for a single one, the keys of a
    dictionary, ``output_0`` and so on for a tuple.

    Parameters
    ----------
    model : torch.nn.Module, torch.export.ExportedProgram, or path of a .pt2 file
        A module is exported in evaluation mode, with the shapes of ``example_inputs``.
    example_inputs : sequence of tensors, or mapping from argument name to tensor, optional
        What a module is exported with; tensors of torch or numpy, in the order of the arguments.
    input_names : sequence of str, optional
        Other names for the inputs, in order.
    dynamic : mapping from name to OpenDimension, optional
        Dimensions that stay open: of a module by ``INPUT:AXIS``, with which it is exported; of an exported program,
        which has them open, also by the names that it has for them.

    Raises
    ------
    MissingPackageError
        If torch is not installed.
    ModelError
        If the file is missing or damaged, the module cannot be exported, or what it does has no meaning for a compiled
        model, such as changing its own buffers.
    UnsupportedOperatorError
        If operators cannot be converted; all of them are listed, with the lines of code they come from.
    InputError
        If example inputs are missing or do not fit the module, or ``input_names`` does not fit the model.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            f"a PyTorch model can only be imported where torch is installed ({error}); run: pip install torch"
        ) from None
    from tvm_ext.frontend.torch.export import export_module, load_program
    from tvm_ext.frontend.torch.guards import fixed_extents, guards, require_bound
    from tvm_ext.frontend.torch.importer import convert
    from tvm_ext.frontend.torch.recurrent import fixed_lengths

    if isinstance(model, torch.nn.Module):
        source = f"torch.nn.Module {type(model).__name__}"
        program, notes = export_module(model, example_inputs, source, dynamic)
    elif example_inputs is not None:
        raise InputError("example_inputs are for a torch.nn.Module; an exported program has its inputs in it already")
    elif isinstance(model, torch.export.ExportedProgram):
        source, program, notes = "torch.export.ExportedProgram", model, ()
    elif isinstance(model, str | os.PathLike):
        source = str(model)
        program, notes = load_program(source), ()
    else:
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise ModelError(f"a {kind} is not a PyTorch model; give a torch.nn.Module, an ExportedProgram or a .pt2 path")
    converted = convert(program, source)
    if dynamic:
        asked = {converted.symbols.get(name, name): dimension for name, dimension in dynamic.items()}
        converted = replace(converted, mod=narrowed(converted.mod, asked, converted.input_names, source))
    described = import_module(converted.mod)
    inputs = with_limits(_renamed(described.inputs, converted.input_names, source), converted.index_limits)
    require_bound(inputs, source)
    conditions, unchecked = guards(program, inputs)
    return ImportedModel(
        converted.mod,
        _renamed(inputs, input_names or converted.input_names, source),
        _renamed(described.outputs, converted.output_names, source),
        source,
        (*notes, *(fixed_lengths(program) or fixed_extents(program)), *converted.notes, *_of_guards(unchecked)),
        tuple(dict.fromkeys((*conditions, *converted.conditions))),
    )


def _of_guards(unchecked: Sequence[str]) -> list[str]:
    return [f"torch's guard {guard} is not checked at run time" for guard in unchecked]


def _renamed(specs: tuple[TensorSpec, ...], names: Sequence[str], source: str) -> tuple[TensorSpec, ...]:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if len(names) != len(specs) or repeated:
        found = f"{len(names)} names" + (f", {', '.join(repeated)} more than once" if repeated else "")
        now = ", ".join(spec.name for spec in specs)
        raise InputError(f"{source}: expected {len(specs)} different input names (in place of {now}), found {found}")
    return tuple(replace(spec, name=name) for spec, name in zip(specs, names, strict=True))
