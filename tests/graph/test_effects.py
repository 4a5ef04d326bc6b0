from __future__ import annotations

from tvm_ext.graph.effects import EffectOrder


def test_nodes_without_effects_are_free():
    order = EffectOrder()
    assert order.add(["a"]) == ()
    assert order.add(["a", "b"]) == ()


def test_an_effect_stays_between_what_is_before_and_after():
    order = EffectOrder()
    order.add(["a"])
    order.add(["a"])
    assert order.add([], has_effect=True) == (0, 1)
    assert order.add(["b"]) == (2,)
    assert order.add([], has_effect=True) == (2, 3)
    assert order.add([]) == (4,)


def test_a_write_comes_after_the_readers_and_before_later_ones():
    order = EffectOrder()
    order.add(["a"])
    order.add(["b"])
    order.add(["a"])
    assert order.add(["a", "b"], writes=["a"]) == (0, 2)
    assert order.add(["a"]) == (3,)
    assert order.add(["b"]) == ()
    assert order.add(["a"], writes=["a"]) == (3, 4)
    assert order.add(["a"]) == (6,)


def test_a_symbol_is_defined_before_it_is_used():
    order = EffectOrder()
    order.add([], uses=["n"])
    assert order.add([], defines=["n"]) == ()
    assert order.add([], uses=["m"]) == ()
    assert order.add([], uses=["n"]) == (1,)
    assert order.add([], defines=["n"]) == ()
    assert order.add([], uses=["n"]) == (1,)
