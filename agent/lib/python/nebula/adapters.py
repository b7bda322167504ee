# SPDX-License-Identifier: Apache-2.0
"""Teachers for nebula.sides: a Hugging Face model, and a server with prompt log-probabilities.

    with nebula.teacher("tokenizer.json") as t:
        teach(t, HuggingFace(AutoModelForCausalLM.from_pretrained(...)))
        # or: teach(t, Server("http://127.0.0.1:8000/v1", "my-model"))

Both take token ids, so the model's tokenizer must be the job's; nebula.align has labels of a model
with another one.
"""
from __future__ import annotations

import hashlib
import http.client
import json
import math
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Sequence

from ._lib import INVALID, IO, Error
from .sides import Teacher, Text, pad

Sequences = Sequence[tuple[Sequence[int], int]]
Labels = tuple[Any, Any]  # ids, log-probabilities: (rows, k)


class Changed(Error):
    """The model behind a server has changed."""


def teach(teacher: Teacher, label: Callable[[Text, int, float], Labels]) -> None:
    """Labels all texts. label: (text, k, temperature) -> ids and log-probabilities. If it has a
    `name`, the teacher says it (Teacher.model): the job ends if the model changes."""
    said = ""
    for text in teacher:
        try:
            if teacher.writes(text.step):
                text = _answered(teacher, text, label)
            labels = label(text, teacher.k, teacher.temperature)
        except Changed as e:
            teacher.fail(str(e))
            raise
        name = getattr(label, "name", "")
        if name != said:
            teacher.model(name)
            said = name
        teacher.put(text, *labels)
        if hasattr(label, "mapped"):
            teacher.mapped(label.mapped)


def _answered(teacher: Teacher, text: Text, label: Any) -> Text:
    """The text of a step with answers of the label's model (distill.source: teacher)."""
    if not hasattr(label, "answer"):
        why = f"distill.source: teacher needs answers, and {type(label).__name__} gives labels only"
        teacher.fail(why)
        raise Error(INVALID, why)
    return teacher.answer(text, label.answer(text, teacher.seq_len + 1))


def _digest(model: Any) -> str:
    """SHA-256 over names and bytes of all parameters and buffers."""
    import torch
    h = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        h.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        h.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return h.hexdigest()


class HuggingFace:
    """Labels with a causal language model, or with an encoder-decoder model: its encoder reads the
    given ids of a sequence, and its decoder the targets. name: of the model and its version; by
    default its type and a digest of its parameters."""

    def __init__(self, model: Any, *, device: Any = None, sequences: int = 64,
                 name: str | None = None) -> None:
        self.name = f"{type(model).__name__} {_digest(model)}" if name is None else name
        self.model = model.to(device).eval() if device else model.eval()
        self.sequences = sequences  # in one pass

    def __call__(self, text: Text, k: int, temperature: float) -> Labels:
        import torch
        ids, logprobs = [], []
        with torch.inference_mode():
            for at in range(0, len(text.sequences), self.sequences):
                part = Text(text.step, text.student, text.sequences[at:at + self.sequences])
                logits = self._logits(part).float()
                top = torch.log_softmax(logits / temperature, -1).topk(k, -1)
                ids.append(top.indices)
                logprobs.append(top.values)
        return torch.cat(ids), torch.cat(logprobs)

    def answer(self, text: Text, longest: int) -> list[list[int]]:
        """The most likely continuation of each prompt, of at most `longest` ids with the prompt."""
        import torch
        model, prompts = self.model, [ids[:prefix] for ids, prefix in text.sequences]
        seq2seq, end = model.config.is_encoder_decoder, model.generation_config.eos_token_id
        ends = set(end if isinstance(end, list) else [end])
        answers: list[list[int]] = []
        for at in range(0, len(prompts), self.sequences):
            part = prompts[at:at + self.sequences]
            n = max(map(len, part))
            x = torch.zeros((len(part), n), dtype=torch.long)
            mask = torch.zeros_like(x)
            for i, ids in enumerate(part):  # a decoder's prompts end together
                where = slice(0, len(ids)) if seq2seq else slice(n - len(ids), n)
                x[i, where], mask[i, where] = torch.tensor(ids), 1
            with torch.inference_mode():
                out = model.generate(input_ids=x.to(model.device), attention_mask=mask.to(
                    model.device), max_new_tokens=longest - min(map(len, part)), do_sample=False,
                    num_beams=1, pad_token_id=0)
            for ids, row in zip(part, out[:, 1 if seq2seq else n:].tolist()):
                stop = next((i + 1 for i, id in enumerate(row) if id in ends), len(row))
                answers.append(row[:min(stop, longest - len(ids))])
        return answers

    def _logits(self, text: Text) -> Any:
        """(rows, vocabulary), of the positions that predict a target."""
        import torch
        model, device = self.model, self.model.device
        if not model.config.is_encoder_decoder:
            x, y, mask = (v.to(device) for v in pad(text))
            return model(input_ids=x, attention_mask=mask).logits[y != -100]
        n = max(prefix for _, prefix in text.sequences)
        source = torch.zeros((len(text.sequences), n), dtype=torch.long)
        mask = torch.zeros_like(source)
        start = model.config.decoder_start_token_id
        decoded = Text(text.step, text.student,
                       [([start, *ids[prefix:]], 1) for ids, prefix in text.sequences])
        for i, (ids, prefix) in enumerate(text.sequences):
            source[i, :prefix] = torch.tensor(ids[:prefix])
            mask[i, :prefix] = 1
        x, y, seen = (v.to(device) for v in pad(decoded))
        out = model(input_ids=source.to(device), attention_mask=mask.to(device),
                    decoder_input_ids=x, decoder_attention_mask=seen)
        return out.logits[y != -100]


