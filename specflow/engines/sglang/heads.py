"""P21: heads of attention are divided among ranks when a model is built."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.engines.heads import uncopied, undivided
from specflow.engines.outcome import START, Remark, Run
from specflow.engines.sglang.model import Config
from specflow.engines.sglang.names import DRAFT, NAME
from specflow.engines.sglang.start import Given

NO_NETWORK = (None, "NONE", "NGRAM")


def heads(run: Run, given: Given) -> Iterator[Remark]:
    """Of the target, and of a draft that is another model; on a CPU heads are padded."""
    ranks = run["tp_size"] // max(run["attn_dp_size"] * run["attn_cp_size"], 1)
    if run["device"] == "cpu" or ranks < 2:
        return
    yield from _of("target", given.target, ranks, run["tp_size"])
    if run[NAME] not in NO_NETWORK and run[DRAFT] not in (None, run["model_path"]):
        yield from _of("draft", given.draft, ranks, run["tp_size"])


def _of(whose: str, config: Config, ranks: int, asked: int) -> Iterator[Remark]:
    own, keys = config.count("num_attention_heads"), config.count("num_key_value_heads")
    said = undivided(whose, own, ranks) or ("" if config.mla else uncopied(whose, keys, ranks))
    if said:
        yield "P21", START, f"{said} (--tp-size {asked})"
