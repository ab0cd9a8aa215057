"""Models of the Hub that are not here: from the local cache, and from the Hub by a stand-in of it.

The stand-in answers the Hub's own client as the Hub does, out of a folder; no request leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.utils import _http as http

from specflow import hub
from specflow.cli import main
from specflow.facts import ModelFacts, read
from specflow.headers import Tensor
from tests.checkpoint_files import CONFIG, EAGLE3, LM, ONE, write, write_tokenizer

web = sys.modules[type(get_session()).__module__.partition(".")[0]]


class Stand:
    """A Hub of folders: what is asked for, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        self.refusal: tuple[int, str] | None = None

    def __call__(self, request: Any) -> Any:
        """A file, or a stretch of it, or the Hub's own way to say that there is none."""
        model, _, file = request.url.path.strip("/").partition("/resolve/main/")
        span = request.headers.get("range", "")
        self.asked.append((file, span))
        if self.refusal is not None:
            code, error = self.refusal
            return web.Response(code, headers={"x-error-code": error}, request=request)
        path = self.folder / model / file
        if not path.parent.is_dir():
            return web.Response(404, headers={"x-error-code": "RepoNotFound"}, request=request)
        if not path.is_file():
            return web.Response(404, headers={"x-error-code": "EntryNotFound"}, request=request)
        content = path.read_bytes()
        if span:
            begin, _, end = span.removeprefix("bytes=").partition("-")
            return web.Response(206, content=content[int(begin) : int(end) + 1], request=request)
        return web.Response(200, content=content, request=request)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    folder = tmp_path / "hub"
    (folder / "org").mkdir(parents=True)
    write_tokenizer(write(folder / "org" / "target", LM, **CONFIG))
    write(folder / "org" / "draft", EAGLE3, **ONE)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = Stand(folder)
    set_client_factory(lambda: web.Client(transport=web.MockTransport(made)))
    yield made
    set_client_factory(http.default_client_factory)


RECIPE = "target: {model: org/target}\ndraft: {algorithm: EAGLE3, model: org/draft}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "r.yaml").write_text(RECIPE)
    return str(tmp_path / "r.yaml")


def alike(one: ModelFacts, other: ModelFacts) -> None:
    """The same facts, but for where they are kept."""
    for name in ("architecture", "vocab_size", "layers", "hidden_size", "config", "vocabulary"):
        assert getattr(one, name) == getattr(other, name)
    plain: Any = lambda t: {n: (x.dtype, x.shape) for n, x in t.items() if isinstance(x, Tensor)}  # noqa: E731
    assert plain(one.tensors) == plain(other.tensors)


def test_the_hub_says_what_a_folder_would(stand: Stand) -> None:
    for name in ("target", "draft"):
        alike(hub.fetched(f"org/{name}"), read(str(stand.folder / "org" / name)))


