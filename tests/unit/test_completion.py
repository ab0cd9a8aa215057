"""What a shell is offered: by the command itself, and by each shell that is here, for real."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from specflow.cli import COMMANDS, main
from specflow.cli.candidates import candidates
from specflow.cli.completion import SCRIPTS
from specflow.manual import manuals
from specflow.packs import names
from specflow.recipe import RunFields
from specflow.stages import DRAFTS, VERIFIES
from tests.conftest import ROOT


def offered(line: str) -> list[str]:
    """What may stand at the end of a line after `specflow`."""
    return [word for word, _ in candidates(line.split(" "), COMMANDS)]


def test_commands_and_recipes() -> None:
    assert set(COMMANDS) < set(offered(""))
    assert offered("ru") == ["run", "rule", "rules"]
    assert set(names()) <= set(offered("run "))
    assert offered("explain pico/ng") == [n for n in names() if n.startswith("pico/ng")]
    assert offered("diff pico/ngram pico/eagle3_t") == ["pico/eagle3_tree"]
    assert offered("nosuch x") == []
    assert offered("rules ") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command(command: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    options = offered(f"{command} --")
    assert "--help" in options
    assert all(option in said for option in options)
    assert {w.strip(",[]") for w in said.split() if w.startswith("--")} >= set(options)


def test_values_of_options() -> None:
    assert offered("validate --format ") == ["text", "json", "github"]
    assert offered("validate --format=g") == ["--format=github"]
    assert offered("compile pico/ngram --show g") == ["graph"]
    assert "sglang" in offered("explain pico/ngram --engine sg")
    assert any(word.startswith("sglang@") for word in offered("export --engine sglang@"))
    assert "h100" in offered("export pico/ngram --engine sglang --platform h")
    assert offered("run pico/ngram --prompt tex") == []


def test_fields_of_the_recipe_that_is_named() -> None:
    assert offered("run pico/ngram draft.mi") == ["draft.min_match="]
    assert offered("run pico/ngram dr") == ["draft."]
    ours = {f"draft.{name}=" for name in DRAFTS["NGRAM"].fields.model_fields}
    assert ours <= set(offered("run pico/ngram draft."))
    assert offered("run pico/ngram draft.block") == []
    assert offered("run pico/dflash draft.block") == ["draft.block_size="]
    assert offered("run pico/dspark_planned verify.cost") == ["verify.cost_table="]
    assert offered("run pico/ngram verify.cost") == []
    run = {f"run.{name}=" for name in RunFields.model_fields}
    assert set(offered("run pico/ngram --check-lossless run.")) == run
    # An override may change the stages, and with them the fields.
    assert offered("run pico/ngram draft.algorithm=DFLASH draft.block") == ["draft.block_size="]
    assert offered("explain pico/ngram draft.mi") == ["draft.min_match"]
    assert "~draft.min_match" in offered("run pico/ngram ~draft")
    # No recipe, or one that cannot be read: any field.
    assert "draft.taps=" in offered("validate nosuch.yaml draft.t")


def test_values_of_fields() -> None:
    assert offered("run pico/ngram draft.order=") == [
        "draft.order=recency",
        "draft.order=frequency",
    ]
    assert offered("run pico/ngram draft.insert_prompt=t") == ["draft.insert_prompt=true"]
    assert {f"draft.algorithm={name}" for name in DRAFTS.names()} < set(
        offered("run pico/ngram draft.algorithm=")
    )
    assert set(offered("run pico/ngram verify.shape=")) == {
        f"verify.shape={name}" for name in VERIFIES.names()
    }
    assert "target.model=builtin:pico-llama" in offered("run pico/ngram target.model=b")


def test_rules_by_code_and_by_name() -> None:
    every = offered("rule ")
    assert {m.code for m in manuals()} | {m.name for m in manuals()} == set(every)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "notes.txt", "more/inner.yml", ".hidden.yaml"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("draft: {algorithm: NONE}\n")
    mine = [w for w in offered("validate ") if w not in names()]
    assert mine[:2] == ["mine.yaml", "more/"]
    assert offered("validate more/") == ["more/inner.yml"]
    assert offered("run pico/ngram --prompts n") == ["notes.txt"]
    assert offered("validate mine.yaml sampling.temp") == ["sampling.temperature="]
    assert ".hidden.yaml" in offered("validate .")


# -- shells ----------------------------------------------------------------------------------------

LINES = {
    "specflow ru": {"run", "rule", "rules"},
    "specflow run pico/ngram_s": {"pico/ngram_sampled"},
    "specflow run pico/ngram --check-l": {"--check-lossless"},
    "specflow validate --format=gi": {"--format=github"},
    "specflow run pico/ngram draft.ord": {"draft.order="},
    "specflow run pico/ngram draft.order=": {"draft.order=recency", "draft.order=frequency"},
    "specflow run pico/ngram target.model=builtin:pico-llama-d": {
        "target.model=builtin:pico-llama-dflash",
        "target.model=builtin:pico-llama-dspark",
    },
    "specflow rule SF01": {m.code for m in manuals() if m.code.startswith("SF01")},
}


def here(folder: Path) -> None:
    """This very `specflow`, as a command in a folder."""
    command = folder / "specflow"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m specflow "$@"\n')
    command.chmod(0o755)


def shell(name: str, script: str, folder: Path) -> str:
    """What a shell prints that runs a script, with this very `specflow` on its path."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not here")
    here(folder)
    done = subprocess.run(
        [name, *(["-f"] if name == "zsh" else []), "-c", f'PATH="{folder}:$PATH"\n{script}']
        if name != "fish"
        else [name, "--no-config", "-c", f'set -x PATH "{folder}" $PATH\n{script}'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_bash(tmp_path: Path) -> None:
    """bash puts a word in place of what follows the last `=` or `:`: the rest is not repeated."""
    calls = "\n".join(
        f'COMP_LINE="{line}"; COMP_POINT={len(line)}; COMPREPLY=(); _specflow\n'
        f'echo "> {line}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
        for line in LINES
    )
    # `compopt` speaks of the completion that runs, and here none does.
    script = (
        f"source <(specflow completion bash)\ncompopt() {{ :; }}\n{calls}\ncomplete -p specflow"
    )
    *answers, registered = shell("bash", script, tmp_path).rstrip("\n").split("\n")
    assert registered == "complete -F _specflow specflow"
    said: dict[str, set[str]] = {}
    for each in answers:
        if each.startswith("> "):
            line = each[2:]
            typed = line.split()[-1]
            kept = typed[: max(typed.rfind("="), typed.rfind(":")) + 1]
            said[line] = set()
        else:
            said[line].add(kept + each)
    assert said == LINES


def test_zsh(tmp_path: Path) -> None:
    """The words go to `compadd`; those that a value follows go without a blank after them."""
    script = "compdef() { print registered $@ }\nsource <(specflow completion zsh)\n"
    script += "compadd() { local n=${@[-1]}; print -l -- ${(P)n} }\n"
    for line in LINES:
        script += f"print -- '> {line}'; words=({' '.join(map(repr, line.split()))})\n"
        script += "CURRENT=$#words; _specflow\n"
    first, *answers = shell("zsh", script, tmp_path).rstrip("\n").split("\n")
    assert first == "registered _specflow specflow"
    said: dict[str, set[str]] = {}
    for each in answers:
        if each.startswith("> "):
            line = each[2:]
            said[line] = set()
        elif each:
            said[line].add(each)
    assert said == LINES


def test_fish(tmp_path: Path) -> None:
    script = "specflow completion fish | source\n"
    for line in LINES:
        script += f"echo '> {line}'; complete -C '{line}'\n"
    said: dict[str, set[str]] = {}
    for each in shell("fish", script, tmp_path).rstrip("\n").split("\n"):
        if each.startswith("> "):
            line = each[2:]
            said[line] = set()
        else:
            said[line].add(each.split("\t")[0])
    assert said == LINES


TYPED = [
    ("specflow run pico/ngram_s", "specflow run pico/ngram_sampled "),
    ("specflow run pico/ngram draft.ord", "specflow run pico/ngram draft.order="),
    (
        "specflow run pico/ngram target.model=builtin:pico-llama-df",
        "specflow run pico/ngram target.model=builtin:pico-llama-dflash ",
    ),
]


@pytest.mark.parametrize("name", ["bash", "zsh"])
@pytest.mark.parametrize(("typed", "completed"), TYPED)
def test_a_person_presses_tab(name: str, typed: str, completed: str, tmp_path: Path) -> None:
    """A shell at a terminal: the line after the key is the one that was meant."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not here")
    here(tmp_path)
    start = {"bash": ["bash", "--norc", "-i"], "zsh": ["zsh", "-f", "-i"]}[name]
    setup = {"bash": "PS1='% '", "zsh": "PS1='%# '; autoload -Uz compinit; compinit -u -D"}[name]
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 200))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb"}
    process = subprocess.Popen(
        start, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=ROOT, start_new_session=True
    )
    os.close(theirs)
    try:
        os.write(ours, f'{setup}; eval "$(specflow completion {name})"; echo rea""dy\n'.encode())
        assert "ready\r\n" in until(ours, "ready\r\n")
        os.write(ours, f"{typed}\t".encode())
        assert completed in plain(until(ours, completed))
        os.write(ours, b"\x15exit\n")  # the line is dropped, nothing runs
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def until(terminal: int, wanted: str, seconds: float = 30) -> str:
    """What a terminal shows, until it shows this or nothing more comes."""
    shown = ""
    while wanted not in plain(shown) and select.select([terminal], [], [], seconds)[0]:
        try:
            shown += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            break
    return shown


def plain(shown: str) -> str:
    """A terminal's text without the codes that move its cursor and colour it."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x07", "", shown)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_are_printed(name: str, capsys) -> None:
    assert main(["completion", name]) == 0
    assert capsys.readouterr().out == SCRIPTS[name]


def test_asking_loads_nothing_heavy() -> None:
    words = ["completion", "bash", "--", "run", "pico/ngram", "draft."]
    code = (
        "import sys; from specflow.cli import main; main(" + repr(words) + ");"
        "print([m for m in ('torch', 'numpy', 'transformers', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, heavy = done.stdout.splitlines()
    assert "draft.min_match=" in lines
    assert heavy == "[]"
