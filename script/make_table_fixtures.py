#!/usr/bin/env python3
"""Writes the tables of test/data/table/, and the same data as JSON lines: needs `pip install datasets==5.2.0`.

usage: script/make_table_fixtures.py

Texts are paragraphs of recipe/data/tinyshakespeare.txt, and a few that are awkward in JSON.
"""
import datetime
import decimal
import io
import json
import os
import shutil
import struct

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "test/data/table")
AWKWARD = ["", "\"quoted\" \\ and\ttabs\r\n", "\x00\x01\x1f\x7f\u2028", "Gl\u00fcck, \u4e16\u754c \U0001f600", " ", "x" * 3000]
LONG = 10 ** 12


def paragraphs(count):
    with open(os.path.join(ROOT, "recipe/data/tinyshakespeare.txt")) as file:
        return file.read().split("\n\n")[:count]


def write_lines(name, rows):
    with open(os.path.join(OUT, name), "w") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_arrow(name, table, writer=pa.ipc.new_stream, rows=3):
    with writer(os.path.join(OUT, name), table.schema) as file:
        file.write_table(table, max_chunksize=rows)


def hub():
    """A folder as on the hub: two shards for training, with other compressions and row groups, and one for tests."""
    texts = paragraphs(100) + AWKWARD
    rows = [{"id": i, "text": text} for i, text in enumerate(texts)]
    os.makedirs(os.path.join(OUT, "hub/data"))
    shards = [("train-00000-of-00002", rows[:60], {"row_group_size": 7}),
              ("train-00001-of-00002", rows[60:], {"compression": "zstd", "use_dictionary": False, "data_page_size": 500}),
              ("test-00000-of-00001", [{"id": 0, "text": "held out"}], {})]
    for name, part, options in shards:
        pq.write_table(pa.Table.from_pylist(part), os.path.join(OUT, f"hub/data/{name}.parquet"), **options)
    with open(os.path.join(OUT, "hub/README.md"), "w") as file:
        file.write("---\nconfigs:\n- config_name: default\n---\n")
    with open(os.path.join(OUT, "hub/dataset_infos.json"), "w") as file:
        file.write("{\"default\": {\"splits\": {}}}")
    write_lines("hub.jsonl", rows)
    return rows


def saved(rows):
    """What save_to_disk writes, and a cache beside its tables, as map() leaves it."""
    train = datasets.Dataset.from_list(rows)
    test = datasets.Dataset.from_list([{"id": 0, "text": "held out"}])
    folder = os.path.join(OUT, "saved")
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(folder, num_shards={"train": 2, "test": 1})
    write_arrow("saved/train/cache-5f0c.arrow", pa.table({"text": ["of another map"]}))


def chat():
    """Messages whose keys differ, so that Arrow has nulls where JSON has no key; tools; and their JSON type."""
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}
    rows = [
        {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}], "tools": None},
        {"messages": [{"role": "system", "content": "Be \"brief\".\n"}, {"role": "user", "content": "1+2.5?"},
                      {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "3.5"},
                      {"role": "assistant", "content": "3.5"}], "tools": [{"name": "add", "strict": True}]},
        {"messages": [{"role": "user", "content": "Hm"}, {"role": "assistant", "content": "\u4e16"}], "tools": []},
    ]
    write_lines("chat.jsonl", rows)
    table = pa.Table.from_pylist(rows, pa.schema([
        ("messages", pa.list_(pa.struct([
            ("role", pa.dictionary(pa.int8(), pa.string())), ("content", pa.large_string()),
            ("tool_calls", pa.list_(pa.struct([("function", pa.struct([
                ("name", pa.string()),
                ("arguments", pa.struct([("a", pa.int64()), ("b", pa.float64())]))]))])))]))),
        ("tools", pa.list_(pa.struct([("name", pa.string()), ("strict", pa.bool_())])))]))
    write_arrow("chat.arrow", table, rows=2)
    pq.write_table(table, os.path.join(OUT, "chat.parquet"))
    datasets.Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(os.path.join(OUT, "chat_datasets.parquet"))
    as_json = datasets.Dataset.from_list(rows, features=datasets.Features(
        {"messages": datasets.List(datasets.Json()), "tools": datasets.Json()}))
    as_json.to_parquet(os.path.join(OUT, "chat_json.parquet"))
    as_json.save_to_disk(os.path.join(OUT, "chat_json"))

    ask, reply = {"role": "user", "content": "1+2.5?"}, {"role": "tool", "content": "3.5"}
    rows = [{"messages": [ask, {"role": "assistant", "content": None, "tool_calls": [call]}, reply]},
            {"messages": [ask, {"role": "assistant", "tool_calls": [call]}, reply]},
            {"messages": [ask, {"role": "assistant", "content": "", "tool_calls": [call]}, reply]}]
    write_lines("calls.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), os.path.join(OUT, "calls.parquet"))

    rows = [{"ask": "Say a", "more": None, "reply": "a"}, {"ask": "Add", "more": "1 2", "reply": "3"}]
    write_lines("question.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), os.path.join(OUT, "question.parquet"))


def labels():
    rows = [{"sentence": text, "label": i % 3} for i, text in enumerate(paragraphs(20))]
    write_lines("labels.jsonl", rows)
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    datasets.Dataset.from_list(rows, features=features).to_parquet(os.path.join(OUT, "labels.parquet"))


def types():
    """One text in each type that holds text, and values of other types; `lines.txt` has the expected JSON."""
    texts = ["a", "\u00e4 b", "", "a"]
    table = pa.table({
        "string": texts,
        "large": pa.array(texts, pa.large_string()),
        "view": pa.array(texts, pa.string_view()),
        "binary": pa.array([text.encode() for text in texts]),
        "binary_view": pa.array([text.encode() for text in texts], pa.binary_view()),
        "large_binary": pa.array([text.encode() for text in texts], pa.large_binary()),
        "coded": pa.array(texts).dictionary_encode(),
        "nulls": pa.array(["a", None, "b", None]),
        "none": pa.nulls(4),
        "bool": [True, False, None, True],
        "int8": pa.array([-128, 127, 0, None], pa.int8()),
        "uint64": pa.array([2 ** 64 - 1, 0, 1, 2], pa.uint64()),
        "float": pa.array([0.1, 1e30, float("nan"), 3], pa.float32()),
        "double": [0.1, -1e300, float("inf"), 3.0],
        "when": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)] * 4, pa.timestamp("s")),
        "price": pa.array([decimal.Decimal("1.50")] * 4),
        "list": pa.array([[1, None], [], None, [2]]),
        "large_list": pa.array([[1, None], [], None, [2]], pa.large_list(pa.int16())),
        "fixed": pa.array([[1, 2], [3, 4], [5, 6], None], pa.list_(pa.int32(), 2)),
        "list_view": pa.array([[1, None], [], None, [2]], pa.list_view(pa.int32())),
        "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None, {"a": None, "b": None}]),
        "map": pa.array([[("k", 1)], [], None, [("k", None), ("l", 2)]], pa.map_(pa.string(), pa.int64())),
        "json": pa.array(['{"a":\n 1}', "[]", None, "\"b\""], pa.json_()),
        "half": pa.array([1, 2, 3, 4], pa.float16()),
    })
    write_arrow("types.arrow", table, rows=3)
    write_arrow("types_file.arrow", table, pa.ipc.new_file, rows=3)
    # Parquet lacks these types, or its writer does not support them.
    pq.write_table(table.drop(["fixed", "list_view", "binary_view"]), os.path.join(OUT, "types.parquet"), row_group_size=3)


