"""The README for PyPI, where relative links lead nowhere: they point to the repository instead."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def readme() -> str:
    """The README with absolute links to files and images."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Repository"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/blob/main/", text)


if __name__ == "__main__":
    setup(long_description=readme(), long_description_content_type="text/markdown")
