"""Facts of the whole project that no single module can state: what is shipped, and what it needs."""

import json
import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def installed() -> Distribution:
    """Procq as pip installed it, which is the wheel; the README's test command makes one."""
    try:
        found = distribution("procq")
    except PackageNotFoundError:
        pytest.skip("procq is not installed, so there is no wheel to look at")
    if json.loads(found.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        pytest.skip("procq is installed editable, so there is no wheel to look at")
    return found


def names(requirements: list[str]) -> set[str]:
    """Return the projects that a list of requirements names, those of extras left out."""
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requirements if "extra ==" not in text}


def test_cloudpickle_and_psutil_are_all_that_a_program_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert names(project["dependencies"]) == {"cloudpickle", "psutil"}


def test_the_wheel_needs_what_the_project_says(installed: Distribution) -> None:
    assert names(installed.requires or []) == {"cloudpickle", "psutil"}


def test_the_wheel_holds_the_whole_package_and_nothing_for_its_editors(installed: Distribution) -> None:
    found = (path.relative_to(ROOT) for path in (ROOT / "procq").rglob("*") if path.is_file())
    tree = {
        path.as_posix()
        for path in found
        if path.name != "ruff.toml" and not any(part.startswith((".", "__pycache__")) for part in path.parts)
    }

    # Not only `.pyc`: a worker that is killed as it writes one leaves it under another name.
    shipped = {path.as_posix() for path in installed.files or [] if "__pycache__" not in path.parts}
    package = {path for path in shipped if path.startswith("procq/")}

    assert package == tree, "the wheel is not this tree's: a file was left out of it, or install again"
    assert "procq/py.typed" in package
    # Beside the package only its metadata and the command: no tests, no examples at the top of site-packages.
    assert {path.split("/")[0] for path in shipped - package} <= {"..", f"procq-{installed.version}.dist-info"}


def test_the_command_is_named_procq(installed: Distribution) -> None:
    scripts = {point.name: point.value for point in installed.entry_points if point.group == "console_scripts"}

    assert scripts == {"procq": "procq.cli:console"}
