"""Packages of the wheel; all else is in pyproject.toml.

`grammar/` and `specs/` stand at the top of the checkout, where a reader looks for them,
and go into the wheel as `placer/_data/grammar` and `placer/_data/specs`, where
`placer.resources.find` looks first. pyproject.toml cannot say both that packages are to be
found and that two more come from other folders.
"""

from setuptools import find_packages, setup

FOLDERS = ("grammar", "specs")

setup(
    # Not `build/`, which is where a reader of the README lets placer compile to.
    options={"build": {"build_base": ".setuptools"}},
    packages=[
        *find_packages(include=["placer", "placer.*"]),
        *(f"placer._data.{folder}" for folder in FOLDERS),
    ],
    package_dir={f"placer._data.{folder}": folder for folder in FOLDERS},
    package_data={
        "placer": ["py.typed"],
        **{f"placer._data.{folder}": ["*"] for folder in FOLDERS},
    },
)
