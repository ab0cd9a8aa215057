"""What vLLM makes of the parameters of a request, alone and beside a draft."""

from __future__ import annotations

from enum import StrEnum

from specflow.engines.base import Out


class How(StrEnum):
    """What becomes of a parameter where there is a draft."""

    APPLIED = "applied"
    REJECTED = "rejected"  # the request is answered with HTTP 400


# Evidence: SamplingParams._validate_spec_decode refuses min_p and logit_bias from 0.20 to
# 0.33; RejectionSampler applies penalties and banned words to every drafted position, counting the
# drafted tokens before it; the only other processor that is built is that of min_tokens.
BESIDE_A_DRAFT: dict[str, How] = {
    "temperature": How.APPLIED,
    "top_k": How.APPLIED,
    "top_p": How.APPLIED,
    "min_p": How.REJECTED,
    "logit_bias": How.REJECTED,
    "seed": How.APPLIED,
    "repetition_penalty": How.APPLIED,
    "presence_penalty": How.APPLIED,
    "frequency_penalty": How.APPLIED,
    "bad_words": How.APPLIED,
    "min_tokens": How.APPLIED,
    "max_tokens": How.APPLIED,
    "stop": How.APPLIED,
    "ignore_eos": How.APPLIED,
}
NAMES = {"max_new_tokens": "max_tokens"}


def to_requests(out: Out, *, speculative: bool) -> None:
    """What was written of sampling, as a request says it."""
    rejected = [name for name, how in BESIDE_A_DRAFT.items() if how is How.REJECTED]
    asked = [name for name in rejected if out.wrote(f"sampling.{name}") and out[f"sampling.{name}"]]
    left_out = asked if speculative else []
    for name in left_out:
        text = f"vLLM answers 400 to a request with {name} beside a draft; it is left out"
        out.lose(f"sampling.{name}", text)
    if out.wrote("sampling.seed"):
        text = "vLLM's draws differ from specflow's, and with a draft from its own without one"
        out.bend("sampling.seed", text)
    out.ask("vLLM", NAMES, left_out)
