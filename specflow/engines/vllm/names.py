"""Words of a recipe and of vLLM side by side."""

from __future__ import annotations

# Our draft to vLLM's method; an EAGLE draft on an MTP layer is `mtp` (see `method_of`).
METHODS = {
    "NGRAM": "ngram",
    "STANDALONE": "draft_model",
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "FROZEN_KV_MTP": "mtp",
    "MULTI_LAYER_EAGLE": "mtp",
    "DFLASH": "dflash",
    "DSPARK": "dspark",
}
# Back: `MTP` is told apart by the draft network, when the recipe is resolved.
DRAFTS = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "MTP",
    "dflash": "DFLASH",
    "dspark": "DSPARK",
}
# A method that runs another one's draft elsewhere: a recipe may ask for it under `engine.vllm`.
REFINES = {"ngram_gpu": "ngram"}
# Drafts whose number of guesses is their number of steps.
SERIAL = ("STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE")
RUN = {
    "run.batch_size": "max_num_seqs",
    "run.max_length": "max_model_len",
    "run.prefill_chunk": "max_num_batched_tokens",
    "run.dtype": "dtype",
    "run.load_format": "load_format",
}


def method_of(draft: str, network: str) -> str:
    """The method of vLLM for a draft, whose network has a format of `formats.FORMATS`."""
    if draft == "EAGLE" and network.startswith("mtp"):
        return "mtp"
    return METHODS[draft]
