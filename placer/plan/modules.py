"""Imports Python modules from the folder of a spec or a build, from source only."""

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

from placer.errors import BuildError
from placer.plan.folder import read_file
from placer.plan.plan import FILE, Plan, data_root, read_plan
from placer.system.callsite import is_cell
from placer.system.files.regular import read_regular

being_traced: ContextVar[str | None] = ContextVar("placer.being_traced", default=None)
"""The name of the module whose function placer is tracing now."""

MAX_MODULE_BYTES = 16 << 20
"""The largest allowed module size in bytes."""

# Guards sys.meta_path and sys.modules, which all threads share.
_import_lock = threading.RLock()


@dataclass(frozen=True, eq=False)
class Modules(MetaPathFinder, Loader):
    """Import hook for the modules of one folder.

    With a plan, it finds only the plan's modules and checks their hashes. It neither
    reads nor writes bytecode, so the checked source is the code that runs.

    Attributes:
        folder: the folder of the modules.
        plan: the plan if the folder is a build, else None.
        loaded: the imported modules by name.
    """

    folder: Path
    plan: Plan | None
    loaded: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def data_folder(self) -> Path:
        """The folder of data files: next to the spec, or as set on this machine."""
        if self.plan is None:
            return self.folder.resolve()
        return data_root(self.folder).resolve()

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Return a context manager that makes the modules importable by name.

        On exit it removes them from `sys.modules`, since another build may have different
        modules with the same names.
        """
        with _import_lock:
            others = {n: sys.modules[n] for n in self.loaded if n in sys.modules}
            sys.modules.update(self.loaded)
            # A new list, since another thread may be iterating over the old one.
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
        """Run the file of `module` and return the module under `name`.

        Raises BuildError if the folder has no such module. Exceptions of the module pass
        through.
        """
        spec = self._spec(module, name)
        if spec is None:
            raise BuildError(f"'{self.folder}' has no module {module}.py")
        loaded = module_from_spec(spec)
        sys.modules[name] = loaded  # dataclasses look up their module here
        self.exec_module(loaded)
        return loaded

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
        spec.has_location = True  # sets __file__
        return spec

    def _source(self, file: str) -> bytes:
        if self.plan is None:
            return read_regular(self.folder / file, MAX_MODULE_BYTES)
        return read_file(self.folder, file, self.plan.files[file])


def data_folder() -> Path:
    """Return the folder of the spec's data files.

    Use it in modules next to a spec: nodes import such a module from the build, so its
    `__file__` does not lead to the data.

    Returns:
        An absolute path: the folder that `--data` or PLACER_DATA names, else the folder of
        the spec or of the Python file that defines the model. If placer did not import
        the calling module, its own folder; in a notebook, the working folder.

    Example:
        rows = np.load(placer.data_folder() / "rows.npy")
    """
    first = frame = sys._getframe(1)
    while frame is not None:
        loader = getattr(frame.f_globals.get("__spec__"), "loader", None)
        if isinstance(loader, Modules):
            return loader.data_folder
        frame = frame.f_back  # type: ignore[assignment]  # None after the outermost frame
    file = first.f_code.co_filename
    return Path.cwd() if is_cell(file) else Path(file).resolve().parent


@contextmanager
def modules_in(folder: Path, *, built: bool = True) -> Iterator[Modules]:
    """Return a context manager that makes the modules of a folder importable.

    A folder with a plan is a build, unless `built` is False. Raises BuildError if a file
    of the build was changed after compilation.
    """
    plan = read_plan(folder) if built and (folder / FILE).is_file() else None
    modules = Modules(folder, plan)
    with modules.importable():
        yield modules
