"""Give the site what its pages need of the repository outside docs/: every linked file.

A file outside docs/ that a page links to becomes a part of the site, under `repository/`: Markdown becomes a page,
code a page that shows it, a folder a page that lists its files; anything else is copied. So links need no address of a
host.
"""

import re
from pathlib import Path
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(?=[)#])")
LANGUAGES = {".py": "python", ".sbatch": "bash", ".c": "c", ".h": "c"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
SEEDS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, directly or through each other."""
    waiting = [*SEEDS, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    for path in waiting:  # grows meanwhile
        if not path.startswith("docs/"):
            files.append(_site_file(path, config))
        for target in _links(path):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between files of the repository to what these are in the site."""
    here = _repository_path(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = _resolved(match[0], here)
        return relpath(_site_path(target), str(Path(page.file.src_uri).parent)) if _exists(target) else match[0]

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link what docstrings call `docs/NAME.md`."""
    if not page.file.src_uri.startswith("api/"):
        return html
    return re.sub(r"(?<![\w/])docs/([\w-]+)\.md", r'<a href="../\1.html">docs/\1.md</a>', html)


def _site_path(path: str) -> str:
    """Return the name that a file of the repository has in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_page = Path(path).suffix in LANGUAGES or (ROOT / path).is_dir()
    return f"repository/{path}.md" if is_page else f"repository/{path}"


def _repository_path(src_uri: str) -> str:
    """The file from which the links of a page of the site are counted."""
    return src_uri.removeprefix("repository/") if src_uri.startswith("repository/") else f"docs/{src_uri}"


def _site_file(path: str, config: MkDocsConfig) -> File:
    there, name = ROOT / path, _site_path(path)
    if there.is_dir():
        return File.generated(config, name, content=f"# {path}\n\n{_listing(path)}\n")
    if there.suffix in LANGUAGES:
        code = f"````{LANGUAGES[there.suffix]}\n{there.read_text().rstrip()}\n````\n"
        return File.generated(config, name, content=f"{UNSEARCHED}# {path}\n\n{code}")
    return File.generated(config, name, abs_src_path=str(there))


def _listing(path: str) -> str:
    names = sorted(file.name for file in (ROOT / path).iterdir() if file.suffix in {".md", *LANGUAGES})
    return "\n".join(f"- [{name}]({Path(path).name}/{name})" for name in names)


def _links(path: str) -> list[str]:
    """The files of the repository that a file of it links to, and that must be in the site for that."""
    there = ROOT / path
    if there.is_dir():
        text, path = _listing(path), f"{path}.md"
    elif there.suffix == ".md":
        text = there.read_text()
    else:
        return []
    targets = [_resolved(link, path) for link in LINK.findall(text)]
    return [target for target in targets if _exists(target) and not target.startswith("docs/")]


def _resolved(link: str, path: str) -> str:
    return normpath(str(Path(path).parent / link))


def _exists(path: str) -> bool:
    return not path.startswith("..") and (ROOT / path).exists()