class Server:
    """Labels with a server that speaks the OpenAI protocol's completions and returns
    `prompt_logprobs`, as vLLM does. most: its cap of log-probabilities (vLLM: --max-logprobs);
    sequences: prompts in one request; tries and wait_s: retries of what may pass (429, 5xx, a
    broken connection), with twice the wait each time; timeout_s: of one request. A server that
    cannot be reached raises nebula.Error with status IO, an answer that is no use INVALID. The
    server's model is named by `model` and `system_fingerprint` of its answers."""

    def __init__(self, url: str, model: str, *, key: str | None = None, most: int = 20,
                 sequences: int = 16, tries: int = 6, wait_s: float = 1, timeout_s: float = 120):
        self.url, self.model, self.most, self.sequences = url.rstrip("/"), model, most, sequences
        self.tries, self.wait_s, self.timeout_s = max(tries, 1), wait_s, timeout_s
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        self.name = ""  # of the model, in the last answer

    def __call__(self, text: Text, k: int, temperature: float) -> Labels:
        if k > self.most:
            raise Error(INVALID, f"{self.url} gives at most {self.most} log-probabilities, but the "
                                 f"job asks for {k}: lower distill.k, or raise the server's cap")
        if temperature != 1:
            raise Error(INVALID, f"{self.url} gives log-probabilities at temperature 1, but the "
                                 f"job has distill.temperature {temperature}")
        ids, logprobs = [], []
        for at in range(0, len(text.sequences), self.sequences):
            part = text.sequences[at:at + self.sequences]
            answer = self._post({"model": self.model, "prompt": [list(s) for s, _ in part],
                                 "max_tokens": 1, "temperature": 0, "prompt_logprobs": k})
            self._read(answer, part, k, ids, logprobs)
        return ids, logprobs

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}/completions", json.dumps(body).encode(),
                                         self.headers)
        wait_s = self.wait_s
        for left in reversed(range(self.tries)):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as e:
                why = f"{e.code} {e.read(300).decode(errors='replace')}"
                if e.code != 429 and e.code < 500:
                    raise Error(INVALID, f"{self.url}: {why}") from None
            except (OSError, http.client.HTTPException, ValueError) as e:
                why = str(e) or type(e).__name__
            if left:
                time.sleep(wait_s)
                wait_s *= 2
        raise Error(IO, f"{self.url} ({self.tries} tries): {why}")

    def _read(self, answer: dict[str, Any], part: Sequences, k: int, ids: list[list[int]],
              logprobs: list[list[float]]) -> None:
        digest = answer.get("system_fingerprint")
        name = answer.get("model", "") + (f" {digest}" if digest else "")
        before, self.name = self.name or name, name
        if name != before:
            raise Changed(INVALID, f"{self.url} answered as model '{before}' before, and now as "
                                   f"'{name}': labels of two models must not mix")
        choices = sorted(answer.get("choices", []), key=lambda c: c.get("index", 0))
        if len(choices) != len(part):
            raise Error(INVALID, f"{self.url}: {len(choices)} answers to {len(part)} prompts")
        for (sequence, prefix), choice in zip(part, choices):
            rows = choice.get("prompt_logprobs") or []
            if len(rows) != len(sequence):
                raise Error(INVALID, f"{self.url}: log-probabilities of {len(rows)} of "
                                     f"{len(sequence)} tokens: it has shortened the prompt, or "
                                     "knows no prompt_logprobs")
            for row in rows[prefix:]:
                top = sorted(((x["logprob"] if isinstance(x, dict) else x, int(id))
                              for id, x in row.items()), key=lambda t: (-t[0], t[1]))[:k]
                if len(top) < k or not all(math.isfinite(p) for p, _ in top):
                    raise Error(INVALID, f"{self.url}: {len(top)} log-probabilities, not {k}")
                ids.append([id for _, id in top])
                logprobs.append([0.0 if 0 < p < 1e-6 else p for p, _ in top])  # rounding
