"""Words, scripts and files of engines that mean harm: told, without waiting or growing."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from specflow.cli import main
from specflow.engines.versions import nearest
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
