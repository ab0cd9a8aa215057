"""What the Hub says of a model that is named as ORG/NAME and is not here: config, words, headers.

The local cache is looked into without any network. The Hub itself is asked only where `--hub` says
so, by one small request a file: weights stay where they are, and nothing is written into the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from specflow.facts import ModelFacts, hub_may_tell, read_folder, words_of
from specflow.facts_file import OBJECTS, TABLES, folder_of
from specflow.headers import (
    INTEGERS,
    LARGEST_HEADER,
    LARGEST_JSON,
    Problem,
    Refused,
    guarded,
    integers,
    parse_object,
)

AT_ONCE = 8  # requests for the headers of shards
HEAD = 100_000  # bytes of a shard that are asked for first: most headers end there
SECONDS = 10
MOST_SHARDS = 1024
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
OTHERWISE = "`--facts FILE` needs no Hub; `hf download {} --local-dir FOLDER` gets the model"

Fetch = Callable[..., bytes | None]


def reader(otherwise: Callable[[str], ModelFacts], *, network: bool) -> Callable[[str], ModelFacts]:
    """`facts.read`, which looks for a Hub's model in the cache, and on the Hub where it may.

    network  ask the Hub; then what is recorded of a model does not stand for it
    """
    known: dict[str, ModelFacts] = {}

    def look(model: str) -> ModelFacts:
        found = otherwise(model)
        if not hub_may_tell(found, network=network):
            return found
        if model not in known:
            known[model] = _found(model, network=network) or found
        return known[model]

    return look


def _found(model: str, *, network: bool) -> ModelFacts | None:
    """The facts of a model from the cache, or from the Hub; None where neither is to be had."""
    here = cached(model)
    facts = read_folder(here, model) if here is not None else None
    if not network or (facts is not None and facts.problem is None):
        return facts if facts is None or facts.problem is None else _partly(facts)
    nothing = ModelFacts(model)
    facts, problem = guarded(model, lambda: fetched(model), nothing)
    return ModelFacts(model, problem=problem) if problem else facts


def _partly(facts: ModelFacts) -> ModelFacts:
    """Facts of a model that the cache holds a part of, with the way to the rest."""
    problem = facts.problem
    said = problem.message if problem is not None else ""
    way_out = f"`--hub` asks the Hub for its headers; {OTHERWISE.format(facts.model)}"
    problem = Problem("unreadable", f"{said}, in the local cache", way_out)
    return ModelFacts(facts.model, problem=problem)


def cached(model: str) -> Path | None:
    """The folder of a model in the Hub's local cache, if its config.json is there."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(model, "config.json")
    return Path(file).parent if isinstance(file, str) else None


def fetched(model: str) -> ModelFacts:
    """The facts of a model as the Hub has it; Refused where they are not to be had."""
    return read_folder(folder_of(model, {model: asked(model, _fetcher(model))}), model)


def asked(model: str, fetch: Fetch) -> dict[str, Any]:
    """What the Hub says of a model, as a facts file has it.

    fetch  (file, begin, end) -> bytes of a file, or None where there is no such file
    """
    found: dict[str, Any] = {}
    for word, file in OBJECTS.items():
        content = fetch(file)
        if content is not None:
            found[word] = _object(model, file, content)
    if "config" not in found:
        raise Refused(f"`{model}` on the Hub has no config.json", "name a whole checkpoint")
    words = fetch("tokenizer.json")
    if words is not None and len(words) <= LARGEST_JSON:
        found["tokens"] = _tokens(model, _object(model, "tokenizer.json", words))
    shards = _shards(model, fetch)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        headers = list(pool.map(lambda shard: _header(model, shard, fetch), shards))
    tensors: dict[str, list[Any]] = {}
    values: dict[str, list[int]] = {}
    for shard, (start, header) in zip(shards, headers, strict=True):
        for name, spec in header.items():
            tensors[name] = [str(spec["dtype"]), list(spec["shape"])]
            if TABLES.fullmatch(name) and spec["dtype"] in INTEGERS:
                begin, end = (start + int(at) for at in spec["data_offsets"])
                values[name] = list(integers(fetch(shard, begin, end) or b"", spec["dtype"]))
    return found | {"tensors": tensors} | ({"values": values} if values else {})


def _object(model: str, file: str, content: bytes) -> dict[str, Any]:
    said = parse_object(content)
    if said is None:
        raise Refused(f"{file} of `{model}` on the Hub is not a JSON object")
    return said


def _tokens(model: str, said: Mapping[str, Any]) -> dict[str, int]:
    try:
        return words_of(said)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"tokenizer.json of `{model}` on the Hub is not a tokenizer") from error


def _shards(model: str, fetch: Fetch) -> list[str]:
    index = fetch(INDEX)
    if index is None:
        return [SINGLE]
    listed = _object(model, INDEX, index).get("weight_map")
    names = sorted(set(listed.values())) if isinstance(listed, dict) else []
    if not names or len(names) > MOST_SHARDS or not all(n == Path(str(n)).name for n in names):
        raise Refused(f"{INDEX} of `{model}` on the Hub lists no weights")
    return names


def _header(model: str, shard: str, fetch: Fetch) -> tuple[int, dict[str, Any]]:
    """Where the data of a shard begins, and what its header says of each tensor."""
    content = fetch(shard, 0, HEAD)
    if content is None:
        raise Refused(f"`{model}` on the Hub has no {shard}", "name a model with safetensors")
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise Refused(f"{shard} of `{model}` on the Hub is no safetensors file")
    if len(content) < 8 + length:
        content += fetch(shard, len(content), 8 + length) or b""
    header = _object(model, shard, content[8 : 8 + length])
    header.pop("__metadata__", None)
    return 8 + length, header


def _fetcher(model: str) -> Fetch:
    """Bytes of a model's files, by the Hub's own client; what it refuses is told with a way out."""
    from huggingface_hub import errors, get_session, hf_hub_url

    client: Any = import_module("huggingface_hub.utils")  # which types none of what it exports

    def fetch(file: str, begin: int = 0, end: int = 0) -> bytes | None:
        wanted = {"range": f"bytes={begin}-{end - 1}"} if end else {}
        try:
            url = hf_hub_url(model, file)
            reply = get_session().get(
                url, headers=client.build_hf_headers() | wanted, timeout=SECONDS
            )
            client.hf_raise_for_status(reply)
            content: bytes = reply.content
        except errors.EntryNotFoundError:
            return None
        except errors.GatedRepoError as error:
            terms = "accept its terms on the Hub and log in with `hf auth login`"
            raise Refused(f"`{model}` is gated on the Hub", terms) from error
        except errors.RepositoryNotFoundError as error:
            private = "correct the name; a private model needs `hf auth login`"
            raise Refused(f"the Hub shows no `{model}`", private, "missing") from error
        except Exception as error:  # whatever a network may do
            said = f"the Hub was not reached for `{model}` ({type(error).__name__})"
            raise Refused(said, OTHERWISE.format(model), "missing") from error
        return content[: end - begin] if end else content

    return fetch
