"""What `--fix` does: the finding goes, and what else a person wrote stays byte for byte."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specflow.cli import main
from specflow.diagnostics import Diagnostic, Drop, Fix, Put, Rename, only_answer
from specflow.errors import RecipeError, RuntimeFault
from specflow.fixing import Unfixable, edit, fix_recipe, write
from specflow.load import load, loads
from specflow.manual import Manual, manuals
from specflow.resolve import resolve
from specflow.spans import Source


def found(text: str) -> tuple[Diagnostic, ...]:
    try:
        return resolve(loads(text)).findings
    except RecipeError as error:
        return error.diagnostics


def failing(manual: Manual) -> str:
    return re.findall(r"```yaml\n(.*?)```", manual.doc, re.S)[0]


MANUALS = [m for m in manuals() if "```yaml" in m.doc and m.code != "SF007"]
FIXABLE = [m for m in MANUALS if any(d.code == m.code and d.fix for d in found(failing(m)))]
ENOUGH = 18  # rules whose finding has one obvious answer; a fix that is lost is seen here


def test_many_rules_have_a_fix() -> None:
    assert len(FIXABLE) >= ENOUGH, [m.code for m in FIXABLE]


def remarked(text: str, how: str) -> tuple[str, list[str]]:
    """A recipe with comments wherever one may stand, and what they say."""
    lines, said = [], []
    for at, line in enumerate(text.splitlines()):
        indent = line[: len(line) - len(line.lstrip())]
        if "above" in how:
            lines.append(f"{indent}# above {at}")
            said.append(f"# above {at}")
        behind = f'  # behind {at}: it\'s "so"' if "behind" in how else ""
        lines.append(line + behind)
        said += [behind.strip()] if behind else []
    return "\n".join(lines) + "\n", said


def opened(text: str) -> str:
    """The same recipe with every block in lines of its own instead of brackets."""
    made = yaml.safe_dump(yaml.safe_load(text), sort_keys=False, default_flow_style=False)
    return made.replace("'two'", "two").replace("graph: true", "graph: on")  # read by YAML 1.1


@pytest.mark.parametrize("how", ["above", "behind", "above and behind"])
@pytest.mark.parametrize("style", ["as written", "in lines"])
@pytest.mark.parametrize("manual", FIXABLE, ids=lambda m: m.code)
def test_the_failing_example_of_a_manual_is_mended(
    manual: Manual, style: str, how: str, tmp_path: Path
) -> None:
    text = failing(manual) if style == "as written" else opened(failing(manual))
    text, comments = remarked(text, how)
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    fixed = fix_recipe(file, unsafe=True)
    assert manual.code in {d.code for d in fixed.done}
    write(fixed)
    after = file.read_text()
    assert manual.code not in {d.code for d in found(after)}
    assert yaml.safe_load(after)
    for said in comments:  # one behind a value goes with it, and only so
        (line,) = (line for line in text.splitlines() if line.endswith(said))
        code = line.partition("#")[0].strip()
        assert said in after or (code and code not in map(str.strip, after.splitlines()))
    assert fix_recipe(file, unsafe=True).done == ()


def wrote(text: str, fix: Fix) -> str:
    return edit(Source("r.yaml", text), fix)


@pytest.mark.parametrize(
    ("text", "fix", "after"),
    [
        ("a: {b: 1, c: 2}\n", Drop("a.b"), "a: {c: 2}\n"),
        ("a: {b: 1, c: 2}\n", Drop("a.c"), "a: {b: 1}\n"),
        ("a: {b: 1 , c: 2 , d: 3}\n", Drop("a.c"), "a: {b: 1 , d: 3}\n"),
        ("a: {b: 1}  # why\nd: 1\n", Drop("a.b"), "d: 1\n"),
        ("a:\n  b: 1\n  c: 2\n", Drop("a.b"), "a:\n  c: 2\n"),
        ("a:\n  b: 1 # x\n  c: 2\n", Drop("a.b"), "a:\n  c: 2\n"),
        ("a:\n  # over\n  b: 1 # x\n  c: 2\n", Drop("a.b"), "a:\n  # over\n  c: 2\n"),
        ("a:\n  b: 1 # x\n  # own\nc: 2\n", Drop("a.b"), "  # own\nc: 2\n"),
        ("a:\n  b:\n    - 1 # x\n    - 2\n  c: 2\n", Drop("a.b"), "a:\n  c: 2\n"),
        ("a: {b: 1,  # x\n  c: 2}\n", Drop("a.b"), "a: {  # x\n  c: 2}\n"),
        ("a: {b: 1,  # x\n  c: 2}\n", Drop("a.c"), "a: {b: 1  # x\n  }\n"),
        ("a: 1\r\nb: 2\r\n", Drop("a"), "b: 2\r\n"),
        ("a: [x, u, z]\n", Drop("a.1"), "a: [x, z]\n"),
        ("a: '#no' # yes\nb: 1", Drop("b"), "a: '#no' # yes\n"),
        ("a:\n  b: 'x' # c\n", Put("a.b", "y"), "a:\n  b: 'y' # c\n"),
        ('a:\n  b: "x"\n', Put("a.b", "y"), 'a:\n  b: "y"\n'),
        ("a:\n  b: x\n", Put("a.b", "yes"), 'a:\n  b: "yes"\n'),
        ("a:\n  b: x\n", Put("a.b", "12"), 'a:\n  b: "12"\n'),
        ("a:\n  b: [3, 1]\n", Put("a.b", (1, 3)), "a:\n  b: [1, 3]\n"),
        ("a:\n  b:\n", Put("a.b", 3), "a:\n  b: 3\n"),
        ("a:\n  b: # x\n  - 3 # y\n  - 1\n", Put("a.b", (1, 3)), "a:\n  b: [1, 3] # x\n  # y\n"),
        ("a:\n  b: 1 # c\nd: 1\n", Put("a.c", True), "a:\n  b: 1 # c\n  c: true\nd: 1\n"),
        ("a: {b: 1}\n", Put("a.c", 0.5), "a: {b: 1, c: 0.5}\n"),
        ("a: {}\n", Put("a.c", 1), "a: {c: 1}\n"),
        ("a:\nb: 1\n", Put("a.c", 1), "a: {c: 1}\nb: 1\n"),
        ("b: 1", Put("a.c", 1), "b: 1\na:\n  c: 1"),
        ("b: 1\r\n", Put("a.c", 1), "b: 1\r\na:\r\n  c: 1\r\n"),
        ("a: {b: 1, 'x': 2}\n", Rename("a.x", "y"), "a: {b: 1, y: 2}\n"),
    ],
)  # fmt: skip
def test_an_edit(text: str, fix: Fix, after: str) -> None:
    assert wrote(text, fix) == after


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("a: 1\n", Drop("b")),
        ("? a\n: 1\nb: 2\n", Drop("a")),
        ("a: 1\n", Put("a.b", 1)),
        ("a: {b: 1, c: 2}\n", Rename("a.b", "c")),
        ("a: |\n  # no comment\n  x\nb: 1\n", Put("a.c", 1)),
    ],
)
def test_what_is_safer_by_hand_is_left(text: str, fix: Fix) -> None:
    with pytest.raises(Unfixable):
        wrote(text, fix)


LEAVES = st.sampled_from(["1", "x", "'q # q'", '"d: #"', "[1, 2]", "{k: 1, l: 2}", "[]", "~"])


@given(
    st.lists(st.lists(LEAVES, min_size=1, max_size=4), min_size=1, max_size=4),
    st.data(),
)
def test_dropping_any_field_leaves_all_else(blocks: list[list[str]], data: st.DataObject) -> None:
    """Block or brackets, with comments anywhere: the values are right, and so are the comments.

    One that stands behind what was dropped goes with it; every other stays.
    """
    lines, said = ["z: 1"], []
    for i, leaves in enumerate(blocks):
        flow = data.draw(st.booleans())
        if flow:
            inner = ", ".join(f"f{j}: {leaf}" for j, leaf in enumerate(leaves))
            lines.append(f"b{i}: {{{inner}}} # c{i}")
            said.append(f"# c{i}")
            continue
        lines.append(f"b{i}: # c{i}")
        said.append(f"# c{i}")
        for j, leaf in enumerate(leaves):
            lines += [f"  # over {i}.{j}", f"  f{j}: {leaf}   # by {i}.{j}"]
            said += [f"# over {i}.{j}", f"# by {i}.{j}"]
    text = "\n".join(lines) + data.draw(st.sampled_from(["", "\n", "\n# end\n"]))
    i = data.draw(st.integers(0, len(blocks) - 1))
    j = data.draw(st.integers(0, len(blocks[i]) - 1))
    meant = yaml.safe_load(text)
    del meant[f"b{i}"][f"f{j}"]
    if not meant[f"b{i}"]:
        del meant[f"b{i}"]
    after = wrote(text, Drop(f"b{i}.f{j}"))
    assert (yaml.safe_load(after) or {}) == meant
    kept = [re.search(r"# (?:c|over |by )[\d.]+$", line) for line in after.splitlines()]
    gone = {f"# by {i}.{j}"} | ({f"# c{i}"} if len(blocks[i]) == 1 else set())
    assert [m[0] for m in kept if m] == [each for each in said if each not in gone]


WIDE = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM, breadth: [10, 1]}\n"


def test_a_mode_a_link_a_mark_and_breaks_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + WIDE.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    link.symlink_to("real.yaml")
    write(fix_recipe(link))
    assert link.is_symlink()
    assert os.readlink(link) == "real.yaml"  # noqa: PTH115 - the link as it was written
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    text = WIDE.replace("[10, 1]", "[1, 10]").replace("\n", "\r\n")
    assert file.read_bytes() == b"\xef\xbb\xbf" + text.encode()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(WIDE)
    fixed = fix_recipe(file)
    file.write_text(WIDE + "# more\n")
    with pytest.raises(RuntimeFault, match="changed meanwhile"):
        write(fixed)
    assert file.read_text() == WIDE + "# more\n"


def test_an_override_is_not_fixed(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(WIDE.replace("[10, 1]", "[1, 10]"))
    fixed = fix_recipe(file, ["draft.breadth=[10, 1]"])
    assert not fixed.after
    assert "command line" in fixed.skipped[0].reason


def test_a_field_is_fixed_in_the_file_that_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(WIDE)
    heir = tmp_path / "heir.yaml"
    heir.write_text("extends: base.yaml\nrun: {batch_size: 2}\n")
    write(fix_recipe(heir))
    assert heir.read_text() == "extends: base.yaml\nrun: {batch_size: 2}\n"
    assert (tmp_path / "base.yaml").read_text() == WIDE.replace("[10, 1]", "[1, 10]")
    assert resolve(load(heir)).findings == ()


def test_a_recipe_that_ships_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "recipes" / "r.yaml"
    file.parent.mkdir()
    file.write_text(WIDE)
    monkeypatch.setattr("specflow.packs.HERE", tmp_path)
    fixed = fix_recipe(file)
    assert not fixed.after
    assert "ships with specflow" in fixed.skipped[0].reason


def test_a_fix_that_breaks_a_reference_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    text = "target: {model: builtin:pico-llama}\nrecipe: r\n"
    text += "draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 3}\n"
    text += "verify: {num_draft_tokens: 8}\nrun: {batch_size: '${verify.num_draft_tokens}'}\n"
    file.write_text(text)
    fixed = fix_recipe(file, unsafe=True)
    assert "SF005" in fixed.skipped[0].reason
    assert fixed.done == ()


def test_an_unsafe_fix_waits_to_be_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(WIDE.replace("breadth: [10, 1]", "max_trie_depth: 4, min_match: 4"))
    assert "--unsafe-fixes" in fix_recipe(file).skipped[0].reason
    write(fix_recipe(file, unsafe=True))
    assert "min_match: 3" in file.read_text()


@pytest.mark.parametrize(
    ("draft", "more", "after"),
    [
        ("bredth: [1, 10]", "", "breadth: [1, 10]"),
        ("min_match: '3'", "", "min_match: 3"),
        ("min_match: 3.0", "", "min_match: 3"),
        ("insert_prompt: 'false'", "", "insert_prompt: false"),
        ("order: recancy", "", "order: recency"),
        ("min_match: 0", "", "min_match: 1"),
        ("min_match: 3", "sampling: {temperature: '1'}", "sampling: {temperature: 1.0}"),
        ("min_match: 3", "commit: {draft_state: extend}", "min_match: 3}\n"),
    ],
)
def test_a_field_as_it_was_meant(draft: str, more: str, after: str, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(WIDE.replace("breadth: [10, 1]", draft) + (more + "\n" if more else ""))
    fixed = fix_recipe(file, unsafe=True)
    assert fixed.findings == ()
    write(fixed)
    assert after in file.read_text()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(WIDE)
    assert main(["validate", str(file), "--fix", "--diff"]) == 1
    shown = capsys.readouterr().out
    assert "+draft: {algorithm: NGRAM, breadth: [1, 10]}" in shown
    assert "1 would be fixed" in shown
    assert file.read_text() == WIDE
    assert main(["validate", str(file), "--fix"]) == 0
    assert "no findings, 1 fixed" in capsys.readouterr().out
    assert main(["validate", str(file), "--fix"]) == 0
    assert "no findings, 0 fixed" in capsys.readouterr().out
    assert main(["validate", str(file), "--diff"]) == 2


TWO_ANSWERS = """\
target: {model: builtin:pico-llama}
draft: {algorithm: STANDALONE, model: builtin:pico-llama-s, num_steps: 3}
verify:
  num_draft_tokens: 7  # bonus token included
