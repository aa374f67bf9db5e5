"""A whole program: its layout is computed, and one image made for all tiles of equal code and parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshrt.csl.errors import CslError, SourceLocation
from meshrt.csl.language.builtins import BUILTINS
from meshrt.csl.language.functions import call, function, same
from meshrt.csl.language.image import Image
from meshrt.csl.language.modules import lookup, open_module
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.statements import statement
from meshrt.csl.language.types import INT, MODULE
from meshrt.csl.language.values import FunctionRef, Language, Val
from meshrt.csl.libraries import collectives, math, system, tileconfig
from meshrt.csl.syntax import nodes as n
from meshrt.csl.syntax.parser import parse
from meshrt.errors import nearest

ARCHITECTURES = ("wse2", "wse3")
LIBRARIES: dict[str, Any] = {
    "<collectives_2d/params>": collectives.params, "<collectives_2d/pe>": collectives.pe, "<control>": system.control,
    "<debug>": system.debug, "<directions>": system.directions, "<layout>": system.layout, "<math>": math.library,
    "<memcpy/get_params>": system.get_params, "<memcpy/memcpy>": system.memcpy,
    "<memcpy/memcpy_switches>": tileconfig.switches, "<random>": system.random, "<simprint>": system.simprint,
    "<tile_config>": tileconfig.library, "<time>": system.time,
}  # fmt: skip


class CslProgram:
    """What the layout has said. `tiles`: (x, y) -> image; `routes`: (x, y, colour) -> configuration."""

    def __init__(self, arch: str):
        self.arch = arch
        self.language = Language(lookup, statement, call, BUILTINS)
        self.size = (0, 0)
        self.trees: dict[Path, n.File] = {}
        self.opening: list[Any] = []  # modules that are being opened, each by the one before
        self.tiles: dict[tuple[int, int], Image] = {}
        self.images: dict[Any, Image] = {}
        self.routes: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.route_locations: dict[tuple[int, int, int], SourceLocation] = {}
        self.names: dict[str, Any] = {}

    def tree(self, path: Path, scope: Scope | None, line: int) -> n.File:
        if path not in self.trees:
            try:
                text = path.read_text()
            except (OSError, UnicodeDecodeError) as error:
                message = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
                raise CslError(message) if scope is None else scope.wrong(line, message) from error
            self.trees[path] = parse(text, str(path))
        return self.trees[path]

    def open(self, path: str, given: dict[str, Val], scope: Scope, line: int) -> Val:
        """@import_module: a library, or a file beside the one that asks."""
        module = scope.module
        key = (path, str(Path(module.tree.path).parent), same(given))
        shared = self.images if module.image is None else module.image.modules
        if key in shared:
            return Val(MODULE, shared[key])
        imported: Any
        if path.startswith("<"):
            if path not in LIBRARIES:
                hint = nearest(path, LIBRARIES, f"there are {', '.join(LIBRARIES)}")
                raise scope.wrong(line, f"no library {path}: {hint}")
            imported = LIBRARIES[path](self, given, module.image)
        elif key in self.opening:
            raise scope.wrong(line, f"{path} imports itself, or what it imports does")
        else:
            file = Path(module.tree.path).parent / path
            self.opening.append(key)
            imported = open_module(self.tree(file, scope, line), given, module.image, self)
            self.opening.pop()
        shared[key] = imported
        return Val(MODULE, imported)

    def set_tile(self, x: int, y: int, path: str, given: dict[str, Val], scope: Scope, line: int) -> None:
        if (x, y) in self.tiles:
            raise scope.wrong(line, f"tile ({x}, {y}) has its code already")
        file = Path(scope.module.tree.path).parent / path
        self.put(x, y, self.tree(file, scope, line), given)

    def put(self, x: int, y: int, tree: n.File, given: dict[str, Val]) -> None:
        """A tile's code; of equal code and parameters there is one image."""
        key = ("tile", tree.path, same(given))
        if key not in self.images:
            self.images[key] = self._image(tree, given)
        self.tiles[x, y] = self.images[key]

    def keep(self, wanted: Callable[[int, int], bool]) -> None:
        """Only these tiles have code; a wavelet that comes to another one is refused, as everywhere."""
        self.tiles = {at: image for at, image in self.tiles.items() if wanted(*at)}

    def _image(self, tree: n.File, given: dict[str, Val]) -> Image:
        image = Image(self.arch)
        module = open_module(tree, given, image, self)
        for name in tree.exported:
            value = lookup(module, name)
            assert value is not None
            image.exports[name] = value
        for ref in image.tasks.values():
            function(ref, image, [])
        for exported in image.exports.values():
            if isinstance(exported.value, FunctionRef):
                function(exported.value, image, [])
        return image


def build(path: Path, parameters: dict[str, int], arch: str) -> CslProgram:
    """A program from its layout's file. CslError, MemoryLimit."""
    if arch not in ARCHITECTURES:
        raise CslError(f"--arch {arch}: {nearest(arch, ARCHITECTURES, 'there are wse2 and wse3')}")
    program = CslProgram(arch)
    tree = program.tree(path, None, 0)
    for name in parameters:
        node = tree.declarations.get(name)
        if not isinstance(node, n.Declaration) or node.kind != "param":
            params = [
                key
                for key, declaration in tree.declarations.items()
                if isinstance(declaration, n.Declaration) and declaration.kind == "param"
            ]
            raise CslError(
                f"--params {name}: {nearest(name, params, f'{path.name} has ' + (', '.join(params) or 'none'))}"
            )
    given = {name: Val(INT, value) for name, value in parameters.items()}
    module = open_module(tree, given, None, program)
    layouts = [block for block in tree.blocks if isinstance(block, n.Layout)]
    if not layouts:
        raise CslError(f"{path} has no layout block: it is a tile's code, or a module")
    for block in layouts:
        statement(block.body, Scope(module))
    if not program.tiles:
        raise CslError(f"{path}: the layout gives no tile any code")
    return program
