"""`nas spaces`."""

from __future__ import annotations

from nas.cli.console import print_json, print_table
from nas.cli.options import Json


def spaces(as_json: Json = False) -> None:
    """List the search spaces."""
    from search_spaces import get_space, list_spaces

    rows = []
    for name in list_spaces():
        space = get_space(name)
        size = "unknown" if space.size is None else f"{space.size:,}"
        rows.append(
            {
                "space": name,
                "architectures": size,
                "about": (space.__doc__ or "").strip().split("\n")[0],
            }
        )
    print_json(rows) if as_json else print_table("Search spaces", rows)
