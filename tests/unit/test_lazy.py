"""A package's names are loaded when they are used first."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = """
from halfbridge.lazy import lazy_names

__all__ = ["Book", "Fence"]
__getattr__, __dir__ = lazy_names(__name__, ("lazy_shop.books", "lazy_shop.fences"), __all__)
"""
BOOKS = "class Book: ..."
FENCES = """
import sqlalchemy

class Fence: ...
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a package `lazy_shop`, not yet imported; one of its modules needs an extra."""
    folder = tmp_path / "lazy_shop"
    folder.mkdir()
    for name, text in (("__init__", PACKAGE), ("books", BOOKS), ("fences", FENCES)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [each for each in sys.modules if each.startswith("lazy_shop")]:
        del sys.modules[name]


@pytest.fixture
def shop(files: Path) -> ModuleType:
    """The package, imported without the package `sqlalchemy`."""
    return import_module(files.name)


def loaded() -> set[str]:
    """Return the modules of the package that were imported."""
    return {name for name in sys.modules if name.startswith("lazy_shop.")}


def test_a_name_loads_its_module_and_no_later_one(shop: ModuleType) -> None:
    """Modules are searched in order; what was found is a plain attribute from then on."""
    assert (loaded(), "Book" in vars(shop)) == (set(), False)
    book = shop.Book
    assert (loaded(), vars(shop)["Book"]) == ({"lazy_shop.books"}, book)
    assert (book.__module__, book.__name__) == ("lazy_shop.books", "Book")


def test_an_unknown_name_is_an_attribute_error_and_loads_nothing(shop: ModuleType) -> None:
    """So `hasattr` works, and costs nothing."""
    with pytest.raises(AttributeError, match="module 'lazy_shop' has no attribute 'Pen'"):
        _ = shop.Pen
    assert not hasattr(shop, "books")
    assert loaded() == set()


def test_dir_lists_what_is_not_loaded_yet(shop: ModuleType) -> None:
    """The public names and those of the package's own file, sorted."""
    assert {"Book", "Fence", "__all__", "lazy_names"} <= {*dir(shop)}
    assert dir(shop) == sorted(dir(shop))
    assert loaded() == set()


def test_a_missing_extra_is_named(shop: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what needs which package, and how to install it; other names go on working."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        _ = shop.Fence
    said = "Fence needs the package sqlalchemy: pip install 'halfbridge[sql]'"
    assert (str(caught.value), caught.value.name) == (said, "sqlalchemy")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert shop.Book


def test_a_package_of_no_extra_is_not_explained(files: Path) -> None:
    """The interpreter's own error is raised."""
    (files / "fences.py").write_text("import no_such_package")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_package'$"):
        _ = import_module(files.name).Fence
