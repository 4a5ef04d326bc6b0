"""Small networks of dense layers, evaluated with NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Network:
    """Dense layers with rectifiers between them, on normalised inputs.

    Attributes
    ----------
    mean, scale : array
        Of the inputs.
    weights : tuple of array
        Of each layer, inputs x outputs.
    biases : tuple of array
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Give the outputs (n x outputs, float32) of inputs (n x inputs)."""
        values = ((inputs - self.mean) / self.scale).astype(np.float32)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weight + bias
            if number + 1 < len(self.weights):
                values = np.maximum(values, 0.0)
        return values

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Give what the network is made of, by names for a file."""
        found = {f"{name}/mean": self.mean, f"{name}/scale": self.scale}
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found[f"{name}/weight{number}"], found[f"{name}/bias{number}"] = weight, bias
        return found

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], name: str) -> Network:
        """Make the network that :meth:`arrays` described.

        Raises
        ------
        ValueError
            If layers do not fit each other, or a number is not finite.
        KeyError
            If a part is missing.
        """
        count = sum(key.startswith(f"{name}/weight") for key in arrays)
        weights = tuple(arrays[f"{name}/weight{number}"] for number in range(count))
        biases = tuple(arrays[f"{name}/bias{number}"] for number in range(count))
        made = cls(arrays[f"{name}/mean"], arrays[f"{name}/scale"], weights, biases)
        width = len(made.mean)
        for weight, bias in zip(weights, biases, strict=True):
            if weight.shape != (width, len(bias)):
                raise ValueError(f"network {name}: a layer of {list(weight.shape)} after one of {width} outputs")
            width = len(bias)
        if not count or made.scale.shape != made.mean.shape or not (made.scale > 0).all():
            raise ValueError(f"network {name} has no layers, or inputs without a scale")
        if not all(np.isfinite(part).all() for part in (*weights, *biases, made.mean, made.scale)):
            raise ValueError(f"network {name} has numbers that are not finite")
        return made
