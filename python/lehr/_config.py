"""Python values as overrides of a config, in TOML syntax."""
from __future__ import annotations

import json
import os
from typing import Any, Mapping


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise TypeError(f"a config holds numbers, strings, lists and dicts, found {type(value).__name__}")


def overrides_of(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns dotted keys with values in TOML syntax; dicts may be nested.

        overrides_of({"model": {"name": "qwen3"}, "optimizer.lr": 1e-3})
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= overrides_of(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _toml(value)
    return flat
