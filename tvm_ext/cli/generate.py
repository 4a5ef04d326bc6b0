"""``tvm-ext generate``: tokens from a compiled decoder, one by one as they come."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tvm_ext.cli.common import json_flag, print_json


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompt-ids", required=True, metavar="ID,ID,...", help="Token ids of the prompt, comma-separated.")
@click.option("--count", type=click.IntRange(min=0), default=32, show_default=True, help="Tokens to generate.")
@click.option("--stop-ids", metavar="ID,ID,...", help="Token ids that end a text; the first of them is the last token.")
@json_flag
def command(artifact: Path, prompt_ids: str, count: int, stop_ids: str | None, as_json: bool) -> None:
    """Generate tokens greedily with ARTIFACT, a folder that `tvm-ext compile` made of a checkpoint."""
    from tvm_ext.generation.generator import Generator

    prompt = token_ids(prompt_ids)
    stops = token_ids(stop_ids, "stop ids") if stop_ids is not None else []
    generator = Generator.load(artifact)
    start = time.perf_counter()
    tokens, first = [], 0.0
    for token in generator.generate(prompt, count, stops):
        first = first or time.perf_counter() - start
        tokens.append(token)
        if not as_json:
            click.echo(token if len(tokens) == 1 else f" {token}", nl=False)
    seconds = time.perf_counter() - start
    if not as_json and tokens:
        click.echo()
    if as_json:
        print_json({"tokens": tokens, "first_token_seconds": first, "seconds": seconds})
    elif len(tokens) > 1:
        rate = (len(tokens) - 1) / max(seconds - first, 1e-9)
        click.echo(f"{len(prompt)} tokens in {first * 1e3:.1f} ms, then {rate:.1f} tokens a second", err=True)


def token_ids(text: str, what: str = "prompt ids") -> list[int]:
    """Read token ids from the command line.

    Raises
    ------
    InputError
        If one is no whole number.
    """
    from tvm_ext.errors import InputError

    ids = []
    for part in text.split(","):
        try:
            ids.append(int(part))
        except ValueError:
            raise InputError(
                f"{what}: {part.strip()!r:.40} is no whole number; give ids such as 464,3290,318"
            ) from None
    return ids
