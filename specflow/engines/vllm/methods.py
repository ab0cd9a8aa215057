"""V2 to V11: which method runs, on which draft, with how many guesses."""

from __future__ import annotations

from specflow.engines.outcome import START, TOLD, WARN, Run
from specflow.engines.vllm.given import Given, architectures_of, kind_of, whole
from specflow.engines.vllm.mtp import layers_of
from specflow.engines.vllm.versions import SPEC, has, key, methods_of, renamed, since

METHOD, MODEL, TOKENS = key("method"), key("model"), key("num_speculative_tokens")
LEAST, MOST = key("prompt_lookup_min"), key("prompt_lookup_max")
SHORTHANDS = {"spec_method": METHOD, "spec_model": MODEL, "spec_tokens": TOKENS}
LOOKUPS = ("ngram", "ngram_gpu")
# Methods that run without a draft model.
BARE = (*LOOKUPS, "suffix", "custom_class", "extract_hidden_states")
HELD = ("eagle", "eagle3", "dflash", "dspark")  # a path does not replace these
BY_LAYERS = "the draft's config has MTP layers"
# What a path of a draft is looked through for, in this order.
PATHS = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
# Names of networks that are DSpark whatever the path says.
DSPARKS = frozenset(
    {"Qwen3DSparkModel", "Gemma4DSparkModel", "Qwen3OmniDSparkModel", "MuseSparkDSparkModel"}
)


def speculates(run: Run) -> bool:
    """Whether there is a draft: vLLM asks whether the JSON object is there at all."""
    return any(name.startswith(f"{SPEC}.") for name in run.asked)


def shorthands(run: Run, given: Given) -> None:  # noqa: ARG001 - every step has both
    """V2: `--spec-method` and its two sisters are keys of the JSON object."""
    for short, full in SHORTHANDS.items():
        value = run.asked.get(short)
        if value is None:
            continue
        if full in run.asked:
            option = "--" + short.replace("_", "-")
            run.refuse("V2", f"{option} and --{full} both stand there")
        run.asked[full] = value
        run.values[full] = value


def infer(run: Run, given: Given) -> None:
    """V3, V4: a method where none is said, and the new name of an old one."""
    method, model = run[METHOD], run[MODEL]
    if method is None:
        if _is_path_of_code(model) and "custom_class" in methods_of(given.version):
            run.set(METHOD, "custom_class", "V3", "the model is named like a class of Python")
        elif model in LOOKUPS[:1]:
            run.set(METHOD, "ngram", "V3", "the model is called ngram")
        else:
            run.set(METHOD, "draft_model", "V3", "no method is said")
    elif renamed(method):
        run.set(METHOD, "mtp", "V4", "one method stands for the MTP layers of every model")


def model(run: Run, given: Given) -> None:  # noqa: ARG001
    """V5: the draft's model where none is said."""
    method = run[METHOD]
    if run[MODEL] is not None or method in BARE:
        if method == "custom_class" and run[MODEL] is None:
            run.refuse("V5", "method custom_class takes a class of Python as its model")
        return
    if method in ("mtp", "dspark") and run[TOKENS] is not None:
        where = run["model"]
        run.set(MODEL, where, "V5", "the draft is looked for in the target's checkpoint")
        return
    if run[TOKENS] is not None:
        run.refuse("V5", f"method {method} takes a draft model, and none is named")
    run.refuse("V11", "neither a draft model nor a number of guesses is said")


def lookup(run: Run, given: Given) -> None:  # noqa: ARG001
    """V6: the bounds of a look-up; one that is missing is the other."""
    if run[METHOD] not in LOOKUPS:
        return
    least, most = run[LEAST], run[MOST]
    if least is None and most is None:
        run.set(LEAST, 5, "V6", "neither bound is said")
        run.set(MOST, 5, "V6", "neither bound is said")
    elif least is None:
        run.set(LEAST, most, "V6", "the bound that is missing is the other one")
    elif most is None:
        run.set(MOST, least, "V6", "the bound that is missing is the other one")
    if run[LEAST] > run[MOST]:
        said = f"prompt_lookup_min {run[LEAST]} is above prompt_lookup_max {run[MOST]}"
        run.refuse("V6", said)


def suffix(run: Run, given: Given) -> None:  # noqa: ARG001
    """V7: a package of its own, and a number of guesses that is a bound."""
    if run[METHOD] != "suffix":
        return
    run.note("V7", START, "suffix decoding needs the package arctic-inference")
    depth = run[key("suffix_decoding_max_tree_depth")]
    if run[TOKENS] is None:
        run.set(TOKENS, depth, "V7", "the depth of the tree bounds the guesses")
    if depth < 1:
        run.refuse("V7", f"suffix_decoding_max_tree_depth is {depth}; the least is 1")
    for name in ("max_cached_requests", "max_spec_factor"):
        if run[key(f"suffix_decoding_{name}")] < 0:
            run.refuse("V7", f"suffix_decoding_{name} is below 0")
    if not 0 <= run[key("suffix_decoding_min_token_prob")] <= 1:
        run.refuse("V7", "suffix_decoding_min_token_prob is a chance, from 0 to 1")


