"""Import Python modules of one folder, a spec's or a build's, from source only."""

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
"""The name of the module that is imported to trace one of its functions."""

MAX_MODULE_BYTES = 16 << 20
"""The largest size of a module beside a spec, in bytes."""

# Held while sys.meta_path and sys.modules are changed, which all threads share.
_import_lock = threading.RLock()


@dataclass(frozen=True, eq=False)
class Modules(MetaPathFinder, Loader):
    """A finder and loader for the modules of one folder.

    Of a build (`plan` is not None) it finds the modules of its plan, and checks their
    hashes. No bytecode is read or written: the source that was checked is what runs.
    """

    folder: Path
    plan: Plan | None
    loaded: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def data_folder(self) -> Path:
        """The folder of the spec; for a build, of its data on this machine."""
        if self.plan is None:
            return self.folder.resolve()
        return data_root(self.folder).resolve()

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Return a context in which the modules can be imported by their names.

        They are removed from `sys.modules` at its end, since another build may have
        different modules of the same names.
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
        """Run `module` from its file, and return it under `name`.

        Raises BuildError if the folder has no such module, and what the module raises.
        """
        spec = self._spec(module, name)
        if spec is None:
            raise BuildError(f"there is no module {module}.py in '{self.folder}'")
        loaded = module_from_spec(spec)
        sys.modules[name] = loaded  # dataclasses look their module up there
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
        spec.has_location = True  # so that it has a __file__
        return spec

    def _source(self, file: str) -> bytes:
        if self.plan is None:
            return read_regular(self.folder / file, MAX_MODULE_BYTES)
        return read_file(self.folder, file, self.plan.files[file])


def data_folder() -> Path:
    """Return the folder of the spec, or of the Python file that defines the model; in a
    run, the folder that `--data` or PLACER_DATA names, if any.

    For modules beside a spec that read data files. A node imports such a module from
    the build, so that its `__file__` is a file of the build.

    Returns:
        An absolute path. In a module that placer did not import it is the folder of the
        file that calls this function, and in a notebook the working folder.

    Example:
        rows = np.load(placer.data_folder() / "rows.npy")
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
def modules_in(folder: Path, *, built: bool = True) -> Iterator[Modules]:
    """Return a context in which the modules of a folder are `importable`.

    A folder with a plan is a build, unless `built` is False. Raises BuildError for a
    build that was changed after it was compiled.
    """
    plan = read_plan(folder) if built and (folder / FILE).is_file() else None
    modules = Modules(folder, plan)
    with modules.importable():
        yield modules
