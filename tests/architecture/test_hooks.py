"""The hooks of pre-commit: ours, and the one that other repositories take from here."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RECIPES, ROOT

OURS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
THEIRS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
HOOKS: list[dict[str, Any]] = [hook for repo in OURS["repos"] for hook in repo["hooks"]]
GOOD = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM}\n"
BAD = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM, min_mach: 3}\n"


def called(hook: dict[str, Any], *files: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A hook's entry on files, as pre-commit calls it; the tools are those beside this Python."""
    command, *words = shlex.split(hook["entry"])
    # Each of our tools is a module too, so that the environment need not be on the path.
    module = [sys.executable, "-m", command]
    return subprocess.run(
        [*module, *words, *files], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_ours_are_local() -> None:
    assert {repo["repo"] for repo in OURS["repos"]} == {"local"}
    assert {hook["language"] for hook in HOOKS} == {"system"}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda h: h["id"])
def test_ours_pass_on_what_is_here(hook: dict[str, Any]) -> None:
    files = [str(path) for path in RECIPES[:3]] if "yaml" in hook["types"] else [__file__]
    done = called(hook, *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_theirs_tells_of_every_file_that_is_named(tmp_path: Path) -> None:
    (hook,) = THEIRS
    assert (hook["id"], hook["language"], hook["types"]) == (
        "specflow-validate",
        "python",
        ["yaml"],
    )
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "one bad.yaml").write_text(BAD)
    (tmp_path / "bad.yml").write_text(BAD)
    (tmp_path / "k=3.yaml").write_text(GOOD)
    assert called(hook, "good.yaml", cwd=tmp_path).returncode == 0
    done = called(hook, "good.yaml", "one bad.yaml", "bad.yml", "k=3.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "one bad.yaml:2:27" in done.stdout
    assert "bad.yml:2:27" in done.stdout
    assert "4 recipes, 2 errors" in done.stdout


def test_pre_commit_runs_ours(tmp_path: Path) -> None:
    """pre-commit itself, where it is installed: a changed recipe that is wrong stops a commit."""
    if shutil.which("pre-commit") is None:
        pytest.skip("pre-commit is not here")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/bad.yaml").write_text(BAD)
    (tmp_path / "other.yaml").write_text("not: a recipe\n")
    (tmp_path / ".pre-commit-config.yaml").write_text(
        (ROOT / ".pre-commit-config.yaml").read_text()
    )
    subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
    run = ["env", f"PRE_COMMIT_HOME={tmp_path}/cache", "pre-commit", "run", "specflow-validate"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "recipes/bad.yaml:2:27" in done.stdout
    assert "other.yaml" not in done.stdout
    (tmp_path / "recipes/bad.yaml").write_text(GOOD)
    subprocess.run([*git, "add", "."], cwd=tmp_path, check=True)
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
