"""Do the embedded drafts load beside their targets, and guess as the targets would go on?"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from specflow import formats
from specflow.models.assistant import Assistant
from specflow.models.lm import LanguageModel
from specflow.models.nets import DraftModel
from specflow.models.pico import drafts
from specflow.models.pico.drafts import ASSISTANT, LESSONS, Lesson, Unroll
from specflow.models.weights import load_draft

TEXT = Path(drafts.__file__).with_name("corpus.py")  # no file of the corpus that they learned from
FIRST = 0.5  # share of right first guesses
AGAIN = 0.3  # of right later guesses, where those before are right


@pytest.fixture(scope="module", params=sorted(LESSONS))
def made(request: pytest.FixtureRequest) -> tuple[str, Lesson]:
    torch.set_num_threads(1)
    name = request.param
    if not shipped(name, LESSONS[name]):
        pytest.skip(f"{name} is not trained yet")
    return name, LESSONS[name]


@pytest.fixture(scope="module")
def target(made: tuple[str, Lesson]) -> LanguageModel:
    return drafts.open_target(drafts.HERE / str(made[1].plan.teacher), torch.float32)


def home(name: str, lesson: Lesson) -> Path:
    bundled = lesson.plan.family != ASSISTANT and formats.named(lesson.plan.family).bundled
    return drafts.HERE / (str(lesson.plan.teacher) if bundled else name)


def shipped(name: str, lesson: Lesson) -> bool:
    file = home(name, lesson) / drafts.WEIGHTS
    if not file.exists():
        return False
    form = formats.named(lesson.plan.family)
    config = json.loads((drafts.HERE / str(lesson.plan.teacher) / "config.json").read_text())
    with safe_open(file, framework="pt") as opened:
        found = formats.recognise(opened.keys(), config["num_hidden_layers"], bundled=form.bundled)
    return found == form


def load_net(name: str, lesson: Lesson, target: LanguageModel) -> DraftModel:
    folder = home(name, lesson)
    said = json.loads((folder / "config.json").read_text())
    form = formats.named(lesson.plan.family)
    return load_draft((folder / drafts.WEIGHTS,), form, said, target.adapter)


def load_assistant(name: str, lesson: Lesson, target: LanguageModel, length: int) -> Assistant:
    pool, folder = target.pool(1, length), home(name, lesson)
    return Assistant.load(folder, target.adapter, pool, device="cpu", dtype="float32")


def covered_by(draft: DraftModel | Assistant, target: LanguageModel) -> Tensor:
    ids = draft.to_target if isinstance(draft, DraftModel) else None
    return torch.arange(target.vocab_size) if ids is None else ids


def unroll_of(draft: DraftModel | Assistant, target: LanguageModel, passes: int) -> Unroll:
    if isinstance(draft, DraftModel):
        return partial(drafts.unroll_net, draft.net, passes)
    return partial(drafts.unroll_assistant, draft.model, target.adapter, draft.layers, passes)


def tokens_of(target_folder: Path, rows: int, length: int) -> Tensor:
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    ids = tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids
    return torch.tensor(ids[: rows * length]).view(rows, length)


def load(name: str, lesson: Lesson, target: LanguageModel, length: int) -> DraftModel | Assistant:
    if lesson.plan.family == ASSISTANT:
        return load_assistant(name, lesson, target, length)
    return load_net(name, lesson, target)


def test_its_guesses_are_mostly_the_targets(
    made: tuple[str, Lesson], target: LanguageModel
) -> None:
    name, lesson = made
    tokens = tokens_of(drafts.HERE / str(lesson.plan.teacher), 4, 129)
    draft = load(name, lesson, target, 129)
    right = drafts.right_guesses(
        unroll_of(draft, target, lesson.passes),
        target.adapter,
        drafts.taps_of(lesson),
        covered_by(draft, target),
        tokens,
    )
    first, *later = drafts.agreement(right)
    assert first >= FIRST
    assert min(later) >= AGAIN


def test_it_learned_as_it_drafts(made: tuple[str, Lesson], target: LanguageModel) -> None:
    """Row p of pass s is what the draft's own window says, s steps after position p."""
    name, lesson = made
    tokens = tokens_of(drafts.HERE / str(lesson.plan.teacher), 1, 200)  # wider than the windows
    draft = load(name, lesson, target, 200)
    shown = drafts.show(target.adapter, tokens, drafts.taps_of(lesson))
    with torch.inference_mode():
        learned = unroll_of(draft, target, lesson.passes)(tokens, shown)
    for row in (0, 3, 150, 190):
        drafted = (
            assistant_steps(draft, target, tokens, shown, row, lesson.passes)
            if isinstance(draft, Assistant)
            else net_steps(draft, tokens, shown, row, lesson.passes)
        )
        for logits, step in zip(learned, drafted, strict=True):
            torch.testing.assert_close(step[0], logits[0, row], atol=1e-3, rtol=1e-3)


def net_steps(
    draft: DraftModel, tokens: Tensor, shown: drafts.Shown, row: int, passes: int
) -> list[Tensor]:
    window, known = draft.window(draft.pool(1, 200), 200), shown.hidden[:, : row + 1]
    if draft.net.net.own_layers:
        return [window.feed(tokens[0, 1 + s : row + 2 + s], known, 0, s)[0] for s in range(passes)]
    logits, state = window.feed(tokens[0, 1 : row + 2], known, 0)
    found = [logits]
    for s in range(1, passes):
        at = torch.tensor([row + s])
        logits, state = window.decode_hidden(tokens[:, row + 1 + s], state, at)
        found.append(logits)
    return found


def assistant_steps(
    draft: Assistant, target: LanguageModel, tokens: Tensor, shown: drafts.Shown, row: int,
    passes: int,
) -> list[Tensor]:  # fmt: skip
    pool = target.pool(1, 200)
    target.window(pool, 200).prefill(tokens[0])
    window, state, found = draft.window(pool, 200), shown.hidden[:, row], []
    for s in range(passes):
        at = torch.tensor([row + 1])
        logits, state = window.decode_hidden(tokens[:, row + 1 + s], state, at)
        found.append(logits)
    return found


def test_an_assistant_grows_branches_that_do_not_see_each_other() -> None:
    lesson = LESSONS["gemma4-assistant"]
    if not shipped("gemma4-assistant", lesson):
        pytest.skip("gemma4-assistant is not trained yet")
    target = drafts.open_target(drafts.HERE / "gemma4", torch.float32)
    draft = load_assistant("gemma4-assistant", lesson, target, 64)
    tokens = tokens_of(drafts.HERE / "gemma4", 1, 40)
    pool = target.pool(1, 64)
    _, hidden, _ = target.window(pool, 64).prefill(tokens[0])
    window, at, last = draft.window(pool, 64), torch.tensor([40]), hidden[:, -1]
    ids = torch.tensor([[5, 77, 900]])
    logits, _ = window.grow_frozen(ids, last[:, None].expand(-1, 3, -1), at)
    for branch in range(3):
        alone, _ = window.decode_hidden(ids[:, branch], last, at)
        torch.testing.assert_close(logits[:, branch], alone, atol=1e-4, rtol=1e-4)
