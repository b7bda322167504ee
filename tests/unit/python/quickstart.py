# SPDX-License-Identifier: Apache-2.0
"""The text and the table of `nebula quickstart`, with catalogues that this test writes."""
import contextlib
import importlib.util
import io
import pathlib
import struct
import tempfile

package = pathlib.Path(__file__).resolve().parents[3] / "agent/lib/python/nebula"
spec = importlib.util.spec_from_file_location("quickstart", package / "quickstart.py")
quickstart = importlib.util.module_from_spec(spec)
spec.loader.exec_module(quickstart)


def mo(messages: dict[str, str]) -> bytes:
    """A message catalogue, in the format of GNU gettext."""
    pairs = sorted((k.encode(), v.encode()) for k, v in messages.items())
    tables, strings, at = [b"", b""], b"", 28 + 16 * len(pairs)
    for side in (0, 1):
        for pair in pairs:
            tables[side] += struct.pack("<2I", len(pair[side]), at + len(strings))
            strings += pair[side] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + tables[0] + tables[1] + strings


with tempfile.TemporaryDirectory() as folder:
    django, text = pathlib.Path(folder, "django"), pathlib.Path(folder, "text")
    many = {f"message {i:02}": f"{i:02} in" for i in range(quickstart.MESSAGES + 1)}
    for language in quickstart.LANGUAGES:
        own = {k: f"{v} {language}" for k, v in many.items()}
        own |= {"": "Content-Type: text/plain; charset=UTF-8\n", "verb\4open": "x",
                "one\0two": "x\0y",
                f"only in {language}": "x"}
        file = django / f"contrib/admin/locale/{language}/LC_MESSAGES/django.mo"
        file.parent.mkdir(parents=True)
        file.write_bytes(mo(own))
    assert quickstart.write_text(django, text) == len(many)
    names = sorted(p.relative_to(text / "en") for p in (text / "en").iterdir())
    assert [str(n) for n in names] == ["contrib-admin-django-0000.txt",
                                       f"contrib-admin-django-00{quickstart.MESSAGES}.txt"]
    for language in quickstart.LANGUAGES:  # the same files in each language, line by line
        for name in names:
            english = (text / "en" / name).read_text().splitlines()
            other = (text / language / name).read_text().splitlines()
            assert other == [f"{m.removeprefix('message ')} in {language}" for m in english], other


def summary(*losses: float) -> dict:
    return {"params": 9, "trainable_params": 5, "reduction_vs_sync_fp32": 40.4, "clusters": [
        {"name": f"c{i}", "steps": 10, "eval_loss": loss, "wan_sent_bytes": 1e6 * (i + 1),
         "params_digest": "d"} for i, loss in enumerate(losses)]}


shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    assert quickstart.table(summary(3, 4), summary(2.5, 2.5), summary(2))
    assert not quickstart.table(summary(3, 2.5), summary(2.5, 2.5), summary(2))
lines = shown.getvalue()
assert "federated (Nebula)                    2.500        1.5 MB        40x" in lines, lines
assert "0.500 nats lower\ndigests equal on both clusters: true" in lines, lines
