"""Beside pyproject.toml for one thing: recipes/ ships inside the package, as specflow/recipes."""

from pathlib import Path

from setuptools import find_packages, setup

RECIPES = [p.relative_to("recipes").as_posix() for p in Path("recipes").rglob("*") if p.is_file()]

setup(
    packages=[*find_packages(include=["specflow*"]), "specflow.recipes"],
    package_dir={"specflow.recipes": "recipes"},
    package_data={"specflow.recipes": RECIPES},
)
