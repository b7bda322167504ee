# SPDX-License-Identifier: Apache-2.0
"""Reads TensorBoard event files without any package, and prints each scalar as a JSON line. It
follows the descriptions of the formats and shares no code with the writer. usage: tfevents.py DIR…
Exit status 1 if a record is damaged. A record that is cut at the end of its file is skipped, as
TensorBoard does, and counted."""
import json
import pathlib
import struct
import sys

TABLE = []
for i in range(256):
    for _ in range(8):
        i = (i >> 1) ^ 0x82F63B78 if i & 1 else i >> 1
    TABLE.append(i)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for b in data:
        crc = TABLE[(crc ^ b) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        if at + 12 > len(data):
            return
        length, crc = struct.unpack_from("<QI", data, at)
        if masked_crc(data[at:at + 8]) != crc:
            raise ValueError(f"length at {at} damaged")
        if at + 16 + length > len(data):
            return
        body = data[at + 12:at + 12 + length]
        if masked_crc(body) != struct.unpack_from("<I", data, at + 12 + length)[0]:
            raise ValueError(f"record at {at} damaged")
        yield body
        at += 16 + length


def fields(data):  # protobuf: (number, value)
    at = 0

    def varint():
        nonlocal at
        shift = value = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 2:
            n = varint()
            value = data[at:at + n]
            assert len(value) == n
            at += n
        else:
            n, form = {1: (8, "<d"), 5: (4, "<f")}[kind]
            value = struct.unpack_from(form, data, at)[0]
            at += n
        yield key >> 3, value


cut = 0
for folder in sys.argv[1:]:
    for run in sorted(p for p in pathlib.Path(folder).iterdir() if p.is_dir()):
        for path in sorted(run.iterdir()):
            data = path.read_bytes()
            whole = 0
            for n, record in enumerate(records(data)):
                whole += 16 + len(record)
                event = dict(fields(record))
                if n == 0:
                    assert event[3] == b"brain.Event:2", path
                line = {"run": run.name, "file": path.name, "wall": event[1],
                        "step": event.get(2, 0)}
                if 7 in event:
                    print(json.dumps(line | {"start": dict(fields(event[7]))[1]}))
                for number, value in fields(event.get(5, b"")):
                    value = dict(fields(value))
                    assert number == 1
                    print(json.dumps(line | {"tag": value[1].decode(), "value": value[2]}))
            cut += whole != len(data)
print(f"{cut} files cut short", file=sys.stderr)
