"""vLLM's offline engine: `vllm.LLM`, its requests and its counters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from specflow.report import Tally
from specflow.serving.base import Answer, settings
from specflow.session import Request

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFTED = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class Vllm:
    """vLLM (`entrypoints/llm.py`, `v1/metrics/reader.py`)."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._package = import_module("vllm")
        # Its counters are kept only where its log of statistics is.
        self._llm: Any = self._package.LLM(**{"disable_log_stats": False, **args})
        self._speculates = "speculative_config" in args

    def generate(
        self, requests: Sequence[Request], stop: Sequence[str], *, ignore_eos: bool
    ) -> list[Answer]:
        """One call for all; the engine batches them."""
        params = [
            self._package.SamplingParams(**_settings(r, stop, ignore_eos=ignore_eos))
            for r in requests
        ]
        prompts = [{"prompt_token_ids": list(r.tokens)} for r in requests]
        said = self._llm.generate(prompts, params)
        return [
            Answer(list(each.token_ids), each.text, each.finish_reason or "")
            for each in (request.outputs[0] for request in said)
        ]

    def tally(self) -> Tally | None:
        """The counters of the whole run."""
        if not self._speculates:
            return Tally(0, 0, 0, None)
        verifies, drafted, accepted = (self._count(n) for n in (DRAFTS, DRAFTED, ACCEPTED))
        places = [m.values for m in self._llm.get_metrics() if m.name == BY_POSITION]
        if not places:
            return Tally(verifies, drafted, accepted, None)
        held = [verifies, *(sum(map(int, each)) for each in zip(*places, strict=True)), 0]
        histogram = tuple(a - b for a, b in itertools.pairwise(held))
        return Tally(verifies, drafted, accepted, histogram)

    def _count(self, name: str) -> int:
        """A counter over all of its labels: each part of a data-parallel engine has its own."""
        return sum(int(m.value) for m in self._llm.get_metrics() if m.name == name)

    @property
    def conversions(self) -> tuple[str, ...]:
        """What its counters do not say exactly."""
        if not self._speculates:
            return ()
        return (
            "verifies: vLLM counts the steps in which something was drafted",
            "per_prompt: vLLM counts all requests at once",
        )

    def close(self) -> None:
        """Give its memory back: it has no call for that, and goes with its last name."""
        core = getattr(getattr(self._llm, "llm_engine", None), "engine_core", None)
        shutdown = getattr(core, "shutdown", None)
        if shutdown is not None:
            shutdown()
        self._llm = None


def _settings(request: Request, stop: Sequence[str], *, ignore_eos: bool) -> dict[str, Any]:
    """The sampling parameters of a request."""
    seed = {"seed": request.draws.seed} if request.draws.temperature else {}
    most = {"max_tokens": request.max_new_tokens}
    return settings(request, stop, ignore_eos=ignore_eos) | most | seed
