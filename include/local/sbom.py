"""`make sbom`: writes the bill of materials, in the form of CycloneDX, and checks the pinned digests on the way."""

import json
import uuid
from collections.abc import Iterable
from typing import Any

from include.errors import report
from include.local import components, home
from include.local.components import Component
from include.settings import settings

FORM, VERSION = "CycloneDX", "1.6"


def document(found: Iterable[Component]) -> dict[str, Any]:
    """Returns the bill: the same for the same components, without a time."""
    entries = [_entry(component) for component in found]
    return {
        "bomFormat": FORM,
        "specVersion": VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(entries))}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "sluice", "bom-ref": "sluice"}},
        "components": entries,
    }


def _entry(component: Component) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": component.purl,
        **({"group": component.group} if component.group else {}),
        "name": component.name,
        "version": component.version,
        "hashes": [{"alg": component.algorithm, "content": digest} for digest in component.digests],
        "purl": component.purl,
        "properties": [{"name": "sluice:place", "value": component.place}],
    }
    # A name, because a text such as "BSD" is none of SPDX.
    return entry | ({"licenses": [{"license": {"name": component.licence}}]} if component.licence else {})


def main() -> None:
    config = settings()
    home.create(config.home)
    found = components.all_components(config.jars)
    file = config.home / "sbom.cdx.json"
    file.write_text(json.dumps(document(found), indent=1))
    counts = ", ".join(f"{count} of {kind}" for kind, count in components.by_kind(found).items())
    unlicensed = [component.purl for component in found if not component.licence]
    print(f"{file}: {len(found)} components ({counts}), each with its pinned digest")
    print(f"{len(unlicensed)} state no licence: {', '.join(unlicensed) or 'none'}")


if __name__ == "__main__":
    report(main)
