"""What a model is whose weights are made up: a config, wherever one is to be had.

A folder needs a config.json and no weights; a name of the Hub one in the Hub's local cache, or a
record that a whole config can be made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specflow import published
from specflow.facts import BUILTIN, ModelFacts, read_folder
from specflow.headers import Problem

FORMAT = "dummy"  # the word of `run.load_format`
QUANTIZED = ("quantization_config", "compression_config")
BESIDE = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
AS_FOLDER = "write its config.json into a folder, and name the folder"
Look = Callable[[str], ModelFacts]


def reader(otherwise: Look, asked: tuple[str, ...] = ()) -> Look:
    """A reader of models whose weights are made up.

    asked  the formats of drafts that the recipe's algorithm runs, where a config alone is unsure
    """

    def look(model: str) -> ModelFacts:
        found = otherwise(model)
        if found.missing or found.elsewhere:
            found = _cached(found)
        return made_up(found, asked)

    return look


def made_up(found: ModelFacts, asked: tuple[str, ...] = ()) -> ModelFacts:
    """The same model without its weights; a problem where no config says what they would be."""
    if found.tokens is not None:
        return _refused(found, "is a GGUF file, whose weights are quantized", AS_FOLDER)
    if found.recorded:
        return _recorded(found, asked)
    if not found.config:
        return found
    if found.config.get("model_type") is None and "architectures" not in found.config:
        return _refused(found, "has a config.json that names no architecture", AS_FOLDER)
    how = _quantized(found)
    if how:
        offer = f"take `{how}` out of its config.json, or run it on an engine"
        return _refused(found, "is quantized, and dummy weights are plain floats", offer)
    # What was wrong with weights does not matter; what else is wrong leaves no config.
    return replace(found, problem=None, no_float=None, dummy=True, asked=asked)


def _refused(found: ModelFacts, why: str, offer: str) -> ModelFacts:
    said = f"`{found.model}` {why}: `run.load_format: dummy` does not make it"
    return ModelFacts(found.model, problem=Problem("unreadable", said, offer))


def _recorded(found: ModelFacts, asked: tuple[str, ...]) -> ModelFacts:
    config = published.config(published.record(found.model) or {})
    if config is None:
        here = _cached(found)
        if here is not found:
            return made_up(here, asked)
        offer = f"`hf download {found.model} config.json --local-dir FOLDER` and name the folder"
        return _refused(found, "has no whole config among the records", offer)
    return replace(found, config=config, dummy=True, asked=asked)


def _cached(found: ModelFacts) -> ModelFacts:
    """The model by the Hub's local cache, where that has its config."""
    if found.model.startswith(BUILTIN) or not published.is_hub_name(found.model):
        return found
    from specflow.hub import cached  # its client takes longer to import than all of this

    folder = cached(found.model)
    return found if folder is None else read_folder(folder, found.model)


def _quantized(found: ModelFacts) -> str:
    """What says that a model's weights are stored in fewer bits; empty where nothing does."""
    said = (key for config in (found.config, found.text) for key in QUANTIZED if config.get(key))
    folder: Path | None = found.folder
    files = (name for name in BESIDE if folder is not None and (folder / name).is_file())
    return next(said, "") or next(files, "")
