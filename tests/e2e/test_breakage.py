"""What a hostile or unlucky user does: nothing ends in a traceback, nothing finished is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.test_cli import specflow

TEXT = "target: {model: builtin:pico-llama}\ndraft: {algorithm: NGRAM, min_match: 2}\n"
HOT = "sampling.temperature=1"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of one's own."""
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT)
    return file


def test_out_that_holds_a_run_is_kept(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("run", str(recipe), "--no-baseline", "--out", str(out), "sampling.max_new_tokens=4")
    assert specflow(*words, "--prompt", "import os").returncode == 0
    kept = (out / "completions.jsonl").read_text()
    again = specflow(*words, "--prompt", "import sys")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert (out / "completions.jsonl").read_text() == kept
    assert specflow(*words, "--prompt", "class A:\n", "--overwrite").returncode == 0
    assert (out / "completions.jsonl").read_text() != kept


def test_a_full_disk_keeps_whole_lines(tmp_path: Path) -> None:
    """A limit on file size stands for the disk: the line that does not fit is taken back."""
    prompts = tmp_path / "p.jsonl"
    lines = [json.dumps({"id": str(i), "prompt": "import os\n"}) for i in range(40)]
    prompts.write_text("\n".join(lines))
    out = tmp_path / "out"
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
    program = limit + "from specflow.cli import main; sys.exit(main(sys.argv[1:]))"
    # The step module of nothing drafted is small enough for such a disk.
    words = ("run", "pico/plain", "--prompts", str(prompts), "--out", str(out), "--no-baseline")
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "sampling.max_new_tokens=60"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    kept = (out / "completions.jsonl").read_text().splitlines()
    assert 2 <= len([json.loads(line) for line in kept]) < 40
    assert json.loads((out / "report.json").read_text())["cut_short"]
    assert "cannot be written" in done.stdout


@pytest.mark.parametrize("name", ['a\nopen("pwn","w")#', 'q"""q', "a\\b", "\u2028x", "y" * 200])
def test_no_name_reaches_generated_code(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.yaml"
    file.write_text(TEXT)
    words = ("--prompt", "x", "--no-baseline", "sampling.max_new_tokens=2")
    done = specflow("run", str(file), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "pwn").exists()
    named = tmp_path / "named.yaml"
    named.write_text(f"recipe: {json.dumps(name)}\n" + TEXT)
    assert specflow("validate", str(named)).returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ("run", "pico/plain", "--prompt", "x", "run.device=cuda"),
        ("run", "pico/plain", "--prompt", "x", "--out", "/dev/null/x"),
        ("run", "pico/plain", "--prompt", " "),
        ("run", "pico/plain", "--prompt", "x", "draft.odd=1"),
        ("explain", "pico/plain", "no.field"),
        ("validate", "/dev/null"),
    ],
)
def test_failures_are_json_where_json_is_asked(words: tuple[str, ...]) -> None:
    done = specflow(*words, "--format", "json")
    assert done.returncode in (1, 2)
    found = json.loads(done.stdout)
    assert found
    assert all(f["code"].startswith("SF") and f["message"] for f in found)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0.5, 1.5, 3.0])
def test_an_early_signal_is_one_word(after: float, sent: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "specflow", "run", "pico/plain"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(after)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in stderr


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", ["specflow.cli", "specflow.diagnostics", "unicodedata", "torch"])
def test_a_signal_during_an_import_is_one_word(module: str, sent: str) -> None:
    """An import that is broken off may fail in any way: a module of C does so as a syntax error."""
    program = f"""
import os, signal, sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.{sent})
sys.meta_path.insert(0, Hook())
sys.argv = ["specflow", "run", "pico/plain", "--prompt", "x"]
from specflow.__main__ import start
sys.exit(start())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "interrupted\n")


@pytest.mark.parametrize("words", ["run pico/plain --prompt x", "profile pico/dspark"])
def test_a_signal_that_a_library_keeps_to_itself_is_heeded(words: str) -> None:
    program = f"""
import os, signal, sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except KeyboardInterrupt:
                pass
sys.meta_path.insert(0, Hook())
sys.argv = ["specflow", *{words.split()}]
from specflow.__main__ import start
sys.exit(start())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "interrupted\n")


