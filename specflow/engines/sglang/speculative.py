"""Step 8: the algorithm gets its canonical name, and its own rules fill in and overrule numbers."""

from __future__ import annotations

from collections.abc import Callable

from specflow.diagnostics import closest
from specflow.engines.outcome import Kind, Run
from specflow.engines.sglang.adaptive import adaptive
from specflow.engines.sglang.blocks import dflash, dspark
from specflow.engines.sglang.eagle import eagle, frozen_kv
from specflow.engines.sglang.env import COORDINATION, ragged_mode
from specflow.engines.sglang.names import DRAFT, REJECTION
from specflow.engines.sglang.ngram import ngram
from specflow.engines.sglang.start import Given
from specflow.engines.sglang.tables import (
    ALGORITHMS,
    EAGLES,
    HEADS,
    RESERVED,
)
from specflow.engines.sglang.uno import uno


def speculate(run: Run, given: Given) -> None:
    """Everything of step 8, in SGLang's order."""
    _revision(run)
    _draft_runner(run)
    _name(run, given)
    _decode_radix(run)
    _block_verification(run)
    _window(run)
    _known(run)
    _coordination(run, given)
    if run["speculative_adaptive"]:
        adaptive(run)
    elif run["speculative_adaptive_config"] is not None:
        run.note("V4", Kind.WARNS, "--speculative-adaptive-config without --speculative-adaptive")
    name = run["speculative_algorithm"]
    if name is None:
        return
    ragged_mode(run, given.env)
    handler = _HANDLERS.get(name)
    if handler is not None:
        handler(run, given)


def _revision(run: Run) -> None:
    if run[DRAFT] is not None and run["speculative_draft_model_revision"] is None:
        run.set("speculative_draft_model_revision", "main", "3.7", "a path without a revision")


def _draft_runner(run: Run) -> None:
    """3.9: the draft's MoE runner is the target's, but for two that only fit a target."""
    if run["speculative_moe_runner_backend"] is not None:
        return
    runner = run["moe_runner_backend"]
    if runner == "flashinfer_megamoe":
        runner = "flashinfer_trtllm"
    elif runner.startswith("lora_"):
        runner = "auto"
    run.set("speculative_moe_runner_backend", runner, "3.9", "what the target runs on")


def _name(run: Run, given: Given) -> None:
    """N2, N6, N7: one of the canonical names."""
    written = run["speculative_algorithm"]
    if written is None:
        return
    name = written.upper()
    assistant = run[DRAFT] is not None and given.draft.assistant
    if assistant and name == "EAGLE3":
        run.refuse("N7", "a Gemma 4 assistant drafts as NEXTN or EAGLE, not as EAGLE3")
    if assistant and name in ("NEXTN", "EAGLE"):
        because = "a Gemma 4 assistant reads the target's KV"
        run.set("speculative_algorithm", "FROZEN_KV_MTP", "N6", because)
    elif name == "NEXTN":
        run.set("speculative_algorithm", "EAGLE", "N2", "NEXTN is a name of EAGLE")
    else:
        run.set("speculative_algorithm", name, "N1", "names are upper-case")


def _decode_radix(run: Run) -> None:
    name = run["speculative_algorithm"]
    if (
        run["disaggregation_mode"] == "decode"
        and run["disaggregation_decode_enable_radix_cache"]
        and name not in (None, "DSPARK", *EAGLES)
    ):
        run.refuse("P7", f"a decode server's radix cache does not go with {name}")


def _block_verification(run: Run) -> None:
    """S9 to S11."""
    if not run["speculative_use_block_verification"]:
        return
    name = run["speculative_algorithm"]
    if name not in (*EAGLES, "DFLASH", "DSPARK"):
        run.refuse("S9", f"block verification does not go with {name or 'no draft'}")
    if run["device"] != "cuda":
        run.refuse("S10", f"block verification runs on CUDA and ROCm, not on {run['device']}")
    if name in EAGLES:
        run.set(REJECTION, True, "S11", "block verification needs drafts with a law")


def _window(run: Run) -> None:
    """O20, O21: window and sink of a draft's attention."""
    window, sink = run["speculative_draft_window_size"], run["speculative_draft_sink_size"]
    name = run["speculative_algorithm"]
    if window is not None:
        if window <= 0:
            run.refuse("O21", f"--speculative-draft-window-size is {window}, not positive")
        if name not in (*EAGLES, "DFLASH"):
            rule = "K25" if name == "DSPARK" else "O20"
            said = f"--speculative-draft-window-size does nothing for {name or 'no draft'}"
            run.note(rule, Kind.WARNS, said)
    if sink is not None:
        if sink < 0:
            run.refuse("O21", f"--speculative-draft-sink-size is {sink}, below 0")
        if window is None:
            run.refuse("O21", "--speculative-draft-sink-size needs a window")


def _known(run: Run) -> None:
    """N1, N3: a name of the table."""
    name = run["speculative_algorithm"]
    if name is None:
        return
    if name == "NONE":
        run.note(
            "N3",
            Kind.UNCHECKED,
            "the text NONE is kept as a name, so parts of the server think that it speculates; "
            "leave the flag out",
        )
    if name in RESERVED:
        return
    if name in HEADS:
        run.refuse("N1", f"{name} is a head of a {HEADS[name]} checkpoint, not an algorithm")
    near = closest(name, (*ALGORITHMS, "NEXTN"))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    run.refuse("N1", f"SGLang has no speculative algorithm {name!r}{hint}")


def _coordination(run: Run, given: Given) -> None:
    if not given.env.on(COORDINATION):
        return
    name = run["speculative_algorithm"]
    if name not in (*EAGLES, "DSPARK") or run["enable_multi_layer_eagle"]:
        said = f"{COORDINATION} takes EAGLE or EAGLE3 of a single layer, or DSPARK"
        run.refuse("P6", f"{said}; here it is {name or 'no draft'}")


_HANDLERS: dict[str, Callable[[Run, Given], None]] = {
    "EAGLE": eagle,
    "EAGLE3": eagle,
    "STANDALONE": eagle,
    "FROZEN_KV_MTP": frozen_kv,
    "NGRAM": ngram,
    "DFLASH": dflash,
    "DSPARK": dspark,
    "UNO": uno,
}
