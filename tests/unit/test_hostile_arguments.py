"""Words, scripts and files of engines that mean harm: told, without waiting or growing."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from specflow.cli import main
from specflow.engines import ENGINES
from specflow.engines.flags import MOST_FAULTS
from specflow.engines.outcome import Refused, Run
from specflow.engines.sglang.blocks import config_in
from specflow.engines.sglang.plan_files import COSTS, TEMPERATURES, plan_files
from specflow.engines.sglang.resolver import effective
from specflow.engines.versions import nearest
from specflow.errors import UsageError
from specflow.facts_file import read_facts, text_of
from specflow.foreign_files import parse_yaml, read_bytes
from specflow.load import loads
from specflow.resolve import resolve
from tests.checkpoint_files import shelf

PATIENCE = 60  # seconds: what hangs hangs for ever, what is sound takes two


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """What waits fails its test, and not the whole run."""
    signal.signal(signal.SIGALRM, _waited)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)


def _waited(*_: object) -> None:
    raise AssertionError("this waits for what will not come")


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["1" * 28 + "!", "1.1" * 16 + "!", "9" * 5000, "1.2" * 1000])
def test_a_long_version_is_none(asked: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        nearest(asked, ("0.5.23",))


@pytest.mark.parametrize("asked", ["1", "b11312", "v0.5.3rc1", "1.2.3.post1", "0.6.dev20260101"])
def test_versions_as_they_are_spelled(asked: str) -> None:
    assert nearest(asked, ("0.0.1",)) == "0.0.1"


def test_a_number_with_a_unit_that_no_machine_holds(capsys: pytest.CaptureFixture[str]) -> None:
    args = "--max-model-len " + "9" * 4000 + ".5t"
    assert main(["import", "--engine", "vllm", "--args", args]) == 1
    assert "SF114" in capsys.readouterr().out


# -- scripts ---------------------------------------------------------------------------------------

SERVE = "vllm serve m"
LAUGHS = "A=xxxxxxxxxx\n" + 'A="$A$A$A$A"\n' * 20
LISTS = 'A="x x x x x x x x"\nL=($A)\n' + "L=(${L[@]} ${L[@]} ${L[@]})\n" * 20
HERE = f"A={'x' * 60_000}\ncat > f <<E\n{'$A' * 60_000}\nE\n"
VARIABLES = "".join(f"export A{i}=1\nx\n" for i in range(9000))
TOO_MUCH = {
    "x" * 900_000: "the text has more than",
    f"{SERVE} --x-{'x' * 70_000}": "a word of the text has more than",
    f"{LAUGHS}{SERVE}": "a word of the text has more than",
    f"{LISTS}{SERVE}": "the text stands for more than",
    f"{HERE}{SERVE}": "the text stands for more than",
    f"{VARIABLES}{SERVE}": "variables of programs",
    "x\n" * 100_000: "commands",
}


@pytest.mark.parametrize("text", TOO_MUCH, ids=lambda text: TOO_MUCH[text])
def test_a_text_that_stands_for_too_much(text: str, tmp_path: Path, capsys) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(text)
    assert main(["import", "--engine", "vllm", str(script)]) == 1
    said = capsys.readouterr().out
    assert TOO_MUCH[text] in said
    assert len(said) < 2000


SLOW = {
    "blank lines": "\n" * 250_000 + SERVE,
    "brackets": "=(" * 100_000 + f"\n{SERVE}",
    "lists in lists": "A=(" * 80_000,
    "defaults": "${a:-" * 50_000 + f"\n{SERVE}",
    "words": f"trtllm-serve m {'x ' * 120_000}",
}


@pytest.mark.parametrize("what", SLOW)
@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_a_text_is_read_once(what: str, engine: str, tmp_path: Path, capsys) -> None:
    """Each took minutes, or ended in a RecursionError, where a part was read again and again."""
    script = tmp_path / "serve.sh"
    script.write_text(SLOW[what])
    assert main(["import", "--engine", engine, str(script)]) in (0, 1)
    assert "SF090" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("engine", ENGINES.names())
def test_flags_that_are_none_are_told_up_to_a_number(engine: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.sh").write_text("serve " + "".join(f"--x{i} " for i in range(20_000)))
    (tmp_path / "a.json").write_text(json.dumps({f"x{i}": 1 for i in range(20_000)}))
    for file in ("a.sh", "a.json"):
        assert main(["import", "--engine", engine, str(tmp_path / file)]) == 1
        assert 1 <= capsys.readouterr().out.count("error[SF114]") <= MOST_FAULTS


# -- files of arguments ----------------------------------------------------------------------------

DOUBLED = "".join(f", &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 22))
BAD = {
    "bomb.yaml": (f"speculative_config: [&a0 [x, x]{DOUBLED}]", "an anchor or an alias"),
    "merge.yaml": ("a: &a {b: 1}\nc: {<<: *a}", "line 1 has an anchor"),
    "deep.yaml": ("[" * 500, "nested more than"),
    "twice.yaml": ("a: 1\n'a': 2", "line 2 says `a` again"),
    "inner.yaml": ("a: {b: 1, c: [1], b: 2}", "says `b` again"),
    "twice.json": ('{"a": {"b": 1, "b": 2}}', "says `b` twice"),
    "deep.json": ('{"a":' * 100_000, "nested too deep"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_page_of_arguments(name: str, tmp_path: Path, capsys) -> None:
    text, says = BAD[name]
    (tmp_path / name).write_text(text)
    assert main(["import", "--engine", "trtllm", str(tmp_path / name)]) == 2
    assert says in capsys.readouterr().err
    if name.endswith("yaml"):
        args = f"trtllm-serve m --config {tmp_path / name}"
        assert main(["import", "--engine", "trtllm", "--args", args]) == 1
        assert says in capsys.readouterr().out


def test_the_same_value_and_key_elsewhere_is_said_once() -> None:
    text = "a: [x, x, {b: 1}, {b: 1}]\nb: {a: a, ? [c, c] : b, b: a}\nx: a"
    with pytest.raises(ValueError, match=r"."):  # a list is no key, and says so
        parse_yaml(text)
    text = text.replace("? [c, c] : b, ", "")
    assert parse_yaml(text) == yaml.safe_load(text)


def test_facts_have_no_alias(tmp_path: Path) -> None:
    """What two models share is written for each, and read back; an alias is refused."""
    shared = {"sizes": [1, 2, {"a": [1]}]}
    facts = {name: {"config": shared, "tensors": {}} for name in ("a", "b")}
    file = tmp_path / "facts.yaml"
    file.write_text(text_of(facts))
    assert read_facts(file) == facts
    file.write_text("facts: 1\nmodels: {a: {config: &a {b: 1}}, c: {config: *a}}")
    with pytest.raises(UsageError, match="an alias"):
        read_facts(file)


# -- what is no file -------------------------------------------------------------------------------


@pytest.fixture(params=["pipe", "endless"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A pipe that nobody writes to, and a device without end."""
    node = tmp_path / f"{request.param}.json"
    if request.param == "pipe":
        os.mkfifo(node)
        return node
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        node.open("rb").close()
    except OSError as error:
        pytest.skip(f"no device can be made here: {error.strerror}")
    return node