def replaced(run: Run, given: Given) -> None:
    """V8: a path, or the type of a model, goes before the method that was said."""
    method = run[METHOD]
    if method in BARE or method in HELD:
        return
    found, why = _stands_for(method, str(run[MODEL] or "").lower(), given)
    if why == BY_LAYERS and run[TOKENS] is None:
        run.crash("V8", "a draft of MTP layers takes a number of guesses", "TypeError")
    if found:
        run.set(METHOD, found, "V8", why)
    elif method != "draft_model" and given.draft:
        named = kind_of(given.draft) or "a model of no known type"
        run.refuse("V8", f"method {method} does not go with {named}", "NotImplementedError")
    if run[METHOD] == "mtp" and kind_of(given.target) == "deepseek_v41":
        run.refuse("V8", "DeepSeek V4.1 has no MTP layers; its draft is dspark")


def _stands_for(method: str, path: str, given: Given) -> tuple[str, str]:
    """The method of a draft by its path, then by its config; empty where neither says one."""
    known = methods_of(given.version)
    for mark, found in PATHS.items():
        if mark in path and found in known:
            return found, f"the path of the draft has `{mark}` in it"
    if "dspark" in known and DSPARKS & set(architectures_of(given.draft)):
        return "dspark", "the draft's config says DSpark"
    if method == "medusa" and since(given.version, "0.28.0"):
        return "medusa", "its config is read as Medusa's, whatever it says"
    if kind_of(given.draft) in ("medusa", "mlp_speculator"):
        return kind_of(given.draft), "the draft's config says so"
    if layers_of(given.draft, known):
        return "mtp", BY_LAYERS
    return "", ""


def parallel(run: Run, given: Given) -> None:
    """V9: drafts of a whole block guess in parallel."""
    name = key("parallel_drafting")
    if run[METHOD] in ("dflash", "dspark") and has(given.version, "parallel_drafting"):
        run.set(name, True, "V9", "a block is guessed in one pass")


def guesses(run: Run, given: Given) -> None:
    """V10, V11: how many guesses, by what the draft predicts in one pass."""
    method, asked = run[METHOD], run[TOKENS]
    layers = layers_of(given.draft, methods_of(given.version))
    predict = layers.predict if layers else whole(given.draft, "n_predict")
    if method == "dspark" and since(given.version, "0.32.0"):
        predict = whole(given.draft, "block_size", "dspark_block_size")
        if asked is None and predict is not None:
            run.set(TOKENS, predict, "V10", "the draft's block has that many")
    elif method not in BARE and predict is not None:
        _by_layers(run, predict)
    if run[TOKENS] is None:
        run.refuse("V11", "num_speculative_tokens is not said, and the draft's config has none")
    if run[TOKENS] <= 0:
        run.refuse("V11", f"num_speculative_tokens is {run[TOKENS]}; the least is 1")
    if method == "mtp" and layers and run[TOKENS] > (layers.predict or 1):
        run.note("V10", TOLD, "guesses past the first run the same MTP layer again")


def _by_layers(run: Run, predict: int) -> None:
    asked = run[TOKENS]
    if asked is None:
        run.set(TOKENS, predict, "V10", f"the draft predicts {predict} in one pass")
    elif asked > predict and asked % predict:
        said = f"num_speculative_tokens {asked} is no multiple of the {predict} of one pass"
        run.refuse("V10", said)


def _is_path_of_code(name: object) -> bool:
    """A dotted name, as `package.Class`."""
    if not isinstance(name, str) or "/" in name or ":" in name:
        return False
    parts = name.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def names(run: Run, given: Given) -> None:
    """V21: the name that the draft's network is looked up by; vLLM makes it of the config's."""
    if run[METHOD] not in ("eagle", "eagle3") or not architectures_of(given.draft):
        return
    said = architectures_of(given.draft)[0]
    prefix = "Eagle3" if run[METHOD] == "eagle3" else "Eagle"
    kept = said.startswith(prefix) or (prefix == "Eagle3" and said.endswith("Eagle3"))
    if not kept:
        run.note("V21", TOLD, f"the draft's {said} is looked up as {prefix}{said}")
    if run[METHOD] == "eagle" and said.endswith("Eagle3"):
        text = f"the draft's {said} is an EAGLE3 network; method eagle runs it as another one"
        run.note("V21", WARN, text)
