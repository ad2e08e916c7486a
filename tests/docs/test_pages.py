"""The code on the pages of `docs/` runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if "```python" in page.read_text() and page.stem != "ingest"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    names: dict[str, Any] = {"place": str(tmp_path / "table")}
    exec(compile(code, str(page), "exec"), names)
    names.clear()  # a loader's threads hold the page's functions, and those the page's names
    assert capsys.readouterr().out
