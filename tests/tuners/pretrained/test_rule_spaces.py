"""The cost model for the schedule rules' own spaces: how it is measured and trained, what ships, who uses it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tvm

from scripts import pretrain_rules, rule_spaces
from scripts.pretrain_loops import convolution, product
from scripts.pretrain_rules import RuleKernel, known_kernels, measured_kernels, targets
from tvm_ext.backends.registry import backend_of
from tvm_ext.errors import TuningError
from tvm_ext.target import resolve_target
from tvm_ext.tuners.metaschedule.numbers import numbers_of
from tvm_ext.tuners.pretrained.artefact import LOOP_NESTS, Pretrained, shipped
from tvm_ext.tuners.recipes import RECIPES, recipe
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuning import pretraining

SMALL = {"product_17_64_48": partial(product, 17, 64, 48), "convolution_8_16_9_1": partial(convolution, 8, 16, 9, 1)}
RECORDED = pretrain_rules.KEPT


def kernel_of(make, kind: str = "avx2") -> RuleKernel:
    found = RuleKernel.of(make, targets()[kind])
    assert found is not None
    return found


def test_it_is_measured_and_trained_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain_rules, "kernels", lambda: SMALL)
    monkeypatch.setattr(pretrain_rules, "PROCESSORS", {"sse4": "x86-64-v2"})
    monkeypatch.setattr(pretrain_rules, "MEASURED_ON", "x86-64-v2")
    monkeypatch.setattr(pretraining, "LEAST", 4)
    kept, output = tmp_path / "rules.jsonl", tmp_path / "trees.npz"
    pretrain_rules.measure(kept, 3, 0)
    pretrain_rules.measure(kept, 5, 1)
    rows = [json.loads(line) for line in kept.read_text("utf-8").splitlines()]
    spelt = [(row["kernel"], json.dumps(row["choices"])) for row in rows]
    assert len(set(spelt)) == len(spelt)  # nothing is measured twice, and never the rule's own choice
    assert all(row["ratio"] is None or 0.05 < row["ratio"] < 200 for row in rows)
    own = kernel_of(SMALL["product_17_64_48"], "sse4")
    assert json.dumps(own.choices(own.task.space.space.default)) not in [text for _, text in spelt]
    shipped().save(output)
    pretrain_rules.train(kept, output)
    made = Pretrained.load(output)
    assert LOOP_NESTS in made.trained  # what else the file held is kept
    trees = made.of(own.task.space.space)
    assert trees.processors == (own.task.space.space.processor,)
    same = own.task.space.space
    elsewhere = ConfigSpace(same.knobs, None, same.cost, same.family, same.context, (7.0, 8.0, 1.0))
    with pytest.raises(TuningError, match="no kernel of such a processor was seen in training"):
        made.of(elsewhere)


def test_choices_are_found_again_by_what_they_are() -> None:
    kernel = kernel_of(SMALL["product_17_64_48"])
    space = kernel.task.space.space
    for vector in map(tuple, space.random(np.random.default_rng(0), 20).tolist()):
        spelt = json.loads(json.dumps(kernel.choices(vector)))
        assert kernel.vector(spelt) == vector
    spelt = kernel.choices(space.default)
    assert kernel.vector(spelt[:-1]) is None
    assert kernel.vector([[5, 5, 5, 5], *spelt[1:]]) is None


def test_a_kernel_is_measured_in_turns_with_the_rules_choice() -> None:
    kernel = kernel_of(SMALL["product_17_64_48"], "sse4")
    default = kernel.task.space.space.default
    ratio = kernel.measure(default)
    assert ratio is not None
    assert 0.5 < ratio < 2.0
    assert kernel.known[default] == ratio


def test_numbers_tell_kernels_and_processors_apart() -> None:
    small, large = (kernel_of(partial(product, 17, depth, 48)).task.mod for depth in (64, 128))
    target = targets()["avx2"]
    (one, processor), (other, same) = numbers_of(small, target), numbers_of(large, target)
    assert other[0] - one[0] == pytest.approx(1.0, abs=0.01)  # twice the work
    assert other[1] > one[1]
    assert other[2] == one[2]
    assert processor == same == (3.0, 16.0, 1.0)
    assert numbers_of(small, targets()["sse4"])[1] == (2.0, 16.0, 0.0)
    assert numbers_of(small, tvm.target.Target({"kind": "cuda", "arch": "sm_80"})) == ((), ())


def test_cpus_are_tuned_with_it_by_default() -> None:
    """With what the rule expects: the first trials after its own choice are what it thinks best."""
    tuner = RECIPES[backend_of(resolve_target("native")).tuner]
    space = kernel_of(partial(product, 100, 192, 320)).task.space.space
    first = np.array(tuner.tuner(space, 0).suggest(1) + (going := tuner.tuner(space, 0)).suggest(1) + going.suggest(6))
    assert tuple(first[0]) == space.default
    random = space.random(np.random.default_rng(0), 200)
    assert space.cost is not None
    assert np.median(space.cost(first[2:])) < np.quantile(space.cost(random), 0.1)
    assert going.notes == []
    plain = ConfigSpace(space.knobs, space.default)  # a rule that expects nothing: from nothing, without a note
    assert tuner.tuner(plain, 0).notes == []
    assert len(tuner.tuner(plain, 0).suggest(16)) == 16


def test_spaces_that_were_not_trained_on_begin_with_what_the_rule_expects() -> None:
    space = kernel_of(partial(product, 100, 192, 320)).task.space.space
    (note,) = recipe("evolution_pretrained").tuner(space, 0).notes
    assert "no space of the schedule rule cpu.matmul with knobs" in note
    assert note.endswith("the tuner begins with what the schedule rule estimates")


def test_what_was_measured_is_found_in_the_spaces_of_today() -> None:
    rows = [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]
    made = measured_kernels()
    assert {(row["kernel"], row["target"]) for row in rows} <= set(made)
    key = ("product_17_256_256", "avx512")
    (kernel,) = known_kernels(rows, {key: made[key]}).values()
    recorded = [row for row in rows if (row["kernel"], row["target"]) == key]
    assert len(kernel.known) > 0.8 * len(recorded)
    assert recorded


def test_trials_are_counted() -> None:
    ratios = np.array([2.0, 1.0, 1.04, 3.0])
    assert rule_spaces.trials_in_order(ratios, np.array([4.0, 1.0, 2.0, 3.0])) == 3
    assert rule_spaces.trials_in_order(ratios, np.zeros(4)) == 2
    assert rule_spaces.expected_trials(ratios) == pytest.approx(5 / 3)
    assert rule_spaces.rank_correlation(ratios, -ratios) == -1.0
    assert rule_spaces.rank_correlation(ratios, np.ones(4)) == 0.0
