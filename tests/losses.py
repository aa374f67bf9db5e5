"""Perplexity of llama-tiny, of which most reports of `quantize` and `compress` tell beside that of what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from meshrt.models import perplexity
from meshrt.models.catalogue import find_model
from meshrt.models.config import Config, read_config
from meshrt.models.perplexity import Loss
from meshrt.models.reference import NamedArrays, load_weights, project
from meshrt.studies import quantized


def losses_once() -> Callable[..., list[Loss]]:
    """`losses` as it is, but that those of llama-tiny's own weights are computed once for each text."""
    folder = find_model("llama-tiny")
    config, weights, real = read_config(folder), load_weights(folder, np.float32), perplexity.losses
    kept: dict[str, list[Loss]] = {}

    def losses(
        of: Config, w: NamedArrays, sequences: Sequence[Sequence[int]], *more: Any, **options: Any
    ) -> list[Loss]:
        plain = options.get("project", project) is project and more[:1] in ((), (np.float32,))
        alike = plain and of == config and w.keys() == weights.keys()
        if not alike or any(w[name].tobytes() != weights[name].tobytes() for name in weights):
            return real(of, w, sequences, *more, **options)
        text = repr([*map(list, sequences)])
        if text not in kept:
            kept[text] = real(of, w, sequences, *more, **options)
        return kept[text]

    return losses


@pytest.fixture(scope="module", autouse=True)
def before_is_computed_once() -> Iterator[None]:
    """For the commands; a test that computes losses itself has those of the product."""
    losses = losses_once()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perplexity, "losses", losses)
        patch.setattr(quantized, "losses", losses)
        yield
