"""What the README tells people to copy works, and both READMEs tell the same."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.config.load import loads
from stack import Forebay, call, folder

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text()
CHINESE = (ROOT / "README.zh-CN.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Forebay]:
    with folder() as where:
        serving = Forebay(
            where, None, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--state-dir", str(where / "state")
        )
        try:
            yield serving
        finally:
            serving.close()


def test_the_curl_streams(gateway: Forebay) -> None:
    command = next(block for block in blocks(ENGLISH, "console") if "forebay-sim" in block)
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    assert words[3:5] == ["-H", "Content-Type: application/json"] and words[5] == "-d" and len(words) == 7
    status, headers, answer = call(gateway.port, "POST", "/v1/chat/completions", json.loads(words[6]))
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/event-stream")
    assert answer.endswith(b"data: [DONE]\n\n") and answer.count(b"data: ") > 40


def test_the_python_snippet_prints_words(gateway: Forebay) -> None:
    (snippet,) = blocks(ENGLISH, "python")
    assert "127.0.0.1:8080" in snippet
    program = snippet.replace("127.0.0.1:8080", f"127.0.0.1:{gateway.port}")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.split()) > 20


def test_the_configuration_can_be_used() -> None:
    (text,) = blocks(ENGLISH, "yaml")
    assert [engine.name for engine in loads(text, "README.md", {}).engines] == ["gpu-1", "gpu-2"]


@pytest.mark.parametrize("page", ["cache.md", "prompt-caching.md"])
def test_configurations_of_caches_can_be_used(page: str) -> None:
    found = blocks((ROOT / "docs" / page).read_text(), "yaml")
    assert found
    for text in found:
        loads(text, page, {})


def test_both_languages_show_the_same() -> None:
    for language in ("python", "yaml"):
        assert blocks(ENGLISH, language) == blocks(CHINESE, language)
    strip = [[re.sub(r"\s+#.*", "", block) for block in blocks(text, "console")] for text in (ENGLISH, CHINESE)]
    assert strip[0] == strip[1]
    numbers = [re.findall(r"\d[\d,.]*", text) for text in (measured(ENGLISH), measured(CHINESE))]
    assert sorted(numbers[0]) == sorted(numbers[1])
    links = [sorted(set(re.findall(r"\]\(([^)#]+)\)", text))) for text in (ENGLISH, CHINESE)]
    assert links[0][0] == "CHANGELOG.md"
    assert set(links[0]) - {"README.zh-CN.md"} == set(links[1]) - {"README.md"}


def measured(text: str) -> str:
    """The rows of the table of measurements."""
    return "\n".join(line for line in text.splitlines() if line.startswith("| ") and "`make " in line)


@pytest.mark.parametrize(
    "page",
    sorted(
        p.relative_to(ROOT).as_posix()
        for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    ),
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        aim = path if not target else (path.parent / target)
        assert aim.exists(), f"{page}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", aim.read_text(), re.MULTILINE)
            assert anchor in {slug(h) for h in headings}, f"{page}: {target}#{anchor}"


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return "".join(ch for ch in heading.lower().replace(" ", "-") if ch.isalnum() or ch in "_-")
