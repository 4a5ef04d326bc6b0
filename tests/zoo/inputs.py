"""Seeded inputs in the range real ones have: pictures, lines of digits, speech-like sound, token ids."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
# Segments of the digits 0 to 9 on a seven-segment display, in the order top, upper left, upper right, middle,
# lower left, lower right, bottom.
_SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)


def picture(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A smooth random picture (or clip) of zero mean and unit deviation, float32.

    Noise of four grain sizes is added up, as natural pictures have structure at all scales; white noise alone
    averages out in the first pooling layer and makes all pictures look the same to a network.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness.
    shape : tuple of int
        (batch, channels, ..., height, width); sizes of the last two axes are rounded up inside, any size will
        do.
    """
    *leading, height, width = shape
    total = np.zeros(shape, np.float32)
    for grain in (1, 4, 16, 64):
        coarse = rng.standard_normal((*leading, -(-height // grain), -(-width // grain)), dtype=np.float32)
        total += coarse.repeat(grain, axis=-2).repeat(grain, axis=-1)[..., :height, :width] * np.float32(grain**0.25)
    return (total - total.mean()) / total.std()


def digits_line(rng: np.random.Generator, height: int, width: int, text: str | None = None) -> tuple[Array, str]:
    """Draw dark digits on light paper, as text recognisers take it; also give the digits drawn.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness.
    height, width : int
        Size of the picture in pixels.
    text : str or None
        The digits; None: as many random ones as fit.

    Returns
    -------
    tuple of (numpy.ndarray, str)
        float32 of shape (3, height, width) in [-1, 1], and the text.
    """
    step = height * 3 // 4
    text = text or "".join(str(rng.integers(10)) for _ in range(max(1, (width - step // 2) // step)))
    page = np.full((height, width), 0.9, np.float32)
    for position, digit in enumerate(text):
        left = step // 2 + position * step
        _draw_digit(page[height // 6 : height - height // 6, left : left + step * 2 // 3], int(digit))
    page += rng.normal(0.0, 0.02, page.shape).astype(np.float32)
    return np.repeat(np.clip(page, -1.0, 1.0)[None], 3, axis=0), text


def _draw_digit(box: Array, digit: int) -> None:
    """Draw a digit into a view of the page."""
    height, width = box.shape
    pen = max(1, height // 8)
    half, rest = (height - pen) // 2, width - pen
    top, upper_left, upper_right, middle, lower_left, lower_right, bottom = (on == "1" for on in _SEGMENTS[digit])
    for on, rows, columns in (
        (top, slice(0, pen), slice(0, width)),
        (middle, slice(half, half + pen), slice(0, width)),
        (bottom, slice(height - pen, height), slice(0, width)),
        (upper_left, slice(0, half + pen), slice(0, pen)),
        (upper_right, slice(0, half + pen), slice(rest, width)),
        (lower_left, slice(half, height), slice(0, pen)),
        (lower_right, slice(half, height), slice(rest, width)),
    ):
        if on:
            box[rows, columns] = -0.8


def page_of_digits(rng: np.random.Generator, height: int, width: int) -> Array:
    """A page with three lines of digits, float32 (3, height, width), standardised as text detectors take it."""
    page = np.full((3, height, width), 0.9, np.float32)
    line_height = max(8, height // 13)
    for line in range(3):
        strip, _ = digits_line(rng, line_height, width * 7 // 8)
        top, left = height * (2 * line + 1) // 6 - line_height // 2, width // 16
        page[:, top : top + line_height, left : left + strip.shape[2]] = strip
    mean = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
    deviation = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
    return (page / 2 + 0.5 - mean) / deviation


def speech(rng: np.random.Generator, samples: int, rate: int = 16000) -> Array:
    """Speech-like sound in [-1, 1], float32 (samples,): a gliding voice with harmonics, a rhythm, some noise."""
    time = np.arange(samples) / rate
    pitch = rng.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(1, 4) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(order * phase + rng.uniform(0, 2 * np.pi)) / order for order in range(1, 12))
    rhythm = 0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(3, 6) * time + rng.uniform(0, 2 * np.pi))
    sound = voice * rhythm + rng.normal(0, 0.05, samples)
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def tokens(rng: np.random.Generator, batch: int, length: int, vocabulary: int) -> Array:
    """Token ids, int64 (batch, length), drawn as words occur in text: a few often, most rarely (Zipf)."""
    ranks = np.minimum(rng.zipf(1.3, (batch, length)), vocabulary) - 1
    return ((ranks * 7919 + 1) % vocabulary).astype(np.int64)


def padding_mask(rng: np.random.Generator, batch: int, length: int) -> Array:
    """An attention mask, int64 (batch, length): ones for the sentence, zeros for the padding after it."""
    used = rng.integers(length // 2, length + 1, (batch, 1))
    return (np.arange(length)[None, :] < used).astype(np.int64)
