"""Build step: the wheel holds the recipes and warm starts, which a checkout has beside the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShippedFiles(build_py):
    """Copies ``configs`` and ``warm_starts`` into ``fr3e_jax/shipped`` of a wheel; editable installs need no copy."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for folder in ("configs", "warm_starts"):
                target = Path(self.build_lib) / "fr3e_jax" / "shipped" / folder
                shutil.copytree(folder, target, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithShippedFiles})
