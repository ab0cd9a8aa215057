"""Pages made of the code: rules, fields, and the words of engines: `make pages`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specflow.cli.engines import known_of
from specflow.engines import ENGINES
from specflow.engines.base import RECIPE_WORDS
from specflow.manual import Manual, manuals
from specflow.recipe import Fields, RunFields, SamplingFields, TargetFields, home
from specflow.schema import default_of, properties
from specflow.stages import COMMITS, DRAFTS, VERIFIES

HERE = Path(__file__).parent
MADE = "<!-- made by `make pages` of the code; change it there -->"
DECADES = {
    "SF00": "The text of a recipe, and its fields",
    "SF01": "Sizes of a step",
    "SF02": "A draft beside its target",
    "SF03": "Shapes, and how guesses are accepted",
    "SF04": "How draft state goes on",
    "SF05": "Plans, tables and adaptive steps",
    "SF06": "Checkpoints",
    "SF07": "The machine, and what goes into it",
    "SF08": "What silences a finding",
    "SF09": "The command line",
    "SF10": "Prompts",
    "SF11": "Engines",
    "SF12": "Engines, once they run",
}
TINY = (
    "In the examples `tiny-NAME` is a checkpoint of a few bytes, and `costs.json` or `heat.json` a "
    "small table; `tests/checkpoint_files.py` writes them, and every example is run by "
    "`tests/diagnostics/test_pages.py`: the first gives the finding, the second does not."
)

ABOUT_FIELDS = (
    "What a recipe may say, block by block; `specflow explain RECIPE FIELD` says who set a field "
    "in a recipe of yours. A default that is *derived* is computed from the checkpoints or from "
    "other fields, by the formula; one of a *table* stands in `specflow/tables.py`, by the "
    "target's architecture; any other stands beside its field, in the module that is named."
)
ABOUT_VERSIONS = (
    "What an engine makes of a recipe is told by rules that were read from its source, version by "
    "version, since defaults, flags and refusals change with every release; they run without the "
    "engine and without a GPU. A version that is not in this table is judged by the newest one "
    "before it, or else by the oldest, and finding SF115 says so. `--engine NAME` alone means the "
    "version that stands first, and without `--platform` the first platform. `specflow engines` "
    "prints the table."
)
# How the rules of an engine are known to be its own.
KNOWN_FROM = {
    "sglang": "the source of its wheel; compared with outcomes that its own classes gave, "
    "`tests/parity/sglang-*.jsonl`. One release so far: its rules are the most, and each release "
    "has to be read anew",
    "vllm": "the source of each release; every one compared with outcomes that its own classes "
    "gave, `tests/parity/vllm-*`",
    "llamacpp": "the source of four builds at which its flags were renamed or drafts were added "
    "(b5142 from the months around it); nothing recorded from it",
    "trtllm": "its published reference and source of that line; nothing recorded from it",
}
ABOUT_WORDS = (
    "Engines call one thing by several names, and count it in several ways: steps, guesses, or "
    "positions with the bonus token. A recipe has one word for each; `specflow export` and "
    "`specflow import` translate, and tell where a word has no counterpart."
)


def pages() -> dict[str, str]:
    """Each page's text by its path under docs/."""
    known = manuals()
    return {
        "rules/README.md": _index(known),
        **{f"rules/{m.code}-{m.name}.md": _rule(m) for m in known},
        "fields.md": _fields(),
        "engines.md": _engines(),
    }


# -- rules -----------------------------------------------------------------------------------------


def _rule(manual: Manual) -> str:
    """A manual as `specflow rule` prints it."""
    title = f"# {manual.name} ({manual.code})\n\n{MADE}\n\n"
    told = f"{manual.severity}; `specflow rule {manual.code}` prints this page"
    module = manual.where.partition(":")[0]
    where = f", and `{module}` holds the rule" if module else ""
    return f"{title}{told}{where}.\n\n{manual.doc.strip()}\n"


def _index(known: Iterable[Manual]) -> str:
    """Every rule, in the order of its code."""
    out = ["# Rules", "", MADE, "", TINY]
    decade = ""
    for manual in known:
        if manual.code[:4] != decade:
            decade = manual.code[:4]
            out += [
                "",
                f"## {DECADES[decade]}",
                "",
                "| code | rule | | what holds |",
                "|---|---|---|---|",
            ]
        page = f"{manual.code}-{manual.name}.md"
        first = manual.doc.splitlines()[0]
        out.append(
            f"| [{manual.code}]({page}) | {manual.name} | {manual.severity} | {_cell(first)} |"
        )
    return "\n".join([*out, ""])


# -- fields ----------------------------------------------------------------------------------------

BLOCKS: tuple[tuple[str, str, type[Fields]], ...] = (
    ("target", "", TargetFields),
    *(("draft", name, DRAFTS[name].fields) for name in DRAFTS.names()),
    *(("verify", name, VERIFIES[name].fields) for name in VERIFIES.names()),
    *(("commit", name, COMMITS[name].fields) for name in COMMITS.names()),
    ("sampling", "", SamplingFields),
    ("run", "", RunFields),
)
DOCS = {
    **{name: DRAFTS[name].doc for name in DRAFTS.names()},
    **{name: VERIFIES[name].asks for name in VERIFIES.names()},
    **{name: COMMITS[name].doc for name in COMMITS.names()},
}
CHOICE = {"draft": "draft.algorithm", "verify": "verify.shape", "commit": "commit.draft_state"}


