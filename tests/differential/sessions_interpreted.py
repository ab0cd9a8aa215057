"""Whole sessions of the small trained models, their attention by a backend of one's choice.

Under TRITON_INTERPRET=1 it decodes each recipe twice, by masks and by the Triton kernel, and says
what both have said.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch

from specflow.execute import Run, decode, draws_of, make_session
from specflow.load import load
from specflow.models.attention import SDPA, Backend
from specflow.models.lm import LanguageModel
from specflow.models.loading import open_model
from specflow.models.tokenizer import Tokenizer
from specflow.prompts import read
from specflow.resolve import resolve
from specflow.session import Request, Session
from tests.conftest import ROOT


class Silent:
    """A run that nobody watches."""

    def say(self, _text: str) -> None:
        """Nothing."""

    def progress(self, _done: int, _of: int, _session: Session, _seconds: float) -> None:
        """Nothing."""


def run_with(backend: Backend, name: str, prompts: int, new: int) -> Run:
    """What a small recipe says to the first prompts, two at a time."""
    torch.set_num_threads(1)
    overrides = ["run.batch_size=2", "run.prefill_chunk=32", "sampling.ignore_eos=true"]
    recipe = resolve(load(ROOT / f"recipes/pico/{name}.yaml", overrides))
    folder = open_model(recipe.target.model)
    tokenizer = Tokenizer(folder)
    target = LanguageModel.load(folder, device="cpu", dtype="float32", backend=backend)
    asked = [
        Request(p.id, tokenizer.encode(p.text)[-40:], new, draws_of(p, recipe))
        for p in read(ROOT / "recipes/pico/prompts/code.jsonl", prompts).items
    ]
    done = decode(make_session(recipe, target, tokenizer), asked, Silent(), None)
    assert not done.stopped, done.stopped
    return done


def main() -> None:
    """Each recipe's tokens, accept lengths and number of launches."""
    from specflow.kernels import attention_triton
    from specflow.models.backends import Triton
    from tests.hastened import hasten

    hasten()

    found = {}
    for name in sys.argv[1:]:
        launches = []

        def attend(*arguments: object) -> torch.Tensor:
            launches.append(1)  # noqa: B023 - called within the turn
            return attention_triton.attend_new(*arguments)

        told = [
            run_with(each, name, 2, 12).completions
            for each in (SDPA, replace(Triton.open(), kernel=attend))
        ]
        spoken = [{c.request.id: (c.tokens, c.accept_lens) for c in each} for each in told]
        found[name] = {"by_mask": spoken[0], "by_kernel": spoken[1], "launches": len(launches)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
