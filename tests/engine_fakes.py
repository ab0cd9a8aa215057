"""Stand-ins for packages of engines: they answer as a script says, and hold calls to signatures.

The names of parameters, settings and counters are those of SGLang 0.5.23 (entrypoints/engine.py,
sampling/sampling_params.py, managers/tokenizer_manager.py) and of vLLM (entrypoints/llm.py,
sampling_params.py, v1/metrics), read in their sources and kept in tests/parity/serving.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

SIGNATURES = json.loads((Path(__file__).parent / "parity" / "serving.json").read_text())
# How many guesses of each step held, by the number of the request.
Script = Callable[[int], Sequence[int]]


@dataclass
class Log:
    """What a stand-in was asked."""

    started: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0


def tokens_of(prompt: Sequence[int], limit: int) -> list[int]:
    """What any of them says to a prompt: the same with and without a draft."""
    return [(sum(prompt) + i) % 500 for i in range(limit)]


def known(kind: str, given: Any) -> None:
    """TypeError, as the package itself, for what its signature has not."""
    strange = set(given) - set(SIGNATURES[kind])
    if strange:
        raise TypeError(f"unexpected keyword {sorted(strange)}")


def sglang(script: Script, log: Log, *, histogram: bool = True, twist: int = 0) -> ModuleType:
    """A package `sglang`; `twist` is added to the last token of what is said with a draft."""

    class Engine:
        def __init__(self, **kwargs: Any) -> None:
            log.started.append(kwargs)
            self.width = kwargs.get("speculative_num_draft_tokens", 0)

        def generate(self, **kwargs: Any) -> list[dict[str, Any]]:
            known("sglang.Engine.generate", kwargs)
            log.asked.append(kwargs)
            pairs = zip(kwargs["input_ids"], kwargs["sampling_params"], strict=True)
            return [self._one(i, ids, params) for i, (ids, params) in enumerate(pairs)]

        def _one(self, i: int, ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
            known("sglang.SamplingParams", params)
            said = tokens_of(ids, params["max_new_tokens"])
            meta: dict[str, Any] = {
                "finish_reason": {"type": "length"},
                "completion_tokens": len(said),
                "prompt_tokens": len(ids),
            }
            if self.width:
                said[-1] += twist
                held = list(script(i))
                meta |= {
                    "spec_verify_ct": len(held),
                    "spec_num_proposed_drafts": len(held) * (self.width - 1),
                    "spec_num_correct_drafts": sum(held),
                }
                if histogram:
                    counts = [held.count(n) for n in range(max(held) + 1)]
                    meta["spec_correct_drafts_histogram"] = counts
                else:
                    del meta["spec_num_correct_drafts"]
            known("sglang.meta_info", meta)
            return {"text": f"text {i}", "output_ids": said, "meta_info": meta}

        def shutdown(self) -> None:
            log.closed += 1

    made = ModuleType("sglang")
    made.Engine = Engine  # type: ignore[attr-defined]
    return made


def vllm(script: Script, log: Log) -> ModuleType:
    """A package `vllm`."""

    class SamplingParams(SimpleNamespace):
        def __init__(self, **kwargs: Any) -> None:
            known("vllm.SamplingParams", kwargs)
            super().__init__(**kwargs)

    class LLM:
        def __init__(self, **kwargs: Any) -> None:
            log.started.append(kwargs)
            spec = kwargs.get("speculative_config")
            self.guesses = spec["num_speculative_tokens"] if spec else 0
            self.held: list[int] = []

        def generate(self, prompts: Any, params: Any) -> list[Any]:
            log.asked.append({"prompts": prompts, "params": params})
            out = []
            for i, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
                if self.guesses:
                    self.held += script(i)
                said = tokens_of(prompt["prompt_token_ids"], each.max_tokens)
                one = SimpleNamespace(token_ids=said, text=f"text {i}", finish_reason="length")
                out.append(SimpleNamespace(outputs=[one]))
            return out

        def get_metrics(self) -> list[Any]:
            counters = {
                "vllm:spec_decode_num_drafts": len(self.held),
                "vllm:spec_decode_num_draft_tokens": len(self.held) * self.guesses,
                "vllm:spec_decode_num_accepted_tokens": sum(self.held),
            }
            known("vllm.metrics", counters)
            places = [sum(n > i for n in self.held) for i in range(self.guesses)]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            return [
                *(SimpleNamespace(name=n, value=v) for n, v in counters.items()),
                SimpleNamespace(name=name, values=places),
            ]

    made = ModuleType("vllm")
    made.LLM, made.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    return made
