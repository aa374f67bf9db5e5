"""What mkdocs calls while it builds the site: README.md is its first page, and examples/ is a part of it, so that links
to programs lead somewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".md", ".yml", ".ipynb", ".csl")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in ENDINGS:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links from docs/ to examples/ beside it, as from the top of the site; those of examples/ to docs/ likewise."""
    if page.file.src_uri == "index.md":
        return markdown.replace("](docs/decisions/)", "](decisions/README.md)").replace("](docs/", "](")
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri.startswith("examples/"):
        return markdown.replace("](../docs/", "](../")
    return markdown.replace(f"]({up}../examples/", f"]({up}examples/")
