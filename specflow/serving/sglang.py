"""SGLang's offline engine: `sglang.Engine`, its requests and the counters of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from specflow.report import Tally
from specflow.serving.base import Answer, settings
from specflow.session import Request


class Sglang:
    """SGLang 0.5.23 (`entrypoints/engine.py`, `managers/tokenizer_manager.py`)."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._engine = import_module("sglang").Engine(**args)
        # Their rate of acceptance divides by this, whatever a step really drafted.
        self._width = int(args.get("speculative_num_draft_tokens") or 0)
        self._inexact: dict[str, None] = {}

    def generate(
        self, requests: Sequence[Request], stop: Sequence[str], *, ignore_eos: bool
    ) -> list[Answer]:
        """One call for all; the engine batches them."""
        said = self._engine.generate(
            input_ids=[list(r.tokens) for r in requests],
            sampling_params=[_settings(r, stop, ignore_eos=ignore_eos) for r in requests],
        )
        return [self._answer(each) for each in said]

    def _answer(self, said: Mapping[str, Any]) -> Answer:
        meta = said["meta_info"]
        reason = meta.get("finish_reason") or {}
        finish = reason.get("type", "") if isinstance(reason, Mapping) else str(reason)
        return Answer(list(said.get("output_ids") or ()), said["text"], finish, self._tally(meta))

    def _tally(self, meta: Mapping[str, Any]) -> Tally:
        """Steps of a request by how many guesses held, from its histogram where there is one."""
        verifies = int(meta.get("spec_verify_ct") or 0)
        drafted = int(meta.get("spec_num_proposed_drafts") or 0)
        counts = meta.get("spec_correct_drafts_histogram")
        if verifies:
            self._mark("drafted: SGLang takes the whole width for every step")
        if counts:
            histogram = tuple(int(n) for n in counts)
            accepted = sum(i * n for i, n in enumerate(histogram))
            return Tally(verifies, drafted, accepted, histogram)
        if "spec_num_correct_drafts" in meta:
            return Tally(verifies, drafted, int(meta["spec_num_correct_drafts"]), None)
        if verifies:
            self._mark(
                "accepted: completion tokens less one of the prefill, less one a verify; steps "
                "past the end of a completion are not told apart"
            )
        tokens = int(meta.get("completion_tokens") or 0)
        return Tally(verifies, drafted, max(0, tokens - 1 - verifies) if verifies else 0, None)

    def tally(self) -> Tally | None:
        """Every answer has its own."""
        return None

    def _mark(self, text: str) -> None:
        self._inexact[text] = None

    @property
    def conversions(self) -> tuple[str, ...]:
        """What its counters do not say exactly."""
        return tuple(self._inexact)

    def close(self) -> None:
        """Stop its processes."""
        self._engine.shutdown()


def _settings(request: Request, stop: Sequence[str], *, ignore_eos: bool) -> dict[str, Any]:
    """The sampling parameters of a request; its seed is in force with deterministic inference."""
    seed = {"sampling_seed": request.draws.seed % 2**31} if request.draws.temperature else {}
    most = {"max_new_tokens": request.max_new_tokens}
    return settings(request, stop, ignore_eos=ignore_eos) | most | seed