"""


def test_one_answer_of_two_waits_to_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(TWO_ANSWERS)
    assert main(["validate", str(file), "--no-fit"]) == 1
    assert "mends" not in capsys.readouterr().out
    assert main(["validate", str(file), "--fix", "--no-fit"]) == 1
    shown = capsys.readouterr().out
    assert "leave `verify.num_draft_tokens` out; or write `draft.num_steps: 6`" in shown
    assert file.read_text() == TWO_ANSWERS
    assert main(["validate", str(file), "--fix", "--unsafe-fixes", "--no-fit"]) == 0
    shown = capsys.readouterr().out
    assert "to leave `verify.num_draft_tokens` out; or: write `draft.num_steps: 6`" in shown
    assert file.read_text() == TWO_ANSWERS.partition("verify")[0]


# What is no other edit of this recipe: a name that was meant, another model, the derived value.
NO_OTHER = re.compile(r"did you mean.*|, or name a.*|, or write the id.*|, or leave it out|or less")


@pytest.mark.parametrize("manual", FIXABLE, ids=lambda m: m.code)
def test_what_help_offers_beside_a_fix_is_known_to_it(manual: Manual) -> None:
    """A finding whose help has an `or` has no fix that is written unasked."""
    for each in found(failing(manual)):
        if each.fix is not None and only_answer(each.fix):
            assert " or " not in NO_OTHER.sub("", each.help or ""), each
