"""Where results go: tried beforehand without a trace, written whole, and nothing else touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from specflow.cli import main
from specflow.cli.files import keep, prepare_file, prepare_folder, try_folder, write_whole
from specflow.errors import RuntimeFault, UsageError
from specflow.facts import builtins
from specflow.packs import find

LONG = "x" * 300


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    file = prepare_file(str(tmp_path / "a" / "b" / "c.json"), (), overwrite=False)
    assert not list(tmp_path.iterdir())
    prepare_folder(str(tmp_path / "out" / ".." / "out" / "deep"), ("report.json",), overwrite=False)
    assert not list(tmp_path.iterdir())
    write_whole(file, "{}\n")
    assert [p.name for p in file.parent.iterdir()] == ["c.json"]


def test_a_trial_that_fails_takes_its_folders_back(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        try_folder(tmp_path / "a" / "b" / LONG)
    with pytest.raises(OSError, match="too long"):
        try_folder(tmp_path / "a" / "b", LONG)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", [LONG, f"a/{LONG}", f"{LONG}/a", "a\0b", "", "file/below", "folder", "pipe", "loop"]
)
@pytest.mark.parametrize("what", ["file", "folder"])
def test_names_that_cannot_be(name: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    at = str(tmp_path / name) if name else ""
    if (name, what) == ("folder", "folder"):
        return
    prepare = prepare_file if what == "file" else prepare_folder
    with pytest.raises(UsageError) as told:
        prepare(at, (), overwrite=True)
    assert told.value.help
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_read_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    (tmp_path / "link").symlink_to(file)
    for name in ("mine.yaml", "link", "../" + tmp_path.name + "/mine.yaml"):
        with pytest.raises(UsageError, match="is read"):
            prepare_file(str(tmp_path / name), [file], overwrite=True)


def test_what_lies_beside_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.json.new").write_text("mine")
    (tmp_path / "x.json").write_text("old")
    write_whole(tmp_path / "x.json", "new")
    assert (tmp_path / "x.json").read_text() == "new"
    assert (tmp_path / "x.json.new").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_one_and_what_it_names_is_written(tmp_path: Path) -> None:
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    link.symlink_to(there)
    for text in ("first", "second"):  # dangling, then not
        write_whole(prepare_file(str(link), (), overwrite=True), text)
        assert link.is_symlink()
        assert there.read_text() == text


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path: Path) -> None:
    secret, plain, usual = tmp_path / "secret", tmp_path / "plain", tmp_path / "usual"
    secret.write_text("old")
    secret.chmod(0o600)
    usual.write_text("")
    write_whole(secret, "new")
    write_whole(plain, "new")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert plain.stat().st_mode == usual.stat().st_mode


def test_half_a_character_is_written_as_json_spells_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "x", '"\udcff"')
    assert (tmp_path / "x").read_text() == '"\\udcff"'


def test_a_file_that_was_refused_is_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "mine").write_text("")
    with pytest.raises(RuntimeFault, match="cannot be written"):
        write_whole(folder, "text")
    assert keep(folder, "text") == 1
    assert "SF091" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


# -- what is no regular file -----------------------------------------------------------------------

NULL = os.makedev(1, 3)
WRITING = (["schema", "-o"], ["validate", "pico/eagle3", "--write-facts"])


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A device of our own, as /dev/null is one."""
    node = tmp_path / "null"
    try:
        os.mknod(node, stat.S_IFCHR | 0o600, NULL)
        os.close(os.open(node, os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error.strerror}")
    return node


@pytest.mark.parametrize("words", WRITING)
def test_a_device_stays_one(words: list[str], device: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(device)
    for name in (device, link):
        assert main([*words, str(name)]) == 0
        assert stat.S_ISCHR(device.lstat().st_mode)
        assert link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "null"]


@pytest.mark.parametrize("words", WRITING)
def test_what_is_open_is_written_to(words: list[str], tmp_path: Path) -> None:
    """As /dev/stdout: a link to a descriptor, of a pipe or of a file with something in it."""
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-m", "specflow", *words, str(link)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    with file.open("w") as out:
        print("before", file=out, flush=True)
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=True)
    assert piped.startswith(("{", "# What models say"))
    assert file.read_text() == "before\n" + piped
    assert link.is_symlink()


def test_a_pipe_of_the_shell_is_written_to() -> None:
    """As `-o >(cat)`."""
    theirs, ours = os.pipe()
    try:
        write_whole(prepare_file(f"/proc/self/fd/{ours}", (), overwrite=False), "text")
        assert os.read(theirs, 100) == b"text"
        with pytest.raises(UsageError, match="open to be read"):
            prepare_file(f"/proc/self/fd/{theirs}", (), overwrite=False)
    finally:
        os.close(theirs)
        os.close(ours)


def test_a_named_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in WRITING:
        assert main([*words, str(pipe)]) == 2
    with pytest.raises(RuntimeFault, match="cannot be written"):
        write_whole(pipe, "text")
    assert pipe.is_fifo()


@pytest.mark.parametrize("words", WRITING)
@pytest.mark.parametrize("name", ["", ".", "folder"])
def test_what_no_command_can_write(
    words: list[str], name: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        assert main([*words, name]) == 2
    assert "SF092" in capsys.readouterr().err


# -- one rule for what is there --------------------------------------------------------------------


@pytest.mark.parametrize("words", WRITING)
def test_a_file_that_is_there_is_asked_for(words: list[str], tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine"
    file.write_text("mine")
    assert main([*words, str(file)]) == 2
    assert "add --overwrite" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main([*words, str(file), "--overwrite"]) == 0
    assert file.read_text() != "mine"


def test_facts_replace_nothing_that_was_read(tmp_path: Path, capsys) -> None:
    base, recipe, model = tmp_path / "base.yaml", tmp_path / "r.yaml", tmp_path / "model"
    base.write_text(find("pico/ngram").read_text().replace("builtin:pico-llama", str(model)))
    recipe.write_text("extends: base.yaml\n")
    shutil.copytree(builtins()["pico-llama"], model)
    for name in (recipe, base, model / "config.json"):
        before = name.read_bytes()
        assert main(["validate", str(recipe), "--write-facts", str(name), "--overwrite"]) == 2
        assert "is a file that is read" in capsys.readouterr().err
        assert name.read_bytes() == before


def test_overwrite_belongs_to_a_file(capsys) -> None:
    assert main(["validate", "pico/ngram", "--overwrite"]) == 2
    assert "goes with `--write-facts`" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["memory", "engine", "write-facts", "facts", "platform"])
def test_dashes_are_no_value(option: str, capsys) -> None:
    assert main(["validate", "pico/ngram", f"--{option}=--"]) == 2
    assert f"`--{option}=--` has no value" in capsys.readouterr().err