def test_nothing_is_asked_without_the_option(
    stand: Stand, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", recipe]) == 1
    assert stand.asked == []
    assert "`org/target` is not here" in capsys.readouterr().out


def test_headers_are_asked_for_and_no_weights(
    stand: Stand, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A draft of 40 MB in fact: its header, and the two tables that are read, are all that is taken.
    big = {n: s for n, s in EAGLE3.items() if n not in ("d2t", "t2d")}
    write(stand.folder / "org" / "draft", {**big, "z.weight": (10_000, 1000), "d2t": EAGLE3["d2t"]},
          **ONE)  # fmt: skip
    assert main(["validate", recipe, "--hub", "--no-fit"]) == 0, capsys.readouterr().out
    taken = [span for file, span in stand.asked if file == hub.SINGLE]
    assert all(taken)  # never a file of weights as a whole
    sizes = [int(s.rpartition("-")[2]) - int(s[6:].partition("-")[0]) + 1 for s in taken]
    assert sum(sizes) < 3 * hub.HEAD


def test_findings_are_those_of_folders(
    stand: Stand, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(stand.folder / "org" / "draft", {**EAGLE3, "d2t": ("I64", [0, 1, 1, 2, 20])}, **ONE)
    assert main(["validate", recipe, "--hub"]) == 1
    assert "`d2t` maps draft id 4 to 24" in capsys.readouterr().out


def test_shards(stand: Stand) -> None:
    folder = write(stand.folder / "org" / "draft", EAGLE3, **ONE)
    (folder / hub.SINGLE).rename(folder / "a.safetensors")
    names = ", ".join(f'"{n}": "a.safetensors"' for n in EAGLE3)
    (folder / hub.INDEX).write_text(f'{{"weight_map": {{{names}}}}}')
    found = hub.fetched("org/draft")
    assert found.shapes["d2t"] == (5,)
    assert found.problem is None


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((401, "RepoNotFound"), "the Hub shows no `org/target`"),
        ((403, "GatedRepo"), "`org/target` is gated on the Hub"),
        ((503, ""), "the Hub was not reached for `org/target` (HfHubHTTPError)"),
    ],
)
def test_a_refusal_is_a_finding_with_a_way_out(
    refusal: tuple[int, str],
    said: str,
    stand: Stand,
    recipe: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand.refusal = refusal
    assert main(["validate", recipe, "--hub"]) == 1
    out = capsys.readouterr().out
    assert said in out
    assert "= help: " in out


@pytest.mark.usefixtures("stand")
def test_no_network(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    def unplugged(request: Any) -> Any:
        raise web.ConnectError("no route", request=request)

    set_client_factory(lambda: web.Client(transport=web.MockTransport(unplugged)))
    assert main(["validate", recipe, "--hub"]) == 1
    out = capsys.readouterr().out
    assert "the Hub was not reached for `org/target` (ConnectError)" in out
    assert "--facts FILE" in out


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"["),
        ("config.json", b"[]"),
        ("tokenizer.json", b"{}"),
        (hub.SINGLE, b"\xff" * 40),
        (hub.SINGLE, b"\x02\0\0\0\0\0\0\0[]"),
        (hub.SINGLE, b'\x09\0\0\0\0\0\0\0{"a": {}}'),
        (hub.INDEX, b'{"weight_map": {"a": "../x"}}'),
    ],
)
def test_what_the_hub_says_is_foreign_text(
    file: str, content: bytes, stand: Stand, recipe: str
) -> None:
    (stand.folder / "org" / "target" / file).write_bytes(content)
    assert main(["validate", recipe, "--hub"]) == 1


def keep(cache: Path, model: str, made: Path) -> None:
    """A checkpoint as the Hub's client keeps it."""
    folder = cache / f"models--{model.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots").mkdir()
    made.rename(folder / "snapshots" / "abc")


def test_a_model_in_the_cache_needs_no_hub(stand: Stand, recipe: str, tmp_path: Path) -> None:
    for name in ("target", "draft"):
        keep(tmp_path / "cache", f"org/{name}", stand.folder / "org" / name)
    assert main(["validate", recipe, "--strict"]) == 0
    assert main(["validate", recipe, "--hub", "--strict"]) == 0
    assert stand.asked == []


def test_a_part_of_a_model_in_the_cache(
    stand: Stand, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "part").mkdir()
    config = (stand.folder / "org" / "target" / "config.json").read_text()
    (tmp_path / "part" / "config.json").write_text(config)
    keep(tmp_path / "cache", "org/target", tmp_path / "part")
    assert main(["validate", recipe]) == 1
    out = capsys.readouterr().out
    assert "in the local cache" in out
    assert "`--hub` asks the Hub" in out
    assert main(["validate", recipe, "--hub", "--strict"]) == 0


def test_what_the_hub_said_can_be_kept(stand: Stand, recipe: str, tmp_path: Path) -> None:
    file = str(tmp_path / "f.yaml")
    assert main(["validate", recipe, "--hub", "--write-facts", file]) == 0
    stand.refusal = (503, "")
    assert main(["validate", recipe, "--facts", file, "--strict"]) == 0
