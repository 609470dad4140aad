"""Check a built site: every link leads to a file and an anchor of it, and nothing is fetched from elsewhere.

    python scripts/check_site.py site

MkDocs checks the links of Markdown; this reads what it has built, with the API reference and the theme.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
UNFETCHED = {"canonical", "prev", "next"}  # kinds of <link> that only name a page


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser fetches to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        target = given.get(FETCHED.get(tag, "href"))
        if target and tag == "a":
            self.links.add(target)
        elif target and tag in FETCHED and given.get("rel") not in UNFETCHED:
            self.fetched.add(target)


def main(site: Path) -> list[str]:
    """Return what is wrong with the site."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        if path == site / "404.html":  # its links are absolute, as it may be shown anywhere
            continue
        here = path.relative_to(site)
        wrong += [f"{here}: fetches {target}" for target in page.fetched if urlsplit(target).netloc]
        for target in sorted(page.links | page.fetched):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file():
                wrong.append(f"{here}: no file {target}")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                wrong.append(f"{here}: no anchor {target}")
    for path in sorted(site.rglob("*.css")):
        remote = re.findall(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", path.read_text())
        wrong += [f"{path.relative_to(site)}: fetches {target}" for target in remote]
    return wrong if pages else [f"{site}: no pages"]


if __name__ == "__main__":
    found = main(Path(sys.argv[1]).resolve())
    print("\n".join(found) or f"{sys.argv[1]}: all links lead somewhere, and nothing comes from elsewhere")
    sys.exit(bool(found))