def test_ctrl_c_before_the_first_handler_is_one_word() -> None:
    """As the script of the package begins: the interpreter's own handler is still in place."""
    program = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins without it
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "specflow.interrupts":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
from specflow.__main__ import start
sys.exit(start())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "interrupted\n")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_a_run_keeps_what_had_ended(sent: signal.Signals, tmp_path: Path) -> None:
    out, prompts = tmp_path / "out", tmp_path / "p.jsonl"
    lines = [{"id": str(i), "prompt": "import os\n"} for i in range(2000)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "specflow", "run", "pico/plain", "--prompts", str(prompts)),
            *("--out", str(out), "sampling.max_new_tokens=4"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    file = out / "completions.jsonl"
    while process.poll() is None and not (file.exists() and file.stat().st_size):
        time.sleep(0.01)
    process.send_signal(sent)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert "cut short" in stdout
    report = json.loads((out / "report.json").read_text())
    assert report["cut_short"]
    kept = [json.loads(line)["id"] for line in file.read_text().splitlines()]
    assert kept == [str(i) for i in range(len(kept))]
    assert 0 < len(kept) < len(lines)


BAD = "pico/ngram draft.min_mach=3"


def shell(words: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell; the exit code is its own, whatever a pipe goes to."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m specflow {words}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("validate pico/ngram >&-", 0),
        (f"validate {BAD} >&-", 1),
        (f"validate {BAD} >&- 2>&- <&-", 1),
        ("validate pico/ngram > /dev/full", 1),  # the result is lost
        ("explain missing > /dev/full", 2),
        ("explain missing 2> /dev/full", 2),
        ("explain missing > /dev/full 2> /dev/full", 2),
        (f"explain {BAD} --format json > /dev/full", 1),
        ("explain x 2>&-", 2),
        ("recipes > /dev/full", 1),
        ("--help > /dev/full", 1),
        ("--help >&-", 0),
        ("odd 2> /dev/full", 2),
        ("recipes | true", 0),
        ("--help | true", 0),
        ("validate pico/ngram | true", 0),
        (f"validate {BAD} | true", 1),
        ("validate missing | true", 2),
        (f"validate {BAD} 2>&1 | true", 1),
        (f"compile {BAD} 2>&1 | true", 1),
        ("rule SF000 | head -1", 0),
    ],
)
def test_closed_and_full_streams(words: str, code: int) -> None:
    """A command says whether it went well, whoever listens; a full disk adds a finding."""
    done = shell(words)
    assert done.returncode == code, done.stderr
    if "> /dev/full" in words and "2>" not in words:
        assert "stdout could not be written" in done.stderr


@pytest.mark.parametrize(
    ("stream", "code"), [(">&-", 0), ("> /dev/full", 1), ("2>&1 | true", 0), ("2> /dev/full", 0)]
)
def test_files_are_written_whoever_listens(stream: str, code: int, tmp_path: Path) -> None:
    run = f"run pico/plain --prompt x sampling.max_new_tokens=2 --out {tmp_path}/run"
    steps = "--batch 1 --steps 1 --warmup 0"
    for words, file in (
        (run, tmp_path / "run" / "report.json"),
        (f"profile pico/dspark {steps} -o {tmp_path}/cost.json", tmp_path / "cost.json"),
    ):
        done = shell(f"{words} {stream}")
        assert done.returncode == code, done.stderr
        assert json.loads(file.read_text())


