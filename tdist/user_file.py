"""Executing a user's Python file: once for each version of its text, with users' import names, without our frames."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType

from tdist import importer
from tdist.errors import TdistError, UsageError

_loading = threading.RLock()


def execute(path: Path) -> ModuleType:
    """The file as a module, executed once a process for each version of its text.

    `triton_dist`, `shmem` and `triton.language.extra.cann` are importable while it runs, and so are neighbouring
    modules of the file, as they are for a script.

    Raises:
        UsageError: no such file, or what the file raised, at the user's own line.
    """
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    resolved = path.resolve()
    _check_encoding(path)
    key = hashlib.blake2b(f"{resolved}\0".encode() + resolved.read_bytes(), digest_size=8).hexdigest()
    name = f"tdist_user_{key}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, resolved)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            _run(spec.loader, module, resolved)
        except BaseException:
            del sys.modules[name]
            raise
    return module


def _check_encoding(path: Path) -> None:
    """Refuse text that Python cannot decode: in comments it lets that pass, and then no kernel's source is found."""
    content = path.read_bytes()
    try:
        importlib.util.decode_source(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1 if len(error.object) == len(content) else 0
        at = f"{path}:{line}" if line else str(path)
        raise UsageError(
            f"{at}: the file is not text in {error.encoding} (byte 0x{error.object[error.start]:02x}); save it as "
            "UTF-8, or name its encoding in the first line: # -*- coding: latin-1 -*-"
        ) from None
    except SyntaxError:  # an unknown encoding: the loader says so
        return


def _run(loader, module: ModuleType, path: Path) -> None:
    sys.path.insert(0, str(path.parent))
    try:
        with importer.user_names():
            loader.exec_module(module)
    except UsageError as error:
        raise UsageError(f"{_users_line(error, path)}: {error}") from None
    except TdistError:
        raise
    except (Exception, SystemExit) as error:  # a file that ends the process must not decide our exit status
        raise UsageError(f"{_users_line(error, path)}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(str(path.parent))


def _users_line(error: BaseException, path: Path) -> str:
    """`file:line` in the user's file where the error left it, with the source line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if not frames:
        return str(path)
    return f"{path}:{frames[-1].lineno}: `{frames[-1].line}`"
