"""The docs are code: their Python runs, their numbers are generated, their links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sklearn.datasets
import yaml

from strop.cli import COMMANDS
from strop.data import ScenesDataset
from strop.data.spec import KINDS, parameters_of
from strop.images import save_image

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = sorted(DOCS.glob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *SITE,
    *sorted((ROOT / "research").rglob("*.md")),
]
sys.path.append(str(DOCS))
import hooks  # noqa: E402  docs/hooks.py

WITH_CODE = [ROOT / "README.md", *SITE]
MOST_PAGES, MOST_WORDS = 12, 14_000


def python_of(page: Path) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    return "\n".join(blocks)


@pytest.fixture(scope="session")
def working_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `make demo` writes and a photograph, as far as the pages use them."""
    folder = tmp_path_factory.mktemp("docs")
    for number, image in enumerate(ScenesDataset(2, size=128).images(range(2))):
        save_image(folder / "demo" / f"scenes-{number}.png", image)
    samples = Path(sklearn.datasets.__file__).parent / "images"
    for number, name in enumerate(("china.jpg", "flower.jpg")):
        for copy in (f"photos/{name}", f"demo/photos-{number}.png", "photo.jpg"):
            (folder / copy).parent.mkdir(exist_ok=True)
            shutil.copy(samples / name, folder / copy)
    return folder


@pytest.mark.parametrize("page", [p for p in WITH_CODE if python_of(p)], ids=lambda p: p.name)
def test_python_in_the_docs_runs(
    page: Path, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = working_folder / f"{page.stem}.py"
    script.write_text(python_of(page), encoding="utf-8")
    monkeypatch.chdir(working_folder)
    runpy.run_path(str(script), run_name="__main__")


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "make.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?://)([^)\s]+)\)", text)
    missing = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            missing.append(target)
    assert not missing


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shell_lines(page: Path) -> list[list[str]]:
    blocks = re.findall(
        r"^```(?:sh|bash)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if re.search(r"\bstrop [a-z]", line)]


def test_commands_and_options_in_the_docs_exist() -> None:
    known = {
        path: {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        for path, command in hooks.commands()
    }
    of_studies = set(re.findall(r"`(--[\w-]+)`", hooks.study_options()))
    lines = [line for page in PAGES for line in shell_lines(page)]
    assert len(lines) > 40
    for line in lines:
        words = line[line.index("strop") :]
        path = " ".join(words[:3]) if " ".join(words[:3]) in known else " ".join(words[:2])
        assert path in known, line
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        allowed = known[path] | {"-h", "--help"}
        assert options <= allowed | (of_studies if path == "strop study" else set()), line


def test_every_kind_of_data_is_documented() -> None:
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    for name in KINDS:
        (row,) = re.findall(rf"^\|.*`{name}:`.*$", text, re.M)
        assert all(f"`{parameter}" in row for parameter in parameters_of(name))


def test_the_site_is_short() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in SITE}
    assert len(SITE) <= MOST_PAGES
    assert sum(words.values()) <= MOST_WORDS, words


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = [path for entry in yaml.safe_load(text)["nav"] for path in entry.values()]
    assert sorted(listed) == [page.name for page in SITE]


def test_the_reference_lists_every_command() -> None:
    page = hooks.on_page_markdown(
        "<!-- cli -->\n<!-- studies -->\n<!-- metrics -->\n[x](../LICENSE) [y](tour.ipynb)",
        page=None,
        config={"extra": {"repository": "https://host/strop"}},
    )
    assert all(re.search(rf"^### strop {name}\b", page, re.M) for name in COMMANDS)
    assert "| `--out, -o` |" in page
    assert "| erasure | `--draws` |" in page
    assert "| `r2_centred` |" in page
    assert "(https://host/strop/blob/main/LICENSE)" in page
    assert "(https://host/strop/blob/main/docs/tour.ipynb)" in page
    assert "<!--" not in page


def test_aligned_lines_of_docstrings_become_lists() -> None:
    text = "One line.\n\nlength  how long,\n        in tokens\nx, y    both\n\nMore text."
    assert hooks.aligned_to_list(text) == (
        "One line.\n\n- **length**: how long,\n  in tokens\n- **x, y**: both\n\nMore text."
    )
