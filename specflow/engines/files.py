"""The files that an export names, where they have to be there for a while."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specflow.engines.base import Export


@contextmanager
def written(export: Export) -> Iterator[dict[str, Any]]:
    """An export's arguments while its files exist, each named by where it is."""
    if not export.files:
        yield dict(export.args)
        return
    with tempfile.TemporaryDirectory() as folder:
        named = {name: str(Path(folder) / name) for name in export.files}
        for name, text in export.files.items():
            Path(named[name]).write_text(text, encoding="utf-8")
        yield {
            key: named.get(value, value) if isinstance(value, str) else value
            for key, value in export.args.items()
        }
