"""What lies among the folders of a space and is no record: told, and removed at the latch.

Only for a layout that gives each record a folder of its own, as `{key}/record.json` does.
"""

import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any, Literal

from holdfast.kernel.debris import Leftover
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.layout import FilePerRecord
from holdfast.kernel.space import Space
from holdfast.stores.files import naming
from holdfast.stores.files.cabinet import Cabinet

Kind = Literal["no_record", "link", "unreadable"]


def leftovers(cabinet: Cabinet, space: Space[Any]) -> list[Leftover]:
    """What is there beside records. Raises StoreUnavailable when the folder of all cannot be looked at."""
    place = _place(cabinet, space)
    if place is None:
        return []
    base, pattern = place
    found = []
    for component in sorted(_names(base)):
        inner = pattern.inner(component)
        key = None if inner is None else naming.key_of(inner, ())
        if key is not None and (left := _left(base / component, pattern.rest)) is not None:
            found.append(Leftover(key, *left))
    return found


def remove(cabinet: Cabinet, space: Space[Any], key: str, *, older_than_s: float) -> bool:
    """At the latch: remove a folder that has no record and is old enough, or a link in the place of one. Its target stays."""
    place = _place(cabinet, space)
    if place is None:
        return False
    base, pattern = place
    path = base / pattern.path(key).partition("/")[0]
    left = _left(path, pattern.rest)
    if left is None or left[0] == "unreadable" or (left[0] == "no_record" and left[1] < older_than_s):
        return False
    try:
        if left[0] == "link":
            # Not by rmtree, which refuses a link. A folder that came in its place is refused here.
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be removed ({os.strerror(error.errno or 0)}): look at its permissions",
            path=str(path),
            outcome="none",
        ) from None
    return True


def _place(cabinet: Cabinet, space: Space[Any]) -> tuple[Path, naming.Pattern] | None:
    layout = space.layout
    if not isinstance(layout, FilePerRecord):
        return None
    pattern = naming.pattern_of(layout.name)
    return (cabinet.folders.of(layout.folder) / pattern.base, pattern) if pattern.rest else None


def _left(path: Path, rest: str) -> tuple[Kind, float] | None:
    """What is wrong with a record's folder, and how long it has been so; None for one with a record in it."""
    try:
        found = os.lstat(path)
        age_s = max(time.time() - found.st_mtime, 0.0)
        if stat.S_ISLNK(found.st_mode):
            return "link", age_s
        if not stat.S_ISDIR(found.st_mode):
            return None
        if not found.st_mode & stat.S_IRUSR:
            # Root could look all the same; whoever closed it did not mean us to.
            return "unreadable", age_s
        os.listdir(path)
        return None if os.path.lexists(path / rest) else ("no_record", age_s)
    except FileNotFoundError:
        return None
    except OSError:
        return "unreadable", 0.0


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreUnavailable(
            f"{folder} cannot be looked at ({os.strerror(error.errno or 0)}): look at its permissions",
            path=str(folder),
            outcome="none",
        ) from None
