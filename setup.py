"""Beside pyproject.toml for one thing: recipes/ ships inside the package, as specflow/recipes."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["specflow*"]), "specflow.recipes"],
    package_dir={"specflow.recipes": "recipes"},
)
