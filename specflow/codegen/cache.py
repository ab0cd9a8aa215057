"""Where step modules live, when one is stale, and how it is imported with lines to trace."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from specflow.errors import RuntimeFault

MANIFEST = "made.json"


class StaleReason(StrEnum):
    """Why a module on disk is not the one to run."""

    MISSING = "missing"
    RECIPE_CHANGED = "recipe-changed"
    STAGE_CHANGED = "stage-changed"
    TEMPLATE_CHANGED = "template-changed"
    SPECFLOW_CHANGED = "specflow-changed"
    EDITED_BY_HAND = "edited-by-hand"
    NOT_OURS = "not-ours"


_REASONS = {
    "recipe": StaleReason.RECIPE_CHANGED,
    "stages": StaleReason.STAGE_CHANGED,
    "templates": StaleReason.TEMPLATE_CHANGED,
    "specflow": StaleReason.SPECFLOW_CHANGED,
}


@dataclass(frozen=True)
class StepModule:
    """A generated step: its text, a device's, and the digests it was made from."""

    name: str
    source: str
    device: str
    made: tuple[tuple[str, str], ...]

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits of all it was made from, and of what was made."""
        return _digest(repr((self.made, self.source, self.device)))

    @property
    def files(self) -> dict[str, str]:
        """File names and texts of the module's folder."""
        return {"step.py": self.source, "device.py": self.device}

    def folder(self, root: Path) -> Path:
        """Where it lies under a root: the recipe's own name."""
        return root.joinpath(*_safe(self.name))

    def stale(self, root: Path) -> StaleReason | None:
        """Why what lies under the root has to be written again, or None."""
        folder = self.folder(root)
        texts = {name: _read(folder / name) for name in ("step.py", "device.py", MANIFEST)}
        if texts["step.py"] is None and texts["device.py"] is None:
            return StaleReason.MISSING
        made, digests = _manifest(texts[MANIFEST] or "")
        if not digests:
            return StaleReason.NOT_OURS
        if any(_digest(texts.get(name) or "") != digest for name, digest in digests.items()):
            return StaleReason.EDITED_BY_HAND
        return next((_REASONS[k] for k, v in self.made if made.get(k) != v), None)

    def write(self, root: Path) -> Path:
        """Write the folder, each file whole or not at all; returns step.py."""
        folder = self.folder(root)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in self.files.items():
                _replace(folder / name, text)
            kept = {
                "made": dict(self.made),
                "files": {n: _digest(t) for n, t in self.files.items()},
            }
            _replace(folder / MANIFEST, json.dumps(kept, indent=1) + "\n")
        except OSError as error:
            raise RuntimeFault(
                f"cannot write the step module to {str(folder)[:200]}: {error.strerror}; "
                "make the folder writable, or let XDG_CACHE_HOME or `-o` name another"
            ) from error
        return folder / "step.py"

    def load(self, root: Path) -> ModuleType:
        """Write it where it is stale, import it, and return the module; `on_device` has the other.

        The folder is named by the fingerprint, so two runs at once never load each other's module.
        """
        root = root / self.fingerprint
        if self.stale(root) is not None:
            self.write(root)
        name = f"specflow_step_{self.fingerprint}"
        package = ModuleType(name, self.name)
        package.__path__ = [str(self.folder(root))]
        for old in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[old]  # the folder may be another one now
        sys.modules[name] = package
        return importlib.import_module(f"{name}.step")


def on_device(module: ModuleType) -> ModuleType:
    """The steps of a module as a device runs them."""
    return importlib.import_module(f"{module.__package__}.device")


def _replace(file: Path, text: str) -> None:
    """Write a file beside its place, then move it: a killed run leaves the old one or the new."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
        Path(name).chmod(0o644)  # mkstemp makes it the owner's alone
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(file: Path) -> str | None:
    """A text, or None where there is none that can be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _manifest(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """What a manifest says a module was made from, and its files' digests; empty if it is none."""
    try:
        kept = json.loads(text)
        made, digests = dict(kept["made"]), dict(kept["files"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}, {}
    return made, digests


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _safe(name: str) -> list[str]:
    """A recipe's name as folders: nothing that climbs out, nothing a file system minds."""
    parts = [
        "".join(c if c.isalnum() or c in "-_." else "_" for c in part).strip(".")
        for part in name.split("/")
    ]
    return [p for p in parts if p] or ["recipe"]