def _fields() -> str:
    """Every field of every stage: type and bounds, default and where that lives, manual."""
    out = ["# Fields", "", MADE, "", ABOUT_FIELDS]
    for block, stage, fields in BLOCKS:
        chosen = f", {CHOICE[block]}: {stage}" if stage else ""
        out += ["", f"## {block}{chosen}", ""]
        told = [DOCS[stage]] if stage else [fields.__doc__ or ""]
        out += [_sentence(told[0]), ""]
        if not fields.model_fields:
            out.append("No fields of its own.")
            continue
        out += ["| field | takes | default | what it is |", "|---|---|---|---|"]
        said = properties(fields)
        for name, info in fields.model_fields.items():
            takes = _cell(_takes(said[name]))
            default = _cell(_default(fields, name))
            out.append(
                f"| `{block}.{name}` | {takes} | {default} | {_cell(info.description or '')} |"
            )
        homes = dict.fromkeys(_home(fields, name) for name in fields.model_fields)
        out += ["", f"Declared in {', '.join(f'`{h}`' for h in homes)}."]
    return "\n".join([*out, ""])


def _home(fields: type[Fields], name: str) -> str:
    """The module that declares a field."""
    owner = next(c for c in fields.__mro__ if name in vars(c).get("__annotations__", {}))
    return owner.__module__.replace(".", "/") + ".py"


def _default(fields: type[Fields], name: str) -> str:
    value, decided = default_of(fields, name)
    if home(fields, name)["derive"] or home(fields, name)["table"]:
        kind, _, rest = decided.partition(" ")
        return f"*{kind.rstrip(':')}* {rest}"
    if fields.model_fields[name].is_required():
        return "has to be written"
    return _written(value)


def _written(value: Any) -> str:
    """A value as a recipe has it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != "" else "none"


def _takes(said: Mapping[str, Any]) -> str:
    """A type with its bounds, in words."""
    if "enum" in said:
        return " or ".join(f"`{each}`" for each in said["enum"])
    if "anyOf" in said:
        ways = [each for each in said["anyOf"] if "$ref" not in each]
        if ways[0].get("type") == "object":  # pairs are what a mapping becomes
            return _takes(ways[0])
        return " or ".join(map(_takes, ways))
    if said["type"] == "array":
        return _list(said)
    if said["type"] == "object":
        return f"a mapping of numbers to: {_takes(said['additionalProperties'])}"
    kinds = {"integer": "a whole number", "number": "a number", "string": "a text"}
    kinds["boolean"] = "`true` or `false`"
    signs = {
        "minimum": "from",
        "exclusiveMinimum": "above",
        "maximum": "to",
        "exclusiveMaximum": "below",
    }
    bounds = [f"{word} {said[key]:,}" for key, word in signs.items() if key in said]
    return " ".join([kinds[said["type"]], *bounds])


def _list(said: Mapping[str, Any]) -> str:
    """A list, by its places or by what each item is."""
    if "prefixItems" in said:
        return f"a list: {', '.join(_takes(each) for each in said['prefixItems'])}"
    bounds = [f"at least {said['minItems']}"] if "minItems" in said else []
    bounds += [f"at most {said['maxItems']}"] if "maxItems" in said else []
    how_many = f" ({', '.join(bounds)})" if bounds else ""
    return f"a list{how_many} of: {_takes(said['items'])}"


# -- engines ---------------------------------------------------------------------------------------


def _engines() -> str:
    """What is known of each engine, what it calls a word of a recipe and what it counts by it."""
    rows = [ENGINES[name] for name in ENGINES.names()]
    out = ["# Engines", "", MADE, "", "## What is known", "", ABOUT_VERSIONS, ""]
    out += [
        "| engine | versions | platforms | formats | run from here | known from |",
        "|---" * 6 + "|",
    ]
    for engine in rows:
        known = known_of(engine)
        cells = [f"{engine.title}: `{engine.name}`"]
        cells += [", ".join(known[key]) for key in ("versions", "platforms", "formats")]
        cells += ["yes" if known["runs"] else "no", KNOWN_FROM[engine.name]]
        out.append(f"| {' | '.join(map(_cell, cells))} |")
    out += ["", "## Words", "", ABOUT_WORDS]
    titles = " | ".join(f"{engine.title} {engine.versions[-1]}" for engine in rows)
    out += ["", f"| recipe | {titles} |", "|---" * (len(rows) + 1) + "|"]
    for word in RECIPE_WORDS:
        cells = []
        for engine in rows:
            said = engine.words.get(word)
            cell = "none" if said is None or not said.flag else f"`{said.flag}`"
            cells.append(cell + (f": {said.counts}" if said is not None and said.counts else ""))
        out.append(f"| `{word}` | {' | '.join(map(_cell, cells))} |")
    return "\n".join([*out, ""])


def _sentence(text: str) -> str:
    text = " ".join(text.partition("\n\n")[0].split())
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _cell(text: str) -> str:
    """A text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# -- files -----------------------------------------------------------------------------------------


def stale(folder: Path) -> list[str]:
    """Pages that differ from what is made, are missing, or are of a rule that is gone."""
    made = pages()
    here = {p.relative_to(folder).as_posix() for p in (folder / "rules").glob("*.md")}
    differ = [
        name
        for name, text in made.items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]
    return sorted({*differ, *(here - set(made))})


def main() -> None:
    """Write the pages that differ, and remove those of rules that are gone; --check only tells."""
    made = pages()
    found = stale(HERE)
    if "--check" in sys.argv:
        sys.exit(f"docs: stale: {', '.join(found)}; run `make pages`" if found else 0)
    for name in found:
        page = HERE / name
        page.parent.mkdir(exist_ok=True)
        if name in made:
            page.write_text(made[name], encoding="utf-8")
        else:
            page.unlink()


if __name__ == "__main__":
    main()
