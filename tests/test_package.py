"""What is installed: the built wheel and sdist, from a clean environment and from `/`."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").glob("*/*.yaml"))
REWARDS = sorted(path.name for path in (ROOT / "rewards").glob("*.py"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of what git would ship."""
    out = tmp_path_factory.mktemp("dist")
    tree = tmp_path_factory.mktemp("tree")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)],
        check=True,
        capture_output=True,
    )
    return out


def test_the_wheel_holds_one_top_level_package_with_every_recipe_and_reward(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"trl_r1"}
    assert RECIPES, "the repository has recipes"
    for recipe in RECIPES:
        assert f"trl_r1/{recipe}" in names
    for reward in REWARDS:
        assert f"trl_r1/rewards/{reward}" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "trl_r1").rglob("*.py")}
    assert modules <= set(names), "a package is missing in pyproject.toml"
    assets = {f"trl_r1/report/{name}" for name in ("page.html", "page.css", "charts.js", "page.js")}
    assert {*assets, "trl_r1/report/samples.js"} <= set(names)


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path)
    (tree,) = tmp_path.iterdir()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "-o",
            str(tmp_path),
            str(tree),
        ],
        check=True,
        capture_output=True,
    )
    (again,) = tmp_path.glob("*.whl")
    (wheel,) = built.glob("*.whl")

    def content(path: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(path) as archive:
            return {n: archive.read(n) for n in archive.namelist() if ".dist-info" not in n}

    assert content(again) == content(wheel)


def test_the_wheel_works_in_a_clean_environment_from_the_root_folder(
    built: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    packages = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    # This environment's dependencies without its `.pth` files, which hold the editable install.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    program = (
        "import trl_r1.cli, trl_r1.rewards.math_answer as reward;"
        "from importlib.resources import files;"
        "assert reward.math_answer_reward(['\\\\boxed{4}'], solution=['4']) == [1.0];"
        "print(trl_r1.__file__);"
        "print(sorted(p.name for p in files('trl_r1.recipes').iterdir() if p.is_dir()))"
    )
    result = subprocess.run(
        [python, "-c", program], cwd="/", env=clean, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert str(packages) in result.stdout
    assert "tiny-cpu" in result.stdout
    listing = subprocess.run(
        [python, "-m", "trl_r1", "--help"], cwd="/", env=clean, capture_output=True, text=True
    )
    assert listing.returncode == 0, listing.stderr
    assert "run" in listing.stdout
