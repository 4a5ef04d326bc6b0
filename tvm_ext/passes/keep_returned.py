"""Lets what a function returns live until it returns, so that a lowered module may be lowered again.

TVM ends the life of a variable where the tuple that is returned takes it, and reads shapes from fields of that tuple
afterwards. When such a module is lowered once more, its block builder makes the dead variable of the field again, and
its code reads a tensor that is not there: the process ends with a segmentation fault. TVM's own ``relax_dynamo`` lowers
a module with the pipeline it is given, and again when it builds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax


def keep_returned() -> tvm.transform.Pass:
    """Make the pass: the last one, over instructions of the virtual machine.

    Before and after::

        gv: R.Tuple(R.Tensor) = (alloc,)                    gv: R.Tuple(R.Tensor) = (alloc,)
        R.vm.kill_object(alloc)                             R.call_packed("vm.builtin.match_shape", alloc, ...)
        gv_1: R.Tensor = gv[0]                          ->  return gv
        R.call_packed("vm.builtin.match_shape", gv_1, ...)
        return gv
    """

    @tvm.transform.module_pass(opt_level=0, name="tvm_ext.KeepReturned")
    def _keep_returned(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
                updated.update_func(variable, _kept(function))
        return updated

    return _keep_returned


def _kept(function: relax.Function) -> relax.Function:
    tuples = {
        binding.var: binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Tuple)
    }
    if function.body.body not in tuples:
        return function
    returned = _parts(function.body.body, tuples)
    fields: dict[Any, Any] = {}
    blocks = []
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem):
                whole = fields.get(value.tuple_value, value.tuple_value)
                made = tuples.get(whole, whole) if whole in returned else None
                if isinstance(made, relax.Tuple):
                    fields[binding.var] = made.fields[value.index]
                else:
                    bindings.append(relax.VarBinding(binding.var, relax.TupleGetItem(whole, value.index)))
            elif not _ends_one_of(returned, value):
                bindings.append(_reading(binding, fields))
        blocks.append(relax.BindingBlock(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _parts(value: Any, tuples: Mapping[Any, relax.Tuple]) -> set[Any]:
    """Collect what a value consists of, tuples inside tuples included, and the value."""
    whole = tuples.get(value, value)
    fields = whole.fields if isinstance(whole, relax.Tuple) else ()
    return {value}.union(*(_parts(field, tuples) for field in fields))


def _ends_one_of(variables: set[Any], value: Any) -> bool:
    ends = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.vm.kill_object"
    return ends and value.args[0] in variables


def _reading(binding: relax.VarBinding, fields: Mapping[Any, Any]) -> relax.VarBinding:
    """Let the call of a binding read variables instead of fields of a tuple."""
    call = binding.value
    if not isinstance(call, relax.Call) or not any(argument in fields for argument in call.args):
        return binding
    arguments = [fields.get(argument, argument) for argument in call.args]
    return relax.VarBinding(binding.var, relax.Call(call.op, arguments, call.attrs, call.ty_args, call.span))
