"""Small fully connected networks and their training, in NumPy: a framework would only wait for itself here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Layers:
    """Linear layers by name, whose weights and biases are views of one array.

    Attributes
    ----------
    flat : array
        All numbers, float32.
    weights, biases : dict
        For each layer, outputs × inputs and outputs × 1.
    """

    flat: np.ndarray
    weights: dict[str, np.ndarray]
    biases: dict[str, np.ndarray]

    @classmethod
    def random(cls, shapes: Iterable[tuple[str, int, int, float]], rng: np.random.Generator) -> Layers:
        """Make layers (name, inputs, outputs, gain): weights normal, scaled by gain / √inputs, biases zero."""
        rows = list(shapes)
        layers = cls._views(
            {name: (outputs, inputs) for name, inputs, outputs, _ in rows},
            np.zeros(sum((inputs + 1) * outputs for _, inputs, outputs, _ in rows), dtype=np.float32),
        )
        for name, inputs, outputs, gain in rows:
            layers.weights[name][:] = gain / inputs**0.5 * rng.standard_normal((outputs, inputs))
        return layers

    def like(self) -> Layers:
        """Make layers of the same shapes that are not filled in."""
        return self._views({name: weights.shape for name, weights in self.weights.items()}, np.empty_like(self.flat))

    @classmethod
    def _views(cls, shapes: dict[str, tuple[int, ...]], flat: np.ndarray) -> Layers:
        weights, biases, at = {}, {}, 0
        for name, (outputs, inputs) in shapes.items():
            weights[name] = flat[at : at + outputs * inputs].reshape(outputs, inputs)
            at += outputs * inputs
            biases[name] = flat[at : at + outputs].reshape(outputs, 1)
            at += outputs
        return cls(flat, weights, biases)

    def apply(self, name: str, inputs: np.ndarray) -> np.ndarray:
        """Give the outputs (outputs × n) of one layer for inputs (inputs × n)."""
        outputs = self.weights[name] @ inputs
        outputs += self.biases[name]
        return outputs

    def backward(self, name: str, layers: Layers, inputs: np.ndarray, by_outputs: np.ndarray) -> np.ndarray:
        """Fill in the gradient of one of ``layers`` here.

        Parameters
        ----------
        inputs, by_outputs : array
            What the layer was applied to (inputs × n), and the gradient by what it gave (outputs × n).

        Returns
        -------
        array
            The gradient by the inputs (inputs × n).
        """
        np.matmul(by_outputs, inputs.T, out=self.weights[name])
        by_outputs.sum(axis=1, keepdims=True, out=self.biases[name])
        return layers.weights[name].T @ by_outputs


class Adam:
    """Stochastic gradient descent with moments.

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
    """

    DECAY = (0.9, 0.999)
    EPSILON = 1e-5

    def __init__(self, size: int, rate: float) -> None:
        self.rate, self.steps = rate, 0
        self._mean, self._square = np.zeros((2, size), dtype=np.float32)

    def step(self, numbers: np.ndarray, gradient: np.ndarray) -> None:
        """Change numbers against their gradient."""
        self.steps += 1
        self._mean += (1 - self.DECAY[0]) * (gradient - self._mean)
        self._square += (1 - self.DECAY[1]) * (gradient * gradient - self._square)
        mean = self._mean / (1 - self.DECAY[0] ** self.steps)
        square = self._square / (1 - self.DECAY[1] ** self.steps)
        numbers -= self.rate * mean / (np.sqrt(square) + self.EPSILON)

    def dump(self) -> dict[str, Any]:
        """Give moments and number of steps as JSON values."""
        return {"steps": self.steps, "mean": self._mean.tolist(), "square": self._square.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`dump` gave."""
        self.steps = state["steps"]
        self._mean[:], self._square[:] = state["mean"], state["square"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithm of the softmax along the first axis."""
    shifted = logits - logits.max(axis=0)
    shifted -= np.log(np.exp(shifted).sum(axis=0))
    return shifted
