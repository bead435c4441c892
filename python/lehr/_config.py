"""Python values as overrides of a config, in TOML syntax."""
from __future__ import annotations

import json
import numbers
import os
from typing import Any, Mapping


def _toml(value: Any, key: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):  # numpy's numbers, too
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(name))} = {_toml(item, key)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item, key) for item in value) + "]"
    remedy = "; leave out a key to keep its default" if value is None else ""
    raise TypeError(f"{key}: a config holds numbers, strings, lists and dicts, found {type(value).__name__}{remedy}")


def overrides_of(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns dotted keys with values in TOML syntax; dicts may be nested.

        overrides_of({"model": {"name": "qwen3"}, "optimizer.lr": 1e-3})
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"overrides: expected a dict of keys and values, found {type(config).__name__}")
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= overrides_of(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _toml(value, f"{prefix}{key}")
    return flat
