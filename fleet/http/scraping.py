"""The metrics of all models' servers and the front's own, as one page.

Every sample of a server gets the label `model`. Samples of one family stand together, below its
HELP and TYPE, as Prometheus' text format wants it.
"""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(\{(?P<labels>.*)\})?(?P<rest> .*)")
_OF_FAMILY = ("_total", "_bucket", "_sum", "_count", "_created")


def merge(own: str, pages: Mapping[str, str]) -> str:
    """The front's page, and behind it those of servers by their models' names."""
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for model, page in pages.items():
        family = ""
        for line in page.split("\n"):
            if line.startswith("#"):
                _, kind, family, *_ = line.split(" ", 3)
                known = heads.setdefault(family, [])
                if not any(each.split(" ", 2)[1] == kind for each in known):
                    known.append(line)
            elif found := _SAMPLE.fullmatch(line):
                name = found["name"]
                if not _belongs(name, family):
                    family = name
                families.setdefault(family, []).append(_labelled(found, model))
    lines = [own.rstrip("\n")]
    for family, samples in families.items():
        lines += [*heads.get(family, []), *samples]
    return "\n".join(lines) + "\n"


def _belongs(name: str, family: str) -> bool:
    return name == family or any(name == family + suffix for suffix in _OF_FAMILY)


def _labelled(sample: "re.Match[str]", model: str) -> str:
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'model="{escaped}"' + (f",{sample['labels']}" if sample["labels"] else "")
    return f"{sample['name']}{{{labels}}}{sample['rest']}"
