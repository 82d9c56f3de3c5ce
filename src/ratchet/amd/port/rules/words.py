"""Words of CUDA's world, and what ROCm says instead: the tables of data/counterparts.toml."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Final

_TABLES: Final[dict[str, dict[str, str]]] = tomllib.loads(
    resources.files("ratchet.amd.port").joinpath("data", "counterparts.toml").read_text("utf-8")
)
VARIABLES: Final = _TABLES["variables"]
FLAGS: Final = _TABLES["flags"]
PROGRAMS: Final = _TABLES["programs"]
IMAGES: Final = _TABLES["images"]
PACKAGES: Final = _TABLES["packages"]
MODULES: Final = _TABLES["modules"]
SWITCHES: Final = _TABLES["switches"]
LINKED: Final = _TABLES["linked"]
CMAKE_TARGETS: Final = _TABLES["cmake_targets"]
CMAKE_PACKAGES: Final = _TABLES["cmake_packages"]
HEADERS: Final = _TABLES["headers"]
DEVICE_FUNCTIONS: Final = _TABLES["device_functions"]
PTX: Final = _TABLES["ptx"]
