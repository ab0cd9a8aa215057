"""SF020 to SF029, SF060 to SF069, SF075, SF079: what headers tell, before any weight loads."""

from __future__ import annotations

from collections.abc import Iterator

from specflow.constraints.drafts import holder, network
from specflow.provenance import Origin
from specflow.recipe import ResolvedRecipe
from specflow.rules import Finding, rule
from specflow.vocab_map import differing_ids

MODELS = ("target", "draft")


@rule("SF020", "vocabulary-mismatch")
def vocabulary_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A tokenizer has no token that its model lacks.

    ## Why
    A token id beyond the embedding has no row. A vocabulary padded beyond the tokenizer is common
    and harmless; the other way round the first such token ends the run.

    ## Example
    The tokenizer.json of `tiny-larger-words` has 25 tokens, its model a row for 20 of them.
    ```yaml
    target: {model: tiny-larger-words}
    draft: {algorithm: NGRAM}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: NGRAM}
    ```

    ## Fix
    Take tokenizer and weights from one checkpoint.
    """
    for block in MODELS:
        facts = r.facts[block]
        if block == "draft" and network(r).format:
            continue  # it guesses ids of the target, and its tokenizer is never read
        if facts.vocab_size and facts.tokenizer_size > facts.vocab_size:
            yield Finding(
                at=f"{block}.model",
                message=f"the tokenizer of `{facts.model}` knows {facts.tokenizer_size} tokens, "
                f"its model {facts.vocab_size}",
                label="tokenizer and model differ",
                help="take tokenizer.json and the weights from one checkpoint",
            )


@rule("SF024", "tokenizer-mismatch")
def tokenizer_mismatch(r: ResolvedRecipe) -> Iterator[Finding]:
    """A draft model speaks the target's tokens.

    ## Why
    A guess is a token id. Where the same id means another token to the draft, guesses are accepted
    by chance only: the run is correct and slower than plain decoding, and nothing says why. A draft
    without a tokenizer of its own, as most EAGLE checkpoints are, is taken to speak the target's.

    ## Example
    The tokenizer of `tiny-swapped` has another first token than the target's.
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: STANDALONE, model: tiny-swapped}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: STANDALONE, model: tiny-llama}
    ```

    ## Fix
    Name a draft of the target's family, with the same tokenizer.json.
    """
    target, draft = r.facts["target"], r.facts["draft"]
    if draft.model and not target.speaks_like(draft):
        count, examples = differing_ids(target.vocabulary, draft.vocabulary)
        yield Finding(
            at="draft.model",
            message=f"`{draft.model}` has another tokenizer than `{target.model}`: {count} "
            f"id{'s' if count != 1 else ''} differ{'s' if count == 1 else ''}",
            label=f"{draft.tokenizer_size} tokens",
            because={"target.model": f"{target.tokenizer_size} tokens"},
            notes=tuple(map(str, examples)),
            help="name a draft whose tokenizer.json maps the same tokens to the same ids",
        )


@rule("SF061", "missing-checkpoint")
def missing_checkpoint(r: ResolvedRecipe) -> Iterator[Finding]:
    """A model that is named exists.

    ## Why
    It is told before anything loads.

    ## Example
    ```yaml
    target: {model: builtin:pico-lama}
    draft: {algorithm: NGRAM}
    ```

    Use instead:
    ```yaml
    target: {model: builtin:pico-llama}
    draft: {algorithm: NGRAM}
    ```

    ## Fix
    Correct the path, or name one of the built-in models.
    """
    yield from _problems(r, "missing")


@rule("SF075", "model-not-here", warning=True)
def model_not_here(r: ResolvedRecipe) -> Iterator[Finding]:
    """A model of a recipe that is written for another machine can be looked at here.

    ## Why
    A recipe can be translated and compared without its models. What a model would say is not known
    then: rules about it are silent, and a field that nobody wrote has the usual value. To run or
    compile a recipe its models have to be here (SF061).

    ## Example
    ```yaml
    target: {model: /models/far-away}
    draft: {algorithm: NGRAM}
    ```
    ```sh
    specflow export recipe.yaml --engine sglang
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: NGRAM}
    ```
    ```sh
    specflow export recipe.yaml --engine sglang
    ```

    ## Fix
    `--hub` asks the Hub for a model's config and headers. `specflow validate --write-facts FILE`,
    where the model is, writes what it says into a file; `--facts FILE` reads it anywhere.
    """
    for block in MODELS:
        facts = r.facts[block]
        if facts.elsewhere and facts.problem is not None:
            yield Finding(
                at=f"{block}.model",
                message=f"{facts.problem.message}: what it would say is not checked",
                label="not here",
                notes=_assumed(r, facts.model),
                help=facts.problem.help,
            )


def _assumed(r: ResolvedRecipe, model: str) -> tuple[str, ...]:
    """A word on the fields that the model would have said."""
    entries = [r.ledger[path] for path in r.ledger]
    open_ = [e for e in entries if e.origin is Origin.ASSUMED and f"`{model}`" in e.because]
    if not open_:
        return ()
    said = ", ".join(f"`{e.path}`" for e in open_)
    return (f"it would tell {said}: write what it says where that matters",)


@rule("SF079", "dummy-without-config", warning=True)
def dummy_without_config(r: ResolvedRecipe) -> Iterator[Finding]:
    """Where weights are made up, a whole config says what they are.

    ## Why
    `run.load_format: dummy` makes random weights of the sizes that config.json says, plain floats
    of `run.dtype`. A config that is recorded or written in part does not say all sizes, and one of
    quantized weights, as a GGUF file is, means another network. Such a recipe can be judged, and
    run on an engine; `specflow run` stops.

    A config says `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers` and
    `num_attention_heads` at least. What else it leaves out is as the library has it for its
    `model_type`.

    ## Example
    ```yaml
    target: {model: deepseek-ai/DeepSeek-V3}
    draft: {algorithm: NGRAM}
    run: {load_format: dummy}
    ```

    Use instead:
    ```yaml
    target: {model: meta-llama/Llama-3.1-8B-Instruct}
    draft: {algorithm: NGRAM}
    run: {load_format: dummy}
    ```

    ## Fix
    Name a folder that holds the model's config.json: it needs no more. Write what is missing into
    it. Or leave `run.load_format` out.
    """
    for block in MODELS:
        unmade = r.facts[block].unmade
        if unmade is not None:
            yield Finding(
                at=f"{block}.model",
                message=f"{unmade.message}: no weights are made up of it here",
                label="no whole config of plain floats",
                because={"run.load_format": "dummy is asked for"},
                help=unmade.help,
            )


@rule("SF063", "unreadable-checkpoint")
def unreadable_checkpoint(r: ResolvedRecipe) -> Iterator[Finding]:
    """A checkpoint is whole: config.json, and weights in safetensors or GGUF.

    ## Why
    Only safetensors and GGUF are loaded, since a pickle can run code. A file cut short by a broken
    download is told from its header and its size.

    ## Example
    The folder of `tiny-pickle` holds `pytorch_model.bin` and no safetensors file.
    ```yaml
    target: {model: tiny-pickle}
    draft: {algorithm: NGRAM}
    ```

    Use instead:
    ```yaml
    target: {model: tiny-llama}
    draft: {algorithm: NGRAM}
    ```

    ## Fix
    Download the checkpoint again, or convert it to safetensors.
    """
    yield from _problems(r, "unreadable")


def _problems(r: ResolvedRecipe, kind: str) -> Iterator[Finding]:
    """What kept a checkpoint from being read: of a draft its network too, of a target its words."""
    net = network(r).problem
    for block in MODELS:
        facts = r.facts[block]
        problem = facts.problem or (facts.tokenizer_problem if block == "target" else None)
        if problem is not None and problem.kind == kind:
            yield Finding(
                at=f"{block}.model", message=problem.message, label=kind, help=problem.help
            )
    if net is not None and net.kind == kind:
        yield Finding(at=f"{holder(r)}.model", message=net.message, label=kind, help=net.help)
