#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reads a JSON document from stdin and fails if it does not obey the JSON Schema in a file: schema.py FILE

It knows what the schemas of farblk use, and refuses a schema with anything else.
"""

import json
import sys

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float), "integer": int}
# These say nothing about a document; those of "format" are widths of integers.
WORDS = {"$schema", "$comment", "$defs", "title", "description", "format"}


def is_type(value, name):
    # A bool of Python is an int, too.
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def faults(schema, value, root, place="the document"):
    """What is wrong with a value, in words."""
    if schema is True:
        return
    if schema is False:
        yield f"{place} may not be there"
        return
    unknown = set(schema) - WORDS - {"$ref", "type", "const", "enum", "minimum", "maximum", "items", "properties", "required",
                                     "additionalProperties", "oneOf", "anyOf"}
    if unknown:
        yield f"{place}: schema.py does not know {' '.join(sorted(unknown))}"
    if "$ref" in schema:
        yield from faults(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root, place)
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type(value, name) for name in types):
        yield f"{place} is {json.dumps(value)}, no {' or '.join(types)}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{place} is {json.dumps(value)}, not {json.dumps(schema['const'])}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place} is {json.dumps(value)}, none of {json.dumps(schema['enum'])}"
    if is_type(value, "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{place} is {value}, which is out of range"
    for word in "oneOf", "anyOf":
        if word not in schema:
            continue
        all_of = [list(faults(one, value, root, place)) for one in schema[word]]
        fits = sum(not one for one in all_of)
        if fits == 0 or word == "oneOf" and fits > 1:
            yield f"{place} fits to {fits} of {len(all_of)}: {'; '.join(fault for one in all_of for fault in one)}"
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from faults(schema["items"], item, root, f"{place}[{index}]")
    if isinstance(value, dict):
        members = schema.get("properties", {})
        yield from (f"{place} has no {name}" for name in schema.get("required", []) if name not in value)
        for name, item in value.items():
            yield from faults(members.get(name, schema.get("additionalProperties", True)), item, root, f"{place}.{name}")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    found = list(faults(schema, json.load(sys.stdin), schema))
    if found:
        sys.exit("\n".join(found))


main()
