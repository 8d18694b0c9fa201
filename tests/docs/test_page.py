"""Owns that the page a reviewer attaches to a ticket is right in a real browser, wide and narrow.
May touch a headless browser with a profile of its own and no network.
Never judges the page by its source alone.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest
from stand import Stand

from supervisor.profile.load import shipped

pytest_plugins = ["stand_fixtures"]

LOOKED_AT = [("base", 1280), ("coding", 1280), ("coding", 600), ("offline", 600)]
ASK = """<script>
addEventListener("load", () => {
  const all = [...document.querySelectorAll("*")];
  const seen = e => { const box = e.getBoundingClientRect(); return box.width > 0 && box.height > 0; };
  const link = document.querySelector("td.where a");
  if (link) link.click();
  const said = {
    headings: [...document.querySelectorAll("h1, h2")].filter(seen).map(e => e.textContent),
    rows: [...document.querySelectorAll("tr")].filter(seen).length,
    text: document.body.innerText.length,
    wider: all.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("pre"))
      .map(e => e.tagName),
    asked: performance.getEntriesByType("resource").map(e => e.name),
    jumped: link ? document.querySelector(":target") !== null : null,
  };
  document.title = "SAID" + JSON.stringify(said) + "DIAS";
});
</script>"""


def in_a_browser(page: Path, folder: Path, *, width: int) -> tuple[dict[str, object], bytes]:
    """What the page looks like to a browser of that width, and a picture of it (PNG)."""
    asking = folder / "asking.html"
    asking.write_text(page.read_text() + ASK)
    picture = folder / "page.png"
    argv = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    argv += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]
    argv += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}/browser"]
    argv += [f"--window-size={width},1200", "--virtual-time-budget=5000"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
    asked = subprocess.run(
        [*argv, "--dump-dom", asking.as_uri()], env=environment, capture_output=True, text=True, timeout=120
    )
    found = re.search(r"SAID(\{.*?\})DIAS", asked.stdout)
    assert found, asked.stderr[-2000:]
    subprocess.run(
        [*argv, f"--screenshot={picture}", page.as_uri()],
        env=environment,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), (
        picture.read_bytes()
    )


def test_every_shipped_profile_is_looked_at() -> None:
    assert {name for name, _ in LOOKED_AT} == set(shipped())


@pytest.mark.parametrize(("name", "width"), LOOKED_AT)
def test_the_page_of_a_profile_is_whole(place: Stand, tmp_path: Path, name: str, width: int) -> None:
    page = tmp_path / "profile.html"
    assert place.ctl("profile", "explain", name, "--html", str(page)).code == 0
    claims = place.ctl("profile", "explain", name, "--json").json["claims"]
    said, picture = in_a_browser(page, tmp_path, width=width)
    headings, rows = said["headings"], said["rows"]
    assert isinstance(headings, list) and headings[0] == name and len(headings) >= 3
    assert isinstance(rows, int) and rows >= len(claims) > 10
    assert (said["wider"], said["asked"]) == ([], [])
    assert said["jumped"] is True, "an origin leads to its line"
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24])[0] == width
    assert len(picture) > 20_000, "an empty page is a small picture"