ADAPTIVE = "--speculative-algorithm EAGLE3 --speculative-adaptive --speculative-adaptive-config"


def test_commands_read_regular_files(odd: Path, capsys) -> None:
    lines = [
        ["validate", "pico/ngram", "--facts", str(odd)],
        ["explain", "pico/ngram", "--cost", "--accept-length", str(odd)],
        ["import", "--engine", "sglang", str(odd)],
        ["import", "--engine", "trtllm", "--args", f"trtllm-serve m --config {odd}"],
        ["import", "--engine", "sglang", "--args", f"--model-path m {ADAPTIVE} {odd}"],
    ]
    codes = [main(line) for line in lines]
    assert codes == [2, 2, 2, 1, 0]
    said = "".join(capsys.readouterr())
    assert said.count("no regular file") >= 2
    assert f"no slots can be read from {odd}" in said


def test_engines_read_regular_files(odd: Path, tmp_path: Path) -> None:
    given = {"model_path": "m", "speculative_algorithm": "EAGLE3", "speculative_adaptive": True}
    more = {"speculative_draft_model_path": "d", "speculative_adaptive_config": str(odd)}
    refused = effective(given | more, None, platform="h100")
    assert isinstance(refused, Refused)
    assert "it is no regular file" in refused.reason
    run = Run({COSTS: str(odd), TEMPERATURES: str(odd)}, {})
    assert [text for _, _, text in plan_files(run, None)] == [f"{odd}: no object"] * 2
    odd.rename(tmp_path / "config.json")
    assert config_in(tmp_path) is None
    with pytest.raises(ValueError, match="regular"):
        read_bytes(tmp_path / "config.json")


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert read_bytes(file, 10) == b"x" * 10
    with pytest.raises(ValueError, match="larger"):
        read_bytes(file, 9)
    assert read_bytes(Path("/proc/self/status"))  # of no size until it is read


# -- models ----------------------------------------------------------------------------------------


def test_a_config_that_declares_any_number_of_layers(tmp_path: Path) -> None:
    shelf(tmp_path)
    folder = tmp_path / "tiny-one-of-two-mtp"
    config = json.loads((folder / "config.json").read_text())
    config["num_nextn_predict_layers"] = 2**31 - 1
    (folder / "config.json").write_text(json.dumps(config))
    text = f"target: {{model: '{folder}'}}\ndraft: {{algorithm: NEXTN}}"
    said = [each.message for each in resolve(loads(text)).findings if each.code == "SF019"]
    assert len(said) == 1
    assert "declares 2147483647 MTP layers, and its weights hold 1" in said[0]
