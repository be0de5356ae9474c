# SPDX-License-Identifier: MIT
"""The rules of the Container Device Interface that packaging/cdi must keep."""
import re

# The additions of each version of the specification. A file must ask for no later version than it uses.
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
PREFIX = re.compile(rf"(?=.{{1,253}}$)(?=[A-Za-z]){LABEL}(\.{LABEL})*")
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
DEVICE = re.compile(r"[A-Za-z]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

# Keys, with the type of each; those of the first set must be there.
FILE = ({"cdiVersion", "kind", "devices"},
        {"cdiVersion": str, "kind": str, "devices": list, "containerEdits": dict})
ENTRY = ({"name", "containerEdits"}, {"name": str, "containerEdits": dict})
EDITS = (set(), {"env": list, "deviceNodes": list, "mounts": list, "hooks": list})
NODE = ({"path"}, {"path": str, "type": str, "major": int, "minor": int, "fileMode": int,
                   "permissions": str, "uid": int, "gid": int})


def shape(thing, rules, where):
    """Return complaints about an object's keys and their types. Readers refuse unknown keys."""
    required, types = rules
    if not isinstance(thing, dict):
        return [f"{where} is no object"]
    return ([f"{where} lacks {key}" for key in sorted(required - thing.keys())] +
            [f"{where} has the unknown key {key}" for key in sorted(thing.keys() - types.keys())] +
            [f"{where}.{key} is no {kind.__name__}" for key, kind in types.items()
             if key in thing and type(thing[key]) is not kind])


def node(thing, where):
    found = shape(thing, NODE, where)
    if found:
        return found
    if not thing["path"].startswith("/"):
        found.append(f"{where}.path is not absolute")
    if thing.get("type", "c") not in ("b", "c", "u", "p"):
        found.append(f"{where}.type is no type of a device")
    if thing.get("permissions", "r").strip("rwm"):
        found.append(f"{where}.permissions has letters other than r, w, m")
    return found + [f"{where}.{key} is negative" for key in ("major", "minor", "uid", "gid", "fileMode")
                    if thing.get(key, 0) < 0]


def edits(thing, where):
    found = shape(thing, EDITS, where)
    if found:
        return found
    if not any(thing.values()):
        return [f"{where} is empty"]
    return [complaint for i, each in enumerate(thing.get("deviceNodes", []))
            for complaint in node(each, f"{where}.deviceNodes[{i}]")]


def complaints(spec):
    """Return the faults of a specification: a list of sentences, empty when it is valid."""
    found = shape(spec, FILE, "the file")
    if found:
        return found
    prefix, slash, name = spec["kind"].partition("/")
    if not (slash and PREFIX.fullmatch(prefix) and NAME.fullmatch(name)):
        found.append("kind is not PREFIX/NAME")
    if spec["cdiVersion"] not in VERSIONS:
        found.append("cdiVersion is no published version")
    if not spec["devices"]:
        found.append("there is no device")
    for i, device in enumerate(spec["devices"]):
        where = f"devices[{i}]"
        wrong = shape(device, ENTRY, where)
        if not wrong:
            if not DEVICE.fullmatch(device["name"]):
                wrong.append(f"{where}.name is no name of a device")
            wrong += edits(device["containerEdits"], f"{where}.containerEdits")
        found += wrong
    names = [device.get("name") for device in spec["devices"] if isinstance(device, dict)]
    if len(set(names)) != len(names):
        found.append("two devices have one name")
    if "containerEdits" in spec:
        found += edits(spec["containerEdits"], "containerEdits")
    return found
