"""Documents: each folder has a README, it names the files, and links lead somewhere."""

from __future__ import annotations

import re

import pytest

from tests.support.places import REPOSITORY
from tests.support.style.sources import EVERYTHING, PRODUCTION, files_below


@pytest.mark.parametrize("folder", [*EVERYTHING, "docs", "scripts"])
def test_folder_says_what_lives_in_it(folder: str) -> None:
    assert (REPOSITORY / folder / "README.md").is_file()


@pytest.mark.parametrize("folder", ["docs", "scripts"])
def test_folder_says_what_each_of_its_files_is(folder: str) -> None:
    readme = REPOSITORY / folder / "README.md"
    files = [path for path in files_below((folder,), ".md", ".sh", ".cfg", ".py", ".json") if path != readme]

    assert files
    assert [path.name for path in files if path.name not in readme.read_text()] == []


@pytest.mark.parametrize("root", PRODUCTION)
def test_readme_of_a_root_names_its_rooms(root: str) -> None:
    text = (REPOSITORY / root / "README.md").read_text()
    rooms = [path.parent.name for path in (REPOSITORY / root / "stratalog").rglob("__init__.py")]

    assert [room for room in rooms if f"`{room}/`" not in text and f"`stratalog.{room}`" not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*files_below((*EVERYTHING, "docs", "scripts"), ".md"), *REPOSITORY.glob("*.md")]
    broken = [
        f"{document.relative_to(REPOSITORY)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]

    assert not broken, "\n".join(broken)


def test_modules_that_a_decision_names_exist() -> None:
    names = {path.name for path in files_below(EVERYTHING, ".py")}
    missing = [
        f"{document.name}: {module}"
        for document in files_below(("docs/decisions",), ".md")
        for module in re.findall(r"`[^`\s]*?(\w+\.py)`", document.read_text())
        if module not in names
    ]

    assert not missing, "\n".join(missing)