def hostile():
    """Small files that expand to much data."""
    book = pa.array(["x" * 100_000], pa.string())
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), book)
    pq.write_table(pa.table({"text": many}), os.path.join(OUT, "bomb.parquet"), compression="zstd", store_schema=False,
                   dictionary_pagesize_limit=1 << 20)
    pq.write_table(pa.table({"text": ["a"] * 12_345}), os.path.join(OUT, "many_rows.parquet"), write_statistics=False)
    write_arrow("twice.arrow", pa.table([["a"], ["b"]], names=["text", "text"]))
    nulls = pa.list_(pa.list_(pa.null(), 50_000), 40_000)
    write_arrow("nulls.arrow", pa.table({"text": pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(pa.nulls(40_000 * 50_000), 50_000), type=nulls)}))
    # Views of one list that has no JSON: its keys are left out.
    empty = pa.StructArray.from_arrays([pa.nulls(2_000)] * 200, [f"k{i}" for i in range(200)])
    views = pa.ListViewArray.from_arrays(pa.array([0] * 2_000, pa.int32()), pa.array([2_000] * 2_000, pa.int32()), empty)
    write_arrow("views.arrow", pa.table({"text": views}), rows=2_000)
    repeated()


def repeated():
    """Files whose index lists the same data several times."""
    path = os.path.join(OUT, "repeated.parquet")
    pq.write_table(pa.table({"text": ["once" * 100]}), path, compression="none", write_statistics=False,
                   store_schema=False)
    index = pq.read_metadata(path)
    for _ in range(9):
        index.append_row_groups(pq.read_metadata(path))
    written = io.BytesIO()
    index.write_metadata_file(written)
    with open(path, "rb") as file:
        content = file.read()
    with open(path, "wb") as file:
        file.write(content[:-8 - int.from_bytes(content[-8:-4], "little")] + written.getvalue()[4:])

    path = os.path.join(OUT, "repeated.arrow")
    write_arrow("repeated.arrow", pa.table({"text": ["first", "second"]}), pa.ipc.new_file, rows=1)
    with open(path, "rb") as file:
        content = file.read()
    blocks = []  # of the index: offset, size of the metadata and of the body
    with pa.BufferReader(content[8:]) as stream:
        for _ in range(3):
            offset = 8 + stream.tell()
            body = pa.ipc.read_message(stream).body
            size = 0 if body is None else body.size
            blocks.append(struct.pack("<qi4xq", offset, 8 + stream.tell() - offset - size, size))
    assert content.count(blocks[1]) == content.count(blocks[2]) == 1
    with open(path, "wb") as file:
        file.write(content.replace(blocks[2], blocks[1]))


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    rows = hub()
    saved(rows)
    chat()
    labels()
    types()
    hostile()
    with open(os.path.join(OUT, "SOURCES.md"), "w") as file:
        file.write("Tables by `script/make_table_fixtures.py` with datasets 5.2.0 and pyarrow 26.0.1, from the text of\n"
                   "`recipe/data/tinyshakespeare.txt` (public domain) and some of our own; under Lehr's licence.\n")


main()
