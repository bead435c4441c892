#!/usr/bin/env python3
"""Writes recipe/data/names.jsonl and names_validation.jsonl: lines of Shakespeare, with the label 1 for names.

    python script/make_names.py     (in the repository)

A name is a capitalised word that speaks somewhere in the text ("ROMEO:"), and is not written in small letters elsewhere.
"""
import json, random, re

lines = open("recipe/data/tinyshakespeare.txt").read().splitlines()
speakers = {word.capitalize() for line in lines if re.fullmatch(r"[A-Z]+( [A-Z]+)*:", line)
            for word in re.findall(r"[A-Z]{3,}", line)}
speeches = [line for line in lines if not line.endswith(":")]
common = set(re.findall(r"\b[a-z]+\b", " ".join(speeches)))
names = {name for name in speakers if name.lower() not in common}

rows = []
for line in speeches:
    tokens = re.findall(r"[A-Za-z]+(?:'[a-z]+)?|[^\sA-Za-z]", line)
    tags = [int(token in names) for token in tokens]
    # A name inside of the line: its first word is always capitalised.
    if any(tags[1:]) and 4 <= len(tokens) <= 9 and len(line) < 42:
        rows.append({"tokens": tokens, "ner_tags": tags})
random.Random(1).shuffle(rows)
for name, part in {"names": rows[:140], "names_validation": rows[140:180]}.items():
    with open(f"recipe/data/{name}.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in part)