def test_a_file_never_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What a library writes to stdout must not end up in the completions."""
    said = "import os; from specflow.cli.streams import open_streams; open_streams(); "
    said += "n = os.open('y', os.O_CREAT | os.O_WRONLY); os.write(n, b'%d' % n)"
    words = ["bash", "-c", f'{sys.executable} -c "{said}" <&- >&- 2>&-']
    assert subprocess.run(words, cwd=tmp_path, check=False).returncode == 0
    assert int((tmp_path / "y").read_text()) > 2


@pytest.mark.parametrize(
    "words",
    [
        ("run", "pico/plain", "--prompt", "x"),
        ("profile", "pico/dspark", "-o", "x"),
        ("run", "pico/plain", "--prompt", "x", "--out", "x"),
        ("validate", "mine.yaml"),
        ("explain", "../mine.yaml"),
    ],
)
def test_from_a_folder_that_is_gone(words: tuple[str, ...], tmp_path: Path) -> None:
    """The libraries of torch end the process there, in words of their own."""
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os, sys; os.rmdir({str(gone)!r}); from specflow.__main__ import start; "
    done = subprocess.run(
        [sys.executable, "-P", "-c", program + "sys.exit(start())", *words],
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error[SF0" in done.stderr + done.stdout


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
@pytest.mark.parametrize(
    "words",
    [
        "validate shut/mine.yaml",
        "explain shut/mine.yaml",
        "run shut/mine.yaml --prompt x",
        "run pico/plain --prompts shut/p.jsonl",
        "run pico/plain --prompt x --out shut/out",
        "run pico/plain --prompt x --out kept/out",
        "profile pico/dspark -o shut/cost.json",
        "profile pico/dspark -o kept/cost.json",
        "profile pico/dspark -o mine/cost.json --overwrite",
    ],
)
def test_folders_that_may_not_be_used(words: str, tmp_path: Path) -> None:
    """Told before a model loads, also to whoever runs the tests as root."""
    for name, mode in (("shut", 0), ("kept", 0o555), ("mine", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "mine" / "cost.json").write_text("{}")
    (tmp_path / "mine" / "cost.json").chmod(0o444)
    bound = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if not os.getuid() else ()
    done = subprocess.run(
        [*bound, sys.executable, "-m", "specflow", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (tmp_path / "shut").chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "loading" not in done.stderr
    assert "ermission denied" in done.stderr + done.stdout
    assert (tmp_path / "mine" / "cost.json").read_text() == "{}"


def test_a_run_that_is_refused_makes_no_folder_and_keeps_the_old_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "a" / "new"
    old.mkdir()
    (old / "report.json").write_text("mine")
    for out in (old, new):
        words = ("--prompt", "x", "run.device=cuda", "--out", str(out), "--overwrite")
        assert specflow("run", "pico/plain", *words).returncode == 1
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["old", "old/report.json"]
    assert (old / "report.json").read_text() == "mine"


def test_a_narrow_stream() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specflow", "explain", "pico/ngram"],
        cwd=ROOT,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0


def test_a_bug_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specflow.cli import main, validate

    monkeypatch.setattr(validate, "resolve", lambda *_, **__: 1 / 0)
    assert main(["validate", "pico/ngram"]) == 1
    said = capsys.readouterr().err
    assert "SF090" in said
    assert "ZeroDivisionError" in said


@pytest.mark.parametrize(
    "override",
    [
        "target.model=~nouser/x",
        'run.prompts="a\\0b"',
        'sampling.stop=["\\ud800"]',
        "sampling.stop=['']",
        "draft.breadth=[1,99999999999999999999]",
        "draft.breadth=[1]",
        "run." + "a." * 2000 + "a=1",
        "run.max_length=99999999999999999999999",
        "draft.algorithm=NONE",
    ],
)
def test_odd_values_are_findings(override: str, recipe: Path) -> None:
    done = specflow("validate", str(recipe), override)
    assert done.returncode in (1, 2), done.stdout
    assert "SF09" not in done.stdout
    assert "= help:" in done.stdout


def test_what_is_no_file_does_not_hang(recipe: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert specflow("validate", str(pipe), timeout=20).returncode == 2
    assert specflow("run", str(recipe), "--prompts", str(pipe), timeout=20).returncode == 2
    assert specflow("run", str(recipe), "--prompts", "/dev/zero", timeout=20).returncode == 2


def test_a_file_that_specflow_did_not_make_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "pico" / "ngram" / "step.py"
    file.parent.mkdir(parents=True)
    file.write_text("mine\n")
    for manifest in (None, "{}", '{"files":{},"made":5}', '{"files":{},"made":[]}', "["):
        if manifest is not None:
            (file.parent / "made.json").write_text(manifest)
        done = specflow("compile", "pico/ngram", "-o", str(tmp_path))
        assert done.returncode == 1
        assert "--force" in done.stderr
        assert file.read_text() == "mine\n"


def test_two_recipes_of_one_name_do_not_share_a_module(tmp_path: Path) -> None:
    """Steps are kept by what they are made of, so runs at once never load each other's."""
    from specflow.codegen import emit
    from specflow.load import load
    from specflow.lower import lower
    from specflow.packs import find
    from specflow.resolve import resolve

    def module(width: int):
        resolved = resolve(load(find("pico/ngram"), [f"verify.num_draft_tokens={width}"]))
        return emit(lower(resolved), resolved)

    first, second = module(6), module(7)
    assert first.fingerprint != second.fingerprint
    assert second.load(tmp_path).NUM_DRAFT_TOKENS == 7
    assert first.load(tmp_path).NUM_DRAFT_TOKENS == 6
    assert second.load(tmp_path).NUM_DRAFT_TOKENS == 7


