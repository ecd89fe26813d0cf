"""The guides whose commands run in a folder of docs/examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guides import GUIDES, copied, not_in_files, run_guide

EXAMPLES = {
    "stages": "stages",
    "torch-to-mindspore": "mindspore",
}
"""by page: the folder in which its commands run"""


@pytest.mark.thorough
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_commands_of_a_guide_print_what_it_shows(page: str, tmp_path: Path) -> None:
    run_guide(GUIDES / f"{page}.md", copied(EXAMPLES[page], tmp_path))


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_code_that_a_guide_shows_is_that_of_its_example(page: str) -> None:
    assert not_in_files(GUIDES / f"{page}.md", EXAMPLES[page]) == []
