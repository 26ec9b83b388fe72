"""Python modules that lie in one folder, beside a spec or in a build: run from their source alone."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from placer.callsite import is_cell
from placer.errors import BuildError
from placer.build.folder import read_file
from placer.build.plan import FILE, Plan, read_plan, read_sources
from placer.files.regular import read_regular

being_traced: ContextVar[str | None] = ContextVar("placer.being_traced", default=None)
"""The module that is imported for a function that is traced."""

LARGEST_MODULE = 16 << 20
"""Bytes that a module beside a spec may have."""

_importing = threading.RLock()  # sys.meta_path and sys.modules are the whole process's


@dataclass(frozen=True, eq=False)
class Modules(MetaPathFinder, Loader):
    """Finds and loads modules of one folder by name; of a build, those of its plan.

    No bytecode is read or written: what runs is the source that was checked.
    """

    folder: Path
    plan: Plan | None
    loaded: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def data_folder(self) -> Path:
        """The folder of the spec, whose modules a build has copies of."""
        if self.plan is None:
            return self.folder.resolve()
        return (self.folder / read_sources(self.folder).spec).parent.resolve()

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Let them import each other meanwhile.

        Nothing of them is left behind: another build's module of the same name is
        another.
        """
        with _importing:
            others = {n: sys.modules[n] for n in self.loaded if n in sys.modules}
            sys.modules.update(self.loaded)
            # A new list each time: another thread may be in the midst of the old one.
            sys.meta_path = [self, *sys.meta_path]
            try:
                yield
            finally:
                sys.meta_path = [each for each in sys.meta_path if each is not self]
                for name, module in self.loaded.items():
                    if sys.modules.get(name) is module:
                        del sys.modules[name]
                sys.modules.update(others)

    def load(self, module: str, name: str) -> ModuleType:
        """Run `module` from its file as `name`; raises what it raises."""
        spec = self._spec(module, name)
        if spec is None:
            raise BuildError(f"there is no module {module}.py in '{self.folder}'")
        made = module_from_spec(spec)
        sys.modules[name] = made  # dataclasses look their module up there
        self.exec_module(made)
        return made

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> ModuleSpec | None:
        return self._spec(fullname, fullname) if path is None else None

    def exec_module(self, module: ModuleType) -> None:
        self.loaded[module.__name__] = module
        file = str(module.__file__)
        source = self._source(Path(file).name)
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)

    def _spec(self, module: str, name: str) -> ModuleSpec | None:
        file = self.folder / f"{module}.py"
        known = (
            os.path.isfile(file) if self.plan is None else file.name in self.plan.files
        )
        if not known:
            return None
        spec = spec_from_loader(name, self, origin=str(file.absolute()))
        assert spec is not None
        spec.has_location = True  # so that it has a __file__
        return spec

    def _source(self, file: str) -> bytes:
        if self.plan is None:
            return read_regular(self.folder / file, LARGEST_MODULE)
        return read_file(self.folder, file, self.plan.files[file])


def data_folder() -> Path:
    """The folder of the spec, or of the Python file that stands for it: an absolute path.

    For modules beside a spec, which nodes import from the build: `__file__` is a file of
    the build there. In a module that is imported in any other way it is the folder of
    the file that calls this, in a notebook the working folder.
    """
    first = frame = sys._getframe(1)
    while frame is not None:
        loader = getattr(frame.f_globals.get("__spec__"), "loader", None)
        if isinstance(loader, Modules):
            return loader.data_folder
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    file = first.f_code.co_filename
    return Path.cwd() if is_cell(file) else Path(file).resolve().parent


@contextmanager
def modules_of(folder: Path, *, built: bool = True) -> Iterator[Modules]:
    """The modules of a build, or of a folder that is none, `reachable` meanwhile. With
    `built=False` the folder is a spec's, whatever lies there.

    Raises BuildError for a build that is not as it was compiled.
    """
    plan = read_plan(folder) if built and (folder / FILE).is_file() else None
    modules = Modules(folder, plan)
    with modules.reachable():
        yield modules
