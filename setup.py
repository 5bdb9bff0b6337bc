"""Puts the series and the registered tests into the package, from their one place in the repository."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CARRIED = ("patches", "test/registered")


class BuildWithSeries(build_py):
    """Copies them to patchseries/data/ in the build folder; an editable install reads the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        data = Path(self.build_lib) / "patchseries" / "data"
        shutil.rmtree(data, ignore_errors=True)
        for name in CARRIED:
            shutil.copytree(ROOT / name, data / name, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithSeries})
