"""Rules are asked in order; a rule that fails is noted and passed over."""

import numpy as np
import tvm
from tvm import te

from tvm_ext.schedules.rule import (
    FAULT_ATTRIBUTE,
    RULE_ATTRIBUTE,
    apply_rules,
    apply_schedule_rules,
    new_schedule,
    tunable_schedule,
)

TARGET = tvm.target.Target("llvm")


class Declines:
    name = "declines"

    def apply(self, func, target):  # type: ignore[no-untyped-def]
        return None


class Fails:
    name = "fails"

    def apply(self, func, target):  # type: ignore[no-untyped-def]
        raise RuntimeError("no such block")


class HasNoChoices:
    name = "has_no_choices"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        return None if tunable else new_schedule(func)


class HasChoices:
    name = "has_choices"

    def apply(self, func, target, tunable=False):  # type: ignore[no-untyped-def]
        return new_schedule(func, tunable)


class Takes:
    name = "takes"

    def apply(self, func, target):  # type: ignore[no-untyped-def]
        return new_schedule(func)


def kernel(size: int = 8) -> tvm.tirx.PrimFunc:
    data = te.placeholder((size,), name="data")
    return te.create_prim_func([data, te.compute((size,), lambda i: data[i] + 1.0, name="plus")])


def test_first_answer_counts() -> None:
    taken = apply_rules(kernel(), TARGET, [Declines(), Takes(), Fails()])
    assert taken.attrs[RULE_ATTRIBUTE] == "takes"
    assert bool(taken.attrs["tirx.is_scheduled"])
    assert FAULT_ATTRIBUTE not in taken.attrs


def test_nobody_takes_it() -> None:
    func = kernel()
    tvm.ir.assert_structural_equal(apply_rules(func, TARGET, [Declines()]), func)


def test_fault_is_noted_and_the_next_rule_asked() -> None:
    taken = apply_rules(kernel(), TARGET, [Fails(), Takes()])
    assert taken.attrs[RULE_ATTRIBUTE] == "takes"
    assert taken.attrs[FAULT_ATTRIBUTE] == "fails: RuntimeError: no such block"


def test_failing_on_no_elements_is_no_fault() -> None:
    func = kernel(size=0)
    tvm.ir.assert_structural_equal(apply_rules(func, TARGET, [Fails(), Declines()]), func)


def test_a_kernel_that_the_target_cannot_run_goes_to_the_next_rule() -> None:
    asked = []

    def refuses(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> str:
        asked.append(target)
        return "has too many threads" if len(asked) == 1 else ""

    second = Takes()
    second.name = "second"
    taken = apply_rules(kernel(), TARGET, [Takes(), second], refuses)
    assert taken.attrs[RULE_ATTRIBUTE] == "second"
    assert taken.attrs[FAULT_ATTRIBUTE] == "takes: its kernel has too many threads"
    taken = apply_rules(kernel(), TARGET, [Takes()], lambda *_: "is too large")
    assert "tirx.is_scheduled" not in taken.attrs


def test_pass_keeps_names_and_scheduled_kernels() -> None:
    func = kernel().with_attr("global_symbol", "plus").with_attr("tirx.is_scheduled", True)
    mod = tvm.IRModule({"plus": func, "other": kernel().with_attr("global_symbol", "other")})
    with TARGET:
        after = apply_schedule_rules([Takes()])(mod)
    assert RULE_ATTRIBUTE not in after["plus"].attrs
    assert after["other"].attrs["global_symbol"] == "other"
    library = tvm.compile(after, TARGET)
    out = tvm.runtime.tensor(np.zeros(8, "float32"))
    library["other"](tvm.runtime.tensor(np.arange(8, dtype="float32")), out)
    np.testing.assert_array_equal(out.numpy(), np.arange(8) + 1)


def test_a_kernel_is_not_tuned_by_a_later_rule_than_the_one_that_schedules_it() -> None:
    rules = [HasNoChoices(), HasChoices()]
    assert apply_rules(kernel(), TARGET, rules).attrs[RULE_ATTRIBUTE] == "has_no_choices"
    assert tunable_schedule(kernel(), TARGET, rules) is None
    assert tunable_schedule(kernel(), TARGET, rules[::-1]) is not None
