"""Loops over the images of an open batch as one function, where an image is a chain of small kernels.

before: ``call_packed("tvm_ext.over_batch.main_batch1", x, y)``, and ``main_batch1_of_16``, ``_of_4`` and ``_of_1``
after:  ``image_segment(n, x, y, w)``, a TIR function that loops over the images and calls the kernels of the three

The virtual machine has no loop, and a call of it costs as much as a small kernel takes
(:mod:`tvm_ext.shapes.batch_loop` is what it makes of the others). Here images are addresses in the tensors of all of
them, and tensors between kernels lie in a workspace at offsets that are known when compiling. A result is stored where
it belongs, unless its images do not begin at multiples of 64 bytes: kernels store vectors past the caches there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.memory.open_arena import ALIGNMENT, OpenArenaPlan, plan_open_arena, verify_open_arena
from tvm_ext.memory.relax.segment_code import (
    allocated_workspace,
    can_be_described,
    free_workspace,
    segment_attributes,
    stack_array,
)
from tvm_ext.relax_utils import static_shape
from tvm_ext.shapes.batch_loop import Loop, copied
from tvm_ext.shapes.open_batch import IMAGES_ATTRIBUTE, OVER_BATCH
from tvm_ext.statistics import WORKSPACE_ATTRIBUTE


def image_segments() -> tvm.transform.Pass:
    """Make the pass; it belongs before ``BatchLoops``, which takes the loops that are left, and is for CPUs."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.ImageSegments")
    def _image_segments(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        rewriter = _Caller(mod)
        for global_var, func in mod.functions_items():
            if isinstance(func, relax.Function) and not (func.attrs and IMAGES_ATTRIBUTE in func.attrs):
                changed = rewriter.visit_expr(func)
                if not changed.same_as(func):
                    rewriter.builder_.update_func(global_var, changed)
        if not rewriter.replaced:
            return mod
        made = rewriter.builder_.get()
        kept = {name: func for name, func in made.functions_items() if name not in rewriter.replaced}
        return tvm.IRModule(kept, attrs=made.attrs, global_infos=made.global_infos)

    return _image_segments


@mutator
class _Caller(PyExprMutator):
    """Replaces the calls that stand for loops."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.replaced: list[Any] = []

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Call a function of kernels in place of a packed function."""
        symbol = str(getattr(call.op, "global_symbol", "")) if isinstance(call.op, relax.ExternFunc) else ""
        if not symbol.startswith(OVER_BATCH):
            return super().visit_call_(call)
        loop = Loop(self.builder_, symbol.removeprefix(OVER_BATCH), [argument.ty for argument in call.args])
        mod = self.builder_.get()
        if len(loop.bodies) < 2:  # an image takes much longer than calling its kernels
            return super().visit_call_(call)
        chains = {count: _chain(mod, mod[body], loop, count) for count, body in loop.bodies.items()}
        if any(chain is None for chain in chains.values()):
            return super().visit_call_(call)
        func, constants = _written(self.builder_, loop, {k: chain for k, chain in chains.items() if chain})
        self.replaced += loop.bodies.values()
        arguments = [relax.prim_value(loop.batch), *(self.visit_expr(argument) for argument in call.args), *constants]
        return relax.Call(self.builder_.add_func(func, "image_segment"), arguments, ty_args=[relax.TupleType([])])


@dataclass
class _Tensor:
    """A tensor of a chain.

    Attributes
    ----------
    shape : list of int
    dtype : str
    argument : int or None
        Which argument of the loop it is all of, or an image of.
    constant : constant or None
    steps : list of int
        Calls that touch it.
    """

    shape: list[int]
    dtype: str
    argument: int | None = None
    constant: Any = None
    steps: list[int] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        count = _element_bytes(self.dtype)
        for extent in self.shape:
            count *= extent
        return count


@dataclass
class _Chain:
    """Kernels that compute some images.

    Attributes
    ----------
    tensors : list of _Tensor
    calls : list
        Of pairs: the function, and its arguments, each a tensor and the shape to show it in.
    taken, stored : list of (int, _Tensor)
        Arguments of the loop whose images are copied before, and after.
    """

    tensors: list[_Tensor] = field(default_factory=list)
    calls: list[tuple[Any, list[tuple[_Tensor, list[int]]]]] = field(default_factory=list)
    taken: list[tuple[int, _Tensor]] = field(default_factory=list)
    stored: list[tuple[int, _Tensor]] = field(default_factory=list)

    def plan(self) -> tuple[OpenArenaPlan | None, dict[str, int]]:
        """Decide where tensors of its own lie; gives the plan, and the bytes of each."""
        own = {str(number): tensor for number, tensor in enumerate(self.tensors) if is_own(tensor) and tensor.steps}
        sizes = {name: tensor.nbytes for name, tensor in own.items()}
        if not own:
            return None, sizes
        plan = plan_open_arena({name: (min(t.steps), max(t.steps)) for name, t in own.items()}, [sizes])
        verify_open_arena(plan)
        return plan, sizes


def is_own(tensor: _Tensor) -> bool:
    """Whether a tensor lies in the workspace."""
    return tensor.argument is None and tensor.constant is None


def _chain(mod: tvm.IRModule, body: relax.Function, loop: Loop, count: int) -> _Chain | None:
    """Read the function for ``count`` images; None if it is more than kernels that follow each other."""
    chain = _Chain()
    found: dict[Any, tuple[_Tensor, list[int]]] = {}

    def add(tensor: _Tensor) -> tuple[_Tensor, list[int]]:
        chain.tensors.append(tensor)
        return tensor, tensor.shape

    for number, parameter in enumerate(body.params):
        place = loop.places[number]
        shape = static_shape(parameter)
        if shape is None:
            return None
        whole = place.images.axis < 0 or place.outside == 1
        found[parameter] = add(_Tensor(list(shape), place.dtype, number if whole else None))
        if not whole:
            chain.taken.append((number, found[parameter][0]))
            found[parameter][0].steps.append(0)  # copied in front of the first call

    def of(value: Any) -> tuple[_Tensor, list[int]] | None:
        if isinstance(value, tvm.ir.GenericConst) and value not in found:
            shape = static_shape(value)
            if shape is None:
                return None
            found[value] = add(_Tensor(list(shape), str(value.ty.dtype), constant=value))
        return found.get(value)

    results: Any = body.body.body
    for binding in (binding for block in body.body.blocks for binding in block.bindings):
        value = binding.value
        name = getattr(getattr(value, "op", None), "name", "")
        if not isinstance(binding, relax.VarBinding):
            return None
        if isinstance(value, relax.Tuple) and binding.var.same_as(results):
            results = value
        elif isinstance(value, relax.Var) and of(value) is not None:
            found[binding.var] = found[value]
        elif name == "relax.builtin.alloc_tensor" and (shape := static_shape(value)) is not None:
            if str(value.args[3].value) != "global" or int(value.args[2]) != 0:
                return None
            found[binding.var] = add(_Tensor(list(shape), str(value.args[1].value)))
        elif name == "relax.reshape" and of(value.args[0]) is not None and static_shape(value) is not None:
            found[binding.var] = found[value.args[0]][0], list(static_shape(value) or ())
        elif isinstance(mod.functions.get(getattr(value, "op", None)), tirx.PrimFunc):
            given = [of(argument) for argument in value.args]
            if not isinstance(value.ty, tvm.ir.TupleType) or value.ty.fields or None in given:
                return None
            for argument in given:
                argument[0].steps.append(len(chain.calls))  # type: ignore[index]
            chain.calls.append((value.op, given))  # type: ignore[arg-type]
        else:
            return None
    if not all(can_be_described(tensor.dtype) for tensor in chain.tensors):
        return None
    return chain if _place_results(chain, found, results, loop, count) else None


def _place_results(
    chain: _Chain, found: Mapping[Any, tuple[_Tensor, list[int]]], results: Any, loop: Loop, count: int
) -> bool:
    """Say where results go; False if one of them is no tensor of its own."""
    listed = list(results.fields) if isinstance(results, relax.Tuple) else [results]
    for number, result in enumerate(listed, loop.given):
        if result not in found:
            return False
        tensor, place = found[result][0], loop.places[number]
        if not is_own(tensor) or not tensor.steps or any(tensor is other for _, other in [*chain.stored, *chain.taken]):
            return False
        if place.outside == 1 and place.piece * _element_bytes(place.dtype) % ALIGNMENT == 0:
            tensor.argument = number
        else:
            chain.stored.append((number, tensor))
            tensor.steps.append(len(chain.calls) + 1)  # copied behind the last call
    return bool(chain.calls)


def _written(builder: relax.BlockBuilder, loop: Loop, chains: Mapping[int, _Chain]) -> tuple[tirx.PrimFunc, list[Any]]:
    """Write the function; gives it, and the constants that it is given behind the tensors."""
    constants = list(dict.fromkeys(t.constant for c in chains.values() for t in c.tensors if t.constant is not None))
    plans = {count: chain.plan() for count, chain in chains.items()}
    with IRBuilder() as script:
        with T.prim_func(is_private=True, s_tir=True):
            T.func_name("image_segment")
            batch = T.arg("n", T.int64())
            given = [T.arg(f"t{k}", T.buffer(place.of(batch), place.dtype)) for k, place in enumerate(loop.places)]
            fixed = {
                value: T.arg(f"w{k}", T.buffer(list(value.ty.shape), str(value.ty.dtype)))
                for k, value in enumerate(constants)
            }
            done: Any = tirx.const(0, "int64")
            for count in sorted(chains, reverse=True):
                walked, behind = loop.walked(batch, done, count)
                walked = T.bind(walked)
                with T.If(walked > 0), T.Then():
                    _Writer(builder, loop, chains[count], count, batch, given, fixed).write(done, walked, *plans[count])
                done = T.bind(behind) if count > 1 else behind
    summary = {
        "calls": sum(len(chain.calls) for chain in chains.values()),
        "tensors": sum(len(sizes) for _, sizes in plans.values()),
        "images": sorted(chains),
        "ratios": [ratio for plan, _ in plans.values() if plan is not None for ratio in plan.ratios],
    }
    workspace = max((plan.size(sizes) for plan, sizes in plans.values() if plan is not None), default=0)
    return script.get().with_attrs(segment_attributes(summary) | {WORKSPACE_ATTRIBUTE: workspace}), constants


@dataclass
class _Writer:
    """Emits the loop over blocks of ``count`` images."""

    builder: relax.BlockBuilder
    loop: Loop
    chain: _Chain
    count: int
    batch: Any
    given: Sequence[Any]
    fixed: Mapping[Any, Any]

    def write(self, done: Any, walked: Any, plan: OpenArenaPlan | None, sizes: Mapping[str, int]) -> None:
        """Emit it, for the images from ``done`` on."""
        offsets, workspace = {}, None
        if plan is not None:
            offsets = plan.offsets(sizes)
            workspace = allocated_workspace(tirx.const(max(plan.size(sizes), ALIGNMENT), "int64"))
        self.places = {id(self.chain.tensors[int(name)]): offset for name, offset in offsets.items()}
        self.workspace = workspace
        with T.serial(tirx.const(0, "int64"), walked) as number:
            first: Any = done + number * self.count
            self.first = T.bind(tirx.min(first, self.batch - self.count) if self.count > 1 else first)
            for argument, tensor in self.chain.taken:
                self._copy(argument, tensor, stores=False)
            for callee, arguments in self.chain.calls:
                boxed = [stack_array(self._address(tensor), shape, tensor.dtype) for tensor, shape in arguments]
                T.evaluate(tirx.call_cpacked(callee.name_hint, *boxed))
            for argument, tensor in self.chain.stored:
                self._copy(argument, tensor, stores=True)
        if workspace is not None:
            free_workspace(workspace)

    def _address(self, tensor: _Tensor) -> Any:
        if tensor.constant is not None:
            return self.fixed[tensor.constant].data
        if tensor.argument is None:
            return T.handle_add_byte_offset(self.workspace, tirx.const(self.places[id(tensor)], "int64"))
        place, data = self.loop.places[tensor.argument], self.given[tensor.argument].data
        if place.images.axis < 0:
            return data
        return T.handle_add_byte_offset(data, self.first * (place.piece * _element_bytes(place.dtype)))

    def _copy(self, argument: int, tensor: _Tensor, stores: bool) -> None:
        """Copy images to or from the tensor of all of them."""
        place = self.loop.places[argument]
        kernel = self.builder.add_func(copied(place, self.count, stores), f"{'store' if stores else 'take'}_images")
        flat = [tirx.const(place.outside, "int64"), tirx.const(self.count * place.piece, "int64")]
        whole = [tirx.const(place.outside, "int64"), self.batch * place.piece]
        T.evaluate(
            tirx.call_cpacked(
                kernel.name_hint,
                stack_array(self._address(tensor), flat, place.dtype),
                stack_array(self.given[argument].data, whole, place.dtype),
                self.first * place.piece,
            )
        )


def _element_bytes(dtype: str) -> int:
    found = tvm.DataType(dtype)
    return (int(found.bits) * int(found.lanes) + 7) // 8
