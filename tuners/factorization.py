"""Ordered factorisations: the choices of a knob that divides a loop."""

from __future__ import annotations

from functools import cache


@cache
def prime_exponents(extent: int) -> tuple[tuple[int, int], ...]:
    """Give the primes of a positive number with their exponents, smallest first."""
    found, rest, prime = [], extent, 2
    while prime * prime <= rest:
        exponent = 0
        while rest % prime == 0:
            rest //= prime
            exponent += 1
        if exponent:
            found.append((prime, exponent))
        prime += 1
    if rest > 1:
        found.append((rest, 1))
    return tuple(found)


@cache
def divisors(extent: int) -> tuple[int, ...]:
    """List the divisors of a positive number in ascending order."""
    found = [1]
    for prime, exponent in prime_exponents(extent):
        found = [divisor * prime**power for divisor in found for power in range(exponent + 1)]
    return tuple(sorted(found))


@cache
def factorizations(extent: int, parts: int, largest_last: int | None = None) -> tuple[tuple[int, ...], ...]:
    """List the ordered factorisations, in the order of their last factors, so that neighbours are similar.

    Parameters
    ----------
    extent, parts : int
        Product and number of the factors, both at least 1.
    largest_last : int, optional
        Bound of the last factor.
    """
    if parts == 1:
        return ((extent,),) if largest_last is None or extent <= largest_last else ()
    return tuple(
        (*rest, last)
        for last in divisors(extent)
        if largest_last is None or last <= largest_last
        for rest in factorizations(extent // last, parts - 1)
    )
