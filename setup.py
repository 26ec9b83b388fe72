"""Lists the packages of the wheel; everything else is in pyproject.toml.

`grammar/` and `specs/` are at the top of the checkout, where readers look for them. The
wheel contains them as `placer/_data/grammar` and `placer/_data/specs`, where
`placer.system.resources.find_file` looks first. pyproject.toml cannot combine the discovery of
packages with packages from other folders.
"""

from setuptools import find_packages, setup

FOLDERS = ("grammar", "specs")

setup(
    # Not `build/`, which the README uses as the folder for builds of placer.
    options={"build": {"build_base": ".setuptools"}},
    packages=[
        *find_packages(include=["placer", "placer.*"]),
        *(f"placer._data.{folder}" for folder in FOLDERS),
    ],
    package_dir={f"placer._data.{folder}": folder for folder in FOLDERS},
    package_data={
        "placer": ["py.typed"],
        "placer.report.page": ["*.css", "*.html", "*.js"],
        **{f"placer._data.{folder}": ["*"] for folder in FOLDERS},
    },
)