def test_drawn_completions_are_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text(
        json.dumps({"id": "g", "prompt": "class A:"})
        + "\n"
        + json.dumps({"id": "s", "prompt": "class A:", "temperature": 0.9})
    )
    words = ("verify.accept=target_only", "sampling.max_new_tokens=16", "--check-lossless")
    done = specflow("run", "pico/ngram", "--prompts", str(file), *words, "--format", "json")
    assert done.returncode == 0, done.stdout
    said = json.loads(done.stdout)["lossless"]
    assert (said["compared"], said["identical"]) == (1, 1)
    assert "1 drawn" in said["verdict"]


def test_what_a_recipe_allows_is_told_in_the_report(recipe: Path) -> None:
    lossy = ("verify.accept=target_only", "verify.threshold_acc=0.5", "sampling.temperature=0.8")
    words = ("--prompt", "import os", "--no-baseline", "sampling.max_new_tokens=8")
    recipe.write_text(TEXT + "allow: {SF037: a test}\n")
    done = specflow("run", str(recipe), *words, *lossy, "--format", "json")
    assert any("favours guesses" in w for w in json.loads(done.stdout)["warnings"])
    assert "lossy" in specflow("compile", str(recipe), *lossy, "--show", "code").stdout


def test_next_to_temperature_0_is_greedy(tmp_path: Path) -> None:
    """Numbers that float32 does not hold change nothing but the step; no completion is empty."""
    from specflow.cli import main

    said = []
    coldest = "sampling.temperature=1e-40"
    for at, words in enumerate(
        ([], [coldest], [coldest, "sampling.top_p=1e-60"], ["sampling.top_p=1e-60", HOT])
    ):
        out = tmp_path / str(at)
        kept = ("--prompt", "class A:", "--no-baseline", "--out", str(out))
        assert main(["run", "pico/ngram", *kept, "sampling.max_new_tokens=12", *words]) == 0
        said.append(json.loads((out / "completions.jsonl").read_text())["token_ids"])
    assert len(said[0]) == 12
    assert said == [said[0]] * 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pico/ngram verify.mode", "`verify.shape: ragged`"),
        ("pico/ngram topk", "`draft.algorithm: STANDALONE, EAGLE, "),
        ("pico/ngram num_draft_tokens", "`verify.num_draft_tokens`"),
        ("pico/ngram speculative_eagle_topk", "`draft.algorithm: STANDALONE, EAGLE, "),
        ("pico/eagle3 speculative_num_steps", "`draft.num_steps`"),
        ("pico/eagle3 speculative-eagle-topk", "`draft.topk`"),
        ("pico/eagle3 eagle_topk", "`draft.topk`"),
        ("pico/eagle3 topk", "`draft.topk`"),
        ("pico/ngram draft.min_mach", "`draft.min_match`"),
        ("pico/ngram .", "did you mean"),
    ],
)
def test_names_that_are_no_fields_are_explained(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from specflow.cli import main

    assert main(["explain", *words.split()]) == 2
    assert said in capsys.readouterr().err
