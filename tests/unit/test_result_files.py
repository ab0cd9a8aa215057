"""Where results go: tried beforehand without a trace, written whole, and nothing else touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from specflow.cli.files import keep, prepare_file, prepare_folder, try_folder, write_whole
from specflow.errors import RuntimeFault, UsageError

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
